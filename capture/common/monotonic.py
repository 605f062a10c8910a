"""Monotonic: the clock that all rows are stamped with, in ns; `ranklake.capture.spool.clock` ties it to wall time."""

import time
from typing import Final

now: Final = time.monotonic_ns
