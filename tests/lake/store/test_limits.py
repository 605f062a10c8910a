"""Bombs: what one segment may ask of ingest is bounded and told; what ranks and importers send passes."""

import time
from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from bringing import adds_up, bring
from segments import DAY, put_bytes, put_segment, step_rows

from ranklake.lake.contracts.load import contract
from ranklake.lake.ingest.ingest_plan import compose
from ranklake.lake.ingest.spool.spool import Spool
from ranklake.lake.plans.plan import Plan
from ranklake.lake.store.limits import Limits
from ranklake.lake.tables.read import read
from ranklake.segments.segment import METADATA_KEY, SegmentFooter


def sealed(rows, said, **options):
    """Return the bytes of a segment with this footer."""
    sink = pa.BufferOutputStream()
    pq.write_table(rows.replace_schema_metadata({METADATA_KEY: said.to_json()}), sink, **options)
    return sink.getvalue().to_pybytes()


def bomb(spool, rows, **options):
    """Put rows into a spool as another stream's segment."""
    said = SegmentFooter("steps", 1, "bomb", 0, 0, 1, 99, 0, rows=rows.num_rows)
    put_bytes(spool, sealed(rows, said, **options), said)


def told(lake):
    """Return why segments were set aside."""
    return [why for why in read(lake.tables, contract("segments"), ["unreadable"])["unreadable"].to_pylist() if why]


def days(count):
    """Return a row on each of so many dates."""
    rows = step_rows(count, run="bomb", incarnation=99)
    field = rows.schema.field("ts")
    times = pa.array([DAY - timedelta(days=day) for day in range(count)], field.type)
    return rows.set_column(rows.schema.get_field_index("ts"), field, times)


def wide(count):
    """Return rows of so many columns."""
    rows = step_rows(3, run="bomb", incarnation=99)
    return pa.table(
        {**dict(zip(rows.column_names, rows.columns, strict=True)), **{f"x{n}": [1, 2, 3] for n in range(count)}}
    )


@pytest.mark.parametrize(
    ("limits", "rows", "options", "why"),
    [
        (Limits(), wide(5_000), {}, "columns, more than [ingest] columns = 512 allows"),
        (Limits(), days(3_650), {}, "rows of 3,650 dates, more than [ingest] dates = 1,000 allows"),
        (Limits(decoded_bytes=2**20), step_rows(20_000, run="bomb", incarnation=99), {}, "bytes decoded, more than"),
        (
            Limits(row_group_rows=999),
            step_rows(2_000, run="bomb", incarnation=99),
            {"row_group_size": 1000},
            "a row group of 1,000 rows, more than [ingest] row_group_rows = 999 allows",
        ),
    ],
    ids=["columns", "dates", "decoded", "row group"],
)
def test_a_bomb_is_set_aside_and_told(lake, spool, limits, rows, options, why):
    """A segment beyond a limit costs little, goes to quarantine with the limit's name, and stops nobody."""
    put_segment(spool, step_rows(10))
    bomb(spool, rows, **options)
    began = time.process_time()
    done = bring(lake.configured(ingest=limits), spool)
    took_s = time.process_time() - began
    assert (done.rows_stored, done.unreadable) == (10, 1)
    assert [why in said for said in told(lake)] == [True]
    assert took_s < 3.0  # columns took 52 s, and a date is a file
    adds_up(lake, spool)


def test_a_bomb_of_rows_is_refused_before_it_is_decoded(lake, spool):
    """A hundred kilobytes that decode to more than allowed cost what their footer costs to read."""
    count = 3_000_000
    said = SegmentFooter("steps", 1, "bomb", 0, 0, 1, 99, 0, rows=count)
    rows = pa.table({f"x{n}": pa.nulls(count, pa.int64()) for n in range(3)})
    path = put_bytes(spool, sealed(rows, said), said)
    assert path.stat().st_size < 100_000
    before = pa.total_allocated_bytes()
    pool_before = pa.default_memory_pool().max_memory()
    assert bring(lake.configured(ingest=Limits(decoded_bytes=64 * 2**20)), spool).unreadable == 1
    assert pa.default_memory_pool().max_memory() - max(pool_before, before) < 16 * 2**20
    assert "decoded_bytes" in told(lake)[0]


def test_a_large_segment_is_taken_in_parts(lake, spool, monkeypatch):
    """What is more than a part is decoded part by part, and stored whole."""
    monkeypatch.setattr("ranklake.lake.ingest.segment_reading.PART_BYTES", 100_000)
    monkeypatch.setattr("ranklake.lake.ingest.batches.PART_ROWS", 1_000)
    put_segment(spool, step_rows(5_000))
    assert bring(lake, spool).rows_stored == 5_000
    adds_up(lake, spool)


def test_a_segment_of_many_dates_is_stored(lake, spool):
    """History of two months in one segment passes."""
    bomb(spool, days(60))
    done = bring(lake, spool, merge=False)
    assert (done.rows_stored, done.unreadable) == (60, 0)


def test_a_plan_is_carried_out_under_the_limits_that_it_was_made_under(lake, spool):
    """Who finishes a plan of another with other limits comes to the same, so that nothing is stored half."""
    put_segment(spool, step_rows(2_000))
    plan = compose(lake, Spool(str(spool)), 1).plan
    assert plan is not None
    lake.put_if_absent(plan.name, plan.to_json())
    assert Limits.from_plan(Plan.from_json(plan.to_json(), "").body) == Limits()
    done = bring(lake.configured(ingest=Limits(decoded_bytes=1)), spool)
    assert (done.rows_stored, done.unreadable) == (2_000, 0)


def test_rows_of_the_far_future_are_refused(lake, spool):
    """A row dated beyond the tolerance goes to quarantine: it would be kept for ever. Of today, or of old, it stays."""
    now = datetime.now(UTC)
    put_segment(spool, step_rows(1, segment=0, start=now + timedelta(days=400)))
    put_segment(spool, step_rows(1, segment=1, start=now + timedelta(hours=20)))
    put_segment(spool, step_rows(1, segment=2, start=datetime(2003, 1, 1, tzinfo=UTC)))
    done = bring(lake, spool)
    assert (done.rows_stored, done.rows_rejected) == (2, 1)
    (reason,) = read(lake.tables, contract("rejects"), ["reason"])["reason"].to_pylist()
    assert reason.startswith("ts_future: ")
    adds_up(lake, spool)


def test_counts_that_no_rank_can_have_are_refused(lake, spool):
    """A row that says 2**63 - 1 tokens goes to quarantine: sums over it would wrap round."""
    rows = step_rows(3)
    place = rows.schema.get_field_index("tokens")
    put_segment(
        spool, rows.set_column(place, rows.schema.field(place), pa.array([2**63 - 1, 2**62, 10**12], pa.int64()))
    )
    done = bring(lake, spool)
    assert (done.rows_stored, done.rows_rejected) == (1, 2)
