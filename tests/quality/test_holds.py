"""Write, audit, publish: what a check holds back stays out of rollups until it is mended, or somebody releases it."""

from datetime import date, timedelta
from functools import partial

import pyarrow as pa
import pytest
from governed import under
from segments import DAY, phase_rows, step_rows

from ranklake.lake.ingest.maintenance.compaction import merge_small
from ranklake.lake.plans.workers import InProcess
from ranklake.lake.rollups.runner import run_rollups
from ranklake.quality.check import run_checks
from ranklake.quality.release import NothingToReleaseError, apply, approve, plan_release
from ranklake.quality.trust import inputs_of
from ranklake.retention.proposals.proposals import NotApprovedError, SameOperatorError, VoidProposalError
from ranklake.retention.proposals.releases import holds

pytestmark = pytest.mark.slow

HOLDING = """
extends: steps
checks:
  - {id: loss_small, kind: between, columns: [loss], max: 3.0, severity: critical, on_fail: hold}
"""
SHORT = """
extends: spans
checks:
  - {id: short, kind: between, columns: [duration_ns], max: 151000000, on_fail: hold}
"""
MENDED = HOLDING.replace("3.0", "30.0")
ROLLUPS = ("step_rollup", "rank_health", "mfu", "goodput", "run_summary")
NEXT = DAY + timedelta(days=2)  # its inputs reach a day back and forth


def sound(count, **facts):
    """Return rows whose loss is small."""
    rows = step_rows(count, **facts)
    place = rows.schema.get_field_index("loss")
    return rows.set_column(place, rows.schema.field(place), pa.array([2.5] * count, pa.float32()))


def audited(site, contract=HOLDING):
    """Check facts, then roll up, as the pipeline does; return what rollups were kept back."""
    lake = under(site.lake, site.overlay(steps=contract))
    run_checks(lake, kinds=("fact",))
    return run_rollups(lake, ROLLUPS)


def kept_back(results):
    return {one.name: {(table, str(day)) for table, day in one.kept_back} for one in results if one.kept_back}


def rolled(site):
    """Return rows by rollup, whatever their order."""
    return {name: sorted(map(str, site.rows(name))) for name in ROLLUPS}


@pytest.fixture
def held(site):
    """Give a lake with a sound date that is rolled up, and another that is held back; and what rolling up told."""
    site.bring(sound(60))
    site.bring(step_rows(60, run="r2", incarnation=8, start=NEXT))
    return site, audited(site)


def test_a_held_partition_reaches_no_rollup(held):
    """Its date and its run are missing from all rollups, others are there, and each says what it lacks."""
    site, results = held
    assert [(one.table, one.partition_date, one.checks, one.severity) for one in holds(site.lake.tables)] == [
        ("steps", NEXT.date(), ("loss_small",), "critical")
    ]
    assert {row["run"] for name in ROLLUPS for row in site.rows(name)} == {"r1"}
    assert kept_back(results)["step_rollup"] == {("steps", str(NEXT.date()))}
    assert kept_back(audited(site)) == kept_back(results)
    told = [row for row in site.rows("quality_results") if row["check_id"] == "loss_small"]
    assert {(row["partition_date"], row["status"], row["on_fail"]) for row in told} == {
        (DAY.date(), "passed", "hold"),
        (NEXT.date(), "failed", "hold"),
    }


def test_what_was_published_stays_as_it_was(site):
    """Rows that come to a date and hold it back leave what was rolled up of it before, row for row."""
    site.bring(sound(60))
    audited(site)
    before = rolled(site)
    site.bring(step_rows(60, rank=1, incarnation=8))
    audited(site)
    assert rolled(site) == before
    lake = under(site.lake, site.overlay(steps=HOLDING))
    run_rollups(lake, ROLLUPS, full=True)
    assert rolled(site) == before


def test_a_run_is_kept_back_as_a_whole(site):
    """Spans that are held on one date keep the run from what is computed of whole runs, though other dates changed."""
    site.bring(sound(60))
    site.bring(phase_rows(60, rank=0, incarnation=8), "spans")
    lake = under(site.lake, site.overlay(spans=SHORT))
    run_checks(lake)
    run_rollups(lake, ROLLUPS)
    before = rolled(site)
    assert before["goodput"]
    site.bring(phase_rows(60, rank=5, incarnation=9), "spans")  # longer on later ranks
    site.bring(sound(60, segment=1, start=DAY + timedelta(days=1)))
    run_checks(lake, kinds=("fact",))
    told = kept_back(run_rollups(lake, ROLLUPS))
    assert told["goodput"] == {("spans", str(DAY.date()))}
    after = rolled(site)
    assert (after["goodput"], after["step_rollup"] == before["step_rollup"]) == (before["goodput"], False)
    mended = under(site.lake, site.overlay(spans=SHORT.replace("151", "999")))
    run_checks(mended, kinds=("fact",))
    assert kept_back(run_rollups(mended, ROLLUPS)) == {}
    now = rolled(site)
    assert now["goodput"] != before["goodput"]
    run_rollups(mended, ROLLUPS, full=True)
    assert rolled(site) == now


def test_a_mended_check_publishes(held):
    """Checked anew and passed, it is not held any more, and rollups are those of a lake that never held it."""
    site, _ = held
    assert kept_back(audited(site, MENDED)) == {}
    assert {row["run"] for row in site.rows("run_summary")} == {"r1", "r2"}
    now = rolled(site)
    run_rollups(site.lake, ROLLUPS, full=True)
    assert rolled(site) == now


def test_a_release_publishes(held):
    """Proposed, approved and applied by three people; it is rolled up, and rows know what they rest on."""
    site, _ = held
    lake = under(site.lake, site.overlay(steps=HOLDING))
    name = plan_release(lake, "Pia", "the loss is right: another tokenizer").name
    with pytest.raises(NotApprovedError):
        apply(lake, name, "Otto")
    with pytest.raises(SameOperatorError):
        approve(lake, name, "Pia")
    approve(lake, name, "Ada")
    with pytest.raises(SameOperatorError):
        apply(lake, name, "Ada")
    assert kept_back(audited(site)) != {}
    done, fresh = apply(lake, name, "Otto")
    assert (done.state, fresh, apply(lake, name, "Otto")[1]) == ("applied", True, False)
    assert holds(lake.tables) == []
    assert kept_back(audited(site)) == {}
    assert {row["run"] for row in site.rows("run_summary")} == {"r1", "r2"}
    site.balances()
    with pytest.raises(NothingToReleaseError):
        plan_release(lake, "Pia", "again")
    states = {(one.table, one.partition): (one.state, one.is_released) for one in inputs_of(lake, "mfu")}
    assert states["steps", f"date={NEXT.date()}"] == ("critical", True)
    assert states["steps", f"date={DAY.date()}"] == ("passed", False)


def test_a_release_is_of_these_files_alone(held):
    """Rows that come later, and fail again, hold the date back anew; merged files are the same rows, and do not."""
    site, _ = held
    lake = under(site.lake, site.overlay(steps=HOLDING))
    name = plan_release(lake, "Pia", "fine").name
    approve(lake, name, "Ada")
    apply(lake, name, "Otto")
    audited(site)
    site.bring(step_rows(9, rank=1, run="r2", incarnation=9, start=NEXT))
    assert kept_back(audited(site))["step_rollup"] == {("steps", str(NEXT.date()))}
    later = plan_release(lake, "Pia", "fine, too").name
    assert later != name
    approve(lake, later, "Ada")
    merge_small(site.lake, InProcess())
    apply(lake, later, "Otto")
    assert kept_back(audited(site)) == {}


def test_a_release_of_what_moved_on_is_void(held):
    """A partition that was checked anew with other files is not the one that was approved."""
    site, _ = held
    lake = under(site.lake, site.overlay(steps=HOLDING))
    name = plan_release(lake, "Pia", "fine").name
    approve(lake, name, "Ada")
    site.bring(step_rows(9, rank=1, run="r2", incarnation=9, start=NEXT))
    run_checks(lake)
    with pytest.raises(VoidProposalError, match="was checked anew"):
        apply(lake, name, "Otto")
    assert len(holds(lake.tables)) == 1


def test_an_error_holds_nothing(site, monkeypatch):
    """A check that cannot be computed says nothing of the data: it fails the command, and rollups go on."""
    site.bring(sound(30))
    monkeypatch.setattr("ranklake.quality.scan.read_batches", partial(_refuse))
    assert kept_back(audited(site)) == {}
    assert {row["status"] for row in site.rows("quality_results") if row["check_id"] == "loss_small"} == {"errored"}
    assert holds(site.lake.tables) == []


def _refuse(*_, **__):
    raise OSError("no")


def test_rows_know_the_state_of_their_inputs(held):
    """Inputs are told as they were read: files that came since change nothing until they are rolled up."""
    site, _ = held
    run = inputs_of(site.lake, "run_summary", run="r1")
    steps = {(one.partition, one.state) for one in run if one.table == "steps"}
    assert steps == {(f"date={DAY.date()}", "passed")}
    assert {one.state for one in run if one.table == "step_rollup"} == {"unchecked"}
    run_checks(site.lake)
    checked = inputs_of(site.lake, "run_summary", run="r1")
    assert {one.state for one in checked if one.table == "step_rollup"} <= {"passed", "info", "warning"}
    site.bring(sound(9, rank=1, incarnation=9))
    run_rollups(site.lake, ["step_rollup"])
    (fresh,) = {one.state for one in inputs_of(site.lake, "step_rollup", date(2026, 3, 1)) if one.table == "steps"}
    assert fresh == "unchecked"
