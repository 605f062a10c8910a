"""How many cores this process may use."""

import os


def usable_cores() -> int:
    """Return the cores that this process may run on: fewer than the machine has where it is bound to some.

    A container's quota of CPU time is not counted.
    """
    if hasattr(os, "sched_getaffinity"):  # not everywhere
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
