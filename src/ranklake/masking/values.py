"""Masks single values in the form in which rows are recorded: texts, numbers, microseconds since 1970, days.

Results equal those of `ranklake.masking.columns`, without pyarrow, which is too large for a training process.
"""

import json
import math
import struct
from collections.abc import Callable, Mapping
from datetime import UTC, date, datetime, timedelta
from decimal import ROUND_FLOOR, Decimal, localcontext
from types import MappingProxyType
from typing import Any, Final

from ranklake.masking.masks import Mask
from ranklake.redaction.identities import REDACTED, without_identities
from ranklake.redaction.redact import redact

HIDDEN: Final = "*"
_MOST_PASSES: Final = 8
_SEPARATORS: Final = frozenset("-_.@/: ")


def ends_kept(text: str, prefix: int, suffix: int) -> str:
    """Return a text of the same length that shows only a number of characters at each end.

    If more than half would be shown, the whole text is hidden. Separators stay, so that the form is visible.
    """
    if len(text) < 2 * (prefix + suffix):
        return star_text(text)
    end = len(text) - suffix
    return f"{text[:prefix]}{star_text(text[prefix:end])}{text[end:]}"


def domain_kept(text: str) -> str:
    """Return an address with only the part after the last ``@`` shown; other texts are hidden completely."""
    name, at, domain = text.rpartition("@")
    return f"{star_text(name)}@{domain}" if name and at else star_text(text)


def star_text(text: str) -> str:
    """Return a text of the same length that shows only separators."""
    return "".join(character if character in _SEPARATORS else HIDDEN for character in text)


def redact_text(text: str) -> str:
    """Return a text without credentials, addresses and home folders; in JSON, its texts and keys without them.

    A replacement may reveal another match beside it, as in ``10.0.0.7~ada/``, so it is repeated until nothing matches:
    masking a masked text does not change it.
    """
    for _ in range(_MOST_PASSES):
        shown = _redacted(text)
        if shown == text:
            return shown
        text = shown
    return REDACTED


def _redacted(text: str) -> str:
    if text[:1] in {"{", "["}:  # an escape such as \u0040 would hide an address from every pattern
        try:
            shown = json.dumps(_each(redact(json.loads(text)), without_identities), ensure_ascii=False)
            return shown.encode(
                "utf-8", "replace"
            ).decode()  # JSON can escape halves of characters; text cannot hold them
        except RecursionError:
            return REDACTED
        except ValueError:
            pass
    return without_identities(str(redact(text)))


def _each(value: Any, change: Callable[[str], str]) -> Any:  # noqa: ANN401 - JSON
    if isinstance(value, str):
        return change(value)
    if isinstance(value, dict):
        return {change(key): _each(item, change) for key, item in value.items()}
    return [_each(item, change) for item in value] if isinstance(value, list) else value


Change = Callable[[Any], Any]
"""Returns the masked form of a value that is not NULL; None if it has none."""
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_DAY_0: Final = date(1970, 1, 1)
_WHOLE: Final[Mapping[str, int]] = MappingProxyType({"int32": 1 << 31, "int64": 1 << 63})
_DIGITS: Final = 60
MOST_BUCKETS: Final = 2.0**52
"""Above this number of buckets, neighbouring floats are more than a bucket apart: values stay unchanged."""


def change_of(mask: Mask, type_: str, hashed: Callable[[str], str | None]) -> Change:
    """Return the function that masks values of a contract's type.

    Parameters
    ----------
    hashed
        Function for ``hash``; None without a key.
    """
    result: Mapping[str, Callable[[], Change]] = {
        "nullify": lambda: _nothing,
        "hash": lambda: lambda value: hashed(str(value)),
        "redact": lambda: lambda value: redact_text(str(value)),
        "keep": lambda: _keep(mask),
        "bucket": lambda: _bucket(mask.width, type_),
        "truncate": lambda: _cut_day(mask.how) if type_ == "date" else _cut_moment(mask.how),
    }
    return result[mask.kind]()


def _keep(mask: Mask) -> Change:
    prefix, suffix = mask.kept
    if mask.how == "domain":
        return lambda value: domain_kept(str(value))
    return lambda value: ends_kept(str(value), prefix, suffix)


def _nothing(value: object) -> None:
    del value


def _bucket(width: Decimal, type_: str) -> Change:
    if type_ == "int64_list":
        of_item = _bucket(width, "int64")
        return lambda values: [None if value is None else of_item(value) for value in values]
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
    """Round a value to a 32-bit float."""
    try:
        narrow: float = struct.unpack("<f", struct.pack("<f", value))[0]
    except OverflowError:
        return math.copysign(math.inf, value)
    return narrow


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
