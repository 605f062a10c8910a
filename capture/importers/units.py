"""Units and times: converts foreign units to the contract's, and foreign times to ns since 1970.

Units are named as UCUM or people write them; factors are exact. Values may bear a unit of their own, as tools for
people print them: ``22.89 W``, ``97 %``, ``1:02:03``.
"""

import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from fractions import Fraction
from functools import lru_cache
from typing import Final
from zoneinfo import ZoneInfo

from ranklake.errors import did_you_mean

_TABLE: Final[dict[str, dict[str, str | int]]] = {
    "time": {"s": 1, "ms": "1/1000", "us": "1/1000000", "µs": "1/1000000", "ns": "1/1000000000", "min": 60, "h": 3600,
             "d": 86_400},
    "bytes": {"By": 1, "B": 1, "bit": "1/8", "kB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12,
              "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40},
    "bytes over time": {"By/s": 1, "kB/s": 10**3, "MB/s": 10**6, "GB/s": 10**9,
                        "KiB/s": 1 << 10, "MiB/s": 1 << 20, "GiB/s": 1 << 30},
    "ratio": {"ratio": 1, "percent": "1/100", "%": "1/100"},
    "energy": {"J": 1, "mJ": "1/1000", "kJ": 1000, "Wh": 3600, "kWh": 3_600_000},
    "power": {"W": 1, "mW": "1/1000", "kW": 1000},
    "frequency": {"Hz": 1, "kHz": 10**3, "MHz": 10**6, "GHz": 10**9},
    "operations": {"FLOP": 1, "GFLOP": 10**9, "TFLOP": 10**12},
    "operations over time": {"FLOP/s": 1, "GFLOP/s": 10**9, "TFLOP/s": 10**12, "PFLOP/s": 10**15},
    "temperature": {"Cel": 1, "celsius": 1, "C": 1, "°C": 1},
}  # fmt: skip
YEAR_2000_NS: Final = 946_684_800 * 10**9
"""2000-01-01: what files without any time count from."""
NOT_A_TIME: Final = "not a time"
AMBIGUOUS_TIME: Final = "a local time that clocks show twice, or never"
UNITS: Final = frozenset(name for units in _TABLE.values() for name in units)
_QUANTITY: Final = re.compile(r"([+-]?(?:\d+[.,]?\d*|[.,]\d+)(?:[eE][+-]?\d+)?)\s*([A-Za-zµ%°/]+)")
_DURATION: Final = re.compile(r"(?:(\d{1,6})(?:-| days?,? ))?(\d{1,9}):([0-5]\d):([0-5]\d(?:\.\d{1,9})?)")
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)
_LEADING_TIME: Final = re.compile(
    r"(?:datetime:\s*|^(?:\[[^\]]{0,60}\]\s*){0,2}\W{0,4})"
    r"((?:\d{4}-\d\d-\d\d[ T]|\d{8} )\d\d:\d\d:\d\d(?:[.,]\d{1,6})?)"
)
"""The time in front of a line of a log, behind at most two brackets, or behind the word datetime."""
_OFFSETS: Final = {("K", "Cel"): Fraction(-27315, 100)}


@dataclass(frozen=True, slots=True)
class Conversion:
    """A value in the contract's unit is the foreign one times `factor`, plus `offset`."""

    factor: Fraction = Fraction(1)
    offset: Fraction = Fraction(0)

    @property
    def is_none(self) -> bool:
        """Whether values stay as they are."""
        return self == Conversion()


def quantity(text: str) -> tuple[str, str] | None:
    """Return the number and the unit of a value that bears one; None for others.

    >>> quantity("22.89 W"), quantity("1:02:03"), quantity("22.89")
    (('22.89', 'W'), ('3723', 's'), None)
    """
    if duration := _DURATION.fullmatch(text):
        days, hours, minutes, seconds = (Fraction(part or 0) for part in duration.groups())
        return number_text(((days * 24 + hours) * 60 + minutes) * 60 + seconds), "s"
    match = _QUANTITY.fullmatch(text)
    return (match[1], match[2]) if match and match[2] in UNITS else None


def number_text(number: Fraction) -> str:
    """Return a number as text: whole ones without a point."""
    return str(number.numerator) if number.denominator == 1 else repr(float(number))


@lru_cache(maxsize=256)
def conversion(foreign: str, own: str | None) -> Conversion:
    """Return how to turn a foreign unit into the contract's.

    Raises
    ------
    ValueError
        There is no way; the message says why and is fit to be shown.
    """
    if (foreign, own) in _OFFSETS:
        return Conversion(offset=_OFFSETS[foreign, str(own)])
    if foreign == own:
        return Conversion()
    of = {name: (kind, Fraction(factor)) for kind, units in _TABLE.items() for name, factor in units.items()}
    if foreign not in of:
        message = f"unknown unit {foreign!r}; {did_you_mean(foreign, of)}"
        raise ValueError(message)
    if own not in of or of[foreign][0] != of[own][0]:
        message = (
            f"{foreign!r} is {of[foreign][0]} and cannot become {'a column without unit' if own is None else repr(own)}"
        )
        raise ValueError(message)
    return Conversion(of[foreign][1] / of[own][1])


def moment_ns(text: str, form: str = "iso", zone: str = "UTC", *, fold: int = 0) -> int | None:
    """Return the moment that a text names, ns since 1970; None if it names none.

    >>> moment_ns("1970-01-01T00:00:01Z"), moment_ns("02/01/1970", "%d/%m/%Y"), moment_ns("soon")
    (1000000000, 86400000000000, None)

    Parameters
    ----------
    form
        ``iso``, or a pattern of strptime.
    zone
        Of texts that name none.
    fold
        Which of two moments a local time is that the zone's clocks show twice: 0 the first, 1 the second.
    """
    text = text.strip()
    try:
        moment = datetime.fromisoformat(text) if form == "iso" else datetime.strptime(text, form)  # noqa: DTZ007 - below
        if moment.tzinfo is None:
            moment = moment.replace(tzinfo=UTC if zone == "UTC" else ZoneInfo(zone), fold=fold)
        return (moment - _EPOCH) // _MICROSECOND * 1000
    except (ValueError, OverflowError):
        return None


def local_moment_ns(text: str, form: str = "iso", zone: str = "") -> int:
    """Return the moment that a text names, ns since 1970; a time without a zone is of `zone`, else of UTC.

    Raises `ValueError`, fit to be shown: the text is no time, or one that the zone's clocks show twice, or never.
    """
    at_ns = moment_ns(text, form, zone or "UTC")
    if at_ns is None:
        raise ValueError(NOT_A_TIME)
    if zone and moment_ns(text, form, zone, fold=1) != at_ns:
        raise ValueError(AMBIGUOUS_TIME)
    return at_ns


def leading_time(text: str) -> tuple[int, bool] | None:
    """Return the time in front of a log's line, ns since 1970, and whether in whole seconds; None if it has none."""
    match = _LEADING_TIME.search(text)
    if match is None:
        return None
    stamp = match[1].replace(",", ".")
    if stamp[4] != "-":
        stamp = f"{stamp[:4]}-{stamp[4:6]}-{stamp[6:]}"
    at_ns = moment_ns(stamp)
    return None if at_ns is None else (at_ns, "." not in stamp)
