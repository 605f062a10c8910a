"""Rows of any width: what a source gives becomes a segment of its table, and what it cannot give is counted."""

import pytest
from recorded import rows

from ranklake.capture.common.gaps import BAD_VALUE
from ranklake.capture.common.layouts import FRAME_LANES

REQUIRED = {
    "annotations": {"kind": "tag"},
    "artifacts": {"name": "a", "kind": "model", "action": "saved"},
    "datasets": {"name": "d"},
    "events": {"event": "e"},
    "host_samples": {"subject": "host"},
    "media": {"name": "m", "kind": "text"},
    "inferences": {"model": "m"},
    "jobs": {"job_id": "1"},
    "pools": {"pool": "p"},
}


@pytest.mark.parametrize("table", FRAME_LANES)
def test_every_table_of_frames_can_be_recorded(place, table):
    """A row with what the contract requires arrives, with its envelope; None stands for NULL."""
    with place.start() as run:
        assert run.rows.sink.record(table, {**REQUIRED.get(table, {}), "unheard": None})
    found = rows(place.spool, table)
    assert any(row.items() >= {"run": "run", "rank": 0, **REQUIRED.get(table, {})}.items() for row in found)
    assert run.gaps() == {}


def test_what_cannot_be_recorded_is_a_gap(place):
    """A value that JSON has no word for is counted; an error within `recording` is, too, and is not raised."""
    with place.start() as run:
        assert not run.rows.sink.record("logs", {"weight": float("nan")})
        with run.rows.sink.recording("datasets"):
            raise ValueError("unreadable")
    assert run.gaps() == {"logs": {BAD_VALUE: 1}, "datasets": {BAD_VALUE: 1}}
