"""Group: this process's rank and world size, from torch.distributed, which is never imported here."""

import os
import sys
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Group:
    """A process's place in the default process group."""

    rank: int
    world_size: int


def group_of() -> Group | None:
    """Return this process's place; None while torch.distributed is not in use. Never raises, and waits for nobody."""
    distributed = sys.modules.get("torch.distributed")
    try:
        if distributed is None or not distributed.is_available() or not distributed.is_initialized():
            return None
        found = Group(int(distributed.get_rank()), int(distributed.get_world_size()))
    except Exception:  # noqa: BLE001 - it is being imported, or taken down, by another thread
        return None
    return found if 0 <= found.rank < found.world_size else None


def spawner() -> int | None:
    """Return the process that started this one through ``multiprocessing``, or torch's; None if none did so."""
    module = sys.modules.get("multiprocessing.process")
    parent = None if module is None else module.parent_process()
    return None if parent is None or parent.pid != os.getppid() else parent.pid
