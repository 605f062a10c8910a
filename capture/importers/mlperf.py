"""MLPerf Training logs: ``:::MLLOG`` lines among other output.

Each line is an event, under its key (but ``run_stop``, which is ``run_end`` here). Beside that,

    init_start (the first) to run_start      span init, kind phase
    block_start to block_stop, or epochs     spans train, kind phase, cut where evaluations lie in them
    eval_start to eval_stop                  spans evaluation
    tracked_stats with a step's timing       steps, which end when they were reported; the other numbers are scalars
    submission_*, seed, optimizer, SYSJSON   the row of runs

A line does not say which rank wrote it, unless the launcher put a label in front (``17: :::MLLOG …``). Without one
the ranks are numbered in the order of their ``init_start``, and all other lines are rank 0's; the run's labels say so.
Ranks that write at once cut lines, put several on one, and put later ones first: begins and ends are matched by time.
Where a log goes on with another ``init_start`` and ``run_start``, the second run is one of its own, NAME-2, and so on.
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
from ranklake.capture.importers.mlperf_lines import OTHER_UNIT, BrokenLine, Clock, clock_of, pieces
from ranklake.capture.importers.mlperf_steps import Progress, is_number, step_of
from ranklake.capture.importers.source import SourceError

if TYPE_CHECKING:
    from ranklake.capture.importers.imported_run import ImportedRun
    from ranklake.capture.importers.source import Source

_NS_PER_MS: Final = 10**6
_EDGES: Final = ("_start", "_stop", "_end")
_WHICH: Final = ("epoch_num", "first_epoch_num", "samples_count", "step_num")
_FIGURES: Final = frozenset({"eval_accuracy", "train_loss", "power_reading"})
_NO_SETTINGS: Final = frozenset({"tracked_stats", "cache_clear", "status", "checkpoint", "weights_initialization"})
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
_NO_ANSWER: Final = re.compile(
    r"\A\W*(?:n/?a|none|null|unknown)?\W*\Z|no devices|not found|failed|error|could ?n.t|unable", re.IGNORECASE
)
_BEGIN_UNKNOWN: Final = '{"begin":"not told"}'
_PREAMBLE: Final = re.compile("cache_clear|submission_.*")
"""Keys of what launchers write before the first `init_start`."""


@dataclass
class _Log:
    """What was read of a log so far. Times are ms since 1970."""

    edges: dict[int, list[Edge]] = field(default_factory=lambda: defaultdict(list))
    config: dict[str, Any] = field(default_factory=dict)
    system: dict[str, Any] = field(default_factory=dict)
    first_init: int | None = None
    last: int = 0
    inits: int = 0
    cleared: int = 0
    run_start: int | None = None
    progress: dict[int, Progress] = field(default_factory=lambda: defaultdict(Progress))
    labelled: bool = False
    benchmark: str = ""


def read(source: "Source", recording: "ImportedRun") -> None:
    """Import a log. Lines with a marker that cannot be read are refused.

    Raises
    ------
    SourceError
        There is no marked line in the file, or none tells a time.
    """
    with source.first_look():
        parts = (piece for line in source.lines() for piece in pieces(line) if not isinstance(piece, BrokenLine))
        keys = [(entry["key"], entry["time_ms"]) for label, entry in parts if label is not None]
    clock = clock_of(at for _, at in keys)
    begins = _run_starts((key, at_ms) for key, at in keys if (at_ms := clock(at)) is not None)
    names = [f"{recording.run[:120]}-{number}" for number in range(2, len(begins) + 2)]
    logs = [(_Log(), own) for own in (recording, *(recording.sibling(name, recording.attempt) for name in names))]
    seen: set[str] = set()
    for line in source.lines():
        for piece in pieces(line):
            if isinstance(piece, BrokenLine):
                recording.refuse("events", piece.reason, piece.text, line.number)
            elif (text := piece[1].get("text", "")) not in seen:  # of v0.5, which many trainers write twice
                seen.update({text} - {""})
                if (reason := _entry_of(logs, begins, clock, *piece)) is not None:
                    recording.refuse("events", reason, json.dumps(piece[1]), line.number)
    if recording.is_empty and not source.cut:
        lack = "begins with :::MLLOG, :::MLL or :::MLPv0.5" if not keys else "tells a time"
        raise SourceError(f"no line of the file {lack}", where=source.name, hint="name a result_….txt")
    for log, own in logs:
        if log.last:
            _add_spans(log, own)
            _add_facts(log, own)


def _entry_of(
    logs: "list[tuple[_Log, ImportedRun]]", begins: list[int], clock: Clock, label: int | None, entry: dict[str, Any]
) -> str | None:
    """Take what a line says; return why it cannot be taken, if so."""
    if label is None:
        for log, _ in logs:
            log.system = entry
        return None
    if not entry["time_ms"]:  # written by a launcher, about the whole log
        if not _is_setting(entry):
            return "an MLLOG line whose time is 0"
        for log, _ in logs:
            _setting(log, entry["key"], entry.get("value"), 0)
        return None
    at_ms = clock(entry["time_ms"])
    if at_ms is None:
        return OTHER_UNIT
    log, own = logs[bisect_right(begins, at_ms)]
    _take(log, own, {**entry, "time_ms": at_ms}, label if label >= 0 else None)
    return None


def _run_starts(entries: Iterable[tuple[str, int]]) -> list[int]:
    """Return where in time a log's second run begins, and each after that, by keys and times in the file's order."""
    inits: list[int] = []
    edges: dict[str, list[int]] = {"run_start": [], "run_stop": []}
    before: int | None = None
    for key, at in entries:
        if key == "init_start":
            inits.append(at if before is None else min(at, before))
        elif key in edges:
            edges[key].append(at)
        if not _PREAMBLE.fullmatch(key):
            before = None
        elif before is None:
            before = at
    starts, stops = sorted(edges["run_start"]), edges["run_stop"]
    begins = [min(between) for a, b in pairwise(starts) if (between := [at for at in inits if a < at <= b])]
    if starts and stops and (after := [at for at in inits if at > max(starts[-1], *stops)]):
        begins.append(min(after))
    return begins


def _take(log: _Log, recording: "ImportedRun", entry: dict[str, Any], label: int | None) -> None:
    key, at, value = entry["key"], entry["time_ms"], entry.get("value")
    log.benchmark = entry.get("benchmark") or log.benchmark
    metadata = entry["metadata"] if isinstance(entry.get("metadata"), dict) else {}
    log.last = max(log.last, at)
    rank = label or 0
    log.labelled |= label is not None
    if key == "init_start":
        rank = log.inits if label is None else rank
        log.inits += 1
        log.first_init = at if log.first_init is None else min(at, log.first_init)
    log.cleared += key == "cache_clear"
    _edge(log, rank, key, at, _interval_key(metadata))
    status = metadata.get("status")
    is_aborted = key == "run_stop" and status not in {None, "success"}
    if not _add_measurements(log, recording, rank, entry, metadata) and _is_setting(entry):
        _setting(log, key, value, at)
    more = {name: entry[name] for name in ("event_type", "value", "metadata") if entry.get(name) is not None}
    recording.row(
        "events", at * _NS_PER_MS, rank,
        event="run_end" if key == "run_stop" else key[:256],
        severity="error" if is_aborted else "info",
        attributes=json.dumps(more, separators=(",", ":"), ensure_ascii=False),
    )  # fmt: skip
    if is_aborted:
        add_ending(recording, Ending("failed", f"run_stop: {str(status)[:64]}"), at * _NS_PER_MS, rank=rank)


def _interval_key(metadata: dict[str, Any]) -> str:
    """Return which interval of its kind a line is of; '' where it does not say."""
    return next((f"{name} {metadata[name]}" for name in _WHICH if metadata.get(name) is not None), "")


def _edge(log: _Log, rank: int, key: str, at: int, which: str) -> None:
    kind, _, end = key.rpartition("_")
    edges = log.edges[rank]
    if kind in KINDS and end in {"start", "stop"}:
        edges.append(Edge(at, len(edges), kind, end, which))
        if (kind in {"run", "block", "epoch"} and end == "start") or (kind, end) == ("eval", "stop"):
            log.progress[rank].at_ms = at
        if (kind, end) == ("run", "start"):
            log.run_start = at if log.run_start is None else min(at, log.run_start)
    elif key == "eval_accuracy":
        edges.append(Edge(at, len(edges), "eval", "end_only", ""))


def _is_setting(entry: dict[str, Any]) -> bool:
    """Whether a line tells a fact; launchers that say no type of a line tell facts in those with a value."""
    return entry.get("event_type", "POINT_IN_TIME") == "POINT_IN_TIME" and not entry["key"].endswith(_EDGES)


def _setting(log: _Log, key: str, value: Any, at: int) -> None:  # noqa: ANN401 - JSON
    """Keep a hyperparameter; what is reported while training runs is none, unless its name says so."""
    is_running = log.run_start is not None and at > log.run_start
    if value is not None and key not in _NO_SETTINGS and (not is_running or _LATE_SETTING.fullmatch(key)):
        log.config.setdefault(key, value)


def _add_measurements(
    log: _Log, recording: "ImportedRun", rank: int, entry: dict[str, Any], metadata: dict[str, Any]
) -> bool:
    """Add what was measured: steps, and scalars under ``mlperf/``; return whether there was any."""
    key, at, value = entry["key"], entry["time_ms"], entry.get("value")
    if key in _FIGURES:
        value = {key: value}
    elif key != "tracked_stats" or not isinstance(value, dict):
        return False
    steps = step_of(value, metadata, at, log.progress[rank], log.config) if key == "tracked_stats" else None
    if steps is not None:
        add_steps(recording, steps[0], rank, None if log.labelled else _world(log))
        log.edges[rank].append(Edge(at, len(log.edges[rank]), "step", "end_only", ""))
    for name, number in value.items():
        if is_number(number) and (steps is None or name != steps[1]):
            metric = f"mlperf/{name.removesuffix(' in s').replace(' ', '_')}"
            recording.unregistered(metric[:512], float(number), at * _NS_PER_MS, rank)
    return True


def _add_spans(log: _Log, recording: "ImportedRun") -> None:
    """Add the intervals of each rank; the run's own are those of rank 0, or of the first rank that tells any."""
    number = 0

    def span(rank: int, name: str, kind: str, of: Interval, why: str = '{"unfinished":true}') -> None:
        nonlocal number
        recording.row(
            "spans", of.begin * _NS_PER_MS, rank, name=name, kind=kind, span_id=number,
            duration_ns=max(0, of.end - of.begin) * _NS_PER_MS, attributes=None if of.whole else why,
        )  # fmt: skip
        number += 1

    leader = min(
        (rank for rank, edges in log.edges.items() if any(edge.end != "end_only" for edge in edges)), default=0
    )
    begun = log.run_start if log.run_start is not None else log.last
    if log.first_init is not None:
        span(0, "init", "phase", Interval(log.first_init, max(log.first_init, begun), log.run_start is not None))
    elif log.run_start is not None:
        span(0, "init", "phase", Interval(begun, begun, whole=False), _BEGIN_UNKNOWN)
    for teller in sorted(log.edges):
        rank = 0 if teller == leader else teller
        intervals = pair_edges(log.edges[teller], log.last)
        for which, (name, kind) in KINDS.items():
            for interval in intervals.of(which) if which != "block" else []:
                span(rank, name, kind, interval)
        for interval in intervals.training_intervals():
            span(rank, *KINDS["block"], interval)
        for begin, end in intervals.unstarted_evals:
            span(rank, "evaluation", "phase", Interval(begin, end, whole=False), _BEGIN_UNKNOWN)


def _nodes(log: _Log) -> int | None:
    platform = platform_of(str(log.config.get("submission_platform") or ""))
    return _count(log.system.get("number_of_nodes")) or platform[0]


def _world(log: _Log) -> int | None:
    """Return the number of ranks: each wrote its `init_start`, unless there are as many of them as nodes."""
    nodes, each = _nodes(log), _count(log.system.get("accelerators_per_node"))
    if nodes and each:
        return nodes * each
    is_of_nodes = log.inits in {nodes, log.cleared} or (nodes and log.inits % nodes)
    return None if log.inits < 2 or is_of_nodes else log.inits  # noqa: PLR2004 - several


def _add_facts(log: _Log, recording: "ImportedRun") -> None:
    """Fill in the row of ``runs``; what the log does not say stays NULL."""
    ranks, nodes = _world(log), _nodes(log)
    recording.world_size = ranks or 1
    recording.labels |= {key: str(value) for key, value in log.config.items() if key.startswith("submission_")}
    if not log.labelled and log.inits > 1:
        recording.labels["ranks"] = "numbered in the order of their init_start lines: the log does not name them"
    config = {key: value for key, value in log.config.items() if not key.startswith("submission_")}
    seed = log.config.get("seed")
    system = {name: str(value) for name, value in log.system.items() if value and not _NO_ANSWER.search(str(value))}
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
    """Return nodes and device of a platform's name, such as 64xNVIDIA DGX H100 or 2xXE9680Lx8B200-SXM-180GB.

    In 8xA100-SXM devices are counted, not nodes.
    """
    device = _DEVICE.search(text)
    nodes = None if _DEVICES.match(text) else _NODES.match(text)
    name = None
    if device:
        parts = (device["chassis"] or "", device["model"], (device["form"] or "").upper())
        name = " ".join(filter(None, parts)).replace("PCIE", "PCIe")
        name = name if " " in name or _PLAIN_DEVICE.fullmatch(name) else None  # there are two kinds of an H100
    return (int(nodes[1]) if nodes else None), name


FORMAT: Final = Format(
    summary="MLPerf Training logs, :::MLLOG lines",
    recognises="lines with :::MLLOG and a JSON object, or :::MLL, or :::MLPv0.5.0",
    read=read,
    table="events",
    mark=re.compile(rb":::MLLOG|:::SYSJSON|:::MLPv0\.|:::MLL "),
    among=True,
)
