"""MLPerf: reads the ``:::MLLOG`` lines of MLPerf Training logs, mixed with other output.

Each line becomes an event named by its key, except that ``run_stop`` becomes ``run_end``. Some lines also become other
rows:

    init_start (the first) to run_start      span init, kind phase
    block_start to block_stop, or epochs     spans train, kind phase, without the time of evaluations
    eval_start to eval_stop                  spans evaluation
    tracked_stats with a step's duration     steps, which end at the line's time; other numbers become scalars
    submission_*, seed, optimizer, SYSJSON   the row of runs

A line names its rank only if the launcher added a label (``17: :::MLLOG …``). Without labels, ranks are numbered in the
order of their ``init_start`` lines, and all other lines belong to rank 0; the run's labels say so. Lines of ranks that
write concurrently may be cut, joined or out of order, so starts and stops are matched by time. Another ``init_start``
and ``run_start`` later in the log start a new run, NAME-2, and so on.
"""

import json
import re
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

from ranklake.capture.importers.formats import Format
from ranklake.capture.importers.log_lines import Ending, add_ending
from ranklake.capture.importers.logged_steps import add_steps
from ranklake.capture.importers.mlperf_intervals import KINDS, Edge, Interval, pair_edges
from ranklake.capture.importers.mlperf_lines import OTHER_UNIT, BrokenLine, Clock, clock_of, entries
from ranklake.capture.importers.mlperf_steps import Progress, is_number, step_of
from ranklake.capture.importers.source import SourceError

if TYPE_CHECKING:
    from ranklake.capture.importers.imported_run import ImportedRun
    from ranklake.capture.importers.source import Source

_NS_PER_MS: Final = 10**6
_EDGES: Final = ("_start", "_stop", "_end")
_INTERVAL_KEYS: Final = ("epoch_num", "first_epoch_num", "samples_count", "step_num")
_MEASUREMENTS: Final = frozenset({"eval_accuracy", "train_loss", "power_reading"})
_NOT_SETTINGS: Final = frozenset({"tracked_stats", "cache_clear", "status", "checkpoint", "weights_initialization"})
_LATE_SETTING: Final = re.compile("opt_.*|submission_.*|(?:train|eval)_samples|seed|.*batch_size|max_sequence_length")

_NODES: Final = re.compile(r"(\d{1,6})x")
_DEVICES: Final = re.compile(
    r"\d{1,6}x[ _-]?(?:NVIDIA[ _-])?(?:G?B[23]00|GH200|H[12]00|A100|L40S?|V100|MI\d{3}[AX]?)", re.IGNORECASE
)
_DEVICE: Final = re.compile(
    r"(?:^|[ _-]|x\d*)(?:NVIDIA )?(?:(?P<chassis>[HD]GX) )?"
    r"(?P<model>G?B[23]00|GH200|H[12]00|A100|L40S?|V100|MI\d{3}[AX]?)"
    r"(?:[ _-]?(?P<form>SXM|PCIE|NVL))?(?![A-Za-z0-9])", re.IGNORECASE,
)  # fmt: skip
_PLAIN_DEVICE: Final = re.compile(r"G[BH]\d{3}|L40S?|MI\d{3}[AX]?", re.IGNORECASE)
_CUDA: Final = re.compile(r"NVIDIA|Tesla|\b(?:[ABHV]\d{2,3}|G[BH]\d{3}|L40S?|MI\d{3}[AX]?)\b|[HD]GX", re.IGNORECASE)
_NO_VALUE: Final = re.compile(
    r"\A\W*(?:n/?a|none|null|unknown)?\W*\Z|no devices|not found|failed|error|could ?n.t|unable", re.IGNORECASE
)
_BEGIN_UNKNOWN: Final = '{"begin":"not told"}'
_PREAMBLE: Final = re.compile("cache_clear|submission_.*")
"""Keys of lines that launchers write before the first `init_start`."""


@dataclass
class _Log:
    """State of reading one run of a log. Times are ms since 1970.

    Attributes
    ----------
    edges, progress
        Starts and stops, and the state of training, by rank.
    system
        Content of the ``:::SYSJSON`` line.
    first_init, inits
        Time of the first `init_start`, and their number.
    cleared
        Number of `cache_clear` lines.
    last
        Time of the last line.
    is_labelled
        Whether lines have labels of ranks.
    """

    edges: dict[int, list[Edge]] = field(default_factory=lambda: defaultdict(list))
    config: dict[str, Any] = field(default_factory=dict)
    system: dict[str, Any] = field(default_factory=dict)
    first_init: int | None = None
    last: int = 0
    inits: int = 0
    cleared: int = 0
    run_start: int | None = None
    progress: dict[int, Progress] = field(default_factory=lambda: defaultdict(Progress))
    is_labelled: bool = False
    benchmark: str = ""


def read(source: "Source", recording: "ImportedRun") -> None:
    """Import a log. Lines with a marker that cannot be read are refused.

    Raises
    ------
    SourceError
        The file has no marked line, or no line has a time.
    """
    with source.first_look():
        parts = (entry for line in source.lines() for entry in entries(line) if not isinstance(entry, BrokenLine))
        keys = [(entry["key"], entry["time_ms"]) for label, entry in parts if label is not None]
    clock = clock_of(at for _, at in keys)
    begins = _run_starts((key, at_ms) for key, at in keys if (at_ms := clock(at)) is not None)
    names = [f"{recording.run[:120]}-{number}" for number in range(2, len(begins) + 2)]
    recordings = (recording, *(recording.sibling(name, recording.attempt) for name in names))
    logs = [(_Log(), run_recording) for run_recording in recordings]
    seen_texts: set[str] = set()
    for line in source.lines():
        for entry in entries(line):
            if isinstance(entry, BrokenLine):
                recording.refuse("events", entry.reason, entry.text, line.number)
            elif (text := entry[1].get("text", "")) not in seen_texts:  # many trainers write lines of v0.5 twice
                seen_texts.update({text} - {""})
                if (reason := _add_entry(logs, begins, clock, *entry)) is not None:
                    recording.refuse("events", reason, json.dumps(entry[1]), line.number)
    if recording.is_empty and not source.cut:
        lack = "begins with :::MLLOG, :::MLL or :::MLPv0.5" if not keys else "has a time"
        raise SourceError(f"no line of the file {lack}", where=source.name, hint="name a result_….txt")
    for log, run_recording in logs:
        if log.last:
            _add_spans(log, run_recording)
            _add_facts(log, run_recording)


def _add_entry(
    logs: "list[tuple[_Log, ImportedRun]]", begins: list[int], clock: Clock, label: int | None, entry: dict[str, Any]
) -> str | None:
    """Add an entry to its run, or to all runs if it has no time; return the reason if it is refused."""
    if label is None:
        for log, _ in logs:
            log.system = entry
        return None
    if not entry["time_ms"]:  # a launcher's line about the whole log
        if not _is_setting(entry):
            return "the MLLOG line's time is 0"
        for log, _ in logs:
            _add_setting(log, entry["key"], entry.get("value"), 0)
        return None
    at_ms = clock(entry["time_ms"])
    if at_ms is None:
        return OTHER_UNIT
    log, run_recording = logs[bisect_right(begins, at_ms)]
    _add_timed_entry(log, run_recording, {**entry, "time_ms": at_ms}, label if label >= 0 else None)
    return None


def _run_starts(keys: Iterable[tuple[str, int]]) -> list[int]:
    """Return the begin of a log's second run and of each later one, from keys and times in the order of lines.

    A run begins at its first `init_start`, or at the launcher's lines immediately before it.
    """
    inits: list[int] = []
    edges: dict[str, list[int]] = {"run_start": [], "run_stop": []}
    preamble: int | None = None
    for key, at in keys:
        if key == "init_start":
            inits.append(at if preamble is None else min(at, preamble))
        elif key in edges:
            edges[key].append(at)
        if not _PREAMBLE.fullmatch(key):
            preamble = None
        elif preamble is None:
            preamble = at
    starts, stops = sorted(edges["run_start"]), edges["run_stop"]
    begins = [min(between) for a, b in pairwise(starts) if (between := [at for at in inits if a < at <= b])]
    if starts and stops and (later := [at for at in inits if at > max(starts[-1], *stops)]):
        begins.append(min(later))
    return begins


def _add_timed_entry(log: _Log, recording: "ImportedRun", entry: dict[str, Any], label: int | None) -> None:
    """Add an entry's event, and what else is made from it. `label` is its rank; None if it has none."""
    key, at, value = entry["key"], entry["time_ms"], entry.get("value")
    log.benchmark = entry.get("benchmark") or log.benchmark
    metadata = entry["metadata"] if isinstance(entry.get("metadata"), dict) else {}
    log.last = max(log.last, at)
    rank = label or 0
    log.is_labelled |= label is not None
    if key == "init_start":
        rank = log.inits if label is None else rank
        log.inits += 1
        log.first_init = at if log.first_init is None else min(at, log.first_init)
    log.cleared += key == "cache_clear"
    _add_edge(log, rank, key, at, _interval_key(metadata))
    status = metadata.get("status")
    is_aborted = key == "run_stop" and status not in {None, "success"}
    if not _add_measurements(log, recording, rank, entry, metadata) and _is_setting(entry):
        _add_setting(log, key, value, at)
    attributes = {name: entry[name] for name in ("event_type", "value", "metadata") if entry.get(name) is not None}
    recording.row(
        "events", at * _NS_PER_MS, rank,
        event="run_end" if key == "run_stop" else key[:256],
        severity="error" if is_aborted else "info",
        attributes=json.dumps(attributes, separators=(",", ":"), ensure_ascii=False),
    )  # fmt: skip
    if is_aborted:
        add_ending(recording, Ending("failed", f"run_stop: {str(status)[:64]}"), at * _NS_PER_MS, rank=rank)


def _interval_key(metadata: dict[str, Any]) -> str:
    """Return the interval that a line belongs to among those of its kind, such as ``epoch_num 3``; '' if unknown."""
    return next((f"{name} {metadata[name]}" for name in _INTERVAL_KEYS if metadata.get(name) is not None), "")


def _add_edge(log: _Log, rank: int, key: str, at: int, interval_key: str) -> None:
    kind, _, end = key.rpartition("_")
    edges = log.edges[rank]
    if kind in KINDS and end in {"start", "stop"}:
        edges.append(Edge(at, len(edges), kind, end, interval_key))
        if (kind in {"run", "block", "epoch"} and end == "start") or (kind, end) == ("eval", "stop"):
            log.progress[rank].at_ms = at
        if (kind, end) == ("run", "start"):
            log.run_start = at if log.run_start is None else min(at, log.run_start)
    elif key == "eval_accuracy":
        edges.append(Edge(at, len(edges), "eval", "end_only", ""))


def _is_setting(entry: dict[str, Any]) -> bool:
    """Whether an entry may be a setting: a point in time (the default for lines without a type), not an interval."""
    return entry.get("event_type", "POINT_IN_TIME") == "POINT_IN_TIME" and not entry["key"].endswith(_EDGES)


def _add_setting(log: _Log, key: str, value: Any, at: int) -> None:  # noqa: ANN401 - JSON
    """Keep a setting. While training runs, only the names of `_LATE_SETTING` are settings."""
    is_running = log.run_start is not None and at > log.run_start
    if value is not None and key not in _NOT_SETTINGS and (not is_running or _LATE_SETTING.fullmatch(key)):
        log.config.setdefault(key, value)


def _add_measurements(
    log: _Log, recording: "ImportedRun", rank: int, entry: dict[str, Any], metadata: dict[str, Any]
) -> bool:
    """Add the entry's steps, and scalars ``mlperf/<name>``; return whether it has measurements."""
    key, at, value = entry["key"], entry["time_ms"], entry.get("value")
    if key in _MEASUREMENTS:
        value = {key: value}
    elif key != "tracked_stats" or not isinstance(value, dict):
        return False
    steps = step_of(value, metadata, at, log.progress[rank], log.config) if key == "tracked_stats" else None
    if steps is not None:
        add_steps(recording, steps[0], rank, None if log.is_labelled else _world_size(log))
        log.edges[rank].append(Edge(at, len(log.edges[rank]), "step", "end_only", ""))
    for name, number in value.items():
        if is_number(number) and (steps is None or name != steps[1]):
            metric = f"mlperf/{name.removesuffix(' in s').replace(' ', '_')}"
            recording.unregistered(metric[:512], float(number), at * _NS_PER_MS, rank)
    return True


def _add_spans(log: _Log, recording: "ImportedRun") -> None:
    """Add the intervals of each rank as spans. Those of the first rank that has any become spans of rank 0."""
    number = 0

    def add_span(rank: int, name: str, kind: str, interval: Interval, flag: str = '{"unfinished":true}') -> None:
        nonlocal number
        duration_ms = max(0, interval.end - interval.begin)
        recording.row(
            "spans", interval.begin * _NS_PER_MS, rank, name=name, kind=kind, span_id=number,
            duration_ns=duration_ms * _NS_PER_MS, attributes=None if interval.is_complete else flag,
        )  # fmt: skip
        number += 1

    leader = min(
        (rank for rank, edges in log.edges.items() if any(edge.end != "end_only" for edge in edges)), default=0
    )
    start = log.run_start if log.run_start is not None else log.last
    if log.first_init is not None:
        add_span(0, "init", "phase", Interval(log.first_init, max(log.first_init, start), log.run_start is not None))
    elif log.run_start is not None:
        add_span(0, "init", "phase", Interval(start, start, is_complete=False), _BEGIN_UNKNOWN)
    for log_rank in sorted(log.edges):
        rank = 0 if log_rank == leader else log_rank
        intervals = pair_edges(log.edges[log_rank], log.last)
        for log_kind, (name, kind) in KINDS.items():
            for interval in intervals.of(log_kind) if log_kind != "block" else []:
                add_span(rank, name, kind, interval)
        for interval in intervals.training_intervals():
            add_span(rank, *KINDS["block"], interval)
        for begin, end in intervals.unstarted_evals:
            add_span(rank, "evaluation", "phase", Interval(begin, end, is_complete=False), _BEGIN_UNKNOWN)


def _nodes(log: _Log) -> int | None:
    platform = platform_of(str(log.config.get("submission_platform") or ""))
    return _count(log.system.get("number_of_nodes")) or platform[0]


def _world_size(log: _Log) -> int | None:
    """Return the number of ranks; None if unknown.

    Without a number of devices it is the number of `init_start` lines, unless these seem to be one for each node.
    """
    nodes, devices_per_node = _nodes(log), _count(log.system.get("accelerators_per_node"))
    if nodes and devices_per_node:
        return nodes * devices_per_node
    is_per_node = log.inits in {nodes, log.cleared} or (nodes and log.inits % nodes)
    return None if log.inits < 2 or is_per_node else log.inits  # noqa: PLR2004 - several


def _add_facts(log: _Log, recording: "ImportedRun") -> None:
    """Set labels and columns of the row of ``runs``. Columns without a value in the log are NULL."""
    ranks, nodes = _world_size(log), _nodes(log)
    recording.world_size = ranks or 1
    recording.labels |= {key: str(value) for key, value in log.config.items() if key.startswith("submission_")}
    if not log.is_labelled and log.inits > 1:
        recording.labels["ranks"] = "numbered in the order of their init_start lines: the log does not name them"
    config = {key: value for key, value in log.config.items() if not key.startswith("submission_")}
    seed = log.config.get("seed")
    system = {name: str(value) for name, value in log.system.items() if value and not _NO_VALUE.search(str(value))}
    device = system.get("accelerator_model_name") or platform_of(str(log.config.get("submission_platform") or ""))[1]
    recording.facts = {
        "job": str(log.config.get("submission_benchmark") or log.benchmark or recording.run),
        "world_size": ranks, "node_count": nodes, "device_count": ranks,
        "cluster": system.get("system_name"), "device_name": device,
        "device_type": "cuda" if _CUDA.search(device or "") else None,
        "framework": system.get("framework"), "os_description": system.get("operating_system"),
        "cpu_model": system.get("host_processor_model_name"),
        "seed": seed if isinstance(seed, int) and abs(seed) < 1 << 63 else None,
        "config": json.dumps(config, sort_keys=True),
    }  # fmt: skip


def _count(value: Any) -> int | None:  # noqa: ANN401 - JSON
    return int(str(value)) if str(value).isdecimal() and 0 < int(str(value)) < 1 << 24 else None


def platform_of(text: str) -> tuple[int | None, str | None]:
    """Return the number of nodes and the device of a platform, such as ``64xNVIDIA DGX H100``; None if unknown.

    The number in ``8xA100-SXM`` counts devices, not nodes.
    """
    device = _DEVICE.search(text)
    nodes = None if _DEVICES.match(text) else _NODES.match(text)
    name = None
    if device:
        parts = (device["chassis"] or "", device["model"], (device["form"] or "").upper())
        name = " ".join(filter(None, parts)).replace("PCIE", "PCIe")
        name = name if " " in name or _PLAIN_DEVICE.fullmatch(name) else None  # "H100" alone is ambiguous
    return (int(nodes[1]) if nodes else None), name


FORMAT: Final = Format(
    summary="MLPerf Training logs, :::MLLOG lines",
    recognises="lines with :::MLLOG and a JSON object, or :::MLL, or :::MLPv0.5.0",
    read=read,
    table="events",
    mark=re.compile(rb":::MLLOG|:::SYSJSON|:::MLPv0\.|:::MLL "),
    among=True,
)
