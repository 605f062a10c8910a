"""Own numbers: where the numbers that an overlay adds to ``steps`` stand in a step's slot, and how they are packed."""

import struct
from collections.abc import Mapping
from typing import Final

from ranklake.capture.common.layouts import OWN_STEPS, OWN_WIDTH
from ranklake.capture.common.values import BadValueError, integer, number

_FLOAT: Final = struct.Struct("<d")
_PRESENT: Final = struct.Struct("<I")
_AT: Final = OWN_STEPS.offset("own")
_PRESENT_AT: Final = OWN_STEPS.offset("own_present")
_EXACT: Final = 1 << 53
"""Whole numbers up to here are doubles without loss."""

pack: Final = OWN_STEPS.packer.pack_into


class OwnNumbers:
    """The numbers of one process, in the order that meta.frames says.

    Parameters
    ----------
    columns
        By name, whether they are whole.
    """

    def __init__(self, columns: Mapping[str, bool]) -> None:
        self._whole = dict(columns)
        self._places = {name: place for place, name in enumerate(columns)}

    def __contains__(self, name: object) -> bool:
        return name in self._places

    @property
    def names(self) -> dict[str, str]:
        """Names that `run.log` takes for them: their own."""
        return {name: name for name in self._places}

    def value(self, name: str, given: object) -> float:
        """Return what is written for a value. Raises what `number` raises."""
        if not self._whole[name]:
            return number(given)
        whole = integer(given)
        if abs(whole) > _EXACT:
            raise BadValueError("a whole number beyond 53 bits")
        return float(whole)

    def fields(self, floats: Mapping[str, float]) -> list[float]:
        """Return the last fields of a slot, but for its mark: all numbers, and which of them are there."""
        values = [0.0] * OWN_WIDTH
        present = 0
        for name, place in self._places.items():
            value = floats.get(name)
            if value is not None:
                values[place] = value
                present |= 1 << place
        return [*values, present]

    def fill(self, view: memoryview, offset: int, name: str, value: float) -> bool:
        """Set a number in a row that was written; False if there is one. Raises `ValueError` if the file was ended."""
        place = self._places[name]
        at = offset + _PRESENT_AT
        present = _PRESENT.unpack_from(view, at)[0]
        if present & 1 << place:
            return False
        _FLOAT.pack_into(view, offset + _AT + place * _FLOAT.size, value)
        _PRESENT.pack_into(view, at, present | 1 << place)
        return True
