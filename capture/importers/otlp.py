"""OTLP: converts spans, metrics and log records of OpenTelemetry's collector and SDKs to rows with their trace ids.

Each resource (a service's process, a pod, a host) becomes a rank: its attribute ``rank``, or else the order of
appearance. Metrics keep their names, with attributes as labels; cumulative monotonic sums become counters.
Attributes ``ranklake.…`` are written by `ranklake.insight.runs.otlp` for columns without a field in OTLP.
"""

import json
import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from ranklake.capture.common.values import json_text, redacted_name, redacted_text
from ranklake.capture.histogram import Buckets, Histogram, histogram_of_bins
from ranklake.capture.importers.formats import Format
from ranklake.capture.importers.otlp_values import (
    LONGEST_NAME,
    LONGEST_TEXT,
    PREFIX,
    FlawError,
    Message,
    documents,
    id_of,
    number_of,
    operational,
    pop_columns,
    redacted_json,
    value_of,
    values,
)
from ranklake.capture.logs.loglines import shape_of

if TYPE_CHECKING:
    from ranklake.capture.importers.imported_run import ImportedRun
    from ranklake.capture.importers.source import Source

_MAX_BUCKETS: Final = 1 << 12
_SCALES: Final = range(-10, 21)
_POINT_COLUMNS: Final = frozenset({"step", "weight"})
_NO_VALUE: Final = 1
"""Flag of a data point without a value."""
_CUMULATIVE: Final = frozenset({2, "AGGREGATION_TEMPORALITY_CUMULATIVE"})

_MAX_RANKS: Final = 1 << 20
_HOST_ATTRIBUTES: Final = ("host.name", "k8s.node.name", "k8s.pod.name")
_IDENTITY_ATTRIBUTES: Final = (
    "service.namespace", "service.name", "service.instance.id", "process.pid", "container.id", "k8s.pod.uid",
    *_HOST_ATTRIBUTES,
)  # fmt: skip
"""Attributes that identify a resource."""
SPAN_COLUMNS: Final = frozenset({
    "kind", "step", "stream", "microbatch", "dp_rank", "pp_rank", "tp_rank", "bytes", "process_group", "group_size",
    "sequence", "device_time",
})  # fmt: skip
LOG_COLUMNS: Final = frozenset({"step", "template", "stream", "suppressed_count", "weight", "logger"})
_STEP_ATTRIBUTES: Final = ("step", "global_step")
_KINDS: Final = frozenset({"step", "phase", "collective", "checkpoint", "evaluation", "other"})
_SPAN_KINDS: Final = ("unspecified", "internal", "server", "client", "producer", "consumer")
_STATUSES: Final = ("unset", "ok", "error")
_SEVERITIES: Final = (
    "unspecified",
    *(f"{level}{rank}" for level in ("trace", "debug", "info", "warn", "error", "fatal") for rank in ("", 2, 3, 4)),
)
_STREAMS: Final = frozenset(
    {"logging", "structlog", "stdout", "stderr", "nccl", "faulthandler", "excepthook", "stacks"}
)
_LOG_FIELDS: Final = {
    "source_file": ("code.file.path", "code.filepath"),
    "source_line": ("code.line.number", "code.lineno"),
    "source_function": ("code.function.name", "code.function"),
    "thread_name": ("thread.name",),
    "exception_type": ("exception.type",),
    "exception_message": ("exception.message",),
    "exception_stacktrace": ("exception.stacktrace",),
}
"""Attributes for columns of log lines, the newest convention first."""
_PARSE_ERRORS: Final = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError)
"""Exceptions raised for values of a wrong type or form."""


@dataclass
class _Resources:
    """The ranks of a file's resources.

    Attributes
    ----------
    ranks
        Ranks by identity, for resources that do not state their rank.
    described
        Ranks that have a row in ``ranks``.
    first
        Attributes of the first resource.
    """

    recording: "ImportedRun"
    ranks: dict[str, int] = field(default_factory=dict)
    described: set[int] = field(default_factory=set)
    first: Message = field(default_factory=dict)

    def rank_of(self, attributes: Message) -> int:
        """Return the rank of a resource, numbering it if it is new."""
        stated = attributes.get(f"{PREFIX}rank", attributes.get("rank"))
        if type(stated) is int and 0 <= stated < _MAX_RANKS:
            rank = stated
        else:
            key = json.dumps([attributes.get(name) for name in _IDENTITY_ATTRIBUTES], default=str)
            rank = self.ranks.setdefault(key, len(self.ranks))
        self.recording.world_size = max(self.recording.world_size, rank + 1)
        self.first = self.first or attributes
        return rank

    def describe(self, rank: int, attributes: Message, at_ns: int) -> None:
        """Add a rank's row of ``ranks`` if it has none yet, and its host is known."""
        host = next((attributes[name] for name in _HOST_ATTRIBUTES if attributes.get(name)), None)
        if rank in self.described or host is None:
            return
        self.described.add(rank)
        pid = attributes.get("process.pid")
        pid = pid if type(pid) is int and 0 <= pid < 1 << 31 else None
        self.recording.row("ranks", at_ns, rank, host=redacted_name(host, LONGEST_NAME), pid=pid)


class _Item(NamedTuple):
    """A span, metric or log record of a request.

    Attributes
    ----------
    table, add
        Table of its rows, and the function that adds them and returns their time, ns since 1970.
    resource, scope
        Attributes of the resource, and the name of the instrumentation scope.
    """

    table: str
    add: Callable[[Message, str | None, int, "ImportedRun"], int]
    resource: Message
    scope: str | None
    value: Message


def read(source: "Source", recording: "ImportedRun") -> None:
    """Import a file. Invalid requests and items are refused one by one. Raises `SourceError`."""
    resources = _Resources(recording)
    for document in documents(source):
        message = document.message
        if message is None or (message and _SIGNALS.keys().isdisjoint(message)):
            recording.refuse("spans", "not a request of OTLP", document.text, document.number)
            continue
        try:
            for item in _items(message):
                rank = resources.rank_of(item.resource)
                try:
                    at_ns = item.add(item.value, item.scope, rank, recording)
                except _PARSE_ERRORS as error:
                    reason = str(error) if isinstance(error, FlawError) else "not an item of OTLP"
                    recording.refuse(item.table, reason, json.dumps(item.value), document.number, rank)
                else:
                    resources.describe(rank, item.resource, at_ns)
        except _PARSE_ERRORS:
            recording.refuse("spans", "not a request of OTLP", document.text, document.number)
    first = resources.first
    recording.labels["ranks"] = "stated by their resources" if not resources.ranks else "in the order of resources"
    if label := redacted_json(operational(first)):
        recording.labels["resource"] = label
    job = redacted_name(str(first.get("service.name") or ""), LONGEST_NAME)
    recording.facts = {"job": job or recording.run, "world_size": None}


def _items(message: Message) -> Iterator[_Item]:
    """Yield the items of a request. Raises `_PARSE_ERRORS`."""
    for resource_key, (scope_key, item_key, table, add) in _SIGNALS.items():
        for resource in message.get(resource_key) or ():
            attributes = values((resource.get("resource") or {}).get("attributes"))
            for scope in resource.get(scope_key) or ():
                name = (scope.get("scope") or {}).get("name")
                yield from (_Item(table, add, attributes, name, item) for item in scope.get(item_key) or ())


def _add_span(item: Message, scope: str | None, rank: int, recording: "ImportedRun") -> int:
    start_ns, end_ns = (int(item.get(name) or 0) for name in ("startTimeUnixNano", "endTimeUnixNano"))
    if not 0 < start_ns <= end_ns:
        raise FlawError("the span has no begin, or an end before it")
    attributes = values(item.get("attributes"))
    own_columns = pop_columns(attributes, SPAN_COLUMNS)
    kind = own_columns.pop("kind", "other")
    span_id, parent_id = (id_of(item.get(name), 8) for name in ("spanId", "parentSpanId"))
    if not span_id:
        raise FlawError("the span has no id")
    status = item.get("status") or {}
    kind_number, code = _enum(item.get("kind"), _SPAN_KINDS), _enum(status.get("code"), _STATUSES)
    details = operational(attributes) | {
        "scope": scope or None,
        "span_kind": _SPAN_KINDS[kind_number] if kind_number > 1 else None,
        "status": _STATUSES[code] if code else None,
        "events": [
            operational(values(event.get("attributes"))) | {key: event.get(key) for key in ("name", "timeUnixNano")}
            for event in item.get("events") or ()
        ],
        "links": [{name: link.get(name) for name in ("traceId", "spanId")} for link in item.get("links") or ()],
    }
    columns = {"stream": attributes.get("thread.name"), "step": _step(attributes)} | own_columns
    recording.row(
        "spans", start_ns, rank, name=redacted_name(item.get("name") or "", LONGEST_NAME),
        kind=kind if kind in _KINDS else "other", duration_ns=end_ns - start_ns, start_ns=start_ns,
        span_id=number_of(span_id), parent_id=number_of(parent_id),
        trace_id=id_of(item.get("traceId"), 16).hex() or None,
        attributes=redacted_json({name: value for name, value in details.items() if value not in (None, "", [])}),
        **columns,
    )  # fmt: skip
    return start_ns


def _add_log(item: Message, scope: str | None, rank: int, recording: "ImportedRun") -> int:
    at_ns = int(item.get("timeUnixNano") or 0) or int(item.get("observedTimeUnixNano") or 0)
    if at_ns <= 0:
        raise FlawError("the log record has no time")
    attributes = values(item.get("attributes"))
    own_columns = pop_columns(attributes, LOG_COLUMNS)
    body = value_of(item.get("body"))
    message = body if isinstance(body, str) else json_text(body)
    columns: Message = {}
    for column, names in _LOG_FIELDS.items():
        found_values = [attributes.pop(name) for name in names if attributes.get(name) is not None]
        columns[column] = found_values[0] if found_values else None
    if isinstance(path := columns["source_file"], str):
        columns["source_file"] = "/".join(re.split(r"[/\\]", path)[-2:])  # parent folders may name a person
    texts = {name: redacted_text(value, LONGEST_TEXT) for name, value in columns.items() if isinstance(value, str)}
    stream = own_columns.pop("stream", attributes.pop("log.iostream", None))
    severity = _enum(item.get("severityNumber"), _SEVERITIES)
    event = {"event": item["eventName"]} if item.get("eventName") else {}
    record: Message = {
        "severity_text": redacted_name(item.get("severityText") or "", 64) or None,
        "severity_number": severity or None,
        "message": None if message is None else redacted_text(message, LONGEST_TEXT),
        "template": shape_of(message[:1024]) if message else None,
        "logger": redacted_name(scope, 256) if scope else None,
        "stream": stream if stream in _STREAMS else None,
        "step": _step(attributes),
        "trace_id": id_of(item.get("traceId"), 16).hex() or None,
        "span_id": number_of(id_of(item.get("spanId"), 8)),
        "fields": redacted_json(attributes | event),
    }
    recording.row("logs", at_ns, rank, **record | columns | texts | own_columns)
    return at_ns


def _enum(value: Any, names: tuple[str, ...]) -> int:  # noqa: ANN401 - JSON
    """Return the number of an enumeration's value, which is a number or, in protobuf's JSON, a name; 0 if unknown."""
    if isinstance(value, str) and not value.isdecimal():
        return next((number for number, name in enumerate(names) if value.lower().endswith(f"_{name}")), 0)
    number = int(value or 0)
    return number if 0 <= number < len(names) else 0


def _step(attributes: Mapping[str, Any]) -> int | None:
    steps = (attributes.get(name) for name in _STEP_ATTRIBUTES)
    return next((step for step in steps if type(step) is int and 0 <= step < 1 << 62), None)


FORMAT: Final = Format(
    summary="traces, metrics and logs of OpenTelemetry, as its collector's file exporter writes them",
    recognises="JSON with resourceSpans, resourceMetrics or resourceLogs",
    read=read,
    table="spans",
    mark=re.compile(rb"\A\s*\[?\s*\{\s*\"resource(?:Spans|Metrics|Logs)\"\s*:\s*\["),
    nothing=("the file has no span, metric or log record", "name a file of the collector's file exporter"),
    own_run=False,
    by_file=True,
)


def _add_metric(item: Message, scope: str | None, rank: int, recording: "ImportedRun") -> int:  # noqa: ARG001 - as others
    """Add a metric's data points, and return the time of the last. Raises `_PARSE_ERRORS`."""
    name, at_ns = str(item.get("name") or ""), 0
    for kind, add in _POINTS.items():
        data = item.get(kind) or {}
        is_counter = bool(data.get("isMonotonic")) and data.get("aggregationTemporality") in _CUMULATIVE
        for point in data.get("dataPoints") or ():
            if int(point.get("flags") or 0) & _NO_VALUE:
                recording.left_out += 1
                continue
            at_ns = int(point.get("timeUnixNano") or 0)
            if at_ns <= 0:
                raise FlawError("the data point has no time")
            attributes = values(point.get("attributes"))
            columns: Message = {"rank": rank} | pop_columns(attributes, _POINT_COLUMNS)
            columns |= {"kind": "counter"} if is_counter else {}
            labels = ",".join(f'{key}="{value}"' for key, value in sorted(attributes.items()) if value is not None)
            full_name = redacted_name(f"{name}{{{labels}}}" if labels else name, LONGEST_NAME)
            add(recording, full_name, point, at_ns, columns)
    return at_ns


def _add_number(recording: "ImportedRun", name: str, point: Message, at_ns: int, columns: Message) -> None:
    value = point["asInt"] if "asInt" in point else point["asDouble"]
    recording.unregistered(name, float(value), at_ns, **columns)


def _add_bins(recording: "ImportedRun", name: str, point: Message, at_ns: int, columns: Message) -> None:
    bounds = [float(bound) for bound in point.get("explicitBounds") or ()]
    counts = np.array([int(count) for count in point.get("bucketCounts") or [point.get("count") or 0]], np.float64)
    total, low, high = (None if point.get(key) is None else float(point[key]) for key in ("sum", "min", "max"))
    if not bounds:
        mean = (total or 0.0) / max(1, int(point.get("count") or 0))
        bounds, counts = [mean], np.array([counts.sum(), 0.0])
    lows = [min(bounds[0], bounds[0] if low is None else low), *bounds]
    highs = [*bounds, max(bounds[-1], bounds[-1] if high is None else high)]
    _add_distribution(
        recording, name, point, at_ns, histogram_of_bins(np.array(lows), np.array(highs), counts), columns
    )


def _add_exponential(recording: "ImportedRun", name: str, point: Message, at_ns: int, columns: Message) -> None:
    scale, sides = int(point.get("scale") or 0), []
    for side in ("positive", "negative"):
        buckets = point.get(side) or {}
        counts = np.array([int(count) for count in buckets.get("bucketCounts") or ()], np.int64)
        nonzero = np.flatnonzero(counts)
        first, last = (int(nonzero[0]), int(nonzero[-1]) + 1) if len(nonzero) else (0, 0)
        sides.append(Buckets(int(buckets.get("offset") or 0) + first if last else 0, counts[first:last]))
    is_valid = scale in _SCALES and all(len(side.counts) <= _MAX_BUCKETS and (side.counts >= 0).all() for side in sides)
    histogram = Histogram(scale, int(point.get("zeroCount") or 0), positive=sides[0], negative=sides[1])
    _add_distribution(recording, name, point, at_ns, histogram if is_valid else None, columns)


def _add_distribution(
    recording: "ImportedRun", name: str, point: Message, at_ns: int, histogram: Histogram | None, columns: Message
) -> None:
    if not int(point.get("count") or 0):
        recording.left_out += 1
        return
    if histogram is None:
        raise FlawError("the histogram's buckets are invalid")
    start_ns = int(point.get("startTimeUnixNano") or 0)
    statistics = {key: None if point.get(key) is None else float(point[key]) for key in ("sum", "min", "max")}
    finite: Message = {
        key: None if value is None or not math.isfinite(value) else value for key, value in statistics.items()
    }
    interval = {"interval_ns": at_ns - start_ns} if 0 < start_ns <= at_ns else {}
    columns = {key: value for key, value in columns.items() if key != "kind"}
    threshold = {"zero_threshold": float(point.get("zeroThreshold") or 0.0)}
    recording.distribution(name, histogram, at_ns, **finite | interval | threshold | columns)


def _add_summary(recording: "ImportedRun", name: str, point: Message, at_ns: int, columns: Message) -> None:
    for part in ("count", "sum"):
        if point.get(part) is not None:
            recording.unregistered(f"{name}_{part}", float(point[part]), at_ns, **columns | {"kind": "counter"})
    for item in point.get("quantileValues") or ():
        quantile, value = float(item.get("quantile") or 0.0), float(item.get("value") or 0.0)
        recording.unregistered(f'{name}{{quantile="{quantile:g}"}}', value, at_ns, **columns)


_POINTS: Final = {
    "gauge": _add_number, "sum": _add_number, "histogram": _add_bins, "exponentialHistogram": _add_exponential,
    "summary": _add_summary,
}  # fmt: skip

_SIGNALS: Final = {
    "resourceSpans": ("scopeSpans", "spans", "spans", _add_span),
    "resourceMetrics": ("scopeMetrics", "metrics", "scalars", _add_metric),
    "resourceLogs": ("scopeLogs", "logRecords", "logs", _add_log),
}
