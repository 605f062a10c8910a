"""Detectors of faults of hosts, from ``host_minutes`` and imported faults of nodes."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, Final

from ranklake.detection.declaration import Detection, Detector, Series
from ranklake.lake.rollups.detectors.stretches import (
    MIN_LENGTH,
    MIN_TOTAL,
    NEVER,
    SECOND,
    Stretch,
    Stretches,
    growing,
)
from ranklake.printable import counted, duration

_SAMPLES: Final = """SELECT ts, host, {columns} FROM host_samples
WHERE subject = 'host' AND (holder_run IS NOT DISTINCT FROM {{run}}) AND date BETWEEN {{date}} AND {{end_date}}
  AND ts BETWEEN {{start_ts}} AND {{end_ts}} ORDER BY host, ts"""
_FAULTS: Final = """SELECT ts, run, rank, attributes FROM events
WHERE event = 'fault_start' AND date = {date} AND ts BETWEEN {start_ts} AND {start_ts} + INTERVAL '1 second'"""
_PORTS: Final = (
    "infiniband_symbol_error_count",
    "infiniband_link_downed_count",
    "infiniband_link_recovery_count",
    "infiniband_receive_error_count",
)


def faults(series: Series, thresholds: Mapping[str, float]) -> Iterator[Detection]:
    """Report an imported fault of a node; it has no end if it is not repaired yet."""
    del thresholds
    details: dict[str, Any] = json.loads(series["detail"][0] or "{}")
    start, last = int(series["first_ts"][0]), int(series["last_ts"][0])
    level, kind, text = (str(details.get(name, "")) for name in ("level", "class", "description"))
    seconds = None if last == NEVER else (last - start) / SECOND
    repaired = "not repaired yet" if seconds is None else f"repaired after {duration(seconds, in_minutes=True)}"
    cause = kind if text in {"", kind} else f"{kind}, {text}"
    yield Detection(
        start=start,
        end=None if last == NEVER else last,
        message=f"Node {series['node'][0]:.0f} is at fault: {cause}; {repaired}",
        value=seconds,
        effect=1.0,
        severity="error" if level.startswith("Hardware") else "warning",
        evidence={"level": level, "class": kind, "description": text},
    )


def _waiting(s: Stretch, subject: str, resource: str) -> str:
    return f"{subject} of {s.where} wait for {resource} {100 * s.value:.0f} % of the time, {s.lasting}"


def _iowait(s: Stretch) -> str:
    return _waiting(s, "CPUs", "disks")


def _io(s: Stretch) -> str:
    return _waiting(s, "all tasks", "disks")


def _memory(s: Stretch) -> str:
    return _waiting(s, "all tasks", "memory")


def _cpu(s: Stretch) -> str:
    return _waiting(s, "tasks", "CPUs")


def _kills(s: Stretch) -> str:
    return f"the kernel killed {counted(s.value, 'process', 'processes')} of {s.where} for want of memory"


def _errors(s: Stretch) -> str:
    return f"InfiniBand ports of {s.where} had {s.value:,.0f} errors"


def _links(s: Stretch) -> str:
    is_one = len(s.details) == 1
    return f"link{'s' * (not is_one)} {', '.join(s.details)} of {s.where} {'is' if is_one else 'are'}"


def _down(s: Stretch) -> str:
    return f"{_links(s)} down, {s.lasting}"


def _slow(s: Stretch) -> str:
    return f"{_links(s)} at {s.value / 1e9:.0f} Gb/s for {s.baseline / 1e9:.0f}, {s.lasting}"


def _silence(s: Stretch) -> str:
    return f"nothing was heard of {s.where} for {duration(s.value, in_minutes=True)}, while its run went on"


def _samples(*columns: str) -> str:
    return _SAMPLES.format(columns=", ".join(columns))


_IOWAIT: Final = Detector(
    name="iowait",
    watches="CPU time of hosts idle for want of disks",
    finds="it is a large share for a minute or more",
    table="host_samples",
    columns=("cpu_iowait_ratio",),
    grain=("host", "run", "attempt"),
    order=("ts",),
    find=Stretches(_iowait),
    effect="share above the threshold",
    severity="warning",
    runbook="storage",
    evidence_sql=_samples("cpu_iowait_ratio", "disk_read_latency_s", "disk_write_latency_s"),
    min_effect=0,
    cooldown_s=300,
    parameters={"min_ratio": 0.3, MIN_LENGTH: 60},
)
DETECTORS: Final = (
    _IOWAIT,
    replace(
        _IOWAIT,
        name="io_pressure",
        watches="time in which all tasks of a host wait for disks",
        columns=("pressure_io_full_ratio",),
        find=Stretches(_io),
        evidence_sql=_samples("pressure_io_full_ratio", "pressure_io_some_ratio"),
    ),
    replace(
        _IOWAIT,
        name="memory_pressure",
        watches="time in which all tasks of a host wait for memory",
        finds="it is a share that hurts for a minute or more",
        columns=("pressure_memory_full_ratio",),
        find=Stretches(_memory),
        runbook="starvation",
        evidence_sql=_samples("pressure_memory_full_ratio", "memory_available_bytes"),
        parameters={"min_ratio": 0.1, MIN_LENGTH: 60},
    ),
    replace(
        _IOWAIT,
        name="cpu_pressure",
        watches="time in which some task of a host waits for a CPU",
        finds="it is nearly all for ten minutes or more",
        columns=("pressure_cpu_some_ratio",),
        find=Stretches(_cpu),
        severity="info",
        runbook="starvation",
        evidence_sql=_samples("pressure_cpu_some_ratio", "cpu_utilization_ratio"),
        parameters={"min_ratio": 0.95, MIN_LENGTH: 600},
    ),
    replace(
        _IOWAIT,
        name="host_memory_growth",
        watches="memory in use on hosts",
        finds="it grows for twenty minutes, by a share of all there is, and would be used up within the horizon",
        columns=("memory_used_bytes", "memory_total_bytes"),
        find=Stretches(growing),
        effect="bytes per second",
        runbook="memory-growth",
        evidence_sql=_samples("memory_used_bytes", "memory_total_bytes"),
        parameters={"min_ratio": 0.02, "horizon_s": 6 * 3600},
    ),
    replace(
        _IOWAIT,
        name="oom_kill",
        watches="processes that the kernel kills for want of memory",
        finds="there is one",
        columns=("oom_kill_count",),
        find=Stretches(_kills, of_sum=True),
        effect="processes",
        severity="error",
        runbook="host-out-of-memory",
        evidence_sql=_samples("oom_kill_count", "memory_available_bytes"),
        min_effect=1,
        cooldown_s=600,
        parameters={},
        false_positive_target=0,
    ),
    replace(
        _IOWAIT,
        name="network_errors",
        watches="symbol errors, recoveries, failures and bad packets of InfiniBand ports",
        finds="there are many within an hour",
        columns=_PORTS,
        find=Stretches(_errors, of_sum=True),
        effect="errors",
        runbook="network",
        evidence_sql=_samples(*_PORTS),
        min_effect=1,
        cooldown_s=3600,
        parameters={MIN_TOTAL: 10},
    ),
    replace(
        _IOWAIT,
        name="link_down",
        watches="network cards and InfiniBand ports",
        finds="one that was up is down",
        columns=("links",),
        find=Stretches(_down, below=True),
        effect="bit/s",
        severity="error",
        runbook="network",
        evidence_sql=_samples("links"),
        parameters={},
    ),
    replace(
        _IOWAIT,
        name="link_slow",
        watches="speed of network cards and InfiniBand ports",
        finds="one is slower than before, or than most of its name and make on other hosts",
        columns=("links",),
        find=Stretches(_slow, below=True),
        effect="bit/s",
        runbook="network",
        evidence_sql=_samples("links"),
        parameters={},
    ),
    replace(
        _IOWAIT,
        name="host_silence",
        watches="samples of a host while others of its run go on",
        finds="none comes for some minutes",
        columns=("ts",),
        find=Stretches(_silence),
        effect="seconds above the threshold",
        severity="error",
        runbook="silence",
        evidence_sql=_samples("interval_ns"),
        parameters={MIN_LENGTH: 300},
    ),
    Detector(
        name="node_fault",
        watches="faults of nodes that were imported",
        finds="there is one",
        table="events",
        columns=("event", "attributes"),
        grain=("host", "event_key"),
        order=("ts",),
        find=faults,
        effect="faults",
        severity="error",
        runbook="node-fault",
        evidence_sql=_FAULTS,
        min_effect=0,
        cooldown_s=0,
        false_positive_target=0,
    ),
)
