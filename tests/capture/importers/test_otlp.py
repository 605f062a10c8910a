"""OTLP: what the official SDK records comes over as rows, in the collector's JSON and in protobuf's own."""

import base64
import json
from contextlib import suppress

import pytest
from google.protobuf.json_format import MessageToDict
from hypothesis import given
from hypothesis import strategies as st
from importing import ask, imported, rejects
from opentelemetry import trace
from opentelemetry._logs import LogRecord, SeverityNumber
from opentelemetry.exporter.otlp.proto.common._log_encoder import encode_logs
from opentelemetry.exporter.otlp.proto.common.metrics_encoder import encode_metrics
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.sdk._logs import LoggerProvider
from opentelemetry.sdk._logs.export import InMemoryLogRecordExporter, SimpleLogRecordProcessor
from opentelemetry.sdk.metrics import Histogram, MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.metrics.view import ExponentialBucketHistogramAggregation
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from ranklake.capture.importers.imports import import_files
from ranklake.capture.importers.otlp_values import value_of
from ranklake.capture.importers.source import SourceError

SECRET = "hf_abcdefghijklmnopqrstuvwxyz"
IDS = {"traceId", "spanId", "parentSpanId"}


def hexed(message):
    """Return a message of protobuf's JSON as OTLP's has it: ids in hex."""
    if isinstance(message, dict):
        return {key: base64.b64decode(value).hex() if key in IDS else hexed(value) for key, value in message.items()}
    return [hexed(item) for item in message] if isinstance(message, list) else message


def written(path, *messages, form=hexed):
    """Write requests as a file of the collector has them."""
    path.write_text("".join(json.dumps(form(MessageToDict(message))) + "\n" for message in messages))
    return path


def resource(**more):
    return Resource({"service.name": "trainer", "host.name": "node-one", "process.pid": 7, **more})


@pytest.fixture
def spans():
    """Give spans of two processes: a step with a phase in it that fails, with a user's address."""
    exporter = InMemorySpanExporter()
    for rank in (0, 3):
        provider = TracerProvider(resource=resource(rank=rank))
        provider.add_span_processor(SimpleSpanProcessor(exporter))
        tracer = provider.get_tracer("train.loop", "1.2")
        with suppress(RuntimeError), tracer.start_as_current_span("train_step", attributes={"step": 5}):
            attributes = {
                "shape": [2, 3],
                "api_key": SECRET,
                "user.email": "lovelace@a.com",
                "thread.name": "main",
            }
            with tracer.start_as_current_span("forward", kind=trace.SpanKind.CLIENT, attributes=attributes):
                raise RuntimeError("out of memory of lovelace")
    return exporter.get_finished_spans()


@pytest.mark.parametrize("form", [hexed, lambda message: message])
def test_spans_of_the_sdk(lake, spool, tmp_path, spans, form):
    """Ids, times to the nanosecond, parents, ranks and steps; secrets and people are in no column."""
    done = imported(lake, spool, "otlp", written(tmp_path / "traces.jsonl", encode_spans(spans), form=form))
    assert done.rows == {"ranks": 2, "runs": 1, "spans": 4}
    rows = ask(lake, "SELECT * FROM spans")
    by_id = {row["span_id"] & (2**64 - 1): row for row in rows}
    assert len(by_id) == 4
    for span in spans:
        row = by_id[span.context.span_id]
        assert row["trace_id"] == f"{span.context.trace_id:032x}"
        assert (row["start_ns"], row["duration_ns"]) == (span.start_time, span.end_time - span.start_time)
        assert (row["parent_id"] is None) == (span.parent is None)
        assert span.parent is None or row["parent_id"] & (2**64 - 1) == span.parent.span_id
        assert (row["name"], row["rank"], row["kind"]) == (span.name, span.resource.attributes["rank"], "other")
        assert row["step"] == span.attributes.get("step")
    inner = next(row for row in rows if row["name"] == "forward")
    about = json.loads(inner["attributes"])
    assert about["shape"] == [2, 3]
    assert (about["span_kind"], about["status"], about["scope"]) == ("client", "error", "train.loop")
    assert about["events"][0]["exception.type"] == "RuntimeError"
    assert inner["stream"] == "main"
    shown = json.dumps([rows, ask(lake, "SELECT labels FROM runs")], default=str)
    for word in (SECRET, "lovelace", "node-one"):
        assert word not in shown
    assert ask(lake, "SELECT DISTINCT host, pid FROM ranks") == [{"host": "node-one", "pid": 7}]
    assert ask(lake, "SELECT job FROM runs") == [{"job": "trainer"}]


def test_metrics_of_the_sdk(lake, spool, tmp_path):
    """Gauges, counters, histograms of both kinds: values, labels and counts are the source's."""
    reader = InMemoryMetricReader(preferred_aggregation={Histogram: ExponentialBucketHistogramAggregation()})
    bins = InMemoryMetricReader()
    meter = MeterProvider([reader, bins], resource=resource()).get_meter("m")
    meter.create_gauge("queue.depth").set(4.5, {"queue": "a"})
    counter, depth = meter.create_counter("tokens"), meter.create_up_down_counter("workers")
    counter.add(3)
    counter.add(4)
    depth.add(-2)
    latency = meter.create_histogram("latency", unit="s", explicit_bucket_boundaries_advisory=[1.0, 2.0])
    for value in (0.5, 1.5, 1.6, 9.0):
        latency.record(value)
    file = written(tmp_path / "metrics.jsonl", *(encode_metrics(one.get_metrics_data()) for one in (reader, bins)))
    assert imported(lake, spool, "otlp", file).refused == {}
    found = ask(lake, "SELECT DISTINCT metric, value, kind FROM scalars ORDER BY metric")
    assert [tuple(row.values()) for row in found] == [
        ('queue.depth{queue="a"}', 4.5, "gauge"), ("tokens", 7.0, "counter"), ("workers", -2.0, "gauge"),
    ]  # fmt: skip
    rows = ask(lake, "SELECT * FROM distributions ORDER BY slot")
    assert [(row["metric"], row["count"], row["sum"], row["min"], row["max"]) for row in rows] == [
        ("latency", 4, 12.6, 0.5, 9.0)
    ] * 2
    assert all(sum(row["positive_counts"]) == 4 for row in rows)
    (point,) = (
        point
        for of in reader.get_metrics_data().resource_metrics
        for metric in of.scope_metrics[0].metrics
        if metric.name == "latency"
        for point in metric.data.data_points
    )
    exact = rows[0]
    assert exact["scale"] == point.scale
    filled = [number for number, count in enumerate(point.positive.bucket_counts) if count]
    first, last = filled[0], filled[-1] + 1
    assert exact["positive_offset"] == point.positive.offset + first
    assert exact["positive_counts"] == list(point.positive.bucket_counts[first:last])


def test_logs_of_the_sdk(lake, spool, tmp_path):
    """Lines keep level, message, place, exception and the trace that they were logged in."""
    exporter = InMemoryLogRecordExporter()
    provider = LoggerProvider(resource=resource())
    provider.add_log_record_processor(SimpleLogRecordProcessor(exporter))
    with TracerProvider().get_tracer("t").start_as_current_span("request") as span:
        provider.get_logger("otlp.test").emit(
            LogRecord(
                timestamp=1_700_000_000_000_000_001, severity_text="ERROR", severity_number=SeverityNumber.ERROR,
                body=f"failed for lovelace with {SECRET}", exception=ValueError("no"),
                attributes={"code.file.path": "/home/lovelace/train/loop.py", "code.line.number": 7, "rate": 0.5},
            )
        )  # fmt: skip
    file = written(tmp_path / "logs.jsonl", encode_logs(exporter.get_finished_logs()))
    assert imported(lake, spool, "otlp", file).rows == {"logs": 1, "ranks": 1, "runs": 1}
    (row,) = ask(lake, "SELECT * FROM logs")
    assert (row["severity_text"], row["severity_number"], row["logger"]) == ("ERROR", 17, "otlp.test")
    assert row["message"] == "failed for lovelace with [redacted]"
    assert (row["exception_type"], row["source_file"], row["source_line"]) == ("ValueError", "train/loop.py", 7)
    assert json.loads(row["fields"]) == {"rate": 0.5}
    assert row["trace_id"] == f"{span.get_span_context().trace_id:032x}"
    assert row["span_id"] & (2**64 - 1) == span.get_span_context().span_id


BAD = (
    ({"resourceSpans": [{"scopeSpans": [{"spans": [{"name": "x", "spanId": "00f067aa0ba902b7"}]}]}]}, "has no begin"),
    ({"resourceSpans": [{"scopeSpans": [{"spans": [{"spanId": "zz", "startTimeUnixNano": 1, "endTimeUnixNano": 2}]}]}]},
     "not an item of OTLP"),
    ({"resourceSpans": [{"scopeSpans": [{"spans": "abc"}]}]}, "not an item of OTLP"),
    ({"resourceSpans": "abc"}, "not a request"),
    ({"resourceLogs": [{"scopeLogs": [{"logRecords": [{"body": {"stringValue": "x"}}]}]}]}, "has no time"),
    ({"resourceMetrics": [{"scopeMetrics": [{"metrics": [{"gauge": {"dataPoints": [{}]}}]}]}]}, "not an item of OTLP"),
    ({"resourceMetrics": [{"scopeMetrics": [{"metrics": [{"name": "h", "histogram": {"dataPoints": [
        {"count": 1, "timeUnixNano": 5, "explicitBounds": [2, 1], "bucketCounts": [1, 0, 0]}]}}]}]}]}, "buckets"),
    ({"something": "else"}, "not a request"),
)  # fmt: skip


def test_what_is_none_is_refused_piece_by_piece(lake, spool, tmp_path):
    """Each with its reason, beside what is sound."""
    sound = {"resourceLogs": [{"scopeLogs": [{"logRecords": [
        {"timeUnixNano": "1700000000000000000", "body": {"kvlistValue": {"values": [
            {"key": "a", "value": {"intValue": "1"}}]}}}]}]}]}  # fmt: skip
    file = tmp_path / "mixed.jsonl"
    file.write_text("".join(json.dumps(message) + "\n" for message in (sound, *(bad for bad, _ in BAD))) + "{cut off")
    done = imported(lake, spool, "otlp", file)
    assert done.rows == {"logs": 1, "runs": 1}
    assert ask(lake, "SELECT message FROM logs") == [{"message": '{"a":1}'}]
    reasons = [row["reason"] for row in rejects(lake)]
    for _, reason in BAD:
        assert any(reason in found for found in reasons), reason
    assert len(reasons) >= len(BAD) + 1


def test_a_document_over_several_lines(lake, spool, tmp_path):
    """As a body that was saved; what is no JSON is refused whole, with what to do."""
    span = {"spanId": "00f067aa0ba902b7", "traceId": "4bf92f3577b34da6a3ce929d0e0e4736", "name": "x",
            "startTimeUnixNano": "1700000000000000000", "endTimeUnixNano": "1700000000000000001"}  # fmt: skip
    file = tmp_path / "body.json"
    file.write_text(json.dumps({"resourceSpans": [{"scopeSpans": [{"spans": [span]}]}]}, indent=2))
    assert imported(lake, spool, "otlp", file).rows == {"runs": 1, "spans": 1}
    file = tmp_path / "binary.json"
    file.write_bytes(b"\x00\x00\x00\x05\x0a\x03abc")
    with pytest.raises(SourceError, match=r"not JSON of OTLP; have the collector's file exporter write it"):
        import_files("otlp", [str(file)], str(spool))


VALUES = st.recursive(
    st.one_of(st.text(), st.booleans(), st.integers(-(2**63), 2**63 - 1), st.floats(allow_nan=False)),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(), inner, max_size=3)),
    max_leaves=8,
)


@given(VALUES)
def test_any_value_comes_back(value):
    """What the SDK encodes is read as it was."""
    from opentelemetry.exporter.otlp.proto.common._internal import _encode_value

    assert value_of(MessageToDict(_encode_value(value))) == value
