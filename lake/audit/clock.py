"""The clock by which rows of the trail are dated and approvals expire: in one place, so that a test can set it."""

from datetime import UTC, datetime


def now() -> datetime:
    """Return the time, UTC."""
    return datetime.now(UTC)
