"""What a hostile or unlucky world puts before ingest: it neither stops the good rows nor hides a loss."""

import json
import multiprocessing
import os
import pickle
import shutil
import signal
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from bringing import books, bring
from packing import pack_up
from segments import DAY, put_bytes, put_segment, step_rows

from ranklake.lake.contracts.arrow import arrow_schema, conform
from ranklake.lake.contracts.errors import ContractMismatchError
from ranklake.lake.contracts.load import contract
from ranklake.lake.ingest import execution, ingest_plan, task
from ranklake.lake.ingest.index_summary import IngestionIndex
from ranklake.lake.ingest.ingestion_index import damaged_when
from ranklake.lake.ingest.maintenance.run import upkeep
from ranklake.lake.ingest.run import ingest, purge
from ranklake.lake.ingest.spool.packs import Reader
from ranklake.lake.ingest.spool.spool import Spool
from ranklake.lake.ingest.status.reconciliation import balance
from ranklake.lake.plans.dask_workers import on_demand, workers
from ranklake.lake.plans.plan import DamagedPlanError
from ranklake.lake.plans.workers import DaskSection, InProcess, WorkersError
from ranklake.lake.store.lake import Lake
from ranklake.lake.store.reachability import LakeError, LakeUnreachableError
from ranklake.lake.tables.live_files import DamagedLogError
from ranklake.lake.tables.parquet import write_partition
from ranklake.lake.tables.read import read, read_files
from ranklake.lake.tables.tables import delta_table
from ranklake.segments.segment import METADATA_KEY, SegmentFooter


def faults(lake, spool):
    return [f"{item.table}: {fault}" for item in books(lake, spool).values() for fault in item.faults]


def repeated_segments(lake):
    """Return the rows of the table segments, and how many of them repeat a key that its contract calls unique."""
    table = contract("segments")
    (unique,) = (check for check in table.checks if check.kind == "unique")
    assert tuple(unique.columns) == tuple(table.grain)
    rows = read(lake.tables, table, unique.columns).to_pylist()
    return len(rows), len(rows) - len({tuple(row.values()) for row in rows})


def with_column(rows, name, values):
    """Return rows with a column replaced; it may hold NULL where the contract allows none."""
    place = rows.schema.get_field_index(name)
    field = pa.field(name, rows.schema.field(name).type)
    return rows.set_column(place, field, values if isinstance(values, pa.Array) else pa.array(values, field.type))


def sealed(rows, said):
    """Return the bytes of a segment with this footer."""
    sink = pa.BufferOutputStream()
    table = rows.replace_schema_metadata({METADATA_KEY: said.to_json()})
    pq.write_table(table, sink, write_page_checksum=True)
    return sink.getvalue().to_pybytes()


def test_rows_without_a_whole_key_are_each_quarantined(lake, spool):
    """Rows whose slot is NULL are no repeats of each other: each goes to quarantine, none vanishes."""
    put_segment(spool, with_column(step_rows(10), "slot", [0, 1, 2, None, None, None, 6, 7, 8, 9]))
    done = bring(lake, spool)
    assert (done.rows_stored, done.rows_rejected, done.rows_duplicate) == (7, 3, 0)
    assert faults(lake, spool) == []


def test_times_that_python_cannot_hold(lake, spool):
    """Moments outside the years 1 to 9999 are quarantined with their microseconds; the other rows are stored."""
    rows = step_rows(10)
    moments = rows["ts"].cast(pa.int64()).to_pylist()
    wild = {2: 2**63 - 1, 3: -(2**63) + 1, 4: 0, 5: 4_102_444_800_000_001}
    moments = [wild.get(slot, moment) for slot, moment in enumerate(moments)]
    put_segment(spool, with_column(rows, "ts", pa.array(moments, pa.int64()).cast(rows.schema.field("ts").type)))
    done = bring(lake, spool)
    assert (done.rows_stored, done.rows_rejected) == (6, 4)
    told = {
        row["slot"]: row["ts"] for row in map(json.loads, read(lake.tables, contract("rejects"))["row"].to_pylist())
    }
    assert told[2] == str(2**63 - 1)
    assert told[4] == "1970-01-01T00:00:00+00:00"
    assert faults(lake, spool) == []


def test_a_segment_without_rows(lake, spool):
    """A segment of no rows, with gaps alone, is taken in and its gaps are counted."""
    said = SegmentFooter("steps", 1, "r1", 0, 0, 1, 7, 0, rows=0, gaps={"spool full": 4})
    put_bytes(spool, sealed(step_rows(1).slice(0, 0), said), said)
    assert bring(lake, spool).segments == 1
    assert (books(lake, spool)["steps"].gaps, faults(lake, spool)) == (4, [])


@pytest.mark.parametrize("table", ["audit", "segments", "rejects", "step_rollup"])
def test_no_rank_writes_derived_or_system_tables(lake, spool, table):
    """A segment that claims to hold rows of a table that ranks do not record is set aside, and blocks nothing."""
    put_segment(spool, step_rows(5))
    said = SegmentFooter(table, 1, "r1", 0, 0, 1, 7, 0, rows=5)
    put_bytes(spool, sealed(step_rows(5), said), said, table)
    done = bring(lake, spool)
    assert (done.rows_stored, done.unreadable) == (5, 1)
    assert faults(lake, spool) == []


def test_files_that_lie_anywhere(lake, spool):
    """Files beside the day folders, and links that lead nowhere, neither stop ingest nor disturb the books."""
    put_segment(spool, step_rows(5))
    (spool / "segments" / "README").write_text("hello")
    (spool / "segments" / "lost").symlink_to("/nonexistent/file")
    done = bring(lake, spool)
    assert (done.rows_stored, done.unreadable) == (5, 1)
    assert faults(lake, spool) == []
    assert bring(lake, spool).plans == []


def test_text_that_is_not_utf8(lake, spool):
    """A segment whose text is not UTF-8 is set aside before anybody trips over it."""
    rows = step_rows(3)
    raw = pa.array([b"\xff\xfe", b"a", b"b"], pa.binary())
    rows = with_column(rows, "non_finite", pa.Array.from_buffers(pa.string(), 3, raw.buffers()))
    put_segment(spool, rows)
    assert bring(lake, spool).unreadable == 1
    assert (books(lake, spool)["steps"].quarantined, faults(lake, spool)) == (3, [])


def test_a_footer_that_is_nested_beyond_reason(lake, spool):
    """What no reader of JSON follows to its end is put aside, and stops nobody."""
    rows = step_rows(3)
    said = SegmentFooter(
        table="steps", contract_version=1, world_size=1, rows=3, run="r1", attempt=0, rank=0, incarnation=7, segment=0
    )
    sink = pa.BufferOutputStream()
    pq.write_table(rows.replace_schema_metadata({METADATA_KEY: b"[" * 100_000}), sink)
    put_bytes(spool, sink.getvalue().to_pybytes(), said)
    assert bring(lake, spool).unreadable == 1


def test_segments_that_differ_in_what_may_be_null(lake, spool):
    """A segment that calls a required column optional, and has no NULL in it, goes in beside others."""
    rows = step_rows(3, segment=1)
    put_segment(spool, step_rows(3))
    put_segment(spool, rows.cast(pa.schema([field.with_nullable(nullable=True) for field in rows.schema])))
    assert bring(lake, spool).rows_stored == 6


def test_rows_of_somebody_else(lake, spool):
    """A segment whose rows carry another incarnation's keys is set aside: they would be stored twice."""
    put_segment(spool, step_rows(5))
    bring(lake, spool)
    put_segment(spool, step_rows(5, seed=3), incarnation=9)
    assert bring(lake, spool).unreadable == 1
    assert read(lake.tables, contract("steps")).num_rows == 5


def test_a_segment_that_vanished_may_come_back(lake, spool):
    """A segment that was gone when its plan was carried out is missing in the books, and taken in when it is back."""
    path = put_segment(spool, step_rows(10))
    raw = path.read_bytes()
    plan = ingest_plan.compose(lake, Spool(str(spool)), 1).plan
    lake.put_if_absent(plan.name, plan.to_json())
    path.unlink()
    bring(lake, spool)
    assert faults(lake, spool) == [
        "steps: run r1 attempt 0 rank 0: 10 rows are missing, as steps/r1~a0~r00000~0000000000000007 says"
    ]
    path.write_bytes(raw)
    assert books(lake, spool)["steps"].in_flight == 10
    assert bring(lake, spool).rows_stored == 10
    assert faults(lake, spool) == []
    assert repeated_segments(lake) == (2, 0)


def test_foreign_files_of_equal_bytes_have_a_row_each(lake, spool):
    """Two files that are no segments' and hold the same bytes are two rows of the table segments, by its own key."""
    for name in ("one.txt", "two.txt"):
        (spool / "segments" / "2026-03-01" / "steps").mkdir(parents=True, exist_ok=True)
        (spool / "segments" / "2026-03-01" / "steps" / name).write_bytes(b"the same")
    assert bring(lake, spool).unreadable == 2
    assert repeated_segments(lake) == (2, 0)


def test_what_another_driver_left_is_told(lake, spool):
    """Finishing a plan that a dead driver left is work done, and said so."""
    put_segment(spool, step_rows(10))
    plan = ingest_plan.compose(lake, Spool(str(spool)), 1).plan
    lake.put_if_absent(plan.name, plan.to_json())
    done = bring(lake, spool)
    assert (done.plans, done.rows_stored) == ([1], 10)


def test_damaged_segments_are_not_in_flight(lake, spool):
    """A damaged segment that is in quarantine is counted there once, however many damaged copies lie in the spool."""
    path = put_segment(spool, step_rows(10))
    put_segment(spool, step_rows(2, segment=1), rows_before=10, totals={"steps": [12, 0]})
    raw = path.read_bytes()
    path.write_bytes(raw[:-9])
    bring(lake, spool)
    assert (books(lake, spool)["steps"].quarantined, books(lake, spool)["steps"].in_flight) == (10, 0)
    put_bytes(spool, raw[:100], SegmentFooter("steps", 1, "r1", 0, 0, 1, 7, 0, rows=10))
    bring(lake, spool)
    assert (books(lake, spool)["steps"].quarantined, faults(lake, spool)) == (10, [])
    path.write_bytes(raw)
    bring(lake, spool)
    assert (books(lake, spool)["steps"].stored, books(lake, spool)["steps"].quarantined) == (12, 0)
    assert faults(lake, spool) == []


def test_damaged_copies_of_one_digest_are_settled_together(lake, spool, monkeypatch):
    """However many folders hold a damaged file of one name, one plan settles all, and each is read as one alone is."""
    read, reads = Reader.read, []
    monkeypatch.setattr(Reader, "read", lambda self, path: reads.append(path) or read(self, path))
    path = put_segment(spool, step_rows(10))
    wreck = path.read_bytes()[:-9]
    places = [spool / "segments" / f"2026-03-{day:02}" / "steps" / path.name for day in range(1, 13)]
    for place in places:
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(wreck)
    done = bring(lake, spool)
    assert (done.unreadable, len(done.plans), len(reads)) == (12, 1, 12)
    assert bring(lake, spool).plans == []
    assert (books(lake, spool)["steps"].quarantined, faults(lake, spool)) == (10, [])
    assert repeated_segments(lake) == (12, 0)
    places[3].write_bytes(wreck + b"another damage")
    assert bring(lake, spool).unreadable == 1


def test_a_damaged_segment_is_replaced_by_a_sound_one_of_its_size(lake, spool):
    """A sound copy under the same name and of the same size is taken in, once; the damaged one is nobody's rows."""
    path = put_segment(spool, step_rows(10))
    raw = path.read_bytes()
    flipped = bytearray(raw)
    flipped[len(raw) // 2] ^= 1
    path.write_bytes(bytes(flipped))
    assert bring(lake, spool).unreadable == 1
    assert bring(lake, spool).plans == []
    path.write_bytes(raw)
    done = bring(lake, spool)
    assert (done.segments, done.rows_stored, done.unreadable) == (1, 10, 0)
    assert (books(lake, spool)["steps"].stored, books(lake, spool)["steps"].quarantined) == (10, 0)
    assert faults(lake, spool) == []
    path.write_bytes(raw)
    assert bring(lake, spool).plans == []


def test_a_damaged_segment_that_is_written_again_as_it_was_is_read_once_more(lake, spool):
    """The same damage under a newer date is one more row of the table segments, and no more quarantined rows."""
    path = put_segment(spool, step_rows(10))
    raw = path.read_bytes()[:-9]
    for _ in range(2):
        path.write_bytes(raw)
        assert bring(lake, spool).unreadable == 1
        assert bring(lake, spool).plans == []
        assert (books(lake, spool)["steps"].quarantined, faults(lake, spool)) == (10, [])


def test_a_resent_slot_file_in_flight_is_no_excess(lake, spool):
    """Another cut of rows that are stored already is nothing in flight, but for the rows it has more."""
    put_segment(spool, step_rows(10))
    put_segment(spool, step_rows(2, segment=1), rows_before=10, totals={"steps": [12, 0]})
    bring(lake, spool)
    put_segment(spool, step_rows(10, seed=3))
    assert (books(lake, spool)["steps"].in_flight, faults(lake, spool)) == (0, [])


def test_lost_data_files_show(lake, spool):
    """A data file that the log names and the store has not, or has cut short, makes the books not add up."""
    put_segment(spool, step_rows(10))
    bring(lake, spool)
    (file,) = Path(lake.path("tables/steps")).rglob("*.parquet")
    raw = file.read_bytes()
    file.write_bytes(raw[:-1])
    assert faults(lake, spool) == ["steps: 1 data files are missing or not of their size"]
    file.unlink()
    assert faults(lake, spool) == ["steps: 1 data files are missing or not of their size"]


def test_lost_quarantine_shows(lake, spool):
    """Quarantined rows and bytes that are not there any more make the books not add up."""
    put_segment(spool, with_column(step_rows(3), "step_time_s", [-1, -1, 1]))
    put_bytes(spool, b"junk", SegmentFooter("steps", 1, "r1", 0, 0, 1, 7, 1, rows=4, rows_before=3))
    bring(lake, spool)
    assert faults(lake, spool) == []
    shutil.rmtree(lake.path("tables/rejects"))
    shutil.rmtree(lake.path("quarantine"))
    assert faults(lake, spool) == [
        "rejects: the table holds 0 rows, the plans say 2",
        "rejects: 1 unreadable segments are not in the lake's quarantine folder any more",
    ]


def test_a_segment_is_set_aside_only_once_its_bytes_are_kept(lake, spool):
    """Where quarantine takes no bytes, nothing is told of a damaged segment; later it is, and they are there."""
    put_segment(spool, step_rows(10))
    put_bytes(spool, b"junk", SegmentFooter("steps", 1, "r2", 0, 0, 2, 8, 1, rows=4))
    in_the_way = Path(lake.path("quarantine"))
    in_the_way.write_bytes(b"")
    with pytest.raises(LakeUnreachableError, match="cannot be written"):
        bring(lake, spool)
    assert read(lake.tables, contract("segments")).num_rows == 0
    in_the_way.unlink()
    assert (bring(lake, spool).unreadable, faults(lake, spool)) == (1, [])
    assert [path.read_bytes() for path in in_the_way.iterdir()] == [b"junk"]


@pytest.mark.timeout(20)
def test_what_has_the_name_of_a_folder_takes_no_file_s_name(lake, spool):
    """A file in place of a folder is said in one line; nobody tries one free name after the other for ever."""
    put_segment(spool, step_rows(10))
    Path(lake.path("attempts")).write_bytes(b"")
    with pytest.raises(LakeUnreachableError, match="cannot be written"):
        bring(lake, spool)


def test_the_lost_account_of_segments_is_no_licence_to_store_twice(lake, spool):
    """Without the table that tells what was ingested, ingest refuses, and the books do not add up."""
    put_segment(spool, step_rows(10))
    bring(lake, spool)
    shutil.rmtree(lake.path("tables/segments"))
    assert balance(lake)[0].faults == ["the table holds 10 rows, the plans say 0"]
    with pytest.raises(LakeError, match="the table segments is gone"):
        bring(lake, spool)
    assert read(lake.tables, contract("steps")).num_rows == 10


def test_a_table_whose_log_is_lost_is_not_begun_anew(lake, spool):
    """Ingest refuses before it plans anything; once the log is back, it goes on."""
    put_segment(spool, step_rows(10))
    bring(lake, spool)
    log = Path(lake.path("tables/steps/_delta_log"))
    kept = log.rename(log.with_name("kept"))
    put_segment(spool, step_rows(10, segment=1), rows_before=10)
    with pytest.raises(LakeError, match=r"^steps: the table, or its log, is gone, and has 10 rows.*ranklake repair"):
        bring(lake, spool)
    assert not log.exists()
    assert len(lake.fs.ls(lake.path("plans"))) == 1
    kept.rename(log)
    assert bring(lake, spool).rows_stored == 10
    assert faults(lake, spool) == []


def test_a_lost_ledger_is_rebuilt(lake, spool):
    """Without the ledger all plans are carried out again, which stores nothing twice and writes the ledger anew."""
    for segment in range(2):
        put_segment(spool, step_rows(10, segment=segment), rows_before=10 * segment)
        bring(lake, spool)
    shutil.rmtree(lake.path("tables/ingest_plans"))
    bring(lake, spool)
    assert read(lake.tables, contract("ingest_plans"))["rows_stored"].to_pylist() == [10, 10]
    assert (read(lake.tables, contract("steps")).num_rows, faults(lake, spool)) == (20, [])


@pytest.mark.parametrize("how", ["empty", "half", "another's"])
def test_a_damaged_plan_stops_with_its_name(lake, spool, how):
    """A plan file that is cut short, or that is a copy of another, is named; nothing is guessed and nothing loops."""
    put_segment(spool, step_rows(10))
    bring(lake, spool)
    raw = Path(lake.path("plans/0000000001.json")).read_bytes()
    Path(lake.path("plans/0000000002.json")).write_bytes({"empty": b"", "half": raw[:60], "another's": raw}[how])
    with pytest.raises(DamagedPlanError, match="0000000002"):
        bring(lake, spool)


def test_rejects_are_json_that_any_reader_takes(lake, spool):
    """A refused row's JSON has no NaN or Infinity, which JSON does not know."""
    put_segment(spool, with_column(step_rows(3), "step_time_s", [float("nan"), float("inf"), 1.0]))
    bring(lake, spool)
    for text in read(lake.tables, contract("rejects"))["row"].to_pylist():
        json.loads(text, parse_constant=pytest.fail)


def test_copies_leave_the_spool_too(lake, spool):
    """Further copies of an ingested segment, under other days, go from the spool with it."""
    for day in ("2026-03-01", "2026-03-02"):
        put_segment(spool, step_rows(10), day=day)
    bring(lake, spool)
    put_segment(spool, step_rows(10), day="2026-03-03")
    assert bring(lake, spool, keep_days=-1).purged == 3
    assert Spool(str(spool)).listing() == []


@pytest.mark.parametrize("packed", [False, True])
def test_what_was_written_anew_is_not_purged_unread(lake, spool, packed):
    """A sound copy in the place of a damaged segment, which no look at the spool has seen yet, is no old file."""
    paths = [put_segment(spool, step_rows(5, segment=number)) for number in range(2)]
    raw = paths[0].read_bytes()
    path = pack_up(spool, paths) if packed else paths[0]
    whole = path.read_bytes()
    middle = whole.index(raw) + 100
    path.write_bytes(whole[:middle] + bytes(20) + whole[middle + 20 :])
    assert bring(lake, spool).unreadable == 1
    told = IngestionIndex(lake.store, delta_table(lake.store, "segments"))
    path.write_bytes(whole)
    purge(
        Spool(str(spool)),
        told.recent_member_count,
        told.rows_about,
        datetime.now(UTC).date(),
        -1,
        lambda rows: damaged_when(lake.tables, rows),
    )
    assert path.exists()
    assert bring(lake, spool, keep_days=-1).rows_stored == 5
    assert len(read(lake.tables, contract("steps"))) == 10
    assert not path.exists()


def test_many_refused_rows_are_written_some_at_a_time(lake, spool, monkeypatch):
    """Each refused row goes along with its reason and its segment's digest, however few are written at a time."""
    monkeypatch.setattr(task, "REJECTED_ROWS", 3)
    paths = [
        put_segment(spool, with_column(step_rows(5, segment=number), "step_time_s", [-1.0, 1.0, -1.0, 1.0, -1.0]))
        for number in range(3)
    ]
    assert bring(lake, spool, merge=False).rows_rejected == 9
    assert [len(part) for _, part in read_files(lake.tables, contract("rejects"))] == [3, 3, 3]
    rows = read(lake.tables, contract("rejects")).to_pylist()
    digests = {number: path.stem.rpartition("~")[2] for number, path in enumerate(paths)}
    assert {(row["segment"], row["slot"], row["sha256"]) for row in rows} == {
        (number, slot, digest) for number, digest in digests.items() for slot in (0, 2, 4)
    }
    assert all(json.loads(row["row"])["slot"] == row["slot"] for row in rows)


def test_long_text_stays_out_of_the_log(lake):
    """Text longer than a line has no bounds in the Delta log: a bound cut short is no value of the column."""
    rows = with_column(step_rows(2), "non_finite", ["loss:nan", "x" * 1_000_000])
    rows = with_column(rows, "run", ["r1", "x" * 100])
    found = json.loads(write_partition(lake.store, contract("steps"), rows, DAY.date(), 1).stats)
    assert len(json.dumps(found)) < 5_000
    assert "non_finite" not in found["maxValues"]
    assert "run" not in found["maxValues"]
    assert found["nullCount"]["non_finite"] == 0
    assert found["nullCount"]["grad_norm"] == found["numRecords"] == 2
    rows = with_column(rows, "run", ["r1", "r0"])
    found = json.loads(write_partition(lake.store, contract("steps"), rows, DAY.date(), 1).stats)
    assert (found["minValues"]["run"], found["maxValues"]["run"]) == ("r0", "r1")


def test_infinite_numbers_have_no_bounds(lake):
    """A derived number may be infinite; JSON, in which bounds are written, knows none."""
    rows = read(lake.tables, contract("steps")).schema.empty_table()
    rows = pa.concat_tables([rows, conform(step_rows(2), contract("steps"), segment=True)], promote_options="default")
    rows = with_column(rows, "loss", [float("inf"), 1.0])
    file = write_partition(lake.store, contract("steps"), rows, DAY.date(), 1)
    stats = json.loads(file.stats)
    assert "loss" not in stats["maxValues"]
    assert stats["nullCount"]["loss"] == 0


def test_statistics_of_times_keep_their_microseconds(lake):
    """Bounds of timestamps are exact, with years of four digits."""
    rows = with_column(step_rows(2), "ts", [datetime(999, 1, 1, tzinfo=UTC), DAY + timedelta(microseconds=1)])
    found = json.loads(write_partition(lake.store, contract("steps"), rows, DAY.date(), 1).stats)
    assert found["minValues"]["ts"] == "0999-01-01T00:00:00.000000Z"
    assert found["maxValues"]["ts"] == "2026-03-01T00:00:00.000001Z"


def test_a_year_in_one_segment(lake, spool):
    """Rows that span a year land in a file a day."""
    rows = with_column(step_rows(40), "ts", [DAY - timedelta(days=9 * slot) for slot in range(40)])
    put_segment(spool, rows)
    assert bring(lake, spool).rows_stored == 40
    assert len(set(read(lake.tables, contract("steps"), ["date"])["date"].to_pylist())) == 40
    assert read(lake.tables, contract("steps"), partitions=[date(2026, 2, 20)]).num_rows == 1


def _make(uri, gate, results):
    gate.wait()
    try:
        Lake.create(uri)
        results.put(None)
    except LakeError as error:
        results.put(str(error))


@pytest.mark.slow
@pytest.mark.leaky("a multiprocessing barrier keeps its shared memory until the process ends")
def test_drivers_that_make_a_lake_at_once(tmp_path):
    """Processes that make the same lake at the same moment all get it."""
    context = multiprocessing.get_context("fork")
    for number in range(10):
        gate, results = context.Barrier(4), context.SimpleQueue()
        makers = [context.Process(target=_make, args=(str(tmp_path / str(number)), gate, results)) for _ in range(4)]
        for maker in makers:
            maker.start()
        assert [results.get() for _ in makers] == [None] * 4
        for maker in makers:
            maker.join()
            maker.close()
        results.close()


def test_a_stranger_s_folder_is_still_refused(tmp_path):
    """A folder with anything else in it does not become a lake."""
    (tmp_path / "photo.jpg").write_text("x")
    with pytest.raises(LakeError, match="not empty"):
        Lake.create(str(tmp_path))


@pytest.mark.parametrize(
    "error", [LakeUnreachableError("what", where="w", hint="m"), ContractMismatchError("t", ("a", "b"))]
)
def test_errors_come_back_from_other_processes(error):
    """An error of a worker keeps its class, its line and its facts."""
    back = pickle.loads(pickle.dumps(error))
    assert (type(back), str(back), back.__dict__) == (type(error), str(error), error.__dict__)


def _fail(path):
    with Path(path).open("a") as file:
        file.write("x")
    raise LakeUnreachableError("no space", where="here")


def _who(_):
    return os.getpid()


def _die(_):
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.slow
@pytest.mark.leaky("distributed keeps threads of its own for a while")
def test_what_workers_cannot_do_is_said_in_one_error(tmp_path, lake, spool):
    """On Dask a mistake is tried once and raised as itself, a task that kills every worker as `WorkersError`.

    Work that is worth no cluster is done in this process.
    """
    for segment in range(3):
        put_segment(spool, step_rows(10, segment=segment), rows_before=10 * segment)
    with on_demand() as waiting:
        assert waiting.fitting(0.1).run(_who, [1]) == [os.getpid()], "a cluster was started for next to nothing"
        crew = waiting.fitting(3600.0)
        assert waiting.fitting(3600.0) is crew
        assert os.getpid() not in waiting.run(_who, [1])
        with pytest.raises(LakeUnreachableError, match="no space"):
            crew.run(_fail, [str(tmp_path / "tries")])
        assert (tmp_path / "tries").read_text() == "x"
        with pytest.raises(WorkersError, match="died"):
            crew.run(_die, [1])
        assert ingest(lake, Spool(str(spool)), crew).rows_stored == 30
    assert faults(lake, spool) == []


@pytest.mark.parametrize("start", [workers, on_demand])
def test_memory_that_is_no_amount(start):
    """A memory limit that cannot be read is refused before anything is started."""
    with pytest.raises(WorkersError, match="lots"), start(DaskSection(memory_limit="lots")):
        pass


def test_a_disk_that_fills_on_the_way(small_disk, spool):
    """A full disk raises, wherever in the plan it comes; with room again, ingest ends what it began, once."""
    place, remount = small_disk
    lake = Lake.create(str(place / "lake"))
    for segment in range(4):
        put_segment(spool, step_rows(5_000, segment=segment), rows_before=5_000 * segment)
    for kilobytes in (*range(200, 700, 50), 20_000):
        remount(f"size={kilobytes}k")
        try:
            bring(lake, spool)
        except LakeUnreachableError:
            continue
    assert (read(lake.tables, contract("steps")).num_rows, faults(lake, spool)) == (20_000, [])
    assert not list(place.rglob("*.tmp"))


def test_a_read_only_lake(small_disk, spool):
    """A lake that cannot be written tells its books and refuses new segments; nothing is lost."""
    place, remount = small_disk
    remount("size=20m")
    lake = Lake.create(str(place / "lake"))
    put_segment(spool, step_rows(10))
    bring(lake, spool)
    put_segment(spool, step_rows(10, segment=1), rows_before=10)
    remount("ro")
    with pytest.raises(LakeUnreachableError, match="Read-only"):
        bring(lake, spool)
    assert books(lake, spool)["steps"].in_flight == 10
    remount("rw")
    assert bring(lake, spool).rows_stored == 10


def test_a_worker_elsewhere_finds_a_lake_named_by_a_relative_folder(tmp_path, spool, monkeypatch):
    """Tasks and plans name places by whole paths: workers and later drivers have current folders of their own."""
    monkeypatch.chdir(tmp_path)
    put_segment(spool, step_rows(5))
    lake = Lake.create("lake")
    plan = ingest_plan.compose(lake, Spool("spool"), 1).plan
    assert plan.body["spool"] == str(spool)
    (group,) = execution._groups(lake, plan)
    assert group.lake_uri == str(tmp_path / "lake")


def test_segment_schema_is_the_contract_s():
    """The rows these tests are made of are rows as a segment holds them."""
    assert step_rows(1).schema.equals(arrow_schema(contract("steps"), segment=True))


@pytest.mark.parametrize("stats", ["{}", '{"numRecords": -5}'])
def test_a_log_that_counts_no_rows_is_refused_in_one_line(lake, spool, stats):
    """Where a log does not say how many rows a file has, or says what cannot be, it is named, and nothing is merged."""
    put_segment(spool, step_rows(5))
    bring(lake, spool, merge=False)
    for entry in Path(lake.path("tables", "steps", "_delta_log")).glob("*.json"):
        lines = [json.loads(line) for line in entry.read_text().splitlines()]
        for line in lines:
            if "add" in line:
                line["add"]["stats"] = stats
        entry.write_text("\n".join(map(json.dumps, lines)))
    with pytest.raises(DamagedLogError, match="num_records of a file"):
        upkeep(Lake.open(lake.uri), InProcess())
