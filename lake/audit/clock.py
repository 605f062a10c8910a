"""The clock by which rows of the trail are dated and approvals expire: in one place, so that a test can set it."""

import hashlib
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

_BOOT: Final = Path("/proc/sys/kernel/random/boot_id")


def now() -> datetime:
    """Return the time, UTC."""
    return datetime.now(UTC)


def uptime() -> tuple[str, float] | None:
    """Return a digest of which start of this machine it is, and the seconds since, asleep or not; None if unknown.

    Setting the clock does not change them: two readings of one start tell what time really passed in between.
    """
    try:
        boot = _BOOT.read_bytes()
    except OSError:
        return None
    return hashlib.sha256(boot).hexdigest()[:16], time.clock_gettime(time.CLOCK_BOOTTIME)
