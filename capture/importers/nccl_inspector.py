"""NCCL Inspector: reads its output, one JSON object for each collective, send or receive of a communicator.

    {"header": {"id": "0x7f8c", "rank": 2, "n_ranks": 8, "nnodes": 1}, "metadata": {"dump_timestamp_us": …, "pid": 1},
     "coll_perf": {"coll": "AllReduce", "coll_sn": 1407, "coll_msg_size_bytes": …, "coll_exec_time_us": 61974, …}}

Source: ``plugins/profiler/inspector/inspector_json.cc`` of NCCL 2.30 (format v4.0), with or without the traces of
``NCCL_INSPECTOR_DUMP_VERBOSE``. Each operation becomes a span. Without traces its begin is unknown. Its end is then the
time of writing, which is up to one interval of the plugin later, and an attribute says so. The rank of a process is its
rank in its largest communicator.
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

_NS_PER_US: Final = 1_000
_FORMS: Final = (("coll_perf", "coll"), ("p2p_perf", "p2p"))
_WORD_BOUNDARY: Final = re.compile(r"(?<=[a-z])(?=[A-Z])")
_MAX_COUNT: Final = 1 << 31
_MAX_US: Final = 1 << 52

Process = tuple[str, int]
Json = Mapping[str, Any]


class Operation(NamedTuple):
    """A collective, a send or a receive. Times are ns since 1970.

    Attributes
    ----------
    communicator
        Name of the communicator, or else its id.
    begin_ns
        Begin from the trace; None without a trace.
    """

    process: Process
    communicator: str
    rank: int
    ranks: int
    name: str
    written_ns: int
    begin_ns: int | None
    duration_ns: int
    columns: dict[str, Any]
    attributes: dict[str, Any]


class InspectorError(Exception):
    """A line is not an operation of NCCL Inspector; the message has the reason."""


def read(source: "Source", recording: "ImportedRun") -> None:
    """Import a file. Lines that are not operations are refused."""
    communicators: defaultdict[Process, set[tuple[int, str, int]]] = defaultdict(set)
    with source.first_look():
        for line in source.lines():
            try:
                operation = _operation(line.text)
            except InspectorError:
                continue
            communicators[operation.process].add((operation.ranks, operation.communicator, operation.rank))
    world_size = max((ranks for group in communicators.values() for ranks, _, _ in group), default=1)
    recording.world_size = world_size
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
    recording.facts = {"job": recording.run, "world_size": world_size if number else None}


def _rank(operation: Operation, communicators: set[tuple[int, str, int]]) -> int:
    """Return the rank of an operation in its process's largest communicator.

    A process may have several ranks there. Operations of the communicator itself have theirs, others the lowest.
    """
    size, name, _ = max(communicators)
    if (operation.ranks, operation.communicator) == (size, name):
        return operation.rank
    return min(rank for item_size, item_name, rank in communicators if (item_size, item_name) == (size, name))


def _add(recording: "ImportedRun", operation: Operation, rank: int, number: int) -> None:
    begin_ns, attributes = operation.begin_ns, operation.attributes
    if begin_ns is None:
        begin_ns = operation.written_ns - operation.duration_ns
        attributes = attributes | {"time": "when it was written"}
    else:
        operation.columns["start_ns"] = begin_ns
    recording.row(
        "spans", begin_ns, rank, name=operation.name, kind="collective", duration_ns=operation.duration_ns,
        span_id=number, process_group=operation.communicator, stream=f"nccl {operation.communicator}",
        group_size=operation.ranks, attributes=json.dumps(attributes, sort_keys=True), **operation.columns,
    )  # fmt: skip


def _operation(text: str) -> Operation:
    """Parse a line. Raises `InspectorError`."""
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        raise InspectorError("not JSON") from None
    header, metadata = _object(document, "header"), _object(document, "metadata")
    form = next(((key, prefix) for key, prefix in _FORMS if key in document), None)
    if form is None:
        raise InspectorError("neither coll_perf nor p2p_perf")
    key, prefix = form
    operation_fields = _object(document, key)
    name = operation_fields.get(prefix)
    if not isinstance(name, str) or not name:
        raise InspectorError(f"{prefix}: no name")
    hostname, communicator_id = metadata.get("hostname"), str(header.get("id"))[:80]
    label = header.get("comm_name")
    return Operation(
        process=(hostname if isinstance(hostname, str) else "", _count(metadata, "pid")),
        communicator=label[:256] if isinstance(label, str) and label not in ("", "unknown") else communicator_id,
        rank=_count(header, "rank"),
        ranks=_count(header, "n_ranks"),
        name=_WORD_BOUNDARY.sub("_", name[:80]).lower(),
        written_ns=_count(metadata, "dump_timestamp_us", _MAX_US) * _NS_PER_US,
        begin_ns=_begin_ns(operation_fields, prefix),
        duration_ns=_count(operation_fields, f"{prefix}_exec_time_us", _MAX_US) * _NS_PER_US,
        columns={
            "sequence": _count(operation_fields, f"{prefix}_sn", 1 << 62),
            "bytes": _count(operation_fields, f"{prefix}_msg_size_bytes", 1 << 62),
            "device_time": operation_fields.get(f"{prefix}_timing_source") == "kernel_gpu",
        },
        attributes=dict(_attributes(operation_fields, prefix, communicator_id)),
    )


def _attributes(operation_fields: Json, prefix: str, communicator: str) -> Iterator[tuple[str, Any]]:
    yield "communicator", communicator
    for key, name in (("algobw_gbs", "algorithm_gbyte_per_s"), ("busbw_gbs", "bus_gbyte_per_s"), ("peer", "peer")):
        value = operation_fields.get(f"{prefix}_{key}")
        if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
            yield name, value
    if isinstance(source := operation_fields.get(f"{prefix}_timing_source"), str):
        yield "timing", source[:40]


def _begin_ns(operation_fields: Json, prefix: str) -> int | None:
    """Return the begin of an operation's first kernel, or else of its call, ns since 1970; None without a trace."""
    trace = operation_fields.get("event_trace_ts")
    if not isinstance(trace, dict):
        return None
    kernels = trace.get("kernel_events")
    times = [kernel.get("kernel_start_ts") for kernel in kernels if isinstance(kernel, dict)] if isinstance(
        kernels, list) else []  # fmt: skip
    valid_times = [time for time in times if isinstance(time, int) and 0 < time < _MAX_US]
    start = min(valid_times) if valid_times else trace.get(f"{prefix}_start_ts")
    return start * _NS_PER_US if isinstance(start, int) and 0 < start < _MAX_US else None


def _object(parent: object, key: str) -> Json:
    """Return the JSON object at a key. Raises `InspectorError`."""
    part = parent.get(key) if isinstance(parent, dict) else None
    if not isinstance(part, dict):
        raise InspectorError(f"{key}: not an object")
    return part


def _count(parent: Json, key: str, limit: int = _MAX_COUNT) -> int:
    """Return the integer at a key, from 0 to below `limit`. Raises `InspectorError`."""
    value = parent.get(key)
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < limit:
        raise InspectorError(f"{key}: not a count")
    return value


FORMAT: Final = Format(
    summary="output of NCCL Inspector, the profiler plugin, in JSON",
    recognises="JSON lines with header, metadata and coll_perf or p2p_perf",
    read=read,
    table="spans",
    mark=re.compile(rb'"(?:coll|p2p)_perf"\s*:|"inspector_output_format_version"'),
    nothing=("the file has no output of NCCL Inspector", "name a file HOST-pidPID.log of NCCL_INSPECTOR_DUMP_DIR"),
    own_run=False,
)
