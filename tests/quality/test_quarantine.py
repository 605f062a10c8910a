"""Rows that fail: taken out once, by one plan, whatever dies on the way."""

import json
from datetime import timedelta
from functools import partial

import pytest
from governed import Site, any_rows, die_before, under
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from segments import DAY, step_rows

from ranklake.lake.contracts.load import contract
from ranklake.lake.ingest.maintenance.compaction import merge_small
from ranklake.lake.plans import action_plan, plan
from ranklake.lake.plans.plan import last_finished, read_plan
from ranklake.lake.plans.workers import InProcess
from ranklake.lake.tables.live_files import files
from ranklake.lake.tables.tables import delta_table
from ranklake.quality import check, scan
from ranklake.quality.check import run_checks
from ranklake.quality.suite import as_stored
from ranklake.quality.tally import Partition

STRICT = """
extends: steps
checks:
  - {id: loss_small, kind: between, columns: [loss], max: 3.0, on_fail: quarantine}
  - {id: early, kind: between, columns: [step], max: 1000019, on_fail: quarantine}
"""


def strict(site):
    return partial(run_checks, under(site.lake, site.overlay(steps=STRICT)))


def moved(report):
    return {result.check_id: result.quarantined_rows for result in report.results if result.quarantined_rows}


@pytest.mark.slow
def test_failing_rows_move_to_rejects(site):
    """They leave the table, arrive whole with their reason, and the books still add up."""
    site.bring(step_rows(40))
    report = strict(site)()
    (failed,) = [result for result in report.results if result.check_id == "loss_small"]
    assert not report.passed
    assert failed.quarantined_rows == failed.rows_failed > 0
    rejects = site.rows("rejects")
    assert len(rejects) == failed.rows_failed
    for row in rejects:
        assert (row["source"], row["table"], row["sha256"]) == ("check", "steps", None)
        assert row["reason"] == "loss_small: loss outside … to 3.0"
        assert json.loads(row["row"])["loss"] > 3
        assert json.loads(row["row"])["slot"] == row["slot"]
    assert all(row["loss"] <= 3 for row in site.rows("steps"))
    balance = site.balances()["steps"]
    assert (balance.stored, balance.quarantined) == (40 - len(rejects), len(rejects))
    ledger = {row["plan"]: row for row in site.rows("ingest_plans")}[2]
    assert (ledger["kind"], ledger["rows_stored"], ledger["rows_rejected"]) == (
        "quarantine",
        -len(rejects),
        len(rejects),
    )


@pytest.mark.slow
def test_again_finds_nothing_to_do(site):
    """The results speak for the partition as it was left, so the next check runs nothing and passes."""
    site.bring(step_rows(40))
    strict(site)()
    again = strict(site)()
    assert (again.partitions, again.unchanged, again.passed, again.standing) == (0, 1, True, ())
    assert last_finished(site.lake.tables) == 2


@pytest.mark.slow
def test_a_row_that_breaks_two_checks_is_counted_once(site):
    """It is taken out for the first; both results say that it failed."""
    site.bring(step_rows(40, segment=1))
    report = strict(site)()
    by_id = {result.check_id: result for result in report.results}
    assert by_id["early"].rows_failed == 20
    assert sum(moved(report).values()) == len(site.rows("rejects"))
    assert sum(moved(report).values()) < by_id["early"].rows_failed + by_id["loss_small"].rows_failed


def test_a_partition_may_lose_all_its_rows(site):
    """A partition without a sound row goes, and is no partition any more."""
    site.bring(step_rows(5, segment=2))
    report = strict(site)()
    assert sum(moved(report).values()) == 5
    assert site.rows("steps") == []
    assert strict(site)().unchanged == 0
    assert site.balances()["steps"].quarantined == 5


def test_rows_sent_again_stay_out(site):
    """A row in quarantine that is sent again under another digest counts as seen before, and does not come back."""
    site.bring(step_rows(5, segment=2))
    strict(site)()
    done = site.bring(step_rows(6, segment=2))
    assert (done.rows_stored, done.rows_duplicate) == (1, 5)


@pytest.mark.slow
@settings(max_examples=6, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    parts=st.lists(st.tuples(st.integers(1, 30), st.integers(0, 1), st.booleans()), min_size=1, max_size=3),
    bound=st.floats(2.7, 3.3),
)
def test_rows_in_table_and_rejects_are_constant(tmp_path_factory, parts, bound):
    """Whatever arrives when, over however many checks: each row is in the table or in rejects, once, by its merit."""
    site = Site(tmp_path_factory.mktemp("constant"))
    overlay = site.overlay(steps=STRICT.replace("3.0", repr(bound)).replace("1000019", "99000000"))
    total = 0
    for segment, (count, day, check_now) in enumerate(parts):
        site.bring(step_rows(count, segment=segment, start=DAY + timedelta(days=day)), rows_before=total)
        total += count
        if check_now:
            run_checks(under(site.lake, overlay))
    run_checks(under(site.lake, overlay))
    kept, refused = site.rows("steps"), site.rows("rejects")
    assert len(kept) + len(refused) == total
    assert len({(row["segment"], row["slot"]) for row in [*kept, *refused]}) == total
    assert all(row["loss"] <= bound for row in kept)
    assert all(json.loads(row["row"])["loss"] > bound for row in refused)
    assert site.balances()["steps"].quarantined == len(refused)


@pytest.mark.slow
@pytest.mark.parametrize("dies_before", ["quality_results", "rejects", "steps", "ingest_plans"])
def test_death_before_any_commit_converges(site, monkeypatch, dies_before):
    """A check that dies before any of its commits leaves a plan that the next check finishes, results and all."""
    site.bring(step_rows(40))
    other = Site(site.folder / "undisturbed")
    other.bring(step_rows(40))
    expected = strict(other)()
    die_before(monkeypatch, dies_before)
    with pytest.raises(SystemExit):
        strict(site)()
    monkeypatch.undo()
    assert last_finished(site.lake.tables) == 1
    report = strict(site)()
    assert report.partitions == 0, "the plan carried the results"
    assert last_finished(site.lake.tables) == 2
    assert sorted(site.keys()) == sorted(other.keys())
    assert len(site.rows("rejects")) == sum(moved(expected).values())
    results = {row["check_id"]: (row["status"], row["quarantined_rows"]) for row in site.rows("quality_results")}
    assert results == {one.check_id: (one.status, one.quarantined_rows) for one in expected.results}
    assert len(site.rows("quality_results")) == len(results)
    site.balances()


def test_death_before_the_plan_is_written_converges(site, monkeypatch):
    """Files written for a plan that never came to be are named by no commit; the next check begins anew."""
    site.bring(step_rows(40))

    def die(*args, **kwargs):
        raise SystemExit

    monkeypatch.setattr(action_plan, "compose", die)
    with pytest.raises(SystemExit):
        strict(site)()
    monkeypatch.undo()
    assert site.rows("rejects") == []
    report = strict(site)()
    assert len(site.rows("rejects")) == sum(moved(report).values()) > 0
    site.balances()


def test_an_unfinished_plan_of_another_kind_is_left_alone(site, monkeypatch):
    """A check with nothing to move does not do the work of an ingest that may be under way."""
    site.bring(step_rows(10))
    die_before(monkeypatch, "steps")
    with pytest.raises(SystemExit):
        site.bring(step_rows(10, segment=1), rows_before=10)
    monkeypatch.undo()
    run_checks(site.lake)
    assert last_finished(site.lake.tables) == 1
    assert read_plan(site.lake.store, 2).kind == "ingest"


def test_what_came_after_the_scan_is_left_for_the_next_check(site):
    """Rows of files that were not scanned stay, so that results and what was taken out speak of the same rows."""
    site.bring(step_rows(5, segment=2))
    handle = delta_table(site.lake.store, "steps")
    part = Partition(DAY.date(), handle.version(), files(handle))
    site.bring(step_rows(7, segment=3), rows_before=5)
    target = as_stored(site.lake.tables, under(site.lake, site.overlay(steps=STRICT)).contract("steps"))
    seen = {}

    def report(taken):
        seen.update(taken)
        return []

    plan.write_and_carry_out(
        site.lake,
        lambda number: None if seen else check.compose_quarantine(site.lake, number, target, [part], report),
        lambda found: action_plan.execute(site.lake, found),
        lambda _: None,
    )
    assert {row["segment"] for row in site.rows("rejects")} == {2}
    assert len(site.rows("steps")) == 7
    assert sum(seen[DAY.date()].reasons.values()) == 5


@pytest.mark.slow
def test_what_was_merged_after_the_scan_is_taken_out_all_the_same(site, monkeypatch):
    """Files that are merged between scan and plan hold the same rows: the check's word is true of them."""
    for segment in range(3):
        site.bring(step_rows(20, segment=segment), rows_before=20 * segment)
    genuine = scan.scan

    def overtaken(*args, **more):
        monkeypatch.setattr(scan, "scan", genuine)
        found = genuine(*args, **more)
        assert merge_small(site.lake, InProcess(), thorough=True).files_before >= 3
        return found

    monkeypatch.setattr(scan, "scan", overtaken)
    report = strict(site)()
    assert len(site.rows("rejects")) == sum(moved(report).values()) > 0
    site.balances()
    assert strict(site)().partitions == 0
    assert not any(row["loss"] > 3 for row in site.rows("steps"))


def test_another_check_was_faster(site, monkeypatch):
    """Of two checks that find the same rows one moves them, and the other moves nothing."""
    site.bring(step_rows(40))
    genuine = scan.scan

    def overtaken(*args, **more):
        monkeypatch.setattr(scan, "scan", genuine)
        found = genuine(*args, **more)
        strict(site)()
        return found

    monkeypatch.setattr(scan, "scan", overtaken)
    report = strict(site)()
    assert moved(report) == {}
    assert len({(row["segment"], row["slot"]) for row in site.rows("rejects")}) == len(site.rows("rejects"))
    site.balances()
    assert strict(site)().partitions == 0, "the faster one began later, and its word stands"


PLANTED = "Wilhelmina.Planted@example.org"
SECRETIVE = """
extends: runs
packaged_columns:
  - {name: command_line, checks: [{id: short_command, kind: length, max: 8, on_fail: quarantine}]}
  - {name: user, checks: [{id: user_form, kind: matches, pattern: "[a-z]+"}]}
checks:
  - {id: nonsense, kind: at_most, columns: [command_line, pid]}
  - {id: one_user_one_pid, kind: unique, columns: [user]}
"""


def test_a_personal_value_stays_in_the_data(site, capfd, caplog):
    """A value of a personal column that fails checks, and crashes one, is in no result, log, message or statistic."""
    rows = any_rows("runs", 4, user=[PLANTED, "anna", PLANTED, "bo"], command_line=[PLANTED, "a", PLANTED, None])
    site.bring(rows.set_column(rows.schema.get_field_index("pid"), "pid", rows["slot"]), "runs")
    report = run_checks(under(site.lake, site.overlay(runs=SECRETIVE)))
    status = {result.check_id: result for result in report.results}
    assert (status["short_command"].status, status["short_command"].quarantined_rows) == ("failed", 2)
    assert (status["user_form"].status, status["user_form"].rows_failed) == ("failed", 2)
    assert status["nonsense"].status == "errored"
    assert (status["one_user_one_pid"].status, status["one_user_one_pid"].rows_failed) == ("failed", 1)
    assert contract("rejects").column("row").class_ == "personal"
    assert [json.loads(row["row"])["user"] for row in site.rows("rejects")] == [PLANTED, PLANTED]
    places = {path.relative_to(site.folder / "lake").parts[:2] for path in site.places_of(PLANTED)}
    assert places <= {("tables", "rejects"), ("tables", "runs")}
    assert all(path.suffix == ".parquet" for path in site.places_of(PLANTED))
    assert PLANTED not in json.dumps(report.summary())
    assert PLANTED not in str(site.rows("quality_results"))
    assert PLANTED not in "".join(capfd.readouterr()) + caplog.text
