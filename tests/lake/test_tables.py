"""Opening the Delta tables of a lake."""

import pytest
from segments import put_segment, step_rows

from ranklake.lake.ingest import ingest
from ranklake.lake.spool import Spool
from ranklake.lake.store import Lake, LakeUnreachableError
from ranklake.lake.tables import delta_table
from ranklake.lake.workers import InProcess


def test_a_damaged_log_is_said_in_one_line(tmp_path):
    """A commit file that was cut short is refused in words, without the backtrace of the library below."""
    put_segment(tmp_path / "spool", step_rows(5))
    lake = Lake.create(str(tmp_path / "lake"))
    ingest(lake, Spool(str(tmp_path / "spool")), InProcess())
    commit = max((tmp_path / "lake" / "tables" / "steps" / "_delta_log").glob("*.json"))
    commit.write_bytes(commit.read_bytes()[:300])
    with pytest.raises(LakeUnreachableError) as caught:
        delta_table(lake, "steps")
    assert "table steps cannot be opened" in str(caught.value)
    assert "<unknown>" not in str(caught.value)
    assert len(str(caught.value)) < 400


def test_a_table_never_written_is_none(tmp_path):
    """A table that nothing was stored in is no error."""
    assert delta_table(Lake.create(str(tmp_path / "lake")), "steps") is None
