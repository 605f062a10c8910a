"""Values: convert users' values to plain numbers and texts that can be recorded."""

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

MOST_TEXT_CHARACTERS: Final = 1 << 16
_CUT: Final = " […]"
_LEFT_OUT: Final = "more than is kept"
_FEWEST_CHARACTERS: Final = 16
_EXTRA_CHARACTERS: Final = 4096
_CHARACTERS_PER_ITEM: Final = 8
MOST_ITEMS: Final = 2048
MOST_CHARACTERS: Final = 1 << 17
"""Most characters of one value; converting, redacting and writing this many takes 20 ms."""


class BadValueError(Exception):
    """Not a number."""


class DeviceValueError(Exception):
    """A number in the memory of a GPU; reading it would make training wait."""


_plain_float: Final[Callable[[Any], float]] = float.__pos__
_plain_int: Final[Callable[[Any], int]] = int.__pos__
"""Return the plain number in an instance of a subclass, without calling the subclass's code."""


def number(value: object) -> float:
    """Return a number as a float, including NaN and infinities.

    Accepts bool, int, float, Decimal, Fraction, and numpy and torch scalars of every real dtype, also as arrays and
    tensors of one element.

    Raises
    ------
    BadValueError
        The value is text, complex, None, or has several elements, or is an integer outside the range of a double.
    DeviceValueError
        The value is a tensor outside main memory.
    """
    kind = type(value)
    if issubclass(kind, float):
        return _plain_float(value)
    if issubclass(kind, int):
        return _float(_plain_int(value))
    try:
        place = getattr(value, "device", None)
        device = text(getattr(place, "type", None) or getattr(place, "platform", "cpu"))  # torch has type, jax platform
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


def _float(value: Any) -> float:  # noqa: ANN401 - any argument of float()
    try:
        return float(value)
    except Exception as error:
        raise BadValueError(f"{type(value).__name__} out of range") from error


def integer(value: object) -> int:
    """Return a whole number of at most 63 bits and a sign. Raises the errors of `number`."""
    whole = _plain_int(value) if issubclass(type(value), int) else _whole_number(value)
    if not -(1 << 63) < whole < 1 << 63:
        raise BadValueError("an integer beyond 64 bits")
    return whole


def _whole_number(value: object) -> int:
    as_float = number(value)
    if not math.isfinite(as_float) or as_float != int(as_float):
        raise BadValueError(repr_of(value))
    try:  # a numpy or torch integer above 53 bits is exact only by its own method
        item = getattr(value, "item", None)
        exact = as_float if item is None else item()
    except Exception as error:
        raise BadValueError(type(value).__name__) from error
    return _plain_int(exact) if issubclass(type(exact), int) else int(as_float)


def text(value: object, longest: int = MOST_TEXT_CHARACTERS) -> str:
    """Return a value as text that is valid in UTF-8, truncated to `longest` characters. Never raises."""
    try:
        content = value if isinstance(value, str) else str(value)
    except Exception:  # noqa: BLE001 - the str of a user's object may raise anything
        content = f"<{type(value).__name__}>"
    content = content if len(content) <= longest else content[: longest - len(_CUT)] + _CUT
    return content.encode("utf-8", "replace").decode()


def redacted_text(value: object, longest: int) -> str:
    """Return a value as `text` does, with credentials redacted.

    Redaction runs before truncation, so that no credential is cut in half and missed. Of a long text, at most 2 ·
    `longest` + 4,096 characters are searched.
    """
    return text(redact(text(value, 2 * longest + _EXTRA_CHARACTERS)), longest)


def redacted_name(value: object, longest: int) -> str:
    """Return a name or a setting as `redacted_text` does, but keep texts that only look random."""
    return text(redact_names(text(value, 2 * longest + _EXTRA_CHARACTERS)), longest)


def json_text(value: object) -> str | None:
    """Return a value as JSON, with unsupported types as text; None for None or an empty mapping."""
    if value is None or value == {}:
        return None
    return json.dumps(to_json(value), sort_keys=True, separators=(",", ":"), allow_nan=False)


class Room:
    """Limits of items and characters for the conversion of one value, because training waits for it.

    Iterating takes one item from the limit each time, and stops at the limit.

    Attributes
    ----------
    is_short
        Whether anything was left out because of a limit.
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
        self.characters -= _CHARACTERS_PER_ITEM

    def fit(self, value: object, longest: int) -> str:
        """Return a value's text, truncated to `longest` characters and to the remaining limit."""
        content = text(value, max(_FEWEST_CHARACTERS, min(longest, self.characters)))
        self.is_short |= content.endswith(_CUT)
        self.characters -= len(content)
        return content


def to_json(  # noqa: PLR0911 - a line for each kind of value
    value: object, depth: int = 8, room: Room | None = None
) -> Any:  # noqa: ANN401 - JSON
    """Return a value as types of JSON. Keys, NaN, infinities and values of other types become texts.

    Mappings of any kind, dataclasses and namespaces become objects. If a limit of `room` is reached, items are left
    out, and a last item ``[…]`` marks it.
    """
    room = Room() if room is None else room
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return room.fit(value, MOST_TEXT_CHARACTERS)
    if depth == 0:
        return room.fit(value, 80)
    named = _named_values(value)
    if named is not None:
        converted = {
            room.fit(key, 256): to_json(item, depth - 1, room)
            for (key, item), _ in zip(named.items(), room, strict=False)
        }
        return converted | {_CUT.strip(): _LEFT_OUT} if len(converted) < len(named) and room.is_short else converted
    if isinstance(value, list | tuple | set | frozenset):
        ordered = sorted(islice(value, room.items + 1), key=text) if isinstance(value, set | frozenset) else value
        items = [to_json(item, depth - 1, room) for item, _ in zip(ordered, room, strict=False)]
        return [*items, _CUT.strip()] if len(items) < len(value) else items
    if isinstance(value, int) and not isinstance(value, bool):
        return int(value) if abs(value) < 1 << 63 else room.fit(value, MOST_TEXT_CHARACTERS)
    try:
        value_number = number(value)
    except Exception:  # noqa: BLE001 - a foreign object: use its text
        return room.fit(value, 1024)
    if not math.isfinite(value_number):
        return "nan" if math.isnan(value_number) else "+inf" if value_number > 0 else "-inf"
    return (
        int(value_number)
        if value_number.is_integer() and not isinstance(value, float) and abs(value_number) < 1 << 53
        else value_number
    )


def _named_values(value: Any) -> dict[Any, Any] | None:  # noqa: ANN401 - any value
    """Return the items of a mapping, dataclass or namespace; None for other types."""
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
    except Exception:  # noqa: BLE001 - a foreign object: use its text
        return None


def _is_argparses(value: object) -> bool:
    return any(kind.__name__ == "Namespace" and kind.__module__ == "argparse" for kind in type(value).__mro__)


def repr_of(value: object) -> str:
    """Return a repr of at most 120 characters; the type's name if the object's repr fails."""
    try:
        return repr(value)[:120]
    except Exception:  # noqa: BLE001 - the repr of a user's object may raise anything
        return type(value).__name__
