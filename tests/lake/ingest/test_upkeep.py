"""Upkeep: few files, short logs, nothing left behind; no row moves and nobody's file goes."""

import contextlib
import json
import os
import shutil
import time
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pytest
from bringing import adds_up, bring
from deltalake import DeltaTable
from rollup_inputs import append
from segments import DAY, put_bytes, put_segment, step_rows
from today import TODAY

from ranklake.cli import run
from ranklake.lake.audit.proof import prove
from ranklake.lake.audit.trail import record
from ranklake.lake.contracts.load import contract
from ranklake.lake.ingest import ingest_plan
from ranklake.lake.ingest.maintenance import compaction
from ranklake.lake.ingest.maintenance import run as maintenance_run
from ranklake.lake.ingest.maintenance.compaction import FAN_IN, TIERS, groups_due, merge_small
from ranklake.lake.ingest.maintenance.run import upkeep
from ranklake.lake.ingest.maintenance.vacuum import GRACE, GraceError, garbage
from ranklake.lake.ingest.run import ingest
from ranklake.lake.ingest.spool.spool import Spool
from ranklake.lake.plans import action_plan
from ranklake.lake.plans.driver import drive
from ranklake.lake.plans.plan import last_finished, row_files
from ranklake.lake.plans.workers import InProcess
from ranklake.lake.rollups.inputs import snapshot
from ranklake.lake.store.lake import Lake
from ranklake.lake.store.reachability import LakeUnreachableError
from ranklake.lake.tables import read as read_module
from ranklake.lake.tables.live_files import files, files_digest
from ranklake.lake.tables.parquet import append_files
from ranklake.lake.tables.read import read
from ranklake.lake.tables.tables import delta_table
from ranklake.retention.proposals.retention_plans import RetentionPlan, head_row, with_time
from ranklake.segments.segment import SegmentFooter

KEY = ["incarnation", "segment", "slot"]


def bring_minutes(lake, spool, count, first=0, rows=20):
    """Ingest so many segments, one at a time, as a schedule would; merge nothing."""
    for segment in range(first, first + count):
        put_segment(spool, step_rows(rows, segment=segment), rows_before=rows * segment)
        ingest(lake, Spool(str(spool)), InProcess(), merge=False)


def live(lake, table="steps"):
    return files(delta_table(lake.store, table))["path"].to_pylist()


def keys(lake):
    return sorted(map(tuple, (row.values() for row in read(lake.tables, contract("steps"), KEY).to_pylist())))


def age(lake, paths, days=10):
    """Make files look as old as that."""
    for path in paths:
        then = time.time() - days * 86_400
        os.utime(path, (then, then))


def data_files(lake, table="steps"):
    return sorted(Path(lake.path("tables", table)).glob("date=*/*.parquet"))


def test_small_files_become_few_and_the_books_stand(lake, spool):
    """Merging leaves every row once, all books as they were, one sorted file a past date, and its digest."""
    bring_minutes(lake, spool, 5)
    before, was, books = keys(lake), snapshot(lake.tables, "steps").digests, adds_up(lake, spool)
    done = upkeep(lake, InProcess())
    assert (len(live(lake)), done.files_after >= 1) == (1, True)
    assert keys(lake) == before
    assert snapshot(lake.tables, "steps").digests == was
    assert adds_up(lake, spool) == books
    assert upkeep(lake, InProcess()).plans == []
    rows = read(lake.tables, contract("steps"))
    assert rows.equals(rows.sort_by([(name, "ascending") for name in contract("steps").sort]))


def test_a_merge_is_no_change_to_who_follows_the_log(lake, spool):
    """The commit says of every file that no data changed."""
    bring_minutes(lake, spool, 3)
    upkeep(lake, InProcess())
    log = max(Path(lake.path("tables/steps/_delta_log")).glob("*.json")).read_text()
    assert '"dataChange":false' in log
    assert '"dataChange":true' not in log


@pytest.mark.slow
def test_ingest_each_minute_keeps_files_bounded(lake, spool):
    """However often ingest runs, a date holds no more files of a tier than make a merge."""
    most = 0
    for segment in range(2 * FAN_IN):
        put_segment(spool, step_rows(5, segment=segment), rows_before=5 * segment)
        bring(lake, spool)
        most = max(most, len(live(lake)), len(live(lake, "segments")), len(live(lake, "ingest_plans")))
    assert most <= FAN_IN
    assert len(keys(lake)) == 10 * FAN_IN
    adds_up(lake, spool)


def test_which_files_are_merged():
    """A tier is merged when it has enough files, full files never, and no merged file is much fuller than full."""

    def some(count, rows):
        return [{"path": f"{rows}-{place:03}", "size_bytes": 0, "num_records": rows} for place in range(count)]

    assert groups_due(some(FAN_IN - 1, 1), 1, 1000) == []
    assert [len(group) for group in groups_due(some(FAN_IN, 1), 1, 1000)] == [FAN_IN]
    assert groups_due(some(100, 500), 1, 1000) == []
    for rows, most in zip((1, 10, 100, 499), TIERS, strict=True):
        groups = groups_due([*some(FAN_IN, rows), *some(3, 999)], 1, 1000)
        assert {row["num_records"] for group in groups for row in group} == {rows}, most
        assert max(sum(row["num_records"] for row in group) for group in groups) <= 1000
    assert [len(group) for group in groups_due([*some(1, 1), *some(1, 300)], 1, 1000, past=True)] == [2]


@pytest.mark.parametrize("repeated", [False, True])
def test_long_text_is_merged_within_memory(lake, monkeypatch, repeated):
    """What files hold, not how small they are, says how many are merged; a long word of many rows is held once."""
    monkeypatch.setattr(compaction, "MEMORY_BYTES", 2 * 2**20)
    for number in range(9):
        count = 400 if repeated else 60
        words = [f"{0 if repeated else 60 * number + row:>10} " + "long " * 2000 for row in range(count)]
        append(lake, "events", [{"ts": DAY, "event": "failure", "message": word, "rank": number} for word in words])
    read_rows = read(lake.tables, contract("events")).sort_by([("rank", "ascending"), ("slot", "ascending")])
    assert read_rows.nbytes > 2 * compaction.MEMORY_BYTES
    pool, old = pa.proxy_memory_pool(pa.default_memory_pool()), pa.default_memory_pool()
    pa.set_memory_pool(pool)
    try:
        merge_small(lake, InProcess(), ["events"], thorough=True)
    finally:
        pa.set_memory_pool(old)
    assert pool.max_memory() < 4 * compaction.MEMORY_BYTES
    files_ = files(delta_table(lake.store, "events"))
    assert files_.num_rows == (1 if repeated else 3)
    again = read(lake.tables, contract("events")).sort_by([("rank", "ascending"), ("slot", "ascending")])
    assert again.combine_chunks().equals(read_rows.combine_chunks())
    assert merge_small(lake, InProcess(), ["events"], thorough=True).plans == []


def test_merging_again_and_again_ends(lake, spool):
    """Merging a date, then a late file and merging again, keeps the digest that the files themselves have."""
    bring_minutes(lake, spool, 2)
    upkeep(lake, InProcess())
    bring_minutes(lake, spool, 1, first=2)
    was = files_digest(live(lake))
    upkeep(lake, InProcess())
    assert (len(live(lake)), files_digest(live(lake))) == (1, was)


def test_an_older_version_reads_as_it_was(lake, spool):
    """Files that a merge took out stay readable through the grace period, and go after it."""
    bring_minutes(lake, spool, 3)
    version = delta_table(lake.store, "steps").version()
    old = [lake.path("tables/steps", path) for path in live(lake)]
    upkeep(lake, InProcess())
    age(lake, data_files(lake))
    assert upkeep(lake, InProcess()).purged == {}
    assert read(lake.tables, contract("steps"), version=version).num_rows == 60
    done = upkeep(lake, InProcess(), grace=timedelta(0))
    assert done.purged["removed"] >= 3
    assert not any(Path(path).exists() for path in old)
    assert len(keys(lake)) == 60
    adds_up(lake, spool)


def drop_one_file(lake, number):
    """Return a plan that takes one file of a date out, bytes and all, and leaves the others."""
    every = files(delta_table(lake.store, "steps"))
    name = "rp-" + "0" * 16
    head = head_row(RetentionPlan(name, (), ""), "application", "Otto", number)
    own = row_files(lake.store, "retention_plans", with_time([head]), number)
    plan = action_plan.compose(
        number,
        "retention",
        add=own,
        remove={"steps": every.slice(0, 1)},
        live={"steps": every},
        purge=True,
        facts={"retention_plan": name},
    )
    return plan, every["path"].to_pylist()


def test_a_slow_driver_of_a_plan_deletes_nothing_of_later_ones(lake, spool):
    """Of a date of which a plan drops some files, whoever carries the plan out late deletes just those."""
    bring_minutes(lake, spool, 4)
    plan, before = drop_one_file(lake, last_finished(lake.tables) + 1)
    drive(lake, lambda _: plan, InProcess())
    version = delta_table(lake.store, "steps").version()
    upkeep(lake, InProcess())
    assert len(live(lake)) == 1
    action_plan.execute(lake, plan)
    assert [Path(lake.path("tables/steps", path)).exists() for path in before] == [False, True, True, True]
    assert read(lake.tables, contract("steps"), version=version).num_rows == 60
    assert len(keys(lake)) == 60


def test_what_was_merged_before_a_purge_is_merged_again(lake, spool):
    """A merge that waits for its plan is given up where a plan that purges its date came first."""
    bring_minutes(lake, spool, 9)
    composer = compaction._Composer(lake, InProcess(), ["steps"], thorough=True, progress=None)
    number = last_finished(lake.tables) + 1
    plan, before = drop_one_file(lake, number)
    (task,) = compaction.merges_due(lake, ["steps"], number, thorough=True, today=TODAY)
    without = replace(task, files=[row for row in task.files if row["path"] != before[0]])
    made = compaction.merge(without)
    composer._ready = [(time.monotonic(), made.task, made.file)]
    assert composer._reusable(number + 1), "else the test shows nothing"
    lake.put_if_absent(plan.name, plan.to_json())
    later = composer.compose(number + 1)
    action_plan.execute(lake, plan)
    lake.put_if_absent(later.name, later.to_json())
    action_plan.execute(lake, plan)  # a slow driver
    action_plan.execute(lake, later)
    assert len(keys(lake)) == 160


def test_plans_of_others_that_come_first_cost_no_merges(lake, monkeypatch):
    """What is merged already and waits for its plan counts once among what one call may merge."""
    monkeypatch.setattr(compaction, "PLAN_MERGES", 1)
    for number in range(4):
        append(lake, "events", [{"ts": DAY + timedelta(days=number % 2), "event": "failure", "rank": number}])
    composer = compaction._Composer(lake, InProcess(), ["events"], thorough=True, progress=None)
    first = last_finished(lake.tables) + 1
    plan, *_ = [composer.compose(first + lost) for lost in range(5)]
    drive(lake, lambda _: plan, InProcess())
    assert len(live(lake, "events")) == 3
    assert composer.compose(first + 1) is not None
    assert composer.compose(first + 2) is not None


@pytest.mark.parametrize("table", ["events", "ingest_plans"])
def test_a_merge_whose_file_is_gone_is_passed_over(lake, spool, table):
    """What an erasure, or upkeep without a grace period, took for left behind: its rows stay where they are."""
    bring_minutes(lake, spool, FAN_IN, rows=1)
    for rank in range(2):
        append(lake, "events", [{"ts": DAY, "event": "failure", "rank": rank}])
    before, rows = live(lake, table), read(lake.tables, contract(table)).num_rows
    number = last_finished(lake.tables) + 1
    plan = compaction._Composer(lake, InProcess(), [table], thorough=True, progress=None).compose(number)
    (added,) = plan.body["add"]
    Path(lake.path("tables", table, added["path"])).unlink()
    drive(lake, lambda _: plan, InProcess())
    assert last_finished(lake.tables) == number
    assert set(before) <= set(live(lake, table))
    assert read(lake.tables, contract(table)).num_rows == rows + (table == "ingest_plans")
    assert upkeep(lake, InProcess()).files_before >= len(before)
    assert not set(before) & set(live(lake, table))


def test_a_plan_that_purges_says_what_stays(lake, spool):
    """A plan that deletes bytes has to know what else is live on the dates that it touches."""
    bring_minutes(lake, spool, 1)
    with pytest.raises(ValueError, match="live"):
        action_plan.compose(2, "retention", remove={"steps": files(delta_table(lake.store, "steps"))}, purge=True)


def test_orphans_go_when_nobody_can_want_them(lake, spool):
    """A file that no commit names goes once it is old and its plan is over; a stranger's file never does."""
    bring_minutes(lake, spool, 1)
    rows = read(lake.tables, contract("steps"))
    (lost,) = append_files(lake.store, contract("steps"), rows, 1)
    (coming,) = append_files(lake.store, contract("steps"), rows, 2)
    stranger = Path(lake.path("tables/steps/date=2026-03-01/notes.parquet"))
    stranger.write_bytes(b"mine")
    assert list(garbage(lake)) == []
    age(lake, [*data_files(lake), stranger])
    assert [one.path for one in garbage(lake)] == [lake.path("tables/steps", lost.path)]
    foreseen = upkeep(lake, InProcess(), dry_run=True)
    assert foreseen.purged == {"orphan": 1}
    assert upkeep(lake, InProcess()).purged == {"orphan": 1}
    assert {path.name for path in data_files(lake)} >= {Path(coming.path).name, "notes.parquet"}
    assert len(keys(lake)) == 20


@pytest.mark.slow
def test_files_of_the_trail_go_though_its_numbers_run_ahead_of_plans(lake):
    """What was merged, and what lost its race, goes once it is old; what somebody may be about to commit stays."""
    for number in range(12):
        record(lake, "somebody", "test.act", f"row {number}")
    rows = read(lake.tables, contract("audit"))
    (lost,) = append_files(lake.store, contract("audit"), rows, 9)
    upkeep(lake, InProcess())
    age(lake, data_files(lake, "audit"))
    assert upkeep(lake, InProcess()).purged == {"orphan": 1}
    (coming,) = append_files(lake.store, contract("audit"), rows, 9)
    assert upkeep(lake, InProcess(), grace=timedelta(0)).purged == {"removed": 12}
    there = {path.relative_to(lake.path("tables/audit")).as_posix() for path in data_files(lake, "audit")}
    assert there == {*live(lake, "audit"), coming.path}
    assert lost.path not in there
    assert prove(lake).whole


def test_nothing_goes_while_a_plan_is_unfinished(lake, spool):
    """An unfinished plan may want files that no commit names yet, and versions of long ago."""
    bring_minutes(lake, spool, 1)
    append_files(lake.store, contract("steps"), read(lake.tables, contract("steps")), 1)
    age(lake, data_files(lake))
    put_segment(spool, step_rows(5, segment=1), rows_before=20)
    plan = ingest_plan.compose(lake, Spool(str(spool)), last_finished(lake.tables) + 1).plan
    lake.put_if_absent(plan.name, plan.to_json())
    assert list(garbage(lake)) == []
    assert upkeep(lake, InProcess()).purged == {"orphan": 1}
    assert len(keys(lake)) == 25


def test_files_are_late_by_when_they_were_removed(lake, spool):
    """A file of long ago that was merged an hour ago should not have gone two hours ago."""
    bring_minutes(lake, spool, 4)
    upkeep(lake, InProcess())
    age(lake, data_files(lake))
    removed = [one.reason for one in garbage(lake, timedelta(0))]
    assert "removed" in removed
    assert "removed" not in [one.reason for one in garbage(lake, timedelta(0), datetime.now(UTC) - timedelta(hours=2))]


def test_a_grace_period_beyond_what_logs_remember(lake):
    """A longer grace period than the logs keep removed files for could not be kept, and is refused."""
    with pytest.raises(GraceError, match="longer"):
        list(garbage(lake, GRACE + timedelta(hours=1)))
    with pytest.raises(GraceError, match="below zero"):
        list(garbage(lake, timedelta(seconds=-1)))


def test_a_log_gets_checkpoints(lake, spool, monkeypatch):
    """After many commits a checkpoint is written, once; the table reads the same."""
    monkeypatch.setattr(maintenance_run, "CHECKPOINT_EVERY", 4)
    bring_minutes(lake, spool, 5, rows=2)
    done = upkeep(lake, InProcess())
    assert {"steps", "segments", "ingest_plans"} <= set(done.checkpoints)
    assert Path(lake.path("tables/steps/_delta_log/_last_checkpoint")).is_file()
    assert upkeep(lake, InProcess()).checkpoints == []
    assert len(keys(lake)) == 10
    adds_up(lake, spool)


def test_the_command(tmp_path, spool, capsys, monkeypatch):
    """The command says what it would do, does it, and finds nothing more to do; JSON for machines."""
    monkeypatch.setattr("ranklake.context.on_demand", lambda *_: contextlib.nullcontext(InProcess()))
    lake = Lake.create(str(tmp_path / "lake"))
    bring_minutes(lake, spool, 3)
    command = ["upkeep", "--lake", str(tmp_path / "lake")]
    assert run([*command, "--dry-run"]) == 0
    assert "small files would be merged into" in capsys.readouterr().out
    assert len(live(lake)) == 3
    assert run([*command, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["files_before"] >= 3
    assert run(command) == 0
    assert capsys.readouterr().out == "nothing to do\n"
    assert run([*command, "--grace-hours", "999"]) == 2


def test_a_ledger_that_is_rebuilt_passes_over_old_merges(lake, spool):
    """Old plans are carried out again, but a merge whose files are merged already brings no row a second time."""
    bring_minutes(lake, spool, 3)
    upkeep(lake, InProcess())
    bring_minutes(lake, spool, 1, first=3)
    plans = last_finished(lake.tables)
    shutil.rmtree(lake.path("tables/ingest_plans"))
    bring_minutes(lake, spool, 1, first=4)
    assert sorted(read(lake.tables, contract("ingest_plans"))["plan"].to_pylist()) == list(range(1, plans + 2))
    assert len(keys(lake)) == len(set(keys(lake))) == 100
    adds_up(lake, spool)


def test_half_written_files_and_unclaimed_quarantine_go(lake, spool):
    """What a dead process was writing goes when it is old; unreadable segments stay as long as the books count them."""
    put_bytes(spool, b"junk", SegmentFooter("steps", 1, "r1", 0, 0, 1, 7, 0, rows=4))
    ingest(lake, Spool(str(spool)), InProcess())
    unclaimed = [Path(lake.path(name)) for name in (f"quarantine/{'0' * 64}", "plans/0000000002.json.ab.tmp")]
    for path in unclaimed:
        path.write_bytes(b"x")
    assert list(garbage(lake)) == []
    age(lake, [path for path in Path(lake.store.root).rglob("*") if path.is_file()])
    assert upkeep(lake, InProcess()).purged == {"quarantine": 1, "scratch": 1}
    assert not any(path.exists() for path in unclaimed)
    assert len(list(Path(lake.path("quarantine")).iterdir())) == 1
    adds_up(lake, spool)


@pytest.mark.parametrize("seen_by_name", [True, False])
def test_a_commit_that_is_not_to_be_seen_for_now_makes_no_garbage(lake, spool, seen_by_name, monkeypatch):
    """While a listing lacks a log's newest commit, or the commit is away, the files that it named stay."""
    put_bytes(spool, b"junk", SegmentFooter("steps", 1, "r9", 0, 0, 1, 8, 0, rows=4))
    bring_minutes(lake, spool, 1)
    age(lake, [path for path in Path(lake.store.root).rglob("*") if path.is_file()])
    for table in ("steps", "segments"):
        newest = max(Path(lake.path("tables", table, "_delta_log")).glob("*.json"))
        newest.rename(newest.with_suffix(".away"))
        if seen_by_name:
            real = type(lake.fs).info
            monkeypatch.setattr(
                type(lake.fs), "info", lambda fs, path, real=real, at=str(newest): {} if path == at else real(fs, path)
            )
    found = []
    with contextlib.suppress(LakeUnreachableError):
        found += garbage(lake, timedelta(0))
    assert found == []


def test_raw_bytes_stay_while_listings_of_a_log_differ(lake, spool, monkeypatch):
    """Whoever was asked for the newest commit is asked what it holds: a later listing may lack it."""
    put_bytes(spool, b"junk", SegmentFooter("steps", 1, "r9", 0, 0, 1, 8, 0, rows=4))
    bring_minutes(lake, spool, 1)
    age(lake, [path for path in Path(lake.store.root).rglob("*") if path.is_file()])

    def lacking(tables, table):
        handle = delta_table(tables.store, table)
        return handle if table != "segments" else DeltaTable(handle.table_uri, version=handle.version() - 1)

    monkeypatch.setattr(read_module, "latest", lacking)
    assert read(lake.tables, contract("segments")).num_rows == 0
    assert list(garbage(lake, timedelta(0))) == []
