"""Values: converts users' values to plain numbers and texts that can be recorded."""

import dataclasses
import json
import math
import numbers
from collections.abc import Callable, Mapping
from itertools import islice
from types import SimpleNamespace
from typing import Any, Final, Self

from ranklake.redaction.redact import redact, redact_names

PLAIN: Final = frozenset({float, int, bool})
"""Types whose conversion to a number runs no foreign code."""

ABSURDLY_LONG: Final = 1 << 16
_CUT: Final = " […]"
_LEFT_OUT: Final = "more than is kept"
_LEAST: Final = 16
_LOOKED_AT: Final = 4096
_ITEM_CHARACTERS: Final = 8
MOST_ITEMS: Final = 2048
MOST_CHARACTERS: Final = 1 << 17
"""Of one value; so much takes 20 ms to convert, redact and write."""


class BadValueError(Exception):
    """Not a number."""


class DeviceValueError(Exception):
    """A number that is still on its device; reading it here would make training wait."""


_plain_float: Final[Callable[[Any], float]] = float.__pos__
_plain_int: Final[Callable[[Any], int]] = int.__pos__
"""The plain number in an instance of a subclass, whose own code is not asked."""


def number(value: object) -> float:
    """Return a number as a float; NaN and infinities pass.

    Takes bool, int, float, numpy and torch scalars of every real dtype (also arrays and tensors of one element),
    Decimal, Fraction.

    Raises
    ------
    BadValueError
        Text, complex numbers, None, several values, or an integer beyond the range of a double.
    DeviceValueError
        A tensor that is not in main memory.
    """
    kind = type(value)
    if issubclass(kind, float):
        return _plain_float(value)
    if issubclass(kind, int):
        return _float(_plain_int(value))
    try:
        where = getattr(value, "device", None)
        device = text(getattr(where, "type", None) or getattr(where, "platform", "cpu"))  # torch's word, jax's word
        if device == "cpu":
            item = getattr(value, "item", None)
            value = value if item is None else item()
            real = isinstance(value, numbers.Real) or hasattr(value, "as_integer_ratio")
    except Exception as error:
        raise BadValueError(kind.__name__) from error
    if device != "cpu":
        raise DeviceValueError(device)
    if real:
        return _float(value)
    raise BadValueError(type(value).__name__)


def _float(value: Any) -> float:  # noqa: ANN401 - anything that float() takes
    try:
        return float(value)
    except Exception as error:
        raise BadValueError(f"{type(value).__name__} out of range") from error


def integer(value: object) -> int:
    """Return a whole number that fits 63 bits and a sign. Raises what `number` raises."""
    whole = _plain_int(value) if issubclass(type(value), int) else _whole_number(value)
    if not -(1 << 63) < whole < 1 << 63:
        raise BadValueError("an integer beyond 64 bits")
    return whole


def _whole_number(value: object) -> int:
    near = number(value)
    if not math.isfinite(near) or near != int(near):
        raise BadValueError(repr_of(value))
    try:  # a numpy or torch integer beyond 53 bits is exact by its own word
        item = getattr(value, "item", None)
        exact = near if item is None else item()
    except Exception as error:
        raise BadValueError(type(value).__name__) from error
    return _plain_int(exact) if issubclass(type(exact), int) else int(near)


def text(value: object, longest: int = ABSURDLY_LONG) -> str:
    """Return something as text that UTF-8 can carry, cut at `longest` characters; never raises."""
    try:
        shown = value if isinstance(value, str) else str(value)
    except Exception:  # noqa: BLE001 - the str of a user's object may raise anything
        shown = f"<{type(value).__name__}>"
    shown = shown if len(shown) <= longest else shown[: longest - len(_CUT)] + _CUT
    return shown.encode("utf-8", "replace").decode()


def redacted_text(value: object, longest: int) -> str:
    """Return something as `text` does, without what looks like a credential: it goes first, so that none is cut.

    Of what is longer, twice as much as is kept is looked at.
    """
    return text(redact(text(value, 2 * longest + _LOOKED_AT)), longest)


def redacted_name(value: object, longest: int) -> str:
    """Return a name or a setting as `redacted_text` does; what merely looks drawn at random stays."""
    return text(redact_names(text(value, 2 * longest + _LOOKED_AT)), longest)


def json_text(value: object) -> str | None:
    """Return JSON of something, what JSON does not know being shown as text; None for None or an empty mapping."""
    if value is None or value == {}:
        return None
    return json.dumps(to_json(value), sort_keys=True, separators=(",", ":"), allow_nan=False)


class Room:
    """How many items and characters of a value are kept: what a user nests has no end, and training waits for it.

    Attributes
    ----------
    is_short
        Whether something was left out for lack of room.
    """

    __slots__ = ("characters", "is_short", "items")

    def __init__(self, items: int = MOST_ITEMS, characters: int = MOST_CHARACTERS) -> None:
        self.items, self.characters, self.is_short = items, characters, False

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> None:
        if self.items <= 0 or self.characters <= 0:
            self.is_short = True
            raise StopIteration
        self.items -= 1
        self.characters -= _ITEM_CHARACTERS

    def fit(self, value: object, longest: int) -> str:
        """Return a value's text, cut at `longest` characters and at what there is room for."""
        most = max(_LEAST, min(longest, self.characters))
        shown = text(value, most)
        self.is_short |= shown.endswith(_CUT)
        self.characters -= len(shown)
        return shown


def to_json(  # noqa: PLR0911 - a line for each kind of value
    value: object, depth: int = 8, room: Room | None = None
) -> Any:  # noqa: ANN401 - JSON
    """Return something as what JSON has: keys are texts, NaN and infinities are texts, the unknown is its text.

    Mappings of any kind, dataclasses and namespaces, which hold hyperparameters, are what they hold, by name. Where
    `room` ends, items are left out, and a last one ``[…]`` says so.
    """
    room = Room() if room is None else room
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return room.fit(value, ABSURDLY_LONG)
    if depth == 0:
        return room.fit(value, 80)
    named = _named_values(value)
    if named is not None:
        held = {
            room.fit(key, 256): to_json(item, depth - 1, room)
            for (key, item), _ in zip(named.items(), room, strict=False)
        }
        return held | {_CUT.strip(): _LEFT_OUT} if len(held) < len(named) and room.is_short else held
    if isinstance(value, list | tuple | set | frozenset):
        listed = sorted(islice(value, room.items + 1), key=text) if isinstance(value, set | frozenset) else value
        items = [to_json(item, depth - 1, room) for item, _ in zip(listed, room, strict=False)]
        return [*items, _CUT.strip()] if len(items) < len(value) else items
    if isinstance(value, int) and not isinstance(value, bool):
        return int(value) if abs(value) < 1 << 63 else room.fit(value, ABSURDLY_LONG)
    try:
        value_number = number(value)
    except Exception:  # noqa: BLE001 - a foreign object; its text must do
        return room.fit(value, 1024)
    if not math.isfinite(value_number):
        return "nan" if math.isnan(value_number) else "+inf" if value_number > 0 else "-inf"
    return (
        int(value_number)
        if value_number.is_integer() and not isinstance(value, float) and abs(value_number) < 1 << 53
        else value_number
    )


def _named_values(value: Any) -> dict[Any, Any] | None:  # noqa: ANN401 - anything
    """Return what something holds by name; None if it does not."""
    if type(value) is dict:
        return value
    if type(value) in PLAIN or isinstance(value, list | tuple):
        return None
    try:
        if isinstance(value, Mapping):
            return dict(value.items())
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
        return dict(vars(value)) if isinstance(value, SimpleNamespace) or _is_argparses(value) else None
    except Exception:  # noqa: BLE001 - a foreign object; its text must do
        return None


def _is_argparses(value: object) -> bool:
    return any(kind.__name__ == "Namespace" and kind.__module__ == "argparse" for kind in type(value).__mro__)


def repr_of(value: object) -> str:
    """Return a short repr, even where the object's own fails."""
    try:
        return repr(value)[:120]
    except Exception:  # noqa: BLE001 - the repr of a user's object may raise anything
        return type(value).__name__
