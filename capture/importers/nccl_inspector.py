"""NCCL Inspector's output: one JSON object for each collective and each send or receive of a communicator.

    {"header": {"id": "0x7f8c", "rank": 2, "n_ranks": 8, "nnodes": 1}, "metadata": {"dump_timestamp_us": …, "pid": 1},
     "coll_perf": {"coll": "AllReduce", "coll_sn": 1407, "coll_msg_size_bytes": …, "coll_exec_time_us": 61974, …}}

As ``plugins/profiler/inspector/inspector_json.cc`` of NCCL 2.30 writes it (format v4.0), with or without the traces of
``NCCL_INSPECTOR_DUMP_VERBOSE``. Each becomes a span. Without traces nothing says when it began: it then ends when it
was written, which is up to one interval of the plugin's late, and its attributes say so. Ranks are those of the
process's largest communicator.
"""

import json
import math
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from ranklake.capture.importers.formats import Format

if TYPE_CHECKING:
    from ranklake.capture.importers.imported_run import ImportedRun
    from ranklake.capture.importers.source import Source

_US: Final = 1_000
_FORMS: Final = (("coll_perf", "coll"), ("p2p_perf", "p2p"))
_WORD: Final = re.compile(r"(?<=[a-z])(?=[A-Z])")
_MOST_COUNT: Final = 1 << 31
_MOST_US: Final = 1 << 52

Process = tuple[str, int]
Json = Mapping[str, Any]


class Operation(NamedTuple):
    """A collective, or a send or a receive.

    Attributes
    ----------
    communicator
        Its name, or its number where it has none.
    begin_ns
        When it began, where traces say so.
    """

    process: Process
    communicator: str
    rank: int
    ranks: int
    name: str
    written_ns: int
    begin_ns: int | None
    length_ns: int
    columns: dict[str, Any]
    attributes: dict[str, Any]


class InspectorError(Exception):
    """A line is no object of the Inspector's; its text says why."""


def read(source: "Source", recording: "ImportedRun") -> None:
    """Import a file of the plugin's; lines that are none are refused."""
    communicators: defaultdict[Process, set[tuple[int, str, int]]] = defaultdict(set)
    with source.first_look():
        for line in source.lines():
            try:
                operation = _operation(line.text)
            except InspectorError:
                continue
            communicators[operation.process].add((operation.ranks, operation.communicator, operation.rank))
    world = max((ranks for known in communicators.values() for ranks, _, _ in known), default=1)
    recording.world_size = world
    hosts: set[tuple[int, str]] = set()
    number = 0
    for line in source.lines():
        if not line.text.strip() and not line.flaw:
            continue
        try:
            operation = _operation(line.text)
        except InspectorError as error:
            recording.refuse("spans", line.flaw or str(error), line.text, line.number)
            continue
        number += 1
        rank = _rank(operation, communicators[operation.process])
        _add(recording, operation, rank, number)
        if (rank, operation.process[0]) not in hosts:
            hosts.add((rank, operation.process[0]))
            recording.row("ranks", operation.written_ns, rank, host=operation.process[0])
    recording.labels["ranks"] = "of the largest communicator of each process"
    recording.facts = {"job": recording.run, "world_size": world if number else None}


def _rank(operation: Operation, known: set[tuple[int, str, int]]) -> int:
    """Return the rank in the process's largest communicator; the own one there, should the process have several."""
    ranks, communicator, _ = max(known)
    if (operation.ranks, operation.communicator) == (ranks, communicator):
        return operation.rank
    return min(rank for other, name, rank in known if (other, name) == (ranks, communicator))


def _add(recording: "ImportedRun", operation: Operation, rank: int, number: int) -> None:
    begin_ns, attributes = operation.begin_ns, operation.attributes
    if begin_ns is None:
        begin_ns = operation.written_ns - operation.length_ns
        attributes = attributes | {"time": "when it was written"}
    else:
        operation.columns["start_ns"] = begin_ns
    recording.row(
        "spans", begin_ns, rank, name=operation.name, kind="collective", duration_ns=operation.length_ns,
        span_id=number, process_group=operation.communicator, stream=f"nccl {operation.communicator}",
        group_size=operation.ranks, attributes=json.dumps(attributes, sort_keys=True), **operation.columns,
    )  # fmt: skip


def _operation(text: str) -> Operation:
    """Take a line apart. Raises `InspectorError`."""
    try:
        whole = json.loads(text)
    except (ValueError, RecursionError):
        raise InspectorError("no JSON") from None
    header, metadata = _object(whole, "header"), _object(whole, "metadata")
    form = next(((key, prefix) for key, prefix in _FORMS if key in whole), None)
    if form is None:
        raise InspectorError("neither coll_perf nor p2p_perf")
    key, prefix = form
    figures = _object(whole, key)
    name = figures.get(prefix)
    if not isinstance(name, str) or not name:
        raise InspectorError(f"{prefix}: no name")
    hostname, number = metadata.get("hostname"), str(header.get("id"))[:80]
    called = header.get("comm_name")
    return Operation(
        process=(hostname if isinstance(hostname, str) else "", _count(metadata, "pid")),
        communicator=called[:256] if isinstance(called, str) and called not in ("", "unknown") else number,
        rank=_count(header, "rank"),
        ranks=_count(header, "n_ranks"),
        name=_WORD.sub("_", name[:80]).lower(),
        written_ns=_count(metadata, "dump_timestamp_us", _MOST_US) * _US,
        begin_ns=_begin_ns(figures, prefix),
        length_ns=_count(figures, f"{prefix}_exec_time_us", _MOST_US) * _US,
        columns={
            "sequence": _count(figures, f"{prefix}_sn", 1 << 62),
            "bytes": _count(figures, f"{prefix}_msg_size_bytes", 1 << 62),
            "device_time": figures.get(f"{prefix}_timing_source") == "kernel_gpu",
        },
        attributes=dict(_attributes(figures, prefix, number)),
    )


def _attributes(figures: Json, prefix: str, communicator: str) -> Iterator[tuple[str, Any]]:
    yield "communicator", communicator
    for key, name in (("algobw_gbs", "algorithm_gbyte_per_s"), ("busbw_gbs", "bus_gbyte_per_s"), ("peer", "peer")):
        value = figures.get(f"{prefix}_{key}")
        if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
            yield name, value
    if isinstance(source := figures.get(f"{prefix}_timing_source"), str):
        yield "timing", source[:40]


def _begin_ns(figures: Json, prefix: str) -> int | None:
    """Return when the first kernel of it began, or else its call; None where there is no trace."""
    trace = figures.get("event_trace_ts")
    if not isinstance(trace, dict):
        return None
    kernels = trace.get("kernel_events")
    times = [kernel.get("kernel_start_ts") for kernel in kernels if isinstance(kernel, dict)] if isinstance(
        kernels, list) else []  # fmt: skip
    known = [time for time in (*times, None) if isinstance(time, int) and 0 < time < _MOST_US]
    start = min(known) if known else trace.get(f"{prefix}_start_ts")
    return start * _US if isinstance(start, int) and 0 < start < _MOST_US else None


def _object(whole: object, key: str) -> Json:
    part = whole.get(key) if isinstance(whole, dict) else None
    if not isinstance(part, dict):
        raise InspectorError(f"{key}: no object")
    return part


def _count(figures: Json, key: str, most: int = _MOST_COUNT) -> int:
    value = figures.get(key)
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < most:
        raise InspectorError(f"{key}: no count")
    return value


FORMAT: Final = Format(
    summary="output of NCCL Inspector, the profiler plugin, in JSON",
    recognises="JSON lines with header, metadata and coll_perf or p2p_perf",
    read=read,
    table="spans",
    mark=re.compile(rb'"(?:coll|p2p)_perf"\s*:|"inspector_output_format_version"'),
    nothing=("nothing of NCCL Inspector is in the file", "name a file HOST-pidPID.log of NCCL_INSPECTOR_DUMP_DIR"),
    own_run=False,
)
