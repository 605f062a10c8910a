"""MLPerf Training logs: ``:::MLLOG`` lines among whatever else was printed.

Each line is an event, under its key (but ``run_stop``, which is ``run_end`` here). Beside that,

    init_start (the first) to run_start      span init, kind phase
    block_start to block_stop, or epochs     spans train, kind phase, cut where evaluations lie in them
    eval_start to eval_stop                  spans evaluation
    tracked_stats with a step's timing       steps, which end when they were told; the other numbers are scalars
    submission_*, seed, optimizer, SYSJSON   the row of runs

A line does not say which rank wrote it, unless the launcher put a label in front (``17: :::MLLOG …``). Without one
the ranks are numbered in the order of their ``init_start``, and all other lines are rank 0's; the run's labels say so.
"""

import json
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from ranklake.capture.importers.mapping import Mapping
    from ranklake.capture.importers.recording import Recording
    from ranklake.capture.importers.source import Source

MARKER: Final = ":::MLLOG"
_SYSTEM: Final = ":::SYSJSON"
_LABEL: Final = re.compile(r"^\s*\[?(?:rank\s*)?(\d{1,9})\]?\s*:\s*$")
_STEP_TIME: Final = re.compile(r"(?:train[_ ])?step[_ ]tim(?:e|ing)(?:[_ ](?:in[_ ])?(m?s))?")
_NS_PER_MS: Final = 10**6
_LARGEST_MS: Final = 1 << 42
_DECODER: Final = json.JSONDecoder()
_INTERVALS: Final = {"block": ("train", "phase"), "eval": ("evaluation", "evaluation"), "epoch": ("epoch", "other"),
                     "run": ("run", "other")}  # fmt: skip

Interval = tuple[int, int]


@dataclass
class _Log:
    """What was read of a log so far. Times are ms since 1970."""

    starts: dict[str, int] = field(default_factory=dict)
    intervals: dict[str, list[Interval]] = field(default_factory=dict)
    config: dict[str, Any] = field(default_factory=dict)
    system: dict[str, Any] = field(default_factory=dict)
    first_init: int | None = None
    last: int = 0
    inits: int = 0
    steps: int = 0
    labelled: bool = False


def read(source: "Source", recording: "Recording", mapping: "Mapping | None") -> None:
    """Import a log. Lines with a marker that cannot be read are refused; all others are none of ours."""
    del mapping
    log = _Log()
    for line in source.lines():
        before, marker, after = line.text.partition(MARKER)
        if not marker:
            _system(log, line.text)
            continue
        found = _entry(after) if line.flaw is None else None
        if found is None:
            recording.refuse("events", line.flaw or "an MLLOG line that is not whole", line.text, line.number)
            continue
        label = _LABEL.match(before.rpartition("\r")[2])
        _take(log, recording, found, None if label is None else int(label[1]))
    if source.cut:
        recording.refuse("events", source.cut, "")
    if log.last:
        _spans(log, recording)
        _facts(log, recording)


def _entry(text: str) -> dict[str, Any] | None:
    """Return a line's object; None if it is none, or lacks a key or a time."""
    try:
        found, _ = _DECODER.raw_decode(text.lstrip())
    except (ValueError, RecursionError):
        return None
    if not isinstance(found, dict) or not isinstance(found.get("key"), str) or not found["key"]:
        return None
    at = found.get("time_ms")
    if not isinstance(at, int | float) or isinstance(at, bool) or not 0 < at < _LARGEST_MS:
        return None
    return {**found, "time_ms": int(at)}


def _take(log: _Log, recording: "Recording", entry: dict[str, Any], label: int | None) -> None:
    key, at, value = entry["key"], entry["time_ms"], entry.get("value")
    log.last = max(log.last, at)
    rank = label or 0
    log.labelled |= label is not None
    if key == "init_start":
        rank = log.inits if label is None else rank
        log.inits += 1
        log.first_init = at if log.first_init is None else min(at, log.first_init)
    elif key == "run_start":
        log.starts.setdefault("run_start", at)
    _interval(log, key, at)
    if entry.get("event_type") == "POINT_IN_TIME" and key not in {"tracked_stats", "cache_clear"}:
        log.config.setdefault(key, value)
    _numbers(log, recording, key, value, at)
    more = {name: entry[name] for name in ("event_type", "value", "metadata") if entry.get(name) is not None}
    status = (entry.get("metadata") or {}).get("status") if isinstance(entry.get("metadata"), dict) else None
    recording.row(
        "events", at * _NS_PER_MS, rank,
        event="run_end" if key == "run_stop" else key[:256],
        severity="error" if key == "run_stop" and status not in {None, "success"} else "info",
        attributes=json.dumps(more, separators=(",", ":"), ensure_ascii=False),
    )  # fmt: skip


def _interval(log: _Log, key: str, at: int) -> None:
    what, _, edge = key.rpartition("_")
    if what not in _INTERVALS:
        return
    if edge == "start":
        log.starts[what] = at
    elif edge == "stop" and what in log.starts:
        log.intervals.setdefault(what, []).append((log.starts.pop(what), at))


def _numbers(log: _Log, recording: "Recording", key: str, value: Any, at: int) -> None:  # noqa: ANN401 - JSON
    """Add what was measured: steps, and scalars under ``mlperf/``."""
    if key == "eval_accuracy":
        value = {key: value}
    elif key != "tracked_stats" or not isinstance(value, dict):
        return
    for name, number in value.items():
        if not isinstance(number, int | float) or isinstance(number, bool):
            continue
        timing = _STEP_TIME.fullmatch(name)
        if timing and 0 <= number < 1 << 30:
            seconds = number / 1000 if timing[1] == "ms" else float(number)
            recording.step(log.steps, seconds, at * _NS_PER_MS - round(seconds * 1e9))
            log.steps += 1
        else:
            metric = f"mlperf/{name.removesuffix(' in s').replace(' ', '_')}"
            recording.scalar(metric[:512], float(number), at * _NS_PER_MS, kind="gauge", edge_flag="unregistered")


def _system(log: _Log, text: str) -> None:
    _, marker, after = text.partition(_SYSTEM)
    if marker:
        try:
            found, _ = _DECODER.raw_decode(after.lstrip())
        except (ValueError, RecursionError):
            return
        log.system = found if isinstance(found, dict) else log.system


def _spans(log: _Log, recording: "Recording") -> None:
    """Add the intervals; one without an end goes to the log's last line, and says so."""
    number = 0

    def span(name: str, kind: str, begin: int, end: int, *, whole: bool = True) -> None:
        nonlocal number
        recording.row(
            "spans", begin * _NS_PER_MS, name=name, kind=kind, span_id=number,
            duration_ns=max(0, end - begin) * _NS_PER_MS, attributes=None if whole else '{"unfinished":true}',
        )  # fmt: skip
        number += 1

    run_start = log.starts.get("run_start")
    if log.first_init is not None:
        span("init", "phase", log.first_init, run_start or log.last, whole=run_start is not None)
    train = "block" if log.intervals.get("block") or "block" in log.starts else "epoch"
    for what, (name, kind) in _INTERVALS.items():
        found = [(begin, end, True) for begin, end in log.intervals.get(what, [])]
        if what in log.starts:
            found.append((log.starts[what], log.last, False))
        for begin, end, whole in found:
            if what != train:
                span(name, kind, begin, end, whole=whole)
                continue
            if what == "epoch":
                span(name, kind, begin, end, whole=whole)
            for left, right in _outside((begin, end), log.intervals.get("eval", [])):
                span("train", "phase", left, right, whole=whole or right < end)


def _outside(of: Interval, others: list[Interval]) -> list[Interval]:
    """Return what is left of an interval outside of others, which are in their order."""
    begin, end = of
    left: list[Interval] = []
    for start, stop in others:
        if stop <= begin or start >= end:
            continue
        if start > begin:
            left.append((begin, start))
        begin = max(begin, stop)
    if begin < end:
        left.append((begin, end))
    return left


def _facts(log: _Log, recording: "Recording") -> None:
    """Fill in the row of ``runs``; what the log does not say stays NULL."""
    nodes, each = (_count(log.system.get(name)) for name in ("number_of_nodes", "accelerators_per_node"))
    ranks = nodes * each if nodes and each else log.inits if log.inits > 1 else None
    recording.world_size = ranks or 1
    labels = {key: str(value) for key, value in log.config.items() if key.startswith("submission_")}
    if not log.labelled and log.inits > 1:
        labels["ranks"] = "numbered in the order of their init_start lines: the log does not name them"
    config = {key: value for key, value in log.config.items() if not key.startswith("submission_")}
    seed = log.config.get("seed")
    system = {name: str(value) for name, value in log.system.items() if value}
    recording.facts = {
        "job": str(log.config.get("submission_benchmark") or recording.run),
        "world_size": ranks, "node_count": nodes, "device_count": ranks,
        "cluster": system.get("system_name"), "device_name": system.get("accelerator_model_name"),
        "device_type": "cuda" if "NVIDIA" in system.get("accelerator_model_name", "") else None,
        "framework": system.get("framework"), "os_description": system.get("operating_system"),
        "cpu_model": system.get("host_processor_model_name"),
        "seed": seed if isinstance(seed, int) and abs(seed) < 1 << 63 else None,
        "config": json.dumps(config, sort_keys=True), "labels": json.dumps(labels),
    }  # fmt: skip


def _count(value: Any) -> int | None:  # noqa: ANN401 - JSON
    return int(str(value)) if str(value).isdecimal() and 0 < int(str(value)) < 1 << 24 else None
