"""Holding: which of our ranks holds a GPU.

First by the processes that the driver sees on it. In a container the driver may tell none, or the host's numbers; then
by what the ranks' environment says: CUDA_VISIBLE_DEVICES, and LOCAL_RANK among them. Numbers there are taken to be
NVML's, which holds for equal GPUs, or with CUDA_DEVICE_ORDER=PCI_BUS_ID.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from ranklake.capture.samplers.reading import Tree
from ranklake.capture.spool.stream_files import StreamName

Columns = dict[str, Any]


def held_by(ranks: Sequence[StreamName]) -> Columns:
    """Return the columns of a device that these ranks hold."""
    runs = {(name.run, name.attempt) for name in ranks}
    numbers = {name.rank for name in ranks}
    columns: Columns = {"holder_count": len({(name.run, name.attempt, name.rank) for name in ranks})}
    if len(runs) == 1:
        ((run, attempt),) = runs
        columns |= {"holder_run": run, "holder_attempt": attempt}
        if len(numbers) == 1:
            columns["holder_rank"] = next(iter(numbers))
    return columns


def by_process(pids: Sequence[int], holders: Mapping[int, StreamName]) -> list[StreamName]:
    """Return the ranks whose processes are on a device."""
    return [holders[pid] for pid in pids if pid in holders]


def by_environment(
    index: int | None, uuid: str, holders: Mapping[int, StreamName], tree: Tree
) -> list[StreamName] | None:
    """Return the ranks that say that they use a device; None if no rank says which it uses."""
    found: list[StreamName] = []
    said = False
    for pid, name in sorted(holders.items()):
        choice = _choice(_environment(tree, pid))
        said |= choice is not None
        if choice is not None and (choice == str(index) or (not choice.isdecimal() and uuid.startswith(choice))):
            found.append(name)
    return found if said else None


def _choice(environment: Mapping[str, str]) -> str | None:
    """Return the number or the beginning of the UUID of the device that a process uses; None if that is not said."""
    local = environment.get("LOCAL_RANK", "")
    visible = [one.strip() for one in environment.get("CUDA_VISIBLE_DEVICES", "").split(",") if one.strip()]
    if len(visible) == 1:
        return visible[0]
    if not local.isdecimal():
        return None
    if visible:
        return visible[int(local)] if int(local) < len(visible) else None
    return local


def _environment(tree: Tree, pid: int) -> dict[str, str]:
    """Return these two variables of a process, and no other: the rest is none of our business."""
    try:
        pairs = tree.text(f"proc/{pid}/environ").split("\0")
    except OSError:
        return {}
    wanted = ("CUDA_VISIBLE_DEVICES=", "LOCAL_RANK=")
    return dict(pair.split("=", 1) for pair in pairs if pair.startswith(wanted))
