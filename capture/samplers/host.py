"""Host: rows of ``host_samples``: of the host at each tick, and every 10 s of ranks' processes and control groups."""

import os
import re
import socket
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, Final

from ranklake.capture.common.values import json_text
from ranklake.capture.samplers import proc
from ranklake.capture.samplers.proc import CGROUP_COLUMNS, Cgroup, cgroup_of, limits, links
from ranklake.capture.samplers.sample import NOT_THERE, Holders, Reading, Row, Tree, UnavailableError
from ranklake.capture.spool.clock import read_clock
from ranklake.capture.spool.stream_files import StreamName

Columns = dict[str, Any]

_PORTS: Final = "sys/class/infiniband"
_WORD_BYTES: Final = 4  # data counters count 32-bit words: InfiniBand Architecture Specification, PortCounters
_COUNTERS: Final = {
    "infiniband_receive_bytes": ("counters/port_rcv_data", _WORD_BYTES),
    "infiniband_transmit_bytes": ("counters/port_xmit_data", _WORD_BYTES),
    "infiniband_receive_packet_count": ("counters/port_rcv_packets", 1),
    "infiniband_transmit_packet_count": ("counters/port_xmit_packets", 1),
    "infiniband_receive_error_count": ("counters/port_rcv_errors", 1),
    "infiniband_transmit_discard_count": ("counters/port_xmit_discards", 1),
    "infiniband_transmit_wait_count": ("counters/port_xmit_wait", 1),
    "infiniband_symbol_error_count": ("counters/symbol_error", 1),
    "infiniband_link_recovery_count": ("counters/link_error_recovery", 1),
    "infiniband_link_downed_count": ("counters/link_downed", 1),
    "infiniband_out_of_sequence_count": ("hw_counters/out_of_sequence", 1),
    "infiniband_congestion_notification_count": ("hw_counters/rp_cnp_handled", 1),
}
INFINIBAND_COLUMNS: Final = tuple(_COUNTERS)
_CPU_SENSORS: Final = frozenset({"coretemp", "k10temp", "zenpower", "cpu_thermal"})
_PACKAGE: Final = re.compile(r"intel-rapl:\d+")


def infiniband(tree: Tree) -> dict[str, Columns]:
    """Return the counters, state and rate of each port, by device/port. Missing counters are left out.

    Raises `OSError` if the host has no InfiniBand.
    """
    ports: dict[str, Columns] = {}
    for device in tree.names(_PORTS):
        for port in tree.names(f"{_PORTS}/{device}/ports"):
            place = f"{_PORTS}/{device}/ports/{port}"
            facts: Columns = {}
            for column, (path, factor) in _COUNTERS.items():
                value = _number(tree, f"{place}/{path}")
                if value is not None:
                    facts[column] = value * factor
            state, rate = _text(tree, f"{place}/state"), _text(tree, f"{place}/rate")
            facts["state"] = state.partition(":")[2].strip() or None
            facts["rate"] = rate or None
            ports[f"{device}/{port}"] = facts
    return ports


def frequency(tree: Tree) -> Columns:
    """Return the mean clock of the CPUs, from cpufreq, else from /proc/cpuinfo."""
    place = "sys/devices/system/cpu"
    clocks = [_number(tree, f"{place}/{name}/cpufreq/scaling_cur_freq") for name in tree.names(place)]
    hertz = [khz * 1e3 for khz in clocks if khz is not None]
    if not hertz:
        lines = tree.text("proc/cpuinfo").splitlines()
        hertz = [float(line.partition(":")[2]) * 1e6 for line in lines if line.startswith("cpu MHz")]
    return {"cpu_frequency_hz": sum(hertz) / len(hertz)} if hertz else _missing("no CPU reports its clock")


def temperature(tree: Tree) -> Columns:
    """Return the temperature of the warmest CPU package."""
    celsius = []
    for sensor in tree.names("sys/class/hwmon"):
        place = f"sys/class/hwmon/{sensor}"
        if _text(tree, f"{place}/name") in _CPU_SENSORS:
            inputs = [name for name in tree.names(place) if re.fullmatch(r"temp\d+_input", name)]
            celsius += [value / 1e3 for name in inputs if (value := _number(tree, f"{place}/{name}")) is not None]
    return {"cpu_temperature_celsius": max(celsius)} if celsius else _missing("no sensor of a CPU")


def power(tree: Tree) -> Columns:
    """Return the power reported by the host's power meter."""
    for sensor in tree.names("sys/class/hwmon"):
        place = f"sys/class/hwmon/{sensor}"
        if _text(tree, f"{place}/name") == "power_meter":
            return {"power_watts": tree.number(f"{place}/power1_average") / 1e6}
    return _missing("no power meter")


class Energy:
    """The energy of all CPU packages, whose counters wrap around every few minutes."""

    def __init__(self) -> None:
        self._last: dict[str, int] = {}
        self._joules = 0.0

    def read(self, tree: Tree) -> Columns:
        """Return the sum of the counters at the first reading and the energy since then. Raises `OSError`."""
        place = "sys/class/powercap"
        packages = [name for name in tree.names(place) if _PACKAGE.fullmatch(name)]
        for name in packages:
            now = tree.number(f"{place}/{name}/energy_uj")
            spent = now - self._last.get(name, 0)
            if spent < 0:
                spent += tree.number(f"{place}/{name}/max_energy_range_uj")
            self._joules += spent / 1e6
            self._last[name] = now
        return {"energy_joules": self._joules} if packages else _missing("no package reports its energy")


def _missing(problem: str) -> Columns:
    raise UnavailableError(problem)


def _text(tree: Tree, path: str) -> str:
    try:
        return tree.text(path).strip()
    except OSError:
        return ""


def _number(tree: Tree, path: str) -> int | None:
    try:
        return tree.number(path)
    except (OSError, ValueError):
        return None


TABLE: Final = "host_samples"
SLOW_NS: Final = 10 * 10**9
RARE_NS: Final = 60 * 10**9
_CPU: Final = ("cpu_count", "cpu_time_s", "context_switch_count", "process_running_count", "process_blocked_count")
_LOAD: Final = ("load_average_1m", "load_average_5m", "load_average_15m")
_MEMORY: Final = (
    *(f"memory_{what}_bytes" for what in ("total", "used", "available", "cached", "dirty", "shared")),
    "swap_total_bytes",
    "swap_used_bytes",
)
_PAGING: Final = ("swap_in_bytes", "swap_out_bytes", "major_fault_count", "minor_fault_count", "oom_kill_count")


class HostSampler:
    """Samples the host that it runs on.

    Parameters
    ----------
    holders
        Returns the recording processes of this host.
    spool
        Folder whose file system is watched.
    root
        Folder with /proc and /sys.

    Notes
    -----
    At each tick: CPU, load, memory, faults, disks, networks, pressure. Every 10 s: InfiniBand, which its firmware
    answers; values by disk, interface and port; processes; control groups; the clock. Every 60 s: the CPUs' clocks,
    temperature, power and energy, which cost an interrupt on each CPU. In between, these columns are NULL.
    """

    def __init__(self, holders: Holders, spool: Path, root: str = "/") -> None:
        self._holders, self._spool, self._tree = holders, spool, Tree(root)
        self._energy = Energy()
        self._host = socket.gethostname()
        self._boot_id: str | None = None
        self._times: dict[str, float] | None = None
        self._disk_sums: dict[str, Any] | None = None
        self._last_ns: dict[object, int] = {}
        self._slow_ns = self._rare_ns = 0

    def sample(self, now_ns: int) -> Iterator[Row]:
        """Yield the row of the host and, every 10 s, rows of control groups and processes."""
        slow, rare = now_ns >= self._slow_ns, now_ns >= self._rare_ns
        if self._boot_id is None:
            self._boot_id = self._read_boot_id()
        holders = dict(self._holders())
        yield self._row(self._of_host(holders, slow=slow, rare=rare), "host", now_ns)
        if rare:
            self._rare_ns = now_ns + RARE_NS
        if slow:
            self._slow_ns = now_ns + SLOW_NS
            for group, pids in self._groups(holders).items():
                reading = Reading(subject="container", **_common_run({pid: holders[pid] for pid in pids}))
                if len(pids) == 1:  # it distinguishes several groups of a run, such as Slurm's tasks
                    reading.columns["holder_rank"] = holders[pids[0]].rank
                reading.take(CGROUP_COLUMNS, partial(limits, self._tree, group))
                _add_missing_reasons(reading)
                yield self._row(reading, group, now_ns)
            for pid, name in sorted(holders.items()):
                reading = Reading(subject="process", **_common_run({pid: name}), holder_rank=name.rank)
                try:
                    proc.read_process(self._tree, pid, reading)
                except (OSError, ValueError, IndexError):  # the process ended meanwhile
                    continue
                yield self._row(reading, (pid, name), now_ns)
            self._drop_old_subjects(now_ns)

    def close(self) -> None:
        """Do nothing: no resource is open."""

    def _row(self, reading: Reading, subject: object, now_ns: int) -> Row:
        before = self._last_ns.get(subject)
        self._last_ns[subject] = now_ns
        reading.columns |= {
            "host": self._host,
            "boot_id": self._boot_id or None,
            "interval_ns": None if before is None else now_ns - before,
        }
        return Row(TABLE, reading.row(), now_ns)

    def _drop_old_subjects(self, now_ns: int) -> None:
        """Drop the times of processes and groups that no longer exist."""
        self._last_ns = {subject: at for subject, at in self._last_ns.items() if subject == "host" or at == now_ns}

    def _of_host(self, holders: dict[int, StreamName], *, slow: bool, rare: bool) -> Reading:
        tree = self._tree
        reading = Reading(subject="host", **_common_run(holders))
        reading.take(_CPU, self._cpu)
        reading.take(_LOAD, partial(proc.load, tree))
        reading.take(_MEMORY, partial(proc.memory, tree))
        reading.take(_PAGING, partial(proc.paging, tree))
        reading.take(proc.DISK_COLUMNS, partial(self._disks, split=slow))
        reading.take(proc.NETWORK_COLUMNS, partial(self._networks, split=slow))
        reading.take(["tcp_retransmit_count"], partial(proc.tcp, tree))
        for resource in ("cpu", "memory", "io"):
            reading.take(proc.pressure_columns(resource), partial(proc.pressure, tree, resource))
        reading.take(["uptime_s"], partial(proc.uptime, tree))
        if slow:
            reading.take([*INFINIBAND_COLUMNS, "infiniband_ports"], self._infiniband)
            reading.take(["links"], lambda: {"links": json_text(links(tree))})
            reading.take(["filesystem_used_bytes", "filesystem_total_bytes"], self._filesystem)
            reading.columns |= _clock()
        if rare:
            reading.take(["cpu_frequency_hz"], partial(frequency, tree))
            reading.take(["cpu_temperature_celsius"], partial(temperature, tree))
            reading.take(["power_watts"], partial(power, tree))
            reading.take(["energy_joules"], partial(self._energy.read, tree))
        return reading

    def _cpu(self) -> dict[str, Any]:
        times, columns = proc.cpu_times(self._tree)
        before, self._times = self._times, times
        return columns if before is None else columns | proc.cpu_ratios(times, before)

    def _disks(self, *, split: bool) -> dict[str, Any]:
        disks = proc.disks(self._tree)
        sums = proc.total(disks, proc.DISK_COLUMNS)
        before, self._disk_sums = self._disk_sums, sums
        columns = {**sums, **(proc.latencies(sums, before) if before and sums else {})}
        return columns | ({"disks": json_text(disks)} if split else {})

    def _networks(self, *, split: bool) -> dict[str, Any]:
        networks = proc.networks(self._tree)
        return proc.total(networks, proc.NETWORK_COLUMNS) | ({"networks": json_text(networks)} if split else {})

    def _infiniband(self) -> dict[str, Any]:
        ports = infiniband(self._tree)
        return {**proc.total(ports, INFINIBAND_COLUMNS), "infiniband_ports": json_text(ports)}

    def _filesystem(self) -> dict[str, Any]:
        stat = os.statvfs(self._spool)
        return {
            "filesystem_used_bytes": (stat.f_blocks - stat.f_bfree) * stat.f_frsize,
            "filesystem_total_bytes": stat.f_blocks * stat.f_frsize,
        }

    def _groups(self, holders: dict[int, StreamName]) -> dict[Cgroup, list[int]]:
        """Return the pids of the ranks' processes by control group."""
        pids_by_group: dict[Cgroup, list[int]] = {}
        for pid in holders:
            try:
                pids_by_group.setdefault(cgroup_of(self._tree, pid), []).append(pid)
            except (OSError, ValueError):  # the process ended meanwhile, or there are no control groups
                continue
        return pids_by_group

    def _read_boot_id(self) -> str:
        try:
            return self._tree.text("proc/sys/kernel/random/boot_id").strip()
        except OSError:
            return ""


def _common_run(holders: dict[int, StreamName]) -> dict[str, Any]:
    """Return columns with the run and attempt that all processes belong to; empty if they differ."""
    runs = {(name.run, name.attempt) for name in holders.values()}
    if len(runs) != 1:
        return {}
    ((run, attempt),) = runs
    return {"holder_run": run, "holder_attempt": attempt}


def _add_missing_reasons(reading: Reading) -> None:
    """Add reasons for missing files of a control group; a limit that is not set has no reason."""
    for column in CGROUP_COLUMNS:
        if reading.columns.get(column) is None and not column.endswith(("_limit", "_limit_bytes")):
            reading.unavailable.setdefault(column, NOT_THERE)


def _clock() -> dict[str, Any]:
    clock = read_clock(0)
    return {
        "clock_offset_s": None if clock.offset_ns is None else clock.offset_ns / 1e9,
        "clock_max_error_s": None if clock.max_error_ns is None else clock.max_error_ns / 1e9,
        "clock_synchronized": None if clock.synchronised is None else bool(clock.synchronised),
    }
