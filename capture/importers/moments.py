"""Moments: foreign times as ns since 1970."""

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


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
