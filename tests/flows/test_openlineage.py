"""OpenLineage events of stages: one START and one end each, valid by the specification, by file and by HTTP."""

import json
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread

import pytest
from jsonschema import Draft202012Validator
from referencing import Registry, Resource
from segments import put_segment, step_rows

from ranklake.config import Config
from ranklake.context import Context
from ranklake.lake.contracts.load import contract
from ranklake.pipeline.openlineage import dataset_name
from ranklake.pipeline.stages import CHECK, INGEST, ROLLUP, Stage

SCHEMAS = [json.loads(path.read_text()) for path in (Path(__file__).parent / "openlineage").glob("*.json")]
REGISTRY = Registry().with_resources([(each["$id"], Resource.from_contents(each)) for each in SCHEMAS])
EVENT = "https://openlineage.io/spec/2-0-2/OpenLineage.json"
RUN_EVENT = Draft202012Validator({"$ref": f"{EVENT}#/$defs/RunEvent"}, registry=REGISTRY)


def facets_of(event):
    """Yield the facets of an event, wherever they are."""
    for item in (event["run"], event["job"], *event["inputs"], *event["outputs"]):
        for key in ("facets", "inputFacets", "outputFacets"):
            yield from (item.get(key) or {}).items()


def valid(events):
    """Return events, each valid by the specification, and each of its facets by the schema that it names."""
    for event in events:
        RUN_EVENT.validate(event)
        for name, facet in facets_of(event):
            Draft202012Validator({"$ref": facet["_schemaURL"]}, registry=REGISTRY).validate(facet)
            assert name in {"schema", "columnLineage", "dataQualityAssertions", "outputStatistics", "errorMessage"}
    return events


def named(event, side, context):
    """Return the datasets of an event by the tables that they are."""
    tables = {dataset_name(context.lake_uri, name): name for name in context.contracts()}
    return {tables.get((one["namespace"], one["name"]), one["name"]): one for one in event[side]}


@pytest.fixture
def context(tmp_path):
    """Give a context of a lake and a spool with a run's steps, whose events go to a file."""
    put_segment(tmp_path / "spool", step_rows(20))
    return context_of(tmp_path, **{"openlineage.url": str(tmp_path / "events.jsonl")})


def context_of(folder, **settings):
    """Return the context of the lake and the spool in a folder."""
    given = {"lake.uri": str(folder / "lake"), "spool.uri": str(folder / "spool"), **settings}
    return Context.of(Config(), given)


def events_in(path):
    """Return the events of a file."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def test_each_stage_has_a_start_and_an_end(context, tmp_path):
    """What it read and wrote, the columns and their origins, the rows, and what checks found."""
    INGEST.run(context)
    CHECK.run(context, kinds=("fact",))
    ROLLUP.run(context)
    events = valid(events_in(tmp_path / "events.jsonl"))
    assert [(each["job"]["name"], each["eventType"]) for each in events] == [
        (stage, kind) for stage in ("ingest", "check", "rollup") for kind in ("START", "COMPLETE")
    ]
    assert all(first["run"] == last["run"] for first, last in zip(events[::2], events[1::2], strict=True))
    assert len({each["run"]["runId"] for each in events}) == 3
    ingested, checked, rolled_up = events[1::2]
    assert "steps" in named(ingested, "outputs", context)
    assert str(tmp_path / "spool") in named(ingested, "inputs", context)
    fields = named(ingested, "outputs", context)["steps"]["facets"]["schema"]["fields"]
    assert [each["name"] for each in fields] == list(contract("steps").names)
    (assertion,) = named(checked, "inputs", context)["steps"]["inputFacets"]["dataQualityAssertions"]["assertions"]
    assert (assertion["assertion"], assertion["success"]) == ("contract", True)
    rollup = named(rolled_up, "outputs", context)["step_rollup"]
    assert rollup["outputFacets"]["outputStatistics"]["rowCount"] == 20
    origin = rollup["facets"]["columnLineage"]["fields"]["mean_loss"]["inputFields"]
    assert {(each["name"].rpartition("/")[2], each["field"]) for each in origin} >= {("steps", "loss")}


def test_a_failed_check_is_an_assertion(context, tmp_path):
    """By its id and severity, of the table that it failed on."""
    put_segment(tmp_path / "spool", step_rows(20, incarnation=9))
    INGEST.run(context)
    CHECK.run(context, kinds=("fact",))
    last = valid(events_in(tmp_path / "events.jsonl"))[-1]
    assertions = named(last, "inputs", context)["steps"]["inputFacets"]["dataQualityAssertions"]["assertions"]
    assert ("steps_unique", False) in {(each["assertion"], each["success"]) for each in assertions}


def test_a_stage_that_fails_says_so(context, tmp_path):
    """FAIL with the error, without what looks like a credential; the error goes on."""

    def work(_context):
        raise ValueError("no answer from https://user:hunter2hunter2@host/")

    with pytest.raises(ValueError, match="no answer"):
        Stage("broken", "-", work).run(context)
    first, last = valid(events_in(tmp_path / "events.jsonl"))
    assert (first["eventType"], last["eventType"]) == ("START", "FAIL")
    message = last["run"]["facets"]["errorMessage"]["message"]
    assert "no answer" in message
    assert "hunter2" not in message


def test_events_go_by_http_with_a_key(context, tmp_path, monkeypatch):
    """A POST an event to api/v1/lineage, with the key that the configuration refers to."""
    received = []

    class Receiver(BaseHTTPRequestHandler):
        def do_POST(self):
            raw = self.rfile.read(int(self.headers["Content-Length"]))
            received.append((self.path, self.headers["Authorization"], json.loads(raw)))
            self.send_response(201)
            self.end_headers()

        def log_message(self, *_):
            pass

    server = HTTPServer(("127.0.0.1", 0), Receiver)
    thread = Thread(target=server.serve_forever)
    thread.start()
    monkeypatch.setenv("OPENLINEAGE_KEY_HERE", "s3cret")
    url = f"http://127.0.0.1:{server.server_port}"
    settings = {"openlineage.url": url, "openlineage.key": "env:OPENLINEAGE_KEY_HERE"}
    try:
        INGEST.run(context_of(tmp_path, **settings))
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
    assert [(path, key) for path, key, _ in received] == [("/api/v1/lineage", "Bearer s3cret")] * 2
    assert [event["eventType"] for event in valid([event for _, _, event in received])] == ["START", "COMPLETE"]


def test_a_receiver_that_is_away_stops_no_stage(tmp_path, caplog):
    """The rows are stored, and a warning says that the events were not sent."""
    put_segment(tmp_path / "spool", step_rows(20))
    done = INGEST.run(context_of(tmp_path, **{"openlineage.url": "http://127.0.0.1:9"}))
    assert done["rows_stored"] == 20
    assert "the OpenLineage event START of ingest was not sent" in caplog.text
