"""Defaults of columns: what a missing value means, and whether it can be a value of its column at all."""

import math
from collections.abc import Callable, Mapping
from datetime import date, datetime
from decimal import Decimal, InvalidOperation
from typing import Final

from ranklake.lake.contracts.model import Column, Scalar

_INTEGERS: Final = {"int32": 2**31, "int64": 2**63}
_PLACES: Final = 9
_DIGITS: Final = 38 - _PLACES


def default_fault(column: Column) -> str:
    """Return why a column's default cannot be a value of it, in a clause; empty where it can, or there is none."""
    if column.default is None:
        return ""
    fits = _FITS.get(column.type)
    if fits is None:
        return f"a column of type {column.type} takes no default"
    return "" if fits(column.default) else f"default {column.default!r} is no {column.type}"


def _is_integer(limit: int) -> Callable[[Scalar], bool]:
    return lambda value: type(value) is int and -limit <= value < limit


def _is_float(most: float) -> Callable[[Scalar], bool]:
    return lambda value: type(value) in {int, float} and math.isfinite(value) and abs(value) <= most  # type: ignore[arg-type]


def _is_decimal(value: Scalar) -> bool:
    if isinstance(value, bool | float):  # a float is not the number that somebody wrote
        return False
    try:
        found = Decimal(value)
    except InvalidOperation:
        return False
    exponent = found.as_tuple().exponent
    return isinstance(exponent, int) and exponent >= -_PLACES and found.adjusted() < _DIGITS


def _is_moment(value: Scalar) -> bool:
    try:
        return isinstance(value, str) and datetime.fromisoformat(value).tzinfo is not None
    except ValueError:
        return False


def _is_date(value: Scalar) -> bool:
    try:
        return isinstance(value, str) and date.fromisoformat(value).isoformat() == value
    except ValueError:
        return False


_FITS: Final[Mapping[str, Callable[[Scalar], bool]]] = {
    "string": lambda value: isinstance(value, str),
    "bool": lambda value: isinstance(value, bool),
    **{name: _is_integer(limit) for name, limit in _INTEGERS.items()},
    "float32": _is_float(3.4028234e38),
    "float64": _is_float(math.inf),
    "decimal": _is_decimal,
    "timestamp": _is_moment,
    "date": _is_date,
}
