"""Ingest: every row once, whatever lies in the spool and whoever dies on the way."""

import json
import threading
from collections import Counter
from datetime import timedelta

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from bringing import adds_up, bring
from click.testing import CliRunner
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from segments import DAY, put_bytes, put_segment, step_rows

from ranklake.commands.status import status
from ranklake.lake.contracts.load import contract
from ranklake.lake.ingest import execution
from ranklake.lake.ingest.spool.spool import Spool
from ranklake.lake.ingest.status.reconciliation import balance
from ranklake.lake.plans import plan as plans
from ranklake.lake.plans.plan import last_finished, read_plan
from ranklake.lake.store.lake import Lake
from ranklake.lake.tables import commit
from ranklake.lake.tables.parquet import append_files
from ranklake.lake.tables.read import read
from ranklake.lake.tables.tables import delta_table
from ranklake.segments.segment import SegmentFooter


def keys(lake, table="steps"):
    rows = read(lake.tables, contract(table), ["incarnation", "segment", "slot"])
    return Counter(zip(*(rows[name].to_pylist() for name in rows.column_names), strict=True))


def test_rows_land_once_in_their_days(lake, spool):
    """Rows of a segment that spans midnight land in the partition of their own date, sorted, and the books add up."""
    put_segment(spool, step_rows(100, start=DAY + timedelta(hours=24, seconds=-50)))
    done = bring(lake, spool)
    assert (done.rows_stored, done.rows_rejected, done.plans) == (100, 0, [1])
    stored = read(lake.tables, contract("steps"))
    assert Counter(str(day) for day in stored["date"].to_pylist()) == {"2026-03-01": 50, "2026-03-02": 50}
    assert stored["date"].to_pylist() == [moment.date() for moment in stored["ts"].to_pylist()]
    assert adds_up(lake, spool)["steps"].recorded == 100


def test_again_commits_nothing(lake, spool):
    """A second ingest of the same spool makes no plan and no commit."""
    put_segment(spool, step_rows(10))
    bring(lake, spool)
    before = delta_table(lake.store, "steps").version()
    done = bring(lake, spool)
    assert (done.plans, done.segments) == ([], 0)
    assert delta_table(lake.store, "steps").version() == before
    assert last_finished(lake.tables) == 1


def test_same_rows_under_another_digest(lake, spool):
    """A slot file that was sealed twice with different cuts is stored once: repeated rows count as seen before."""
    put_segment(spool, step_rows(10))
    bring(lake, spool)
    put_segment(spool, step_rows(15))
    done = bring(lake, spool)
    assert (done.rows_stored, done.rows_duplicate) == (5, 10)
    assert set(keys(lake).values()) == {1}
    put_segment(spool, step_rows(15), day="2026-03-02", writer="another version")
    put_segment(spool, step_rows(12), day="2026-03-02")
    done = bring(lake, spool)
    assert (done.rows_stored, done.rows_duplicate) == (0, 27)
    assert len(keys(lake)) == 15


@pytest.mark.parametrize("at_once", [True, False])
@pytest.mark.parametrize("damaged", [True, False])
def test_a_number_of_another_stream_is_set_aside(lake, spool, at_once, damaged):
    """Two ranks that name one incarnation and slot file: one has it, the other's bytes are kept; in one plan or two."""
    first = put_segment(spool, step_rows(10, rank=0))
    if damaged:
        first.write_bytes(b"nothing" * 100)
    if not at_once:
        bring(lake, spool)
    put_segment(spool, step_rows(12, rank=1))
    put_segment(spool, step_rows(14, rank=2))
    bring(lake, spool)
    put_segment(spool, step_rows(15, rank=1 if damaged else 0))  # another cut of the one that has it
    bring(lake, spool)
    rows = read(lake.tables, contract("steps"), ["rank", "slot"])
    assert Counter(rows["rank"].to_pylist()) == {1 if damaged else 0: 15}
    assert set(keys(lake).values()) == {1}
    why = [text for text in read(lake.tables, contract("segments"), ["unreadable"])["unreadable"].to_pylist() if text]
    assert sum("another stream has its incarnation" in text for text in why) == (1 if damaged else 2)
    assert adds_up(lake, spool)["steps"].quarantined == (24 if damaged else 26)


def test_bad_rows_go_to_rejects_with_a_reason(lake, spool):
    """A row that breaks the contract is quarantined whole, with a reason; its neighbours are stored."""
    rows = step_rows(10)
    times = rows["step_time_s"].to_pylist()
    times[3] = float("nan")
    times[4] = -1.0
    rows = rows.set_column(
        rows.schema.get_field_index("step_time_s"), rows.schema.field("step_time_s"), pa.array(times, pa.float32())
    )
    put_segment(spool, rows)
    done = bring(lake, spool)
    assert (done.rows_stored, done.rows_rejected) == (8, 2)
    refused = read(lake.tables, contract("rejects")).to_pylist()
    assert [row["slot"] for row in refused] == [3, 4]
    assert all(row["reason"] and json.loads(row["row"])["slot"] == row["slot"] for row in refused)
    assert adds_up(lake, spool)["steps"].quarantined == 2


def test_bad_bytes_never_block_the_good(lake, spool):
    """Truncated, flipped, empty, foreign and wrongly named files are kept aside with a reason; the good are stored."""
    good = put_segment(spool, step_rows(10))
    raw = put_segment(spool, step_rows(20, segment=1)).read_bytes()
    said = SegmentFooter("steps", 1, "r1", 0, 0, 1, 7, 2, rows=20)
    put_bytes(spool, raw[: len(raw) // 2], said)
    flipped = bytearray(raw)
    flipped[len(raw) // 3] ^= 0xFF
    put_bytes(spool, bytes(flipped), SegmentFooter("steps", 1, "r1", 0, 0, 1, 7, 3, rows=20))
    put_bytes(spool, b"", SegmentFooter("steps", 1, "r1", 0, 0, 1, 7, 4, rows=20))
    put_bytes(spool, raw, SegmentFooter("nonsense", 1, "r1", 0, 0, 1, 7, 5, rows=20), "nonsense")
    (good.parent / "notes.txt").write_text("hello")
    wrong = good.parent / good.name.replace("~00000", "~00001").replace("r00000", "r00009")
    wrong.write_bytes(good.read_bytes() + b"x")
    done = bring(lake, spool)
    assert done.rows_stored == 30
    assert done.unreadable == 5, "the misnamed copy of a sound segment is passed over"
    reasons = [row for row in read(lake.tables, contract("segments"), ["unreadable"])["unreadable"].to_pylist() if row]
    assert len(reasons) == 5
    assert bring(lake, spool).plans == []


def test_lost_segment_shows(lake, spool):
    """A segment that the footers promise but that never came makes the books not add up."""
    put_segment(spool, step_rows(10))
    put_segment(spool, step_rows(10, segment=2), rows_before=20)
    bring(lake, spool)
    faults = [fault for item in balance(lake) for fault in item.faults]
    assert [fault.partition(", as ")[0] for fault in faults] == ["run r1 attempt 0 rank 0: 10 rows are missing"]


def test_lost_tail_shows(lake, spool):
    """Totals at closing reveal a tail that never came, and gaps that the recorder counted are not missing."""
    put_segment(spool, step_rows(10), gaps={"spool full": 3})
    events = step_rows(1, segment=0)
    put_segment(spool, step_rows(2, segment=1), rows_before=10, gaps_before=3, totals={"steps": [13, 4]})
    del events
    bring(lake, spool)
    (steps,) = balance(lake)
    assert [fault.partition(", as ")[0] for fault in steps.faults] == ["run r1 attempt 0 rank 0: 1 rows are missing"]
    assert (steps.gaps, steps.recorded) == (4, 17)


def test_rows_that_sampling_left_out_are_no_gaps(lake, spool):
    """They are counted apart, once however often a slot file was sealed, and never more than all gaps of a stream."""
    gaps = {"sampled out": 30, "spool full": 3, 'x"sampled out': 2}
    put_segment(spool, step_rows(10), gaps=gaps)
    put_segment(spool, step_rows(12), gaps=gaps)
    put_segment(spool, step_rows(5, segment=1), rows_before=12, gaps={"sampled out": 4}, gaps_before=35)
    bring(lake, spool)
    steps = adds_up(lake, spool)["steps"]
    assert (steps.recorded, steps.stored, steps.sampled_out, steps.gaps) == (56, 17, 34, 5)


def test_in_flight_is_read_from_names(lake, spool):
    """Rows in the spool count as in flight until they are ingested."""
    put_segment(spool, step_rows(10))
    bring(lake, spool)
    put_segment(spool, step_rows(7, segment=1), rows_before=10)
    assert adds_up(lake, spool)["steps"].in_flight == 7
    bring(lake, spool)
    assert adds_up(lake, spool)["steps"].in_flight == 0


def test_double_commit_shows(lake, spool):
    """Rows that reached the table without a plan make the books not add up."""
    put_segment(spool, step_rows(10))
    bring(lake, spool)
    table = delta_table(lake.store, "steps")
    rows = read(lake.tables, contract("steps"))
    commit.swap(table, 99, add=append_files(lake.store, contract("steps"), rows, 99))
    (steps,) = [item for item in balance(lake) if item.table == "steps"]
    assert steps.faults == ["the table holds 20 rows, the plans say 10"]


def test_a_stale_handle_loses(lake, spool):
    """Of two commits made on handles of the same version one is refused, and nothing of it is stored."""
    put_segment(spool, step_rows(10))
    bring(lake, spool)
    first, second = delta_table(lake.store, "steps"), delta_table(lake.store, "steps")
    rows = read(lake.tables, contract("steps"))
    assert commit.swap(first, 2, add=append_files(lake.store, contract("steps"), rows, 2))
    with pytest.raises(commit.LostRaceError):
        commit.swap(second, 2, add=append_files(lake.store, contract("steps"), rows, 2))
    assert delta_table(lake.store, "steps").count() == 20
    assert not commit.swap(
        delta_table(lake.store, "steps"), 2, add=append_files(lake.store, contract("steps"), rows, 2)
    )


def test_two_drivers_at_once(lake, spool):
    """Drivers that run side by side store every row once and leave no plan unfinished."""
    for segment in range(12):
        put_segment(spool, step_rows(50, segment=segment), rows_before=50 * segment)
    errors = []

    def drive():
        try:
            bring(lake, spool)
        except Exception as error:  # noqa: BLE001 - reported below
            errors.append(error)

    threads = [threading.Thread(target=drive) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert set(keys(lake).values()) == {1}
    assert len(keys(lake)) == 600
    adds_up(lake, spool)
    assert read_plan(lake.store, last_finished(lake.tables) + 1) is None


@pytest.mark.parametrize("dies_before", ["steps", "rejects", "segments", "ingest_plans"])
def test_half_committed_plan_is_finished(lake, spool, monkeypatch, dies_before):
    """A driver that dies before any commit of a plan leaves one that the next finishes, with the same account."""
    rows = step_rows(30)
    bad = pa.array([-1.0 if slot in (3, 9) else 1.0 for slot in range(30)], pa.float32())
    rows = rows.set_column(rows.schema.get_field_index("step_time_s"), rows.schema.field("step_time_s"), bad)
    put_segment(spool, rows)
    genuine = commit.swap

    def dying(table, number, **kwargs):
        if table.metadata().name == dies_before:
            raise SystemExit
        return genuine(table, number, **kwargs)

    for module in (execution, plans):
        monkeypatch.setattr(module, "swap", dying)
    with pytest.raises(SystemExit):
        bring(lake, spool)
    monkeypatch.undo()
    assert last_finished(lake.tables) == 0
    assert "plan 1 (ingest) is not finished" in CliRunner().invoke(status, ["--lake", lake.uri]).stderr
    bring(lake, spool)
    assert last_finished(lake.tables) == 1
    assert "not finished" not in CliRunner().invoke(status, ["--lake", lake.uri]).output
    assert len(keys(lake)) == 28
    assert set(keys(lake).values()) == {1}
    assert read(lake.tables, contract("rejects")).num_rows == 2
    (segment,) = read(lake.tables, contract("segments"), ["rows_stored", "rows_rejected", "rows_duplicate"]).to_pylist()
    assert segment == {"rows_stored": 28, "rows_rejected": 2, "rows_duplicate": 0}
    adds_up(lake, spool)


@pytest.mark.slow
@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    cuts=st.lists(
        st.tuples(st.integers(0, 2), st.integers(0, 20), st.integers(1, 25), st.booleans()), min_size=1, max_size=8
    )
)
def test_any_arrival_gives_the_union(tmp_path_factory, cuts):
    """Whatever cuts of slot files arrive, in whatever order, over several ingests: the table holds their union once."""
    folder = tmp_path_factory.mktemp("union")
    lake, spool = Lake.create(str(folder / "lake")), folder / "spool"
    expected = set()
    for segment, first, count, run_now in cuts:
        put_segment(spool, step_rows(count, segment=segment, first_slot=first))
        expected |= {(7, segment, slot) for slot in range(first, first + count)}
        if run_now:
            bring(lake, spool)
    bring(lake, spool)
    assert set(keys(lake)) == expected
    assert set(keys(lake).values()) == {1}


def test_old_segments_leave_the_spool(lake, spool):
    """Segments go from the spool when their plan has been finished for the days to keep, and not before."""
    put_segment(spool, step_rows(10))
    bring(lake, spool, keep_days=7)
    assert len(Spool(str(spool)).listing()) == 1
    assert bring(lake, spool, keep_days=-1).purged == 1
    assert Spool(str(spool)).listing() == []
    assert bring(lake, spool).plans == []
    assert pc.sum(read(lake.tables, contract("segments"), ["rows_stored"])["rows_stored"]).as_py() == 10
