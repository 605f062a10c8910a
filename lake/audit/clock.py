"""The clock for times of audit rows and for the expiry of approvals. Tests can replace it."""

import hashlib
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

_BOOT: Final = Path("/proc/sys/kernel/random/boot_id")


def now() -> datetime:
    """Return the current time, UTC."""
    return datetime.now(UTC)


def uptime() -> tuple[str, float] | None:
    """Return a digest of the boot id, and the seconds since boot, including suspend; None if unknown.

    Changing the clock does not change these values. So two results with the same boot id show how much time has passed.
    """
    try:
        boot = _BOOT.read_bytes()
    except OSError:
        return None
    return hashlib.sha256(boot).hexdigest()[:16], time.clock_gettime(time.CLOCK_BOOTTIME)
