"""The number of cores that this process may use."""

import os


def usable_cores() -> int:
    """Return the number of cores that this process may run on; CPU affinity may limit it.

    A container's CPU quota is not considered.
    """
    if hasattr(os, "sched_getaffinity"):  # not on all systems
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
