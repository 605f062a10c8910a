"""Numbers, sizes and durations as text."""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final

_UNITS: Final = ("B", "KiB", "MiB", "GiB", "TiB")
_STEP: Final = 1024
_MINUTE_S: Final = 60
_HOUR_S: Final = 3600
_MANY: Final = 1000
_TOO_MANY: Final = 1e12
"""Most digits of a number."""
_HALF_A_CENT: Final = 0.005
_NO_CENTS: Final = 1e4
UNKNOWN: Final = "unknown"


def size_text(size: float) -> str:
    """Return a number of bytes as text."""
    for unit in _UNITS:
        if size < _STEP or unit == _UNITS[-1]:
            return f"{size:,.0f} {unit}" if unit == "B" else f"{size:,.1f} {unit}"
        size /= _STEP
    raise AssertionError


def percent_text(ratio: float | None) -> str:
    """Return a ratio as text, in percent."""
    return UNKNOWN if ratio is None else f"{100 * ratio:.1f} %"


def length_text(seconds: float | None) -> str:
    """Return a duration as text, in a suitable unit."""
    if seconds is None:
        return UNKNOWN
    if seconds >= _HOUR_S:
        return f"{seconds / _HOUR_S:,.1f} h"
    if seconds >= _MINUTE_S:
        return f"{seconds / _MINUTE_S:.1f} min"
    return f"{seconds:.4g} s" if seconds >= 1 else f"{1000 * seconds:.3g} ms"


def hours_text(hours: float) -> str:
    """Return device-hours, or a time in hours, as text; in a smaller unit below one."""
    return length_text(hours * _HOUR_S) if 0 < hours < 1 else f"{number_text(hours)}\u00a0h"


def moment_text(moment: datetime | None) -> str:
    """Return a time with its zone, as text."""
    return UNKNOWN if moment is None else f"{moment.astimezone(UTC):%Y-%m-%d %H:%M} UTC"


def or_dash(value: object, text: str) -> str:
    """Return a value as text; a dash for None, in tables without room for a reason."""
    return "-" if value is None else text


_FLAGS: Final = {"nan": "NaN", "+inf": "+\u221e", "-inf": "-\u221e"}


def loss_text(row: Mapping[str, Any]) -> str:
    """Return the last loss in a row of a summary as text, also NaN and infinities."""
    return _FLAGS.get(row.get("last_loss_flag") or "") or number_text(row.get("last_loss"))


def money_text(value: float | None) -> str:
    """Return an amount of money as text: with cents up to ten thousand; amounts below half a cent are marked."""
    if value is None:
        return UNKNOWN
    if value and abs(value) < _HALF_A_CENT:
        return "< 0.01" if value > 0 else "> -0.01"
    return f"{value:,.0f}" if abs(value) >= _NO_CENTS else f"{value:,.2f}"


def number_text(value: float | None) -> str:
    """Return a number as text, with at most four decimals and separators of thousands."""
    if value is None:
        return UNKNOWN
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:,.0f}" if _MANY <= abs(value) < _TOO_MANY else f"{value:,.4g}"
