"""Validates JSON values against shapes: types, ranges, patterns, lists and objects, declared as plain Python data."""

import re
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Nullable:
    """A value of a shape, or null."""

    shape: Any


@dataclass(frozen=True, slots=True)
class Bounded:
    """A list or an object of a shape with a bounded number of members."""

    most: int
    shape: Any


def fault(value: object, shape: Any, name: str) -> str | None:  # noqa: ANN401 - shapes nest
    """Return the first difference between a value and a shape, as a clause; None if the value fits.

    The clause names the place in the value and contains no data of it.

    Parameters
    ----------
    shape
        A type; a range (an int within it); a pattern (text that fully matches); ``[shape]`` (a list of such items);
        ``(shape, ...)`` (a list with one item per shape); ``{key: shape, ...}`` (an object with at least these keys);
        ``{...: shape}`` (an object with any keys); ``{pattern: shape}`` (an object whose keys match); `Nullable`;
        `Bounded`.
    name
        Name of the value in the clause.
    """
    clause = _fault(value, shape)
    return None if clause is None else f"{name}{clause}"


def _fault(value: object, shape: Any) -> str | None:  # noqa: ANN401, PLR0911 - one return for each kind of shape
    """Return the path within the value, empty for the value itself, followed by the problem."""
    kind = type(shape)
    if kind is range:  # `type` instead of `isinstance`: True is not a number
        return None if type(value) is int and value in shape else _no_number(value, shape)
    if kind is type:
        return None if type(value) is shape or (isinstance(value, shape) and shape is not int) else _no(shape.__name__)
    if kind is re.Pattern:
        return None if isinstance(value, str) and shape.fullmatch(value) else f" does not match {shape.pattern}"
    if kind is list or kind is tuple:
        return _items(value, shape) if isinstance(value, list) else _no("list")
    if kind is dict:
        return _members(value, shape) if isinstance(value, dict) else _no("object")
    if kind is Nullable:
        return None if value is None else _fault(value, shape.shape)
    if isinstance(value, (list, dict)) and len(value) > shape.most:
        return f" has more than {shape.most} members"
    return _fault(value, shape.shape)


def _no(type_name: str) -> str:
    return f" is no {type_name}"


def _no_number(value: object, shape: range) -> str:
    if type(value) is not int:
        return _no("int")
    return f" is not within {shape.start} to {shape.stop - 1}"


def _items(value: list[object], shape: Any) -> str | None:  # noqa: ANN401 - likewise
    if type(shape) is tuple and len(value) != len(shape):
        return f" has not {len(shape)} members"
    for place, item in enumerate(value):
        clause = _fault(item, shape[0] if type(shape) is list else shape[place])
        if clause is not None:
            return f"[{place}]{clause}"
    return None


def _members(value: dict[str, object], shape: dict[Any, Any]) -> str | None:
    first = next(iter(shape), None)
    if first is ... or type(first) is re.Pattern:
        for key, item in value.items():
            if first is not ... and not first.fullmatch(key):
                return f" has a key that does not match {first.pattern}"
            clause = _fault(item, shape[first])
            if clause is not None:  # any text may be a key; show only harmless ones
                return f".{key}{clause}" if first is ... and key.isidentifier() else f"[…]{clause}"
        return None
    missing = sorted(shape.keys() - value.keys())
    if missing:
        return f" lacks {', '.join(missing)}"
    for key, item in shape.items():
        clause = _fault(value[key], item)
        if clause is not None:
            return f".{key}{clause}"
    return None
