"""Cgroup: the limits that a process's control group sets, and how often it ran into them; versions 1 and 2.

Sources: the kernel's Documentation/admin-guide/cgroup-v2.rst, cgroup-v1/memory.rst and scheduler/sched-bwc.rst.
"""

from dataclasses import dataclass
from typing import Any, Final

from ranklake.capture.samplers.sample import Tree

Columns = dict[str, Any]

CGROUP_COLUMNS: Final = (
    "cgroup_cpu_limit",
    "cgroup_memory_limit_bytes",
    "cgroup_memory_used_bytes",
    "cgroup_period_count",
    "cgroup_throttled_count",
    "cgroup_throttled_s",
    "cgroup_oom_kill_count",
)
_MOUNT: Final = "sys/fs/cgroup"
_NO_LIMIT: Final = 1 << 60  # version 1 says "none" by the largest number of whole pages


@dataclass(frozen=True, slots=True)
class Cgroup:
    """Where a control group's files are.

    Attributes
    ----------
    cpu, memory
        Folders, from the innermost to the outermost: a limit may be set on any of them.
    version
        Of the CPU controller and of the memory controller.
    """

    cpu: tuple[str, ...]
    memory: tuple[str, ...]
    version: tuple[int, int]


def cgroup_of(tree: Tree, pid: int | str) -> Cgroup:
    """Return the control group of a process. Raises `OSError`, `ValueError`."""
    paths: dict[str, str] = {}
    for line in tree.text(f"proc/{pid}/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        for controller in controllers.split(","):
            paths[controller] = path
    cpu, cpu_version = _folders(tree, "cpu", paths)
    memory, memory_version = _folders(tree, "memory", paths)
    return Cgroup(cpu, memory, (cpu_version, memory_version))


def _folders(tree: Tree, controller: str, paths: dict[str, str]) -> tuple[tuple[str, ...], int]:
    first = controller in paths
    mount = f"{_MOUNT}/{controller}" if first else _MOUNT
    path = paths.get(controller, paths.get("", "/")).rstrip("/")
    if not tree.exists(mount + path):  # a path of the host's, seen from a container whose mount begins further down
        path = ""
    folders = []
    while path:
        folders.append(mount + path)
        path = path.rpartition("/")[0]
    return (*folders, mount), 1 if first else 2


def limits(tree: Tree, group: Cgroup) -> Columns:
    """Return what the group may use, uses and was denied; a file that is not there leaves its columns out."""
    cpu, memory = group.version
    return {
        **(_cpu_1 if cpu == 1 else _cpu_2)(tree, group.cpu),
        **(_memory_1 if memory == 1 else _memory_2)(tree, group.memory),
    }


def _cpu_2(tree: Tree, folders: tuple[str, ...]) -> Columns:
    shares = []
    for folder in folders:
        quota, period = (_text(tree, f"{folder}/cpu.max") or "max 1").split()
        if quota != "max":
            shares.append(int(quota) / int(period))
    stat = _facts(_text(tree, f"{folders[0]}/cpu.stat"))
    columns: Columns = {"cgroup_cpu_limit": min(shares, default=None)}
    if "usage_usec" in stat:
        columns["cpu_time_s"] = stat["usage_usec"] / 1e6
    if "nr_periods" in stat:
        columns |= {
            "cgroup_period_count": stat["nr_periods"],
            "cgroup_throttled_count": stat["nr_throttled"],
            "cgroup_throttled_s": stat["throttled_usec"] / 1e6,
        }
    return columns


def _memory_2(tree: Tree, folders: tuple[str, ...]) -> Columns:
    sizes = [_text(tree, f"{folder}/memory.max").strip() for folder in folders]
    events = _facts(_text(tree, f"{folders[0]}/memory.events"))
    used = _text(tree, f"{folders[0]}/memory.current")
    return {
        "cgroup_memory_limit_bytes": min((int(size) for size in sizes if size not in {"", "max"}), default=None),
        "cgroup_memory_used_bytes": int(used) if used else None,
        "cgroup_oom_kill_count": events.get("oom_kill"),
    }


def _cpu_1(tree: Tree, folders: tuple[str, ...]) -> Columns:
    shares = []
    for folder in folders:
        quota, period = _text(tree, f"{folder}/cpu.cfs_quota_us"), _text(tree, f"{folder}/cpu.cfs_period_us")
        if quota and period and int(quota) > 0:
            shares.append(int(quota) / int(period))
    stat = _facts(_text(tree, f"{folders[0]}/cpu.stat"))
    columns: Columns = {"cgroup_cpu_limit": min(shares, default=None)}
    if "nr_periods" in stat:
        columns |= {
            "cgroup_period_count": stat["nr_periods"],
            "cgroup_throttled_count": stat["nr_throttled"],
            "cgroup_throttled_s": stat["throttled_time"] / 1e9,
        }
    return columns


def _memory_1(tree: Tree, folders: tuple[str, ...]) -> Columns:
    sizes = [_text(tree, f"{folder}/memory.limit_in_bytes") for folder in folders]
    used = _text(tree, f"{folders[0]}/memory.usage_in_bytes")
    return {
        "cgroup_memory_limit_bytes": min((int(size) for size in sizes if size and int(size) < _NO_LIMIT), default=None),
        "cgroup_memory_used_bytes": int(used) if used else None,
        "cgroup_oom_kill_count": _facts(_text(tree, f"{folders[0]}/memory.oom_control")).get("oom_kill"),
    }


def _text(tree: Tree, path: str) -> str:
    try:
        return tree.text(path)
    except FileNotFoundError:
        return ""


def _facts(text: str) -> dict[str, int]:
    return {name: int(value) for name, value in (line.split() for line in text.splitlines())}
