"""``ranklake otlp``: what a receiver of OpenTelemetry's messages gets is what the tables hold, and comes back equal."""

import base64
import gzip
import json
import logging
import math
import socket

import pytest
from bringing import bring
from google.protobuf.json_format import ParseDict
from importing import ask
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from prometheus_client.openmetrics.parser import text_string_to_metric_families
from receivers import answer, answers, serve

from ranklake import capture
from ranklake.capture.importers.imports import import_files
from ranklake.cli import run as command
from ranklake.lake.contracts.load import load_metrics
from ranklake.lake.query.sql import query
from ranklake.lake.rollups.runner import run_rollups
from ranklake.lake.store.lake import Lake
from ranklake.pipeline import otlp as sending

KINDS = {
    "/v1/traces": ExportTraceServiceRequest,
    "/v1/metrics": ExportMetricsServiceRequest,
    "/v1/logs": ExportLogsServiceRequest,
}
IDS = {"traceId", "spanId", "parentSpanId"}
OF_STEPS = str(tuple(name for name, metric in load_metrics().items() if metric.stored_in.startswith("steps.")))
TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"


def based(message):
    """Return a request as protobuf's own JSON has it: ids in base64."""
    if isinstance(message, dict):
        return {
            key: base64.b64encode(bytes.fromhex(value)).decode() if key in IDS else based(value)
            for key, value in message.items()
        }
    return [based(item) for item in message] if isinstance(message, list) else message


def parsed(path, message):
    """Return a request as the official messages have it. Raises for any field that they do not know."""
    return ParseDict(based(message), KINDS[path]())


def received(server):
    """Return the requests that a server got, by path."""
    requests = {}
    for request in server.requests:
        assert request.headers["Content-Type"] == "application/json"
        body = json.loads(gzip.decompress(request.body))
        requests.setdefault(request.path, []).append(parsed(request.path, body))
    return requests


def items(requests):
    """Yield resource's attributes and item of each, and check its scope."""
    for request in requests:
        ((_, resources),) = request.ListFields()
        for resource in resources:
            about = {item.key: item.value for item in resource.resource.attributes}
            (scope,) = resource.ListFields()[1][1]
            assert scope.scope.name == "ranklake"
            for item in scope.ListFields()[1][1]:
                yield about, item


@pytest.fixture(scope="module")
def lake(tmp_path_factory):
    """Give a lake of a run of two ranks that records steps, phases, values, a histogram and lines, in a trace."""
    folder = tmp_path_factory.mktemp("otlp")
    logger = logging.getLogger("test.otlp")
    logger.propagate = False
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRACEPARENT", f"00-{TRACE}-00f067aa0ba902b7-01")
        for rank in range(2):
            options = {"run": "r1", "rank": rank, "world_size": 2, "spool": folder / "spool", "samplers": "off"}
            with capture.start("pretrain", local_dir=folder / f"local{rank}", startup="off", **options) as run:
                logger.addHandler(handler := run.log_handler())
                latency = run.histogram("latency")
                for step in range(3):
                    with run.step(step), run.phase("forward"):
                        run.log(loss=3.0 - step, **{"eval/accuracy": 0.5 + rank, "broken": float("nan")})
                        latency.record([0.5, 1.0 + step])
                        logger.warning("slow shard %s of ada", step)
                logger.removeHandler(handler)
    lake = Lake.create(str(folder / "lake"))
    bring(lake, folder / "spool")
    run_rollups(lake)
    return lake


@pytest.fixture
def ranklake(lake, capsys, monkeypatch, tmp_path):
    """Give a function that calls the command in an empty folder, and returns its status, output and error."""
    monkeypatch.setenv("RANKLAKE_LAKE", lake.uri)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("OTEL_EXPORTER_OTLP_ENDPOINT", raising=False)
    monkeypatch.delenv("OTEL_EXPORTER_OTLP_HEADERS", raising=False)
    return lambda *words: (command(["otlp", *words]), *capsys.readouterr())


def test_a_receiver_gets_what_the_tables_hold(lake, ranklake, monkeypatch):
    """Every row, parsed by the official messages; spans hang under the one that started the run; no message goes."""
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "x-scope-orgid=team%20a, authorization=Bearer t")
    with serve() as server:
        status, out, error = ranklake("r1", "--endpoint", server.url + "/")
    assert (status, error) == (0, "")
    assert out == "12 spans, 6 steps, 12 values, 2 histograms, 6 log lines of r1: sent\n"
    assert {request.headers["Authorization"] for request in server.requests} == {"Bearer t"}
    assert {request.headers["X-Scope-Orgid"] for request in server.requests} == {"team a"}
    requests = received(server)
    spans = list(items(requests["/v1/traces"]))
    rows = query(lake, "SELECT * FROM spans ORDER BY rank, ts, slot").to_pylist()
    sent = [(of["ranklake.rank"].int_value, span.name, span.end_time_unix_nano - span.start_time_unix_nano)
            for of, span in spans]  # fmt: skip
    assert sorted(sent) == sorted((row["rank"], row["name"], row["duration_ns"]) for row in rows)
    assert {span.trace_id.hex() for _, span in spans} == {TRACE}
    by_id = {span.span_id: span for _, span in spans}
    assert len(by_id) == 12
    assert {span.parent_span_id.hex() for _, span in spans if span.name == "step"} == {"00f067aa0ba902b7"}
    assert {by_id[span.parent_span_id].name for _, span in spans if span.name == "forward"} == {"step"}
    assert {of["service.name"].string_value for of, _ in spans} == {"pretrain"}
    points = {}
    for of, metric in items(requests["/v1/metrics"]):
        for point in getattr(metric, metric.WhichOneof("data")).data_points:
            points.setdefault(metric.name, []).append((of["ranklake.rank"].int_value, point))
    assert [point.as_double for rank, point in points["train/loss"] if rank == 1] == [3.0, 2.0, 1.0]
    assert {point.as_double for rank, point in points["eval/accuracy"] if rank == 1} == {1.5}
    assert all(math.isnan(point.as_double) for _, point in points["broken"])
    assert [sum(point.positive.bucket_counts) for _, point in points["latency"]] == [6, 6]
    lines = list(items(requests["/v1/logs"]))
    assert {line.body.string_value for _, line in lines} == {"slow shard %s of ada"}
    assert {by_id[line.span_id].name for _, line in lines} == {"forward"}
    assert {line.trace_id.hex() for _, line in lines} == {TRACE}


def test_a_file_comes_back_equal(lake, ranklake, tmp_path):
    """What is written for a collector is imported again: the same rows in another run."""
    assert ranklake("r1", "--output", "r1.jsonl", "--messages")[0] == 0
    for line in (tmp_path / "r1.jsonl").read_text().splitlines():
        request = json.loads(line)
        parsed("/v1/" + {"S": "traces", "M": "metrics", "L": "logs"}[next(iter(request))[8]], request)
    done = import_files("otlp", ["r1.jsonl"], str(tmp_path / "spool"), run="again")
    assert done.refused == {}
    other = Lake.create(str(tmp_path / "lake"))
    bring(other, tmp_path / "spool")
    for text in (
        "SELECT rank, name, kind, step, CAST(ts AS BIGINT) AS at, duration_ns, stream, trace_id FROM spans",
        "SELECT rank, message, template, logger, step, severity_number, trace_id, source_line FROM logs",
        "SELECT rank, metric, value, value_flag, CAST(ts AS BIGINT) AS at FROM scalars WHERE NOT metric IN OF_STEPS",
        "SELECT rank, metric, count, sum, min, max, scale, positive_offset FROM distributions",
        "SELECT p.name, c.name AS b, c.rank FROM spans c, spans p WHERE c.parent_id = p.span_id AND c.rank = p.rank",
        "SELECT rank, host FROM ranks",
    ):
        mine, theirs = (sorted(map(str, ask(each, text.replace("OF_STEPS", OF_STEPS)))) for each in (lake, other))
        assert theirs == mine, text
        assert mine
    assert ranklake("r1", "--output", "again.jsonl", "--messages")[0] == 0
    assert (tmp_path / "again.jsonl").read_bytes() == (tmp_path / "r1.jsonl").read_bytes()


@pytest.mark.parametrize("rows", [1, 2, 3])
def test_pages_hold_each_row_once(lake, ranklake, tmp_path, monkeypatch, rows):
    """However few rows a page has: none is left out and none sent twice, rows of one moment among them."""
    monkeypatch.setattr("ranklake.insight.runs.otlp.PAGE_ROWS", rows)
    _, out, _ = ranklake("r1", "--output", "r1.jsonl", "--messages", "--json")
    assert json.loads(out)["rows"] == {"spans": 12, "steps": 6, "scalars": 12, "distributions": 2, "logs": 6}
    requests = [json.loads(line) for line in (tmp_path / "r1.jsonl").read_text().splitlines()]
    spans = [span["spanId"] for request in requests for resource in request.get("resourceSpans", ())
             for span in resource["scopeSpans"][0]["spans"]]  # fmt: skip
    assert len(set(spans)) == len(spans) == 12


def test_what_a_receiver_does_not_take(ranklake, monkeypatch):
    """A server that is away for a while is asked again; what it rejects is counted; a refusal is one line."""
    monkeypatch.setattr(sending, "_WAIT_S", 0.01)
    partial = answer(body=b'{"partialSuccess": {"rejectedSpans": "5", "errorMessage": "too old\\u001b[31m"}}')
    with serve(answers(answer(503), answer(429, headers=(("Retry-After", "0"),)), partial, answer())) as server:
        status, out, error = ranklake("r1", "--endpoint", server.url, "--signal", "traces", "--signal", "logs")
    assert (status, out) == (1, "12 spans, 6 log lines of r1: sent\n")
    assert error.startswith("5 items not taken by the receiver: too old")
    assert "\x1b" not in error
    assert len(server.requests) > 3
    with serve(answer(401)) as server:
        status, out, error = ranklake("r1", "--endpoint", server.url.replace("//", "//ada:secret@"))
    assert (status, out) == (2, "")
    assert "not taken: status 401; is a collector there" in error
    assert "secret" not in error
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        status, _, error = ranklake("r1", "--endpoint", f"http://127.0.0.1:{free.getsockname()[1]}")
    assert (status, error.count("\n")) == (2, 1)
    for words, flaw in (
        ((), "one of --endpoint and --output"),
        (("--endpoint", "localhost:4318"), "not a URL of a collector"),
        (("--endpoint", "http://x", "--output", "f"), "one of --endpoint and --output"),
    ):
        status, _, error = ranklake("r1", *words)
        assert status == 2
        assert flaw in error
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "token")
    assert "not name=value" in ranklake("r1", "--endpoint", "http://x")[2]


def test_values_in_openmetrics(lake, ranklake, tmp_path):
    """Prometheus' own parser reads each value with its time, and `import prometheus` does."""
    status, out, error = ranklake("r1", "--openmetrics", "--output", "r1.om")
    assert (status, out, error) == (0, "6 steps, 12 values of r1: r1.om\n", "")
    text = (tmp_path / "r1.om").read_text()
    families = {family.name: family for family in text_string_to_metric_families(text)}
    found = [
        (sample.labels["metric"], int(sample.labels["rank"]), float(sample.timestamp), sample.value)
        for family in families.values()
        for sample in family.samples
    ]
    rows = query(lake, "SELECT metric, rank, CAST(ts AS BIGINT) AS at, value FROM scalars").to_pylist()
    values = [(row["metric"], row["rank"], row["at"] / 1e6, row["value"]) for row in rows]
    assert {one for one in values if one[3] is not None} <= set(found)
    assert sum(math.isnan(value) for *_, value in found) == 6
    assert [value for name, rank, _, value in found if (name, rank) == ("train/loss", 1)] == [3.0, 2.0, 1.0]
    assert "Training loss as the trainer logs it" in families["ranklake_run_train_loss"].documentation
    assert import_files("prometheus", ["r1.om"], str(tmp_path / "spool")).rows["scalars"] == len(found)
    status, _, error = ranklake("r1", "--openmetrics", "--endpoint", "http://x")
    assert (status, "OpenMetrics has values alone" in error) == (2, True)
