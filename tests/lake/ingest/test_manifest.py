"""A plan of which a commit was made ends as that commit says, whatever became of its segments since."""

import os
import shutil

import pyarrow as pa
import pytest
from bringing import adds_up, bring
from segments import put_segment, step_rows

from ranklake.lake.contracts.load import contract
from ranklake.lake.ingest import execution
from ranklake.lake.tables.read import read

AFTER = ["steps", "rejects", "segments"]


class DiedError(Exception):
    """A driver's end."""


def rows(segment, bad=2):
    """Return ten rows, the first of them such as the contract refuses."""
    table = step_rows(10, segment=segment)
    place = table.schema.get_field_index("step_time_s")
    times = pa.array([-1.0] * bad + [0.5] * (10 - bad), pa.float32())
    return table.set_column(place, table.schema.field(place), times)


def die_after(monkeypatch, table):
    """Have the next driver die when it committed to a table."""
    real = execution.swap

    def swap(handle, *arguments, **options):
        done = real(handle, *arguments, **options)
        if handle.table_uri.rstrip("/").endswith(f"/{table}"):
            raise DiedError
        return done

    monkeypatch.setattr(execution, "swap", swap)


@pytest.mark.parametrize("table", AFTER)
@pytest.mark.parametrize("how", ["gone", "damaged", "there"])
def test_a_segment_that_is_gone_when_its_plan_is_finished_is_told_as_it_was_read(lake, spool, monkeypatch, table, how):
    """The driver dies between two commits, and the segment is gone or cut at the next try: the books add up."""
    path = put_segment(spool, rows(0))
    with monkeypatch.context() as patched:
        die_after(patched, table)
        with pytest.raises(DiedError):
            bring(lake, spool)
    if how == "gone":
        path.unlink()
    elif how == "damaged":
        os.truncate(path, 100)
    done = bring(lake, spool)
    assert (done.rows_stored, done.rows_rejected) == (8, 2)
    assert (read(lake.tables, contract("steps")).num_rows, read(lake.tables, contract("rejects")).num_rows) == (8, 2)
    (told,) = [row for row in read(lake.tables, contract("segments")).to_pylist() if row["plan"] == 1]
    assert (told["unreadable"], told["rows_stored"], told["rows_rejected"]) == (None, 8, 2)
    assert read(lake.tables, contract("ingest_plans")).to_pylist()[0]["rows_stored"] == 8
    adds_up(lake, spool)


def test_a_segment_that_was_away_at_the_first_commit_is_not_told_as_stored(lake, spool, monkeypatch):
    """What the first try could not read is no part of its commit, so it stays new, and comes in by the next plan."""
    put_segment(spool, rows(0))
    late = put_segment(spool, rows(1), rows_before=10)
    away = late.with_name("away")
    real = execution.Attempts

    def attempts(*arguments):
        late.rename(away)
        return real(*arguments)

    with monkeypatch.context() as patched:
        patched.setattr(execution, "Attempts", attempts)
        die_after(patched, "steps")
        with pytest.raises(DiedError):
            bring(lake, spool)
    away.rename(late)
    bring(lake, spool)
    bring(lake, spool)
    assert read(lake.tables, contract("steps")).num_rows == 16
    adds_up(lake, spool)


def test_files_that_are_gone_are_made_anew(lake, spool, monkeypatch):
    """Where what the first commit names is not there any more, the segments are read again."""
    put_segment(spool, rows(0))
    with monkeypatch.context() as patched:
        die_after(patched, "steps")
        with pytest.raises(DiedError):
            bring(lake, spool)
    shutil.rmtree(lake.path("tables", "segments"))
    bring(lake, spool)
    assert (read(lake.tables, contract("steps")).num_rows, read(lake.tables, contract("rejects")).num_rows) == (8, 2)
    adds_up(lake, spool)
