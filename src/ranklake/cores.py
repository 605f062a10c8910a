"""How many cores this process may use."""

import os


def usable_cores() -> int:
    """Return the number of cores that this process may run on; CPU affinity may make it smaller than the machine's.

    A container's quota of CPU time is not counted.
    """
    if hasattr(os, "sched_getaffinity"):  # not everywhere
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
