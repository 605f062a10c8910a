"""Double buffer: slots that are overwritten repeatedly and still whole at any moment, even after a kill.

A slot holds its state twice, each copy with a sequence number behind it. A write goes to the older copy, its number
last; readers take the copy with the higher number (see `folded`). So a kill in the middle of a write costs the value
whose call had not returned, and no other.
"""

import struct
from collections.abc import Callable
from typing import Final

from ranklake.capture.common.layouts import HISTOGRAMS, INTERVALS
from ranklake.capture.lanes.shards import AnyLane
from ranklake.capture.lanes.slots import Place
from ranklake.capture.lanes.written import Record

Pack = Callable[..., None]
Field = float | bytes


class DoubleBuffer:
    """How the slots of a layout whose state is there twice are written.

    Parameters
    ----------
    lane
        Where the slots are.
    state
        `struct` codes of one copy, without the sequence number behind it.
    """

    def __init__(self, lane: AnyLane, state: str) -> None:
        copy = struct.Struct(f"<{state}q")
        before = lane.layout.offset("a_end_ns")
        behind = lane.layout.slot_bytes - before - copy.size - 8
        self._lane = lane
        self._pack_first: Pack = struct.Struct(f"<q{state}q{behind}xII").pack_into
        self.pack: Pack = copy.pack_into
        self.copy_bytes = copy.size
        self.places = before + copy.size, before  # of copies with an even and with an odd sequence number

    def begin(self, start_ns: int, series: int, state: tuple[Field, ...]) -> "BufferedSlot | None":
        """Take a slot and write its first state; None if there is no place, which is then counted as one row."""
        # The lane only hands the fields on; bytes are for arrays.
        place = self._lane.put(self._pack_first, start_ns, *state, 1, series)  # type: ignore[arg-type]
        return None if place is None else BufferedSlot(self, place)


class BufferedSlot:
    """One slot in use. One thread writes it."""

    __slots__ = ("_pack", "_places", "_record", "_sequence", "_size", "_view")

    def __init__(self, buffer: DoubleBuffer, place: Place) -> None:
        self._view, offset = place
        self._record = _record_behind(self._view)
        self._pack, self._size = buffer.pack, buffer.copy_bytes
        even, odd = buffer.places
        self._places = offset + even, offset + odd
        self._sequence = 1

    def write(self, state: tuple[Field, ...]) -> bool:
        """Replace the state; False if the file was taken to be sealed, with the state before."""
        sequence = self._sequence + 1
        try:
            self._pack(self._view, self._places[sequence & 1], *state, sequence)
        except (TypeError, ValueError):  # the view is released: decision 007
            return False
        if self._record is not None:  # in memory so far
            begin = self._places[sequence & 1]
            if not self._record.write_again(begin, begin + self._size):
                return False
        self._sequence = sequence
        return True


def _record_behind(view: memoryview) -> Record | None:
    try:
        behind: object = view.obj
    except ValueError:  # released just now: the first write will find that, too
        return None
    return behind if isinstance(behind, Record) else None


INTERVAL_CODES: Final = "".join(code for _, code in INTERVALS.fields[1:10])
HISTOGRAM_CODES: Final = "".join(
    code if len(code) == 1 else f"{8 * int(code[:-1])}s" for _, code in HISTOGRAMS.fields[1:15]
)
"""Arrays of counts are handed over as bytes: three hundred Python integers would take longer than all the rest."""
