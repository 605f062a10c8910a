"""Proc: columns of ``host_samples`` from files of /proc and /sys, including limits of control groups (versions 1, 2).

All functions raise `OSError` for a missing file, and `ValueError`, `IndexError` or `KeyError` for an unknown format.

Sources of the formats: proc(5), and the kernel's Documentation: admin-guide/iostats.rst, accounting/psi.rst,
admin-guide/cgroup-v2.rst, cgroup-v1/memory.rst and scheduler/sched-bwc.rst.
"""

import os
import re
from dataclasses import dataclass
from typing import Any, Final

from ranklake.capture.samplers.sample import Reading, Tree, UnavailableError

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
_NO_LIMIT: Final = 1 << 60  # version 1 writes "no limit" as the largest multiple of the page size


@dataclass(frozen=True, slots=True)
class Cgroup:
    """Folders of a control group.

    Attributes
    ----------
    cpu, memory
        Folders from the innermost to the outermost, each of which may have a limit.
    version
        Versions of the CPU controller and of the memory controller.
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
    is_version_1 = controller in paths
    mount = f"{_MOUNT}/{controller}" if is_version_1 else _MOUNT
    path = paths.get(controller, paths.get("", "/")).rstrip("/")
    if not tree.exists(mount + path):  # in a container, the path may be the host's, outside the container's mount
        path = ""
    folders = []
    while path:
        folders.append(mount + path)
        path = path.rpartition("/")[0]
    return (*folders, mount), 1 if is_version_1 else 2


def limits(tree: Tree, group: Cgroup) -> Columns:
    """Return a group's limits, usage and throttling. Columns of missing files are left out."""
    cpu, memory = group.version
    return {
        **(_cpu_1 if cpu == 1 else _cpu_2)(tree, group.cpu),
        **(_memory_1 if memory == 1 else _memory_2)(tree, group.memory),
    }


def _cpu_2(tree: Tree, folders: tuple[str, ...]) -> Columns:
    shares = []
    for folder in folders:
        quota, period = (_limit_text(tree, f"{folder}/cpu.max") or "max 1").split()
        if quota != "max":
            shares.append(int(quota) / int(period))
    stat = _facts(_limit_text(tree, f"{folders[0]}/cpu.stat"))
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
    sizes = [_limit_text(tree, f"{folder}/memory.max").strip() for folder in folders]
    events = _facts(_limit_text(tree, f"{folders[0]}/memory.events"))
    used = _limit_text(tree, f"{folders[0]}/memory.current")
    return {
        "cgroup_memory_limit_bytes": min((int(size) for size in sizes if size not in {"", "max"}), default=None),
        "cgroup_memory_used_bytes": int(used) if used else None,
        "cgroup_oom_kill_count": events.get("oom_kill"),
    }


def _cpu_1(tree: Tree, folders: tuple[str, ...]) -> Columns:
    shares = []
    for folder in folders:
        quota, period = (
            _limit_text(tree, f"{folder}/cpu.cfs_quota_us"),
            _limit_text(tree, f"{folder}/cpu.cfs_period_us"),
        )
        if quota and period and int(quota) > 0:
            shares.append(int(quota) / int(period))
    stat = _facts(_limit_text(tree, f"{folders[0]}/cpu.stat"))
    columns: Columns = {"cgroup_cpu_limit": min(shares, default=None)}
    if "nr_periods" in stat:
        columns |= {
            "cgroup_period_count": stat["nr_periods"],
            "cgroup_throttled_count": stat["nr_throttled"],
            "cgroup_throttled_s": stat["throttled_time"] / 1e9,
        }
    return columns


def _memory_1(tree: Tree, folders: tuple[str, ...]) -> Columns:
    sizes = [_limit_text(tree, f"{folder}/memory.limit_in_bytes") for folder in folders]
    used = _limit_text(tree, f"{folders[0]}/memory.usage_in_bytes")
    return {
        "cgroup_memory_limit_bytes": min((int(size) for size in sizes if size and int(size) < _NO_LIMIT), default=None),
        "cgroup_memory_used_bytes": int(used) if used else None,
        "cgroup_oom_kill_count": _facts(_limit_text(tree, f"{folders[0]}/memory.oom_control")).get("oom_kill"),
    }


def _limit_text(tree: Tree, path: str) -> str:
    try:
        return tree.text(path)
    except FileNotFoundError:
        return ""


def _facts(text: str) -> dict[str, int]:
    return {name: int(value) for name, value in (line.split() for line in text.splitlines())}


Link = dict[str, Any]

_CARDS: Final = "sys/class/net"
_PORTS: Final = "sys/class/infiniband"
_UP: Final = frozenset({"up", "unknown"})
"""States of an active link. Some drivers always report ``unknown``; a link that is down is reported as such."""
_RATE: Final = re.compile(r"([\d.]+) Gb/sec")


def links(tree: Tree) -> dict[str, Link]:
    """Return ``up``, ``bits_per_s`` and, for InfiniBand and RoCE, ``make`` of each link, by interface or device/port.

    Interfaces without a device (loopback, bridges, ends in containers) and unknown speeds are left out. Raises
    `UnavailableError` if there is no link.
    """
    by_name = {name: _card(tree, name) for name in _names(tree, _CARDS) if tree.exists(f"{_CARDS}/{name}/device")}
    for device in _names(tree, _PORTS):
        make = " ".join(filter(None, (_text(tree, f"{_PORTS}/{device}/{file}") for file in ("hca_type", "board_id"))))
        for port in _names(tree, f"{_PORTS}/{device}/ports"):
            by_name[f"{device}/{port}"] = _port(tree, f"{_PORTS}/{device}/ports/{port}") | (
                {"make": make} if make else {}
            )
    if not by_name:
        raise UnavailableError("no network card")
    return by_name


def _card(tree: Tree, name: str) -> Link:
    speed = _text(tree, f"{_CARDS}/{name}/speed")  # reading fails if the link is down, or the driver does not report it
    link: Link = {"up": _text(tree, f"{_CARDS}/{name}/operstate") in _UP}
    return link | ({"bits_per_s": int(speed) * 10**6} if speed.isdecimal() and int(speed) > 0 else {})


def _port(tree: Tree, place: str) -> Link:
    rate = _RATE.match(_text(tree, f"{place}/rate"))
    state = _text(tree, f"{place}/state").partition(":")[2].strip()
    return {"up": state == "ACTIVE", **({"bits_per_s": round(float(rate[1]) * 1e9)} if rate else {})}


def _names(tree: Tree, path: str) -> list[str]:
    try:
        return tree.names(path)
    except OSError:
        return []


def _text(tree: Tree, path: str) -> str:
    try:
        return tree.text(path).strip()
    except OSError:
        return ""


_TICK_S: Final = 1.0 / os.sysconf("SC_CLK_TCK")
_PAGE_BYTES: Final = os.sysconf("SC_PAGESIZE")
_KIB: Final = 1024
_SECTOR_BYTES: Final = 512  # the kernel's unit, independent of the disk's sectors
_NO_DISK: Final = re.compile(r"(loop|ram|zram|dm-|md|sr|fd)\d*")  # no disks, or composed of disks that are counted

_MEMORY: Final = re.compile(r"^(Mem\w+|Cached|Dirty|Shmem|Swap\w+):\s+(\d+)", re.MULTILINE)

CPU_TIMES: Final = ("user", "nice", "system", "idle", "iowait", "irq", "softirq", "steal")


def cpu_times(tree: Tree) -> tuple[dict[str, float], Columns]:
    """Return the CPUs' time by kind in s, and columns from ``/proc/stat``."""
    lines = tree.text("proc/stat").splitlines()
    label, *values = lines[0].split()
    if label != "cpu":
        raise ValueError("the first line is not that of all CPUs")
    times = dict(zip(CPU_TIMES, (int(value) * _TICK_S for value in values), strict=False))
    facts = {line.partition(" ")[0]: line for line in lines if not line.startswith(("cpu", "intr", "softirq"))}
    columns = {
        "cpu_count": sum(1 for line in lines if line.startswith("cpu")) - 1,
        "cpu_time_s": sum(times.get(kind, 0.0) for kind in ("user", "nice", "system", "irq", "softirq")),
        "context_switch_count": int(facts["ctxt"].split()[1]),
        "process_running_count": int(facts["procs_running"].split()[1]),
        "process_blocked_count": int(facts["procs_blocked"].split()[1]),
    }
    return times, columns


def cpu_ratios(now: dict[str, float], before: dict[str, float]) -> Columns:
    """Return shares of the CPU time between two readings; empty if no time passed.

    The time of guests is included in that of user. The kernel's iowait may decrease slightly; this counts as 0.
    """
    spent = {kind: max(0.0, seconds - before.get(kind, 0.0)) for kind, seconds in now.items()}
    total = sum(spent.values())
    if total <= 0:
        return {}
    shares = {
        "cpu_utilization_ratio": 1.0 - (spent["idle"] + spent.get("iowait", 0.0)) / total,
        "cpu_user_ratio": (spent["user"] + spent["nice"]) / total,
        "cpu_system_ratio": spent["system"] / total,
        "cpu_iowait_ratio": spent.get("iowait", 0.0) / total,
        "cpu_steal_ratio": spent.get("steal", 0.0) / total,
        "cpu_interrupt_ratio": (spent.get("irq", 0.0) + spent.get("softirq", 0.0)) / total,
    }
    return {column: min(1.0, max(0.0, share)) for column, share in shares.items()}  # sums of floats are not exact


def load(tree: Tree) -> Columns:
    """Return the load averages."""
    one_minute, five, fifteen = (float(value) for value in tree.text("proc/loadavg").split()[:3])
    return {"load_average_1m": one_minute, "load_average_5m": five, "load_average_15m": fifteen}


def memory(tree: Tree) -> Columns:
    """Return sizes of memory and swap space; used memory is the total minus the available memory."""
    sizes = {name: int(value) * _KIB for name, value in _MEMORY.findall(tree.text("proc/meminfo"))}
    return {
        "memory_total_bytes": sizes["MemTotal"],
        "memory_used_bytes": sizes["MemTotal"] - sizes["MemAvailable"],
        "memory_available_bytes": sizes["MemAvailable"],
        "memory_cached_bytes": sizes["Cached"],
        "memory_dirty_bytes": sizes["Dirty"],
        "memory_shared_bytes": sizes["Shmem"],
        "swap_total_bytes": sizes["SwapTotal"],
        "swap_used_bytes": sizes["SwapTotal"] - sizes["SwapFree"],
    }


def paging(tree: Tree) -> Columns:
    """Return counters of faults, swapping and the OOM killer."""
    words = tree.text("proc/vmstat").split()
    counts = dict(zip(words[::2], words[1::2], strict=True))
    major = int(counts["pgmajfault"])
    columns = {
        "swap_in_bytes": int(counts["pswpin"]) * _PAGE_BYTES,
        "swap_out_bytes": int(counts["pswpout"]) * _PAGE_BYTES,
        "major_fault_count": major,
        "minor_fault_count": max(0, int(counts["pgfault"]) - major),
    }
    if "oom_kill" in counts:  # since Linux 4.13
        columns["oom_kill_count"] = int(counts["oom_kill"])
    return columns


DISK_COLUMNS: Final = (
    "disk_read_bytes",
    "disk_write_bytes",
    "disk_read_count",
    "disk_write_count",
    "disk_read_time_s",
    "disk_write_time_s",
    "disk_busy_time_s",
)


def disks(tree: Tree) -> dict[str, Columns]:
    """Return the counters of each whole disk, by name."""
    whole = set(tree.names("sys/block"))
    by_disk: dict[str, Columns] = {}
    for line in tree.text("proc/diskstats").splitlines():
        _, _, name, *rest = line.split()
        if name not in whole or _NO_DISK.fullmatch(name):
            continue
        reads, _, sectors_read, read_ms, writes, _, sectors_written, write_ms, _, busy_ms = map(int, rest[:10])
        values = (
            sectors_read * _SECTOR_BYTES,
            sectors_written * _SECTOR_BYTES,
            reads,
            writes,
            read_ms / 1e3,
            write_ms / 1e3,
            busy_ms / 1e3,
        )
        by_disk[name] = dict(zip(DISK_COLUMNS, values, strict=True))
    return by_disk


def latencies(now: Columns, before: Columns) -> Columns:
    """Return the mean time of a read and of a write between two readings; left out without reads or writes."""
    columns = {}
    for direction in ("read", "write"):
        count = now[f"disk_{direction}_count"] - before[f"disk_{direction}_count"]
        spent = now[f"disk_{direction}_time_s"] - before[f"disk_{direction}_time_s"]
        if count > 0 and spent >= 0:
            columns[f"disk_{direction}_latency_s"] = spent / count
    return columns


_NETWORK: Final = {
    "network_receive_bytes": 0,
    "network_receive_packet_count": 1,
    "network_receive_error_count": 2,
    "network_receive_dropped_count": 3,
    "network_transmit_bytes": 8,
    "network_transmit_packet_count": 9,
    "network_transmit_error_count": 10,
    "network_transmit_dropped_count": 11,
}
NETWORK_COLUMNS: Final = tuple(_NETWORK)


def networks(tree: Tree) -> dict[str, Columns]:
    """Return the counters of each interface except loopback, by name."""
    by_interface = {}
    for line in tree.text("proc/net/dev").splitlines()[2:]:
        name, _, rest = line.partition(":")
        if name.strip() != "lo":
            values = rest.split()
            by_interface[name.strip()] = {column: int(values[at]) for column, at in _NETWORK.items()}
    return by_interface


def tcp(tree: Tree) -> Columns:
    """Return the number of TCP retransmissions."""
    names, values = (line.split() for line in tree.text("proc/net/snmp").splitlines() if line.startswith("Tcp:"))
    return {"tcp_retransmit_count": int(values[names.index("RetransSegs")])}


def total(parts: dict[str, Columns], columns: tuple[str, ...]) -> Columns:
    """Return the sums of columns over parts; columns that no part has are left out."""
    sums = {}
    for column in columns:
        values = [part[column] for part in parts.values() if part.get(column) is not None]
        if values:
            sums[column] = sum(values)
    return sums


_SOME: Final = ("pressure_{}_some_ratio", "pressure_{}_some_s")
_FULL: Final = ("pressure_{}_full_ratio", "pressure_{}_full_s")


def pressure_columns(resource: str) -> list[str]:
    """Return the columns of a resource's pressure: ``cpu``, ``memory`` or ``io``."""
    return [name.format(resource) for name in (_SOME if resource == "cpu" else _SOME + _FULL)]


def pressure(tree: Tree, resource: str) -> Columns:
    """Return stalls on a resource, as shares of the last 10 s and as counters in s."""
    columns: Columns = {}
    for line in tree.text(f"proc/pressure/{resource}").splitlines():
        kind, *pairs = line.split()
        values = dict(pair.split("=") for pair in pairs)
        if kind == "some" or resource != "cpu":
            columns[f"pressure_{resource}_{kind}_ratio"] = min(1.0, float(values["avg10"]) / 100)
            columns[f"pressure_{resource}_{kind}_s"] = int(values["total"]) / 1e6
    return columns


def uptime(tree: Tree) -> Columns:
    """Return the time since boot."""
    return {"uptime_s": float(tree.text("proc/uptime").split()[0])}


_MINOR, _MAJOR, _USER, _SYSTEM, _THREADS, _START, _RSS = 7, 9, 11, 12, 17, 19, 21
"""Fields of /proc/<pid>/stat after the command's closing bracket."""


def read_process(tree: Tree, pid: int, reading: Reading) -> None:
    """Add the columns of a process. Raises `OSError` if it has ended; the row has reasons of other missing values."""
    fields = tree.text(f"proc/{pid}/stat").rpartition(") ")[2].split()
    uptime_s = float(tree.text("proc/uptime").split()[0])
    reading.columns |= {
        "pid": pid,
        "cpu_time_s": (int(fields[_USER]) + int(fields[_SYSTEM])) * _TICK_S,
        "major_fault_count": int(fields[_MAJOR]),
        "minor_fault_count": int(fields[_MINOR]),
        "process_thread_count": int(fields[_THREADS]),
        "process_rss_bytes": int(fields[_RSS]) * _PAGE_BYTES,
        "uptime_s": max(0.0, uptime_s - int(fields[_START]) * _TICK_S),
    }
    reading.take(["context_switch_count"], lambda: _switches(tree, pid))
    reading.take(["disk_read_bytes", "disk_write_bytes"], lambda: _io(tree, pid))
    reading.take(["process_open_file_count"], lambda: {"process_open_file_count": len(tree.names(f"proc/{pid}/fd"))})


def _switches(tree: Tree, pid: int) -> dict[str, Any]:
    lines = tree.text(f"proc/{pid}/status").splitlines()
    counts = [int(line.partition(":")[2]) for line in lines if "ctxt_switches" in line]
    return {"context_switch_count": sum(counts)}


def _io(tree: Tree, pid: int) -> dict[str, Any]:
    counts = dict(line.split(": ") for line in tree.text(f"proc/{pid}/io").splitlines())
    return {"disk_read_bytes": int(counts["read_bytes"]), "disk_write_bytes": int(counts["write_bytes"])}
