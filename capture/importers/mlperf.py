"""MLPerf Training logs: ``:::MLLOG`` lines among whatever else was printed.

Each line is an event, under its key (but ``run_stop``, which is ``run_end`` here). Beside that,

    init_start (the first) to run_start      span init, kind phase
    block_start to block_stop, or epochs     spans train, kind phase, cut where evaluations lie in them
    eval_start to eval_stop                  spans evaluation
    tracked_stats with a step's timing       steps, which end when they were told; the other numbers are scalars
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
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

from ranklake.capture.importers.source import Line, SourceError, uncoloured

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

_PREAMBLE: Final = re.compile("cache_clear|submission_.*")
"""Keys of what launchers write before the first `init_start`."""

Interval = tuple[int, int]
Edge = tuple[int, int, str, str]
"""Time, place in the log, what, and ``start`` or ``stop``."""


@dataclass
class _Log:
    """What was read of a log so far. Times are ms since 1970."""

    edges: dict[int, list[Edge]] = field(default_factory=lambda: defaultdict(list))
    config: dict[str, Any] = field(default_factory=dict)
    system: dict[str, Any] = field(default_factory=dict)
    first_init: int | None = None
    last: int = 0
    inits: int = 0
    steps: dict[int, int] = field(default_factory=lambda: defaultdict(int))
    labelled: bool = False


def read(source: "Source", recording: "Recording", mapping: "Mapping | None") -> None:
    """Import a log. Lines with a marker that cannot be read are refused; all others are none of ours.

    Raises
    ------
    SourceError
        There is no marked line in the file.
    """
    del mapping
    begins = _begins(source)
    names = [f"{recording.run[:120]}-{number}" for number in range(2, len(begins) + 2)]
    logs = [(_Log(), own) for own in (recording, *(recording.beside(name, recording.attempt) for name in names))]
    for line in source.lines():
        for piece in _pieces(line):
            if isinstance(piece, str):
                recording.refuse("events", line.flaw or "an MLLOG line that is not whole", piece, line.number)
            else:
                _entry_of(logs, begins, *piece)
    if source.cut:
        recording.refuse("events", source.cut, "")
    if recording.is_empty:
        raise SourceError("no line of the file begins with :::MLLOG", where=source.name, mend="name a result_….txt")
    for log, own in logs:
        if log.last:
            _spans(log, own)
            _facts(log, own)


def _entry_of(
    logs: "list[tuple[_Log, Recording]]", begins: list[int], label: int | None, entry: dict[str, Any]
) -> None:
    if label is None:
        for log, _ in logs:
            log.system = entry
        return
    log, own = logs[bisect_right(begins, entry["time_ms"])]
    _take(log, own, entry, label if label >= 0 else None)


def _begins(source: "Source") -> list[int]:
    """Go through the log once, for where in time its second run begins, and each after that."""
    inits: list[int] = []
    edges: dict[str, list[int]] = {"run_start": [], "run_stop": []}
    before: int | None = None
    with source.first_look():
        pieces = (piece for line in source.lines() for piece in _pieces(line))
        for label, entry in (piece for piece in pieces if not isinstance(piece, str)):
            if label is None:
                continue
            key, at = entry["key"], entry["time_ms"]
            if key == "init_start":
                inits.append(at if before is None else min(at, before))
            elif key in edges:
                edges[key].append(at)
            if not _PREAMBLE.fullmatch(key):
                before = None
            elif before is None:
                before = at
    starts, stops = sorted(edges["run_start"]), edges["run_stop"]
    found = [min(between) for one, two in pairwise(starts) if (between := [at for at in inits if one < at <= two])]
    if starts and stops and (after := [at for at in inits if at > max(starts[-1], *stops)]):
        found.append(min(after))
    return found


def _pieces(line: Line) -> Iterator[str | tuple[int | None, dict[str, Any]]]:
    """Yield what a line holds: entries under their labels (-1: none), the system (None), and texts that are broken."""
    before, *marked = uncoloured(line.text).split(MARKER)
    label = -1
    if not marked and (system := _system(before)):
        yield None, system
    for text in marked:
        found = _LABEL.match(before.rpartition("\r")[2])
        label = int(found[1]) if found else label
        entry, before = _entry(text) if line.flaw is None else (None, "")
        yield MARKER + text if entry is None else (label, entry)


def _entry(text: str) -> tuple[dict[str, Any] | None, str]:
    """Return a line's object, None if it is none, or lacks a key or a time; and what stands behind it."""
    try:
        found, end = _DECODER.raw_decode(text, len(text) - len(text.lstrip()))
    except (ValueError, RecursionError):
        return None, ""
    if not isinstance(found, dict) or not isinstance(found.get("key"), str) or not found["key"]:
        return None, ""
    at = found.get("time_ms")
    if not isinstance(at, int | float) or isinstance(at, bool) or not 0 < at < _LARGEST_MS:
        return None, ""
    return {**found, "time_ms": int(at)}, text[end:]


def _take(log: _Log, recording: "Recording", entry: dict[str, Any], label: int | None) -> None:
    key, at, value = entry["key"], entry["time_ms"], entry.get("value")
    log.last = max(log.last, at)
    rank = label or 0
    log.labelled |= label is not None
    if key == "init_start":
        rank = log.inits if label is None else rank
        log.inits += 1
        log.first_init = at if log.first_init is None else min(at, log.first_init)
    what, _, edge = key.rpartition("_")
    if what in _INTERVALS and edge in {"start", "stop"}:
        log.edges[rank].append((at, len(log.edges[rank]), what, edge))
    if entry.get("event_type") == "POINT_IN_TIME" and key not in {"tracked_stats", "cache_clear"}:
        log.config.setdefault(key, value)
    _numbers(log, recording, rank, key, value, at)
    more = {name: entry[name] for name in ("event_type", "value", "metadata") if entry.get(name) is not None}
    status = (entry.get("metadata") or {}).get("status") if isinstance(entry.get("metadata"), dict) else None
    recording.row(
        "events", at * _NS_PER_MS, rank,
        event="run_end" if key == "run_stop" else key[:256],
        severity="error" if key == "run_stop" and status not in {None, "success"} else "info",
        attributes=json.dumps(more, separators=(",", ":"), ensure_ascii=False),
    )  # fmt: skip


def _numbers(log: _Log, recording: "Recording", rank: int, key: str, value: Any, at: int) -> None:  # noqa: ANN401 - JSON
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
            recording.step(log.steps[rank], seconds, at * _NS_PER_MS - round(seconds * 1e9), rank)
            log.steps[rank] += 1
        else:
            metric = f"mlperf/{name.removesuffix(' in s').replace(' ', '_')}"
            recording.scalar(metric[:512], float(number), at * _NS_PER_MS, rank, kind="gauge", edge_flag="unregistered")


def _system(text: str) -> dict[str, Any]:
    _, marker, after = text.partition(_SYSTEM)
    try:
        found, _ = _DECODER.raw_decode(after.lstrip()) if marker else ({}, 0)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _spans(log: _Log, recording: "Recording") -> None:
    """Add the intervals of each rank; the run's own are those of rank 0, or of the first rank that tells any."""
    number = 0

    def span(rank: int, name: str, begin: int, end: int, *, whole: bool = True) -> None:
        nonlocal number
        recording.row(
            "spans", begin * _NS_PER_MS, rank, name=name, kind=kinds[name], span_id=number,
            duration_ns=max(0, end - begin) * _NS_PER_MS, attributes=None if whole else '{"unfinished":true}',
        )  # fmt: skip
        number += 1

    kinds = dict(_INTERVALS.values()) | {"init": "phase"}
    leader = min(log.edges, default=0)
    starts = [at for at, _, what, edge in log.edges.get(leader, []) if (what, edge) == ("run", "start")]
    if log.first_init is not None:
        span(0, "init", log.first_init, min(starts, default=log.last), whole=bool(starts))
    for teller in sorted(log.edges):
        rank = 0 if teller == leader else teller
        found = _paired(log.edges[teller], log.last)
        train = "block" if "block" in found else "epoch"
        evals = sorted((begin, end) for begin, end, _ in found.get("eval", []))
        for what, (name, _) in _INTERVALS.items():
            for begin, end, whole in found.get(what, []):
                if what != "block":
                    span(rank, name, begin, end, whole=whole)
                if what == train:
                    for left, right in _outside((begin, end), evals):
                        span(rank, "train", left, right, whole=whole or right < end)


def _paired(edges: list[Edge], last: int) -> dict[str, list[tuple[int, int, bool]]]:
    """Return begins and ends, by time, and whether the log tells both.

    What has no end goes to the next begin of its kind, an evaluation also to that of training, and all to the run's
    end; else to the log's last line.
    """
    found: dict[str, list[tuple[int, int, bool]]] = {}
    opened: dict[str, int] = {}

    def close(what: str, at: int, *, whole: bool) -> None:
        begin = opened.pop(what, None)
        if begin is not None and (whole or at > begin):
            found.setdefault(what, []).append((begin, at, whole))

    for at, _, what, edge in sorted(edges):
        if edge == "stop":
            close(what, at, whole=True)
        else:
            close(what, at, whole=False)
            if what in {"block", "epoch"}:
                close("eval", at, whole=False)
            opened[what] = at
        if (what, edge) == ("run", "stop"):
            for other in list(opened):
                close(other, at, whole=False)
    for what in list(opened):
        close(what, last, whole=False)
    return found


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
