"""What was taken in long ago: known again whenever it comes, without reading all of it each time."""

from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from bringing import adds_up, bring
from segments import put_bytes, put_segment, step_rows

from ranklake.lake.contracts.load import contract
from ranklake.lake.ingest import index_summary
from ranklake.lake.ingest.index_summary import IngestionIndex
from ranklake.lake.ingest.run import purge
from ranklake.lake.ingest.spool.spool import Spool
from ranklake.lake.tables.read import read, read_batches, read_where
from ranklake.lake.tables.tables import delta_table
from ranklake.segments.segment import SegmentFooter


@pytest.fixture(autouse=True)
def few(monkeypatch):
    """Sum up however few rows there are."""
    monkeypatch.setattr(index_summary, "LEAST_ROWS", 1)


@pytest.fixture
def later(monkeypatch):
    """Go on as if some days had passed since the last plan: days not recent any more are summed up.

    Its function returns the date of then, and the clock stands still.
    """

    def pass_days(count):
        then = datetime.now(UTC) + timedelta(days=count)
        monkeypatch.setattr(index_summary, "datetime", type("Later", (datetime,), {"now": lambda _: then}))
        return then.date()

    return pass_days


@pytest.fixture
def looked(monkeypatch):
    """Count the data files of ``segments`` that are read for what is known."""
    paths = Counter()

    def counting(reader):
        def counted(store, target, some, *columns, **how):
            paths.update(some["path"].to_pylist())
            return reader(store, target, some, *columns, **how)

        return counted

    for reader in (read_where, read_batches):
        monkeypatch.setattr(index_summary, reader.__name__, counting(reader))
    return paths


def slots(lake):
    rows = read(lake.tables, contract("steps"), ["incarnation", "segment", "slot"])
    counted = Counter(zip(*(rows[name].to_pylist() for name in rows.column_names), strict=True))
    assert set(counted.values()) <= {1}
    return set(counted)


def summaries(lake):
    return sorted(path.name for path in Path(lake.path("known")).glob("*"))


def test_what_comes_again_after_a_year_is_known(lake, spool, later, looked):
    """By its digest, by its slots in another cut, or for the damage it has: whatever was sent, long after."""
    for segment in range(3):
        put_segment(spool, step_rows(10, segment=segment), rows_before=10 * segment)
    said = {"run": "r1", "attempt": 0, "rank": 0, "incarnation": 7, "segment": 3, "rows": 10}
    damaged = put_bytes(spool, b"x" * 100, SegmentFooter(table="steps", contract_version=1, world_size=1, **said))
    foreign = spool / "segments/2026-03-01/steps/foreign.parquet"
    foreign.write_bytes(b"y" * 100)
    assert bring(lake, spool).unreadable == 2
    had = slots(lake)
    later(365)
    assert bring(lake, spool).segments == 0
    assert len(summaries(lake)) == 1
    for path in (spool / "segments").rglob("*.parquet"):
        again = spool / "segments" / "2026-04-01" / path.parent.name / path.name
        again.parent.mkdir(parents=True, exist_ok=True)
        again.write_bytes(path.read_bytes())
    done = bring(lake, spool)
    assert done.segments == 1  # the stranger, of which nobody can say that it is the same
    damaged.unlink()
    foreign.unlink()
    put_segment(spool, step_rows(15, segment=1), rows_before=10)
    put_segment(spool, step_rows(15, segment=1, rank=5), rows_before=10)
    looked.clear()
    done = bring(lake, spool)
    assert (done.segments, done.rows_stored, done.rows_duplicate, done.unreadable) == (2, 5, 10, 1)
    assert looked
    assert slots(lake) == had | {(7, 1, slot) for slot in range(10, 15)}
    adds_up(lake, spool)


def test_what_is_new_reads_nothing_old(lake, spool, later, looked):
    """Segments that a running process sends next, and those of new processes, are known to be new by the summary."""
    put_segment(spool, step_rows(10))
    put_segment(spool, step_rows(10, segment=4), rows_before=10)
    bring(lake, spool)
    for path in (spool / "segments").rglob("*.parquet"):
        path.unlink()
    today = datetime.now(UTC).date()
    then = later(10).isoformat()
    assert bring(lake, spool).segments == 0
    looked.clear()
    put_segment(spool, step_rows(10, segment=5), rows_before=20, day=then)
    put_segment(spool, step_rows(10, incarnation=8), day=then)
    assert bring(lake, spool).rows_stored == 20
    assert not looked
    put_segment(spool, step_rows(12, segment=4), rows_before=10, day=then)
    assert bring(lake, spool).rows_stored == 2  # the highest number, cut anew
    put_segment(spool, step_rows(10, segment=3), rows_before=20, day=today.isoformat())  # late: it may have come before
    assert bring(lake, spool).rows_stored == 10
    assert looked


def test_what_was_taken_in_long_ago_leaves_the_spool(lake, spool, later, looked):
    """A copy of a segment of long ago is purged like any other, damaged ones too; what is new stays."""
    put_segment(spool, step_rows(10))
    foreign = spool / "segments/2026-03-01/steps/foreign.parquet"
    foreign.write_bytes(b"y" * 100)
    bring(lake, spool)
    day = later(100)
    late = (day - timedelta(days=1)).isoformat()
    for path in (spool / "segments/2026-03-01/steps").glob("r1*"):
        copy = spool / "segments" / late / "steps" / path.name
        copy.parent.mkdir(parents=True)
        copy.write_bytes(path.read_bytes())
        path.unlink()
    history_of = IngestionIndex(lake.store, delta_table(lake.store, "segments"))
    new = put_segment(spool, step_rows(10, segment=1), rows_before=10, day=late)
    assert purge(Spool(str(spool)), history_of.recent_member_count, history_of.rows_about, day, 7) == 2
    assert list(spool.rglob("*.parquet")) == [new]


@pytest.mark.parametrize("harm", ["lost", "damaged", "of another history"])
def test_a_summary_that_cannot_be_used_is_made_again(lake, spool, later, looked, harm):
    """Lost, damaged, or of a table that was restored since: the table itself is read, and nothing comes twice."""
    put_segment(spool, step_rows(10))
    bring(lake, spool)
    later(10)
    bring(lake, spool)
    (name,) = summaries(lake)
    path = Path(lake.path("known")) / name
    if harm == "lost":
        path.unlink()
    elif harm == "damaged":
        path.write_bytes(path.read_bytes()[:-20] + bytes(20))
    else:
        path.rename(path.with_name(name.replace("0000000001", "0000000009")))
    put_segment(spool, step_rows(12))
    done = bring(lake, spool)
    assert (done.rows_stored, done.rows_duplicate) == (2, 10)
    assert name in summaries(lake) or harm == "damaged"


def test_summaries_grow_by_what_is_new(lake, spool, later, looked):
    """Days that are recent no more are added once; the summary of before is deleted, and says the same."""
    for number in range(3):
        put_segment(spool, step_rows(10, incarnation=10 + number))
        bring(lake, spool, merge=False)
    later(10)
    whole = IngestionIndex(lake.store, delta_table(lake.store, "segments"))._summary
    assert [whole.plan, whole.rows, whole.streams.num_rows] == [3, 3, 3]
    looked.clear()
    assert IngestionIndex(lake.store, delta_table(lake.store, "segments"))._summary.streams.equals(whole.streams)
    assert not looked
    put_segment(spool, step_rows(10, incarnation=10, segment=6), rows_before=10)
    bring(lake, spool, merge=False)
    looked.clear()
    later(20)
    grown = IngestionIndex(lake.store, delta_table(lake.store, "segments"))._summary
    assert len(looked) == 1
    assert grown.streams["last_segment"].to_pylist() == [6, 0, 0]
    assert grown.streams["last_plan"].to_pylist() == [4, 2, 3]
    assert len(summaries(lake)) == 1
