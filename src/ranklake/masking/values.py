"""Masks of single values, in the forms in which rows are recorded: numbers, texts, microseconds since 1970, days.

They give what `ranklake.masking.columns` gives of a column, without pyarrow: a process that trains has no room for it.
"""

import math
import struct
from collections.abc import Callable, Mapping
from datetime import UTC, date, datetime, timedelta
from decimal import ROUND_FLOOR, Decimal, localcontext
from types import MappingProxyType
from typing import Any, Final

from ranklake.masking.masks import Mask
from ranklake.masking.text import domain_kept, ends_kept, redacted

Change = Callable[[Any], Any]
"""Gives the masked form of a value that is not NULL; None where it has none."""
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_DAY_0: Final = date(1970, 1, 1)
_WHOLE: Final[Mapping[str, int]] = MappingProxyType({"int32": 1 << 31, "int64": 1 << 63})
_DIGITS: Final = 60
MOST_BUCKETS: Final = 2.0**52
"""Of a float that is that many buckets away from 0 the next one is further away than a bucket: it stays as it is."""


def change_of(mask: Mask, type_: str, hashed: Callable[[str], str | None]) -> Change:
    """Return what a mask makes of values of a contract's type that it fits.

    Parameters
    ----------
    hashed
        What ``hash`` makes of a text; None where there is no key.
    """
    made: Mapping[str, Callable[[], Change]] = {
        "nullify": lambda: _nothing,
        "hash": lambda: lambda value: hashed(str(value)),
        "redact": lambda: lambda value: redacted(str(value)),
        "keep": lambda: _keep(mask),
        "bucket": lambda: _bucket(mask.width, type_),
        "truncate": lambda: _cut_day(mask.how) if type_ == "date" else _cut_moment(mask.how),
    }
    return made[mask.kind]()


def _keep(mask: Mask) -> Change:
    prefix, suffix = mask.kept
    if mask.how == "domain":
        return lambda value: domain_kept(str(value))
    return lambda value: ends_kept(str(value), prefix, suffix)


def _nothing(value: object) -> None:
    del value


def _bucket(width: Decimal, type_: str) -> Change:
    if type_ == "int64_list":
        one = _bucket(width, "int64")
        return lambda values: [None if value is None else one(value) for value in values]
    if type_ == "decimal":
        return lambda value: _of_decimal(value, width)
    if type_ in _WHOLE:
        whole, limit = int(width), _WHOLE[type_]
        return lambda value: low if (low := int(value) // whole * whole) >= -limit else None
    as_stored = _narrow if type_ == "float32" else float
    return lambda value: _of_float(as_stored(value), float(width), as_stored)


def _of_float(value: float, width: float, as_stored: Callable[[float], float]) -> float | None:
    if not math.isfinite(value) or not abs(value / width) < MOST_BUCKETS:
        return value
    bucket = math.floor(value / width)
    low, after = as_stored(bucket * width), as_stored((bucket + 1) * width)
    low = after if after <= value else as_stored((bucket - 1) * width) if low > value else low
    return low if math.isfinite(low) else None


def _narrow(value: float) -> float:
    """Return a value as a float of 32 bits holds it."""
    try:
        found: float = struct.unpack("<f", struct.pack("<f", value))[0]
    except OverflowError:
        return math.copysign(math.inf, value)
    return found


def _of_decimal(value: object, width: Decimal) -> str:
    with localcontext(prec=_DIGITS):
        return str((Decimal(str(value)) / width).to_integral_value(ROUND_FLOOR) * width)


def _cut_moment(unit: str) -> Change:
    def cut(value: int) -> int:
        moment = _EPOCH + timedelta(microseconds=value)
        at = moment.replace(minute=0, second=0, microsecond=0) if unit == "hour" else moment
        at = moment.replace(second=0, microsecond=0) if unit == "minute" else at
        if unit not in {"hour", "minute"}:
            at = datetime.combine(_begun(moment.date(), unit), datetime.min.time(), UTC)
        return (at - _EPOCH) // timedelta(microseconds=1)

    return cut


def _cut_day(unit: str) -> Change:
    return lambda value: (_begun(_DAY_0 + timedelta(days=value), unit) - _DAY_0).days


def _begun(day: date, unit: str) -> date:
    """Return the first day of the year, quarter, month or week of a day."""
    if unit == "year":
        return day.replace(month=1, day=1)
    if unit == "quarter":
        return day.replace(month=(day.month - 1) // 3 * 3 + 1, day=1)
    if unit == "month":
        return day.replace(day=1)
    return day - timedelta(days=day.weekday()) if unit == "week" else day
