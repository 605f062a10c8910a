"""Checks arguments of the Python API. Errors are one line with the argument's name and the accepted values."""

import operator
import reprlib
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any, Final

from ranklake.errors import RanklakeError, did_you_mean

_MOST: Final = 2**62
"""Greatest whole number, with room for additions in 64 bits."""


class ArgumentError(RanklakeError):
    """An argument is of another type, or out of range."""


def instance_of(name: str, value: Any, kinds: type | tuple[type, ...], right: str) -> Any:  # noqa: ANN401 - any type
    """Return a value if it has a type; `right` describes accepted values. Raises `ArgumentError`."""
    if not isinstance(value, kinds):
        raise ArgumentError(
            f"{reprlib.repr(value)} is of type {type(value).__name__}", where=name, hint=f"pass {right}"
        )
    return value


def text(name: str, value: Any, right: str = "a text") -> str:  # noqa: ANN401 - likewise
    """Return a text. Raises `ArgumentError`."""
    result: str = instance_of(name, value, str, right)
    return result


def texts(name: str, value: Any, right: str) -> list[str]:  # noqa: ANN401 - likewise
    """Return a text or several texts as a tuple. Raises `ArgumentError`."""
    if isinstance(value, str):
        return [value]
    if isinstance(value, Mapping):
        instance_of(name, value, str, right)
    return [text(name, item, right) for item in instance_of(name, value, Iterable, right)]


def named_texts(name: str, value: Any, right: str) -> dict[str, str]:  # noqa: ANN401 - likewise
    """Return a mapping of names to texts; None is an empty mapping. Raises `ArgumentError`."""
    items = instance_of(name, {} if value is None else value, Mapping, right).items()
    return {text(name, key, right): "" if item is None else str(item) for key, item in items}


def name_among(name: str, value: Any, known: Iterable[str]) -> str:  # noqa: ANN401 - likewise
    """Return one of the known names. Raises `ArgumentError`."""
    names = tuple(known)
    if (chosen := text(name, value, f"one of {', '.join(names)}")) not in names:
        raise ArgumentError(f"unknown {name} {chosen!r}", where=name, hint=did_you_mean(chosen, names))
    return chosen


def whole_number(name: str, value: Any, *, least: int = -_MOST, right: str) -> int:  # noqa: ANN401 - likewise
    """Return a whole number as `int`, also from numpy types; no bool or text. Raises `ArgumentError`."""
    try:
        number = None if isinstance(value, bool) else operator.index(value)
    except TypeError:
        number = None
    if number is None:
        raise ArgumentError(f"{reprlib.repr(value)} is no whole number", where=name, hint=f"pass {right}")
    if not least <= number <= _MOST:
        raise ArgumentError(f"{reprlib.repr(number)} is out of range", where=name, hint=f"pass {right}")
    return number


def moment(name: str, value: Any) -> datetime | None:  # noqa: ANN401 - likewise
    """Return a time in UTC; without a zone, it is UTC; None stays None. Raises `ArgumentError`."""
    right = "a datetime, such as datetime.now(UTC) - timedelta(days=2)"
    if value is None:
        return None
    at: datetime = instance_of(name, value, datetime, right)
    if value != value:  # noqa: PLR0124 - NaT of pandas
        raise ArgumentError(f"{value!r} is no time", where=name, hint=f"pass {right}")
    try:
        return at.replace(tzinfo=UTC) if at.tzinfo is None else at.astimezone(UTC)
    except (OverflowError, ValueError) as error:
        raise ArgumentError(
            f"{reprlib.repr(value)} is out of range in UTC", where=name, hint=f"pass {right}"
        ) from error
