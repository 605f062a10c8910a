"""Checks of new partitions, from segments on disk to results in the lake."""

import os
import shutil
import socket
import subprocess
import sys
from datetime import timedelta

import pyarrow as pa
import pytest
from governed import any_rows, under
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from segments import DAY, step_rows

from ranklake.lake.contracts.arrow import arrow_schema
from ranklake.lake.contracts.checks.kinds import values as value_kinds
from ranklake.lake.contracts.errors import UnknownTableError
from ranklake.lake.contracts.load import contract, load_metrics
from ranklake.lake.plans.dask_workers import workers
from ranklake.lake.plans.plan import last_finished
from ranklake.lake.plans.workers import DaskSection, OneByOne
from ranklake.lake.rollups.runner import run_rollups
from ranklake.lake.store.lake import Lake
from ranklake.lake.store.reachability import LakeError
from ranklake.lake.tables.commit import replace_partitions
from ranklake.lake.tables.live_files import FILE_SCHEMA, files
from ranklake.lake.tables.read import read
from ranklake.lake.tables.tables import delta_table
from ranklake.quality import scan as scanning
from ranklake.quality.check import run_checks
from ranklake.quality.results import RESULTS, last_checks
from ranklake.quality.scan import scan
from ranklake.quality.suite import NotCheckedError, as_stored, compile_suite
from ranklake.quality.tally import Partition

SMALL_LOSS = """
extends: steps
checks:
  - {id: loss_small, kind: between, columns: [loss], max: 3.0}
"""


def by_id(report, table="steps"):
    return {result.check_id: result for result in report.results if result.table == table}


def test_sound_rows_pass(site):
    """Rows as a recorder writes them pass; what had no value is skipped; the lake keeps the results."""
    site.bring(step_rows(100))
    report = run_checks(site.lake)
    assert report.passed
    assert (report.partitions, report.unchanged, report.unsound) == (1, 0, ())
    found = by_id(report)
    assert (found["steps_unique"].status, found["steps_unique"].rows_checked) == ("passed", 100)
    assert (found["lr_not_negative"].status, found["lr_not_negative"].rows_checked) == ("skipped", None)
    stored = {row["check_id"]: row for row in site.rows("quality_results")}
    assert stored.keys() == found.keys()
    assert all(stored[name] == result.row() for name, result in found.items())


def test_again_runs_nothing(site):
    """A second check without changes runs nothing, commits nothing, and says so."""
    site.bring(step_rows(10))
    run_checks(site.lake)
    before = delta_table(site.lake.store, "quality_results").version()
    report = run_checks(site.lake)
    assert (report.partitions, report.unchanged, report.results) == (0, 1, ())
    assert delta_table(site.lake.store, "quality_results").version() == before


def test_checks_of_each_minute_leave_few_files(site):
    """A check of two tables is one commit, ingest merges what checks wrote, and the last word is that of all rows."""
    for minute in range(8):
        site.bring(step_rows(10, segment=minute), rows_before=10 * minute)
        run_rollups(site.lake, ["step_rollup"])
        assert {result.table for result in run_checks(site.lake).results} == {"steps", "step_rollup"}
        assert delta_table(site.lake.store, RESULTS).version() == minute + 1
    site.bring(step_rows(10, segment=8), rows_before=80)
    assert files(delta_table(site.lake.store, RESULTS)).num_rows == 1
    rows = read(site.lake.tables, contract(RESULTS), ["table", "partition_date", "ts", "files_sha256"]).to_pylist()
    newest = {(row["table"], row["partition_date"]): row for row in sorted(rows, key=lambda row: row["ts"])}
    last = {place: each.files_sha256 for place, each in last_checks(site.lake, ["steps", "step_rollup"]).items()}
    assert last == {place: row["files_sha256"] for place, row in newest.items()}


def test_only_what_changed_is_checked(site):
    """New rows make their own partition new, and no other; another suite makes all of them new."""
    site.bring(step_rows(10))
    site.bring(step_rows(10, segment=1, start=DAY + timedelta(days=1)), rows_before=10)
    assert run_checks(site.lake).partitions == 2
    site.bring(step_rows(10, segment=2, start=DAY + timedelta(days=1)), rows_before=20)
    report = run_checks(site.lake)
    assert {str(result.partition_date) for result in report.results} == {"2026-03-02"}
    assert report.unchanged == 1
    overlay = site.overlay(steps=SMALL_LOSS)
    assert run_checks(under(site.lake, overlay)).partitions == 2
    assert run_checks(under(site.lake, overlay)).partitions == 0


def test_a_failure_stands_until_its_rows_are_gone(site):
    """A failed check that takes no rows out fails the next run too, though nothing is run then."""
    site.bring(step_rows(50))
    overlay = site.overlay(steps=SMALL_LOSS)
    first = run_checks(under(site.lake, overlay))
    failed = by_id(first)["loss_small"]
    assert not first.passed
    assert (failed.status, failed.rows_checked, failed.quarantined_rows) == ("failed", 50, 0)
    assert 0 < failed.rows_failed < 50
    assert failed.failed_ratio == pytest.approx(failed.rows_failed / 50)
    assert len(failed.observed.split(", ")) == 3
    again = run_checks(under(site.lake, overlay))
    assert (again.partitions, again.passed) == (0, False)
    assert again.standing == (failed,)
    assert again.summary()["standing"][0]["check_id"] == "loss_small"


def test_warnings_fail_nothing(site):
    """A failed check of severity warning is written down and shown, and the report passes."""
    rows = step_rows(10)
    slow = pa.array([9.0] * 10, pa.float32())
    site.bring(rows.set_column(rows.schema.get_field_index("data_time_s"), "data_time_s", slow))
    report = run_checks(site.lake)
    assert report.passed
    assert [result.check_id for result in report.unsound] == ["data_within_step"]


def test_repeated_keys_are_found_across_files(site):
    """A grain that repeats over two files of a partition fails."""
    site.bring(step_rows(10))
    site.bring(step_rows(4, incarnation=8))
    report = run_checks(site.lake)
    unique = by_id(report)["steps_unique"]
    assert (unique.status, unique.rows_checked, unique.rows_failed) == ("failed", 14, 4)
    assert unique.expectation == "ExpectCompoundColumnsToBeUnique"


@pytest.mark.slow
@settings(max_examples=5, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(sizes=st.lists(st.integers(1, 60), min_size=1, max_size=4), batch_rows=st.integers(5, 80))
def test_batches_change_no_count(judge, tmp_path_factory, sizes, batch_rows):
    """However a partition is cut into files and batches, its tallies are the same."""
    from governed import Site

    site = Site(tmp_path_factory.mktemp("batches"))
    for segment, size in enumerate(sizes):
        site.bring(step_rows(size, segment=segment), rows_before=sum(sizes[:segment]))
    steps = contract("steps")
    suite = compile_suite(steps, load_metrics())
    handle = delta_table(site.lake.store, "steps")
    part = Partition(DAY.date(), handle.version(), files(handle))
    whole = scan(site.lake.store, steps, suite, part, judge)
    cut = scan(site.lake.store, steps, suite, part, judge, batch_rows)
    assert [(one.checked, one.failed, one.error) for one in whole] == [
        (one.checked, one.failed, one.error) for one in cut
    ]
    assert whole[0].checked == sum(sizes)


def test_a_file_that_cannot_be_read_is_no_failure_of_the_data(site):
    """Damaged bytes make checks errored, other partitions are checked, and the partition is tried again next time."""
    site.bring(step_rows(10))
    site.bring(step_rows(10, segment=1, start=DAY + timedelta(days=1)), rows_before=10)
    (path,) = (site.folder / "lake/tables/steps/date=2026-03-01").glob("*.parquet")
    sound = path.read_bytes()
    path.write_bytes(sound[:50] + b"?" * 50 + sound[100:-20])
    report = run_checks(site.lake)
    status = {(str(result.partition_date), result.status) for result in report.results if result.check_id == "run_name"}
    assert status == {("2026-03-01", "errored"), ("2026-03-02", "passed")}
    assert not report.passed
    assert run_checks(site.lake).partitions == 1
    path.write_bytes(sound)
    assert run_checks(site.lake).passed
    assert run_checks(site.lake).partitions == 0


def test_a_column_that_the_table_lacks_is_skipped(site):
    """Checks on a column that came to the contract later than to the table are skipped, not failed."""
    site.bring(step_rows(10))
    overlay = site.overlay(
        steps="extends: steps\ncolumns:\n"
        "  - {id: 10000, name: extra, type: int64, unit: none, class: operational, doc: An extra number of ours.,"
        " checks: [{id: extra_filled, kind: not_null}]}\n"
    )
    found = by_id(run_checks(under(site.lake, overlay)))["extra_filled"]
    assert (found.status, found.message) == ("skipped", "the table has no such column yet")


def mfu_rows(day, ratio):
    """Return the contract of `mfu`, the column that holds `ratio`, and one row of a date."""
    derived = contract("mfu")
    column = next(item.name for item in derived.columns if item.unit == "ratio" and item.type.startswith("float"))
    filler = {"string": "x", "int32": 1, "int64": 1, "float32": 0.5, "float64": 0.5, "bool": True, "timestamp": DAY}
    row = {item.name: filler.get(item.type) for item in derived.columns} | {"date": day, column: ratio}
    return derived, column, pa.Table.from_pylist([row], schema=arrow_schema(derived))


def test_derived_tables_are_checked_and_keep_their_rows(site):
    """A ratio above 1 in a derived table fails, and the row stays where the rollup put it."""
    derived, column, rows = mfu_rows(DAY.date(), 1.5)
    replace_partitions(site.lake.tables, derived, rows, [DAY.date()])
    report = run_checks(site.lake, ["mfu"])
    failed = [result for result in report.unsound if result.column == column]
    assert failed
    assert all((result.status, result.rows_failed, result.quarantined_rows) == ("failed", 1, 0) for result in failed)
    assert delta_table(site.lake.store, "mfu").count() == 1


def test_a_failure_ends_with_the_rows_that_replace_it(site):
    """A partition checked again has its new results alone, though another's newest are of the time of the old ones."""
    good, bad = DAY.date(), DAY.date() + timedelta(days=1)
    for day, ratio in ((good, 0.5), (bad, 1.5)):
        derived, column, rows = mfu_rows(day, ratio)
        replace_partitions(site.lake.tables, derived, rows, [day])
    first = run_checks(site.lake, ["mfu"])
    assert {result.partition_date for result in first.unsound if result.column == column} == {bad}
    replace_partitions(site.lake.tables, derived, mfu_rows(bad, 0.5)[2], [bad])
    assert run_checks(site.lake, ["mfu"]).partitions == 1
    standing = [result for last in last_checks(site.lake, ["mfu"]).values() for result in last.open]
    assert column not in {result.column for result in standing}


def test_names_that_are_no_tables(site):
    """A name that is no table is refused with the nearest; a system table is not checked."""
    with pytest.raises(UnknownTableError, match="did you mean 'steps'"):
        run_checks(site.lake, ["stepz"])
    with pytest.raises(NotCheckedError, match="'segments'; name a fact or a derived table"):
        run_checks(site.lake, ["segments"])
    assert run_checks(site.lake, ["logs"]).results == ()


def test_large_partitions_come_in_batches(site, judge, monkeypatch):
    """No more rows than a batch are handed to Great Expectations at a time."""
    site.bring(step_rows(100))
    monkeypatch.setattr(scanning, "BATCH_ROWS", 30)
    seen = []
    handle = delta_table(site.lake.store, "steps")
    part = Partition(DAY.date(), handle.version(), files(handle))

    def watching(contract, rows, expectations, *, classified):
        seen.append(len(rows))
        return judge(contract, rows, expectations, classified=classified)

    steps = contract("steps")
    scan(
        site.lake.store,
        steps,
        compile_suite(steps, load_metrics()),
        part,
        watching,
        scanning.BATCH_ROWS,
        judged_rows=100,
    )
    assert seen == [30, 30, 30, 10]


def test_sound_rows_import_no_great_expectations(site):
    """Where nothing is in doubt, a check is spared the seconds that its import takes."""
    site.bring(step_rows(100))
    program = (
        "import sys\n"
        "from ranklake.lake.store.lake import Lake\n"
        "from ranklake.quality.check import run_checks\n"
        f"report = run_checks(Lake.open({site.lake.store.address!r}))\n"
        "print(sorted({one.status for one in report.results}), 'great_expectations' in sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "['passed', 'skipped'] False"


def test_nothing_is_sent_and_nothing_is_said(site, monkeypatch, capfd, caplog):
    """A check opens no connection and writes neither progress bars nor log lines."""

    def refuse(*args):
        raise AssertionError("a check opened a connection")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    site.bring(step_rows(20))
    run_checks(under(site.lake, site.overlay(steps=SMALL_LOSS)))
    assert capfd.readouterr() == ("", "")
    assert caplog.text == ""


def test_checks_take_no_plan_number_unless_rows_move(site):
    """Results are kept by commits of their own, so that a quiet check stays out of the way of ingest."""
    site.bring(step_rows(20))
    before = last_finished(site.lake.tables)
    run_checks(site.lake)
    assert last_finished(site.lake.tables) == before
    assert len(os.listdir(site.folder / "lake/plans")) == before  # noqa: PTH208 - a count


def test_nulls_in_a_key_are_equal_to_nothing(site):
    """Rows whose key has a NULL are not judged for uniqueness."""
    site.bring(any_rows("runs", 5, user=[None, None, "a", "a", "b"]), "runs")
    overlay = site.overlay(runs="extends: runs\nchecks: [{id: one_user, kind: unique, columns: [user, date]}]\n")
    found = by_id(run_checks(under(site.lake, overlay)), "runs")["one_user"]
    assert (found.rows_checked, found.rows_failed) == (3, 1)


def test_json_and_text_columns_of_captured_tables(site, monkeypatch):
    """Text that is not JSON where the contract says JSON is found, in a table of another kind than steps."""
    with monkeypatch.context() as earlier:  # ingest takes no such row any more; lakes have some
        earlier.setattr(value_kinds, "is_json", lambda _: True)
        site.bring(any_rows("runs", 3, labels=["{}", "{oops", None], world_size=[1, 1, 1]), "runs")
    found = by_id(run_checks(site.lake), "runs")["json:labels"]
    assert (found.status, found.rows_checked, found.rows_failed, found.observed) == ("failed", 2, 1, None)


def test_a_table_that_is_gone_while_it_is_checked_is_said_in_one_line(site):
    """Where a listing of the log finds nothing any more, checking ends in words."""
    with pytest.raises(LakeError, match="table steps is gone"):
        as_stored(site.lake.tables, contract("steps"))


@pytest.mark.slow
@pytest.mark.leaky("distributed keeps threads of its own for a while")
def test_workers_find_what_one_process_finds(site, tmp_path):
    """On a cluster each partition is a task; verdicts, counts, rows moved and files are those of one process.

    Workers are sent the contract as it is here, the operator's own checks included.
    """
    site.bring(step_rows(300))
    site.bring(step_rows(100, rank=1, incarnation=8, start=DAY + timedelta(days=1)))
    site.bring(step_rows(1, incarnation=9))
    overlay = site.overlay(steps=SMALL_LOSS)
    alone = Lake.open(str(shutil.copytree(site.folder / "lake", tmp_path / "copy")))
    here = run_checks(under(alone, overlay))
    with workers(DaskSection(workers=1)) as crew:
        there = run_checks(under(site.lake, overlay), workers=crew)

    def plain(report):
        other = {"check_run": "", "ts": "", "files_sha256": "", "duration_s": None}
        found = [{**one.plain(), **other} for one in report.results]
        return sorted(found, key=lambda one: (one["table"], one["partition_date"], one["check_id"]))

    assert len({one.partition_date for one in there.results}) == 2
    assert {"steps_unique", "loss_small"} <= {one.check_id for one in there.unsound}
    assert plain(there) == plain(here)
    assert there.quarantined_rows == here.quarantined_rows


class Others(OneByOne):
    """Workers that are not this process, as far as a check can tell."""

    def __init__(self):
        self.sent = []

    def carry_out(self, work, task):
        """Carry out one task."""
        self.sent.append(task)
        return work(task)


def test_results_of_a_batch_on_workers_are_one_commit(site):
    """Each commit costs as much as its rows: on workers, tables share one, and their results come in their order."""
    site.bring(step_rows(10))
    site.bring(any_rows("runs", 2), "runs")
    crew = Others()
    report = run_checks(site.lake, workers=crew)
    # no statistics go along but those of keys
    sent = {name for task in crew.sent for name in task.part.files.schema.names} - set(FILE_SCHEMA.names)
    keys = {"run", "attempt", "rank", "step", "incarnation"}
    assert sent == {f"{side}.{name}" for name in keys for side in ("min", "max")}
    assert list(dict.fromkeys(one.table for one in report.results)) == ["runs", "steps"]
    history = delta_table(site.lake.store, "quality_results").history()
    assert sum(one["operation"] == "WRITE" for one in history) == 1


def test_scans_begin_before_all_tables_are_looked_at_and_none_stays_if_one_cannot_be(site):
    """To open a table's log takes as long as a small scan: workers need not wait for all of them."""

    class Scans:
        is_cancelled = False

        def cancel(self):
            self.is_cancelled = True

    class Eager(Others):
        def begin(self, work, tasks, urgency=0):
            del work, urgency
            self.sent += tasks
            return scans

    site.bring(step_rows(10))
    site.bring(any_rows("runs", 2), "runs")
    last = max((site.folder / "lake/tables/steps/_delta_log").glob("*.json"))
    last.write_text("{")
    crew, scans = Eager(), Scans()
    with pytest.raises(LakeError, match="steps cannot be opened"):
        run_checks(Lake.open(site.lake.uri), workers=crew)
    assert [task.contract.table for task in crew.sent] == ["runs"]
    assert scans.is_cancelled
