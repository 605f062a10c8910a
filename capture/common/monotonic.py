"""Monotonic: the clock of all rows' times, in ns. `ranklake.capture.spool.clock` converts its times to wall time."""

import time
from typing import Final

now: Final = time.monotonic_ns
