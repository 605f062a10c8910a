"""Units and times: converts foreign units to the contract's, and foreign times to ns since 1970.

Units have their UCUM names and common spellings; factors are exact. A value may contain its unit, such as ``22.89 W``,
``97 %`` or ``1:02:03``.
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
"""2000-01-01: assumed start of files whose times have no known start."""
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
"""Time at the beginning of a log line, after at most two texts in brackets, or anywhere after ``datetime:``."""
_OFFSETS: Final = {("K", "Cel"): Fraction(-27315, 100)}


@dataclass(frozen=True, slots=True)
class Conversion:
    """A linear conversion: contract value = foreign value * `factor` + `offset`."""

    factor: Fraction = Fraction(1)
    offset: Fraction = Fraction(0)

    @property
    def is_none(self) -> bool:
        """Whether the conversion changes no value."""
        return self == Conversion()


def quantity(text: str) -> tuple[str, str] | None:
    """Split a value into number and unit; None if it has no known unit.

    >>> quantity("22.89 W"), quantity("1:02:03"), quantity("22.89")
    (('22.89', 'W'), ('3723', 's'), None)
    """
    if duration := _DURATION.fullmatch(text):
        days, hours, minutes, seconds = (Fraction(part or 0) for part in duration.groups())
        return number_text(((days * 24 + hours) * 60 + minutes) * 60 + seconds), "s"
    match = _QUANTITY.fullmatch(text)
    return (match[1], match[2]) if match and match[2] in UNITS else None


def number_text(number: Fraction) -> str:
    """Return a number as text, integers without a decimal point."""
    return str(number.numerator) if number.denominator == 1 else repr(float(number))


@lru_cache(maxsize=256)
def conversion(foreign: str, own: str | None) -> Conversion:
    """Return the conversion from a foreign unit to the contract's unit `own`; None: a column without unit.

    Raises
    ------
    ValueError
        The units are of different kinds, or unknown. The message is for users.
    """
    if (foreign, own) in _OFFSETS:
        return Conversion(offset=_OFFSETS[foreign, str(own)])
    if foreign == own:
        return Conversion()
    units = {name: (kind, Fraction(factor)) for kind, names in _TABLE.items() for name, factor in names.items()}
    if foreign not in units:
        message = f"unknown unit {foreign!r}; {did_you_mean(foreign, units)}"
        raise ValueError(message)
    kind, factor = units[foreign]
    if own not in units or units[own][0] != kind:
        target = "a column without unit" if own is None else repr(own)
        message = f"{foreign!r} is {kind} and cannot become {target}"
        raise ValueError(message)
    return Conversion(factor / units[own][1])


def moment_ns(text: str, form: str = "iso", zone: str = "UTC", *, fold: int = 0) -> int | None:
    """Parse a time, and return ns since 1970; None if the text is no time.

    >>> moment_ns("1970-01-01T00:00:01Z"), moment_ns("02/01/1970", "%d/%m/%Y"), moment_ns("soon")
    (1000000000, 86400000000000, None)

    Parameters
    ----------
    form
        ``iso``, or a format of strptime.
    zone
        Time zone of texts that name none.
    fold
        For a local time that occurs twice when clocks are set back: 0 the first, 1 the second occurrence.
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
    """Parse a time, and return ns since 1970. A time without a zone is in `zone`, or in UTC if that is empty.

    Raises `ValueError` with a message for users if the text is no time, or if the local time occurs twice or never.
    """
    at_ns = moment_ns(text, form, zone or "UTC")
    if at_ns is None:
        raise ValueError(NOT_A_TIME)
    if zone and moment_ns(text, form, zone, fold=1) != at_ns:
        raise ValueError(AMBIGUOUS_TIME)
    return at_ns


def leading_time(text: str) -> tuple[int, bool] | None:
    """Return the time at the beginning of a log line, ns since 1970, and whether it has only whole seconds.

    Returns None if the line has no time.
    """
    match = _LEADING_TIME.search(text)
    if match is None:
        return None
    stamp = match[1].replace(",", ".")
    if stamp[4] != "-":
        stamp = f"{stamp[:4]}-{stamp[4:6]}-{stamp[6:]}"
    at_ns = moment_ns(stamp)
    return None if at_ns is None else (at_ns, "." not in stamp)
