"""Text that should be JSON: judged when it arrives, and harmless to whoever reads what came before it was."""

import json
import time
from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pytest
from bringing import adds_up, bring
from segments import put_segment, step_rows

from ranklake.lake.contracts import edge
from ranklake.lake.contracts.arrow import arrow_schema
from ranklake.lake.contracts.checks.kinds import values as value_kinds
from ranklake.lake.contracts.json_text import NESTED, facts_in, is_json
from ranklake.lake.contracts.load import contract
from ranklake.lake.ingest.status.liveness import MOST_RANKS, liveness
from ranklake.lake.rollups.runner import run_rollups
from ranklake.lake.tables.read import read

BAD = ["", "{", "nope", '{"a": 1,}', "[" * 100_000, '{"a":' * 500 + "1" + "}" * 500, "9" * 5_000, "{'a': 1}", '"\t"']
ODD = [
    "7",
    "[]",
    '"text"',
    "null",
    '{"interval_s": "soon", "begun": true, "still_s": "long", "world_size": []}',
    '{"interval_s": 1e400, "begun": true, "still_s": null, "world_size": 1e400}',
    '{"interval_s": NaN, "begun": true, "world_size": -5}',
    f'{{"interval_s": 1, "begun": true, "world_size": {10**12}}}',
    '{"device_uuid": "GPU-1", "gpu_instance": 99999999999999999999}',
]


def events(texts, **common):
    """Return rows of ``events``, one for each text, of names that the readers look at."""
    names = ["rank_start", "heartbeat", "xid", "failure", "rank_end"]
    now = datetime.now(UTC) - timedelta(minutes=5)
    schema = arrow_schema(contract("events"), segment=True)
    base = {"run": "r1", "attempt": 0, "rank": 0, "incarnation": 9, "segment": 0} | common
    rows = [
        dict.fromkeys(schema.names)
        | base
        | {"slot": slot, "ts": now + timedelta(seconds=slot), "event": names[slot % len(names)], "attributes": text}
        for slot, text in enumerate(texts)
    ]
    return pa.Table.from_pylist(rows, schema=schema)


def test_what_is_no_json_is_rejected_with_its_reason(lake, spool):
    """Rows whose attributes nobody can parse go to quarantine, whole; rows with JSON of any kind, or none, stay."""
    put_segment(spool, events([*BAD, None, "{}", *ODD]), "events")
    done = bring(lake, spool)
    assert (done.rows_stored, done.rows_rejected) == (2 + len(ODD), len(BAD))
    reasons = read(lake.tables, contract("rejects"), ["reason"])["reason"].to_pylist()
    assert set(reasons) == {"json: attributes is no JSON that can be parsed"}
    adds_up(lake, spool)


@pytest.mark.parametrize("depth", [1, NESTED, NESTED + 1, 5_000])
def test_nesting_is_bounded(depth):
    """What is nested deeper than any reader goes is no JSON; brackets in text are no nesting."""
    assert is_json("[" * depth + "]" * depth) == (depth <= NESTED)
    assert is_json(json.dumps({"text": "[{" * depth}))


def test_a_text_is_parsed_once(monkeypatch):
    """A column of many rows with few texts costs a look at each text."""
    seen = []
    monkeypatch.setattr(value_kinds, "is_json", lambda text: seen.append(text) or True)
    rows = events(["{}", None] * 500)
    assert edge.reject_reasons(contract("events"), rows).null_count == 1000
    assert seen == ["{}"]


@pytest.mark.slow
def test_rows_that_are_there_already_stop_no_reader(lake, spool, monkeypatch):
    """Malformed attributes that earlier software stored: liveness and rollups pass over them, in no time."""
    monkeypatch.setattr(value_kinds, "is_json", lambda _: True)
    put_segment(spool, step_rows(5))
    for rank, text in enumerate([*BAD, *ODD]):
        put_segment(spool, events([text] * 4, rank=rank, incarnation=100 + rank), "events")
    bring(lake, spool)
    monkeypatch.undo()
    began = time.monotonic()
    states = liveness(lake)
    assert len(states) <= len([*BAD, *ODD])
    assert time.monotonic() - began < 30, "a world of a million million ranks was gone through"
    assert {one.state for one in states} <= {"running", "silent", "failed"}
    run_rollups(lake)


def test_a_world_that_cannot_be_has_no_missing_ranks(lake, spool):
    """As many ranks as can be are believed, and no more."""
    text = json.dumps({"interval_s": 0.001, "world_size": MOST_RANKS + 1})
    put_segment(spool, events([text, text]), "events")
    bring(lake, spool)
    assert [one.rank for one in liveness(lake)] == [0]
    assert facts_in(text)["world_size"] == MOST_RANKS + 1
