"""Rows as requests of OTLP's JSON form, for OpenTelemetry's collector (opentelemetry.io/docs/specs/otlp).

A rank is a resource, a step's spans are a trace unless the run was started in one. Values without a field in OTLP are
attributes ``ranklake.…``, from which `ranklake.capture.importers.otlp` restores columns.
"""

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

import ranklake
from ranklake.insight.runs.asking import Row
from ranklake.insight.runs.otlp import RankFacts, TelemetryPage
from ranklake.lake.contracts.model import Metric

Message = dict[str, Any]
OWN: Final = "ranklake."
_SPAN_ATTRIBUTES: Final = (
    *("kind", "step", "stream", "microbatch", "dp_rank", "pp_rank", "tp_rank", "bytes", "process_group", "group_size"),
    *("sequence", "device_time"),
)
_LOG_ATTRIBUTES: Final = {
    "source_file": "code.file.path", "source_line": "code.line.number", "source_function": "code.function.name",
    "thread_name": "thread.name", "exception_type": "exception.type", "exception_message": "exception.message",
    "exception_stacktrace": "exception.stacktrace",
    **{name: f"{OWN}{name}" for name in ("step", "template", "stream", "suppressed_count")},
}  # fmt: skip
_FLAGS: Final = {"nan": "NaN", "+inf": "Infinity", "-inf": "-Infinity"}
_COUNTED: Final = 1 << 32
"""Smaller span ids are counters within an incarnation; others are random ids of OpenTelemetry, and stay."""
_DELTA, _CUMULATIVE = 1, 2
_INTERNAL: Final = 1


def request_of(page: TelemetryPage, metrics: Mapping[str, Metric], step_columns: Mapping[str, Metric]) -> Message:
    """Return a page as a request; without items if no row has a value."""
    of_resource, of_scope, of_item = _KEYS[page.signal]
    items: Iterable[Message]
    if page.table == "spans":
        items = [_span(row, page.rank_facts) for row in page.rows]
    elif page.table == "logs":
        items = [_log(row, page.rank_facts) for row in page.rows]
    else:
        items = _metrics(page, metrics, step_columns)
    scope = {"scope": {"name": "ranklake", "version": ranklake.__version__}, of_item: list(items)}
    return {of_resource: [{"resource": {"attributes": _attributes(_resource(page.rank_facts))}, of_scope: [scope]}]}


def line_of(request: Message) -> str:
    """Return a request as a line of a file, which `ranklake import otlp` reads again."""
    return json.dumps(request, separators=(",", ":"), allow_nan=False) + "\n"


def span_id(incarnation: int, number: int) -> str:
    """Return the W3C id of a span, in hex."""
    if 0 <= number < _COUNTED:
        return hashlib.sha256(f"{incarnation}/{number}".encode()).hexdigest()[:16]
    return f"{number & 0xFFFFFFFFFFFFFFFF:016x}"


def _resource(of: RankFacts) -> Message:
    return {
        "service.name": of.job or of.run,
        "service.instance.id": f"{of.run}/{of.attempt}/{of.rank}",
        "host.name": of.host or None,
        f"{OWN}run": of.run,
        f"{OWN}attempt": of.attempt,
        f"{OWN}rank": of.rank,
    }


def _span(row: Row, of: RankFacts) -> Message:
    start_ns = int(row["start_ns"])
    trace_id, parent = row["trace_id"] or of.trace_id(row["step"]), row["parent_id"]
    around = of.traceparent[36:52] if trace_id == of.traceparent[3:35] else ""
    return {
        "traceId": trace_id,
        "spanId": span_id(row["incarnation"], row["span_id"]),
        "parentSpanId": around if parent is None else span_id(row["incarnation"], parent),
        "name": row["name"],
        "kind": _INTERNAL,
        "startTimeUnixNano": str(start_ns),
        "endTimeUnixNano": str(start_ns + int(row["duration_ns"])),
        "attributes": _attributes({f"{OWN}{name}": row[name] for name in _SPAN_ATTRIBUTES}),
    }


def _log(row: Row, of: RankFacts) -> Message:
    number, step = row["span_id"], row["step"]
    trace_id = row["trace_id"] or (of.trace_id(step) if step is not None else "")
    body = row.get("message") or row["template"]
    return {
        "timeUnixNano": str(row["at_ns"]),
        "severityText": row["severity_text"] or "",
        "severityNumber": row["severity_number"] or 0,
        "body": _value(body) if body is not None else {},
        "traceId": trace_id,
        "spanId": span_id(row["incarnation"], number) if number is not None and trace_id else "",
        "attributes": _attributes(
            {name: row.get(column) for column, name in _LOG_ATTRIBUTES.items()} | {f"{OWN}logger": row["logger"]}
        ),
    }


def _metrics(page: TelemetryPage, metrics: Mapping[str, Metric], step_columns: Mapping[str, Metric]) -> list[Message]:
    """Return the page's values by metric and kind, in OTLP's form."""
    points: dict[tuple[str, str], list[Message]] = {}
    for row in page.rows:
        if page.table == "steps":
            for column, metric in step_columns.items():
                if row[column] is not None:
                    points.setdefault((metric.name, "gauge"), []).append(_point(row["at_ns"], float(row[column])))
        elif page.table == "distributions":
            points.setdefault((row["metric"], "histogram"), []).append(_histogram_point(row))
        else:
            value = row["value"] if row["value_flag"] is None else _FLAGS.get(row["value_flag"])
            if value is not None:
                points.setdefault((row["metric"], row["kind"] or "gauge"), []).append(_point(row["at_ns"], value))
    units = {name: item.unit for name, item in metrics.items()}
    return [
        {"name": name, "unit": units.get(name, ""), **_FORMS.get(kind, _gauge)(held)}
        for (name, kind), held in points.items()
    ]


def _point(at_ns: int, value: float | str) -> Message:
    return {"timeUnixNano": str(at_ns), "asDouble": value}


def _histogram_point(row: Row) -> Message:
    sides = {
        side: {
            "offset": row[f"{side}_offset"] or 0,
            "bucketCounts": [str(count) for count in row[f"{side}_counts"] or ()],
        }
        for side in ("positive", "negative")
    }
    known = {name: row[name] for name in ("sum", "min", "max") if row[name] is not None}
    return {
        "startTimeUnixNano": str(row["at_ns"] - (row["interval_ns"] or 0)),
        "timeUnixNano": str(row["at_ns"]),
        "count": str(row["count"]),
        "scale": row["scale"],
        "zeroCount": str(row["zero_count"] or 0),
        "zeroThreshold": row["zero_threshold"] or 0.0,
        **known,
        **sides,
    }


def _gauge(points: list[Message]) -> Message:
    return {"gauge": {"dataPoints": points}}


def _counter(points: list[Message]) -> Message:
    return {"sum": {"dataPoints": points, "aggregationTemporality": _CUMULATIVE, "isMonotonic": True}}


def _delta(points: list[Message]) -> Message:
    return {"sum": {"dataPoints": points, "aggregationTemporality": _DELTA}}


def _histogram(points: list[Message]) -> Message:
    return {"exponentialHistogram": {"dataPoints": points, "aggregationTemporality": _DELTA}}


def _attributes(held: Mapping[str, Any]) -> list[Message]:
    return [{"key": name, "value": _value(value)} for name, value in held.items() if value is not None]


def _value(value: Any) -> Message:  # noqa: ANN401 - of a column
    if isinstance(value, bool):
        return {"boolValue": value}
    if isinstance(value, int):
        return {"intValue": str(value)}
    return {"doubleValue": value} if isinstance(value, float) else {"stringValue": str(value)}


_FORMS: Final[Mapping[str, Callable[[list[Message]], Message]]] = {
    "counter": _counter, "delta": _delta, "histogram": _histogram,
}  # fmt: skip
_KEYS: Final = {
    "traces": ("resourceSpans", "scopeSpans", "spans"),
    "metrics": ("resourceMetrics", "scopeMetrics", "metrics"),
    "logs": ("resourceLogs", "scopeLogs", "logRecords"),
}
