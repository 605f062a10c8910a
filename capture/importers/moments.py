"""Moments: foreign times as ns since 1970."""

import re
from datetime import UTC, datetime, timedelta
from typing import Final
from zoneinfo import ZoneInfo

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
YEAR_2000_NS: Final = 946_684_800 * 10**9
"""2000-01-01: what files without any time count from."""
_TOLD: Final = re.compile(
    r"(?:datetime:\s*|^(?:\[[^\]]{0,60}\]\s*){0,2}\W{0,4})"
    r"((?:\d{4}-\d\d-\d\d[ T]|\d{8} )\d\d:\d\d:\d\d(?:[.,]\d{1,6})?)"
)
"""The time in front of a line of a log, behind at most two brackets, or behind the word datetime."""


def moment_ns(text: str, form: str = "iso", zone: str = "UTC") -> int | None:
    """Return the moment that a text names, ns since 1970; None if it names none.

    Parameters
    ----------
    form
        ``iso``, or a pattern of strptime.
    zone
        Of texts that name none.
    """
    text = text.strip()
    try:
        found = datetime.fromisoformat(text) if form == "iso" else datetime.strptime(text, form)  # noqa: DTZ007 - below
        if found.tzinfo is None:
            found = found.replace(tzinfo=UTC if zone == "UTC" else ZoneInfo(zone))
        return (found - _EPOCH) // _MICROSECOND * 1000
    except (ValueError, OverflowError):
        return None


def told_ns(text: str) -> tuple[int, bool] | None:
    """Return the time that a line tells, ns since 1970, and whether in whole seconds; None if it tells none."""
    found = _TOLD.search(text)
    if found is None:
        return None
    stamp = found[1].replace(",", ".")
    if stamp[4] != "-":
        stamp = f"{stamp[:4]}-{stamp[4:6]}-{stamp[6:]}"
    at_ns = moment_ns(stamp)
    return None if at_ns is None else (at_ns, "." not in stamp)
