"""A step's trace as trace events, the JSON that Perfetto and chrome://tracing open."""

import gzip
import json
from collections.abc import Iterable, Iterator, Mapping
from itertools import groupby
from typing import Any, Final

from ranklake.insight.runs.asking import Row
from ranklake.insight.runs.trace import StepTrace

Event = dict[str, Any]
_HOST: Final = "host"
_ROUNDING_NS: Final = 2_000
"""Tolerance for a span that exceeds its parent: starts are often rounded to the microsecond."""

_ATTRIBUTES: Final = (
    *("microbatch", "dp_rank", "pp_rank", "tp_rank", "bytes", "process_group", "group_size", "sequence"),
    "device_time",
)


def trace_file(trace: StepTrace, suffix: str) -> tuple[bytes, int]:
    """Return the bytes of a file, compressed for the suffix ``.gz``, and the number of its events."""
    events = list(trace_events(trace))
    body = ",\n".join(json.dumps(event, separators=(",", ":")) for event in events)
    about = {
        "run": trace.run,
        "attempt": trace.attempt,
        "step": trace.step,
        "trace_id": trace.trace_id,
        "begins_unix_ns": str(_begin(trace)),
        "spans_sql": trace.spans.sql,
        "logs_sql": trace.logs.sql,
        "logs_unknown": trace.logs.reason,
    }
    text = f'{{"displayTimeUnit":"ns","otherData":{json.dumps(about)},"traceEvents":[\n{body}\n]}}\n'
    return (gzip.compress(text.encode(), mtime=0) if suffix == ".gz" else text.encode()), len(events)


def trace_events(trace: StepTrace) -> Iterator[Event]:
    """Yield events, times in microseconds from the first span's begin: one process per rank, one thread per stream.

    A span that overlaps another on its stream gets its own thread, since threads must nest. Arrows link collectives
    with the same sequence number. Log lines are instants, linked to spans by ids.
    """
    begin = _begin(trace)
    flows: dict[tuple[str, int], list[Event]] = {}
    for rank, rows in groupby(trace.spans.rows, lambda row: row["rank"]):
        yield {"ph": "M", "name": "process_name", "pid": rank, "tid": 0, "args": {"name": f"rank {rank}"}}
        yield {"ph": "M", "name": "process_sort_index", "pid": rank, "tid": 0, "args": {"sort_index": rank}}
        threads: dict[tuple[str, int], int] = {}
        for stream, lane, row, end_ns in _lanes(rows):
            if (stream, lane) not in threads:
                threads[stream, lane] = len(threads) + 1
                name = f"{stream}, beside" if lane else stream
                yield _metadata(rank, threads[stream, lane], "thread_name", name=name)
            event = _slice(trace, row, threads[stream, lane], begin, end_ns)
            yield event
            if row["sequence"] is not None:
                flows.setdefault((row["process_group"] or "", row["sequence"]), []).append(event)
    yield from _arrows(flows)
    for row in trace.logs.rows:
        yield _line(trace, row, begin)


def _begin(trace: StepTrace) -> int:
    return min((int(row["start_ns"]) for row in trace.spans.rows), default=0)


def _lanes(rows: Iterable[Row]) -> Iterator[tuple[str, int, Row, int]]:
    """Yield spans with stream, lane and end: spans in a lane are nested or disjoint."""
    open_ends: dict[str, list[list[int]]] = {}
    for row in rows:
        stream = row["stream"] or _HOST
        start, end = row["start_ns"], row["start_ns"] + row["duration_ns"]
        lanes = open_ends.setdefault(stream, [])
        for lane, ends in enumerate([*lanes, []]):
            while ends and ends[-1] <= start:
                ends.pop()
            if not ends or end <= ends[-1] + _ROUNDING_NS:
                end = min(end, ends[-1]) if ends else end
                ends.append(end)
                if lane == len(lanes):
                    lanes.append(ends)
                yield stream, lane, row, end
                break


def _slice(trace: StepTrace, row: Row, thread: int, begin: int, end_ns: int) -> Event:
    attributes = {name: row[name] for name in _ATTRIBUTES if row[name] is not None}
    return {
        "ph": "X",
        "name": row["name"],
        "cat": row["kind"],
        "pid": row["rank"],
        "tid": thread,
        "ts": (row["start_ns"] - begin) / 1000,
        "dur": (end_ns - row["start_ns"]) / 1000,
        "args": {
            "step": trace.step,
            **attributes,
            **_ids(trace, row),
            **({"recorded_us": row["duration_ns"] / 1000} if end_ns - row["start_ns"] != row["duration_ns"] else {}),
        },
    }


def _ids(trace: StepTrace, row: Row) -> Mapping[str, str]:
    """Return ids as texts, so that readers of JSON do not round them."""
    parent = {"parent_id": str(row["parent_id"])} if row.get("parent_id") is not None else {}
    span = {"span_id": str(row["span_id"])} if row["span_id"] is not None else {}
    return {"trace_id": trace.trace_id, "incarnation": str(row["incarnation"]), **span, **parent}


def _arrows(flows: Mapping[tuple[str, int], list[Event]]) -> Iterator[Event]:
    for number, ((group, sequence), slices) in enumerate(sorted(flows.items()), start=1):
        if len({slice_["pid"] for slice_ in slices}) < 2:  # noqa: PLR2004 - an arrow has two ends
            continue
        slices.sort(key=lambda slice_: (slice_["ts"], slice_["pid"]))
        for place, slice_ in enumerate(slices):
            ends = {"ph": "f", "bp": "e"} if place == len(slices) - 1 else {"ph": "t" if place else "s"}
            name = f"{group} {sequence}".strip()
            at = {"pid": slice_["pid"], "tid": slice_["tid"], "ts": slice_["ts"]}
            yield {**ends, "name": name, "cat": "collective", "id": number, **at}


def _line(trace: StepTrace, row: Row, begin: int) -> Event:
    names = ("template", "exception_type", "source_file", "source_line")
    attributes = {name: row[name] for name in names if row[name] is not None}
    return {
        "ph": "i",
        "s": "p",
        "name": f"{row['severity_text'] or 'log'} {row['logger'] or ''}".rstrip(),
        "cat": "log",
        "pid": row["rank"],
        "tid": 0,
        "ts": (row["at_ns"] - begin) / 1000,
        "args": {"step": trace.step, **attributes, **_ids(trace, row)},
    }


def _metadata(rank: int, thread: int, kind: str, **args: object) -> Event:
    return {"ph": "M", "name": kind, "pid": rank, "tid": thread, "args": args}
