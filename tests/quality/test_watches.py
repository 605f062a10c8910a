"""Watches that look beyond their partition: at earlier dates, other tables and the Delta log."""

from datetime import UTC, date, datetime, timedelta
from itertools import pairwise

import pyarrow as pa
import pytest
from governed import any_rows
from hypothesis import given
from hypothesis import strategies as st
from segments import step_rows

from ranklake.lake.contracts.checks.kind import WatchContext
from ranklake.lake.contracts.checks.registry import KINDS
from ranklake.lake.contracts.checks.series import Batch
from ranklake.lake.contracts.load import contract
from ranklake.lake.contracts.model import Check
from ranklake.quality import check as checking
from ranklake.quality.check import run_checks
from ranklake.quality.watching import _classified_statistics

DAY = date(2026, 3, 2)
NOON = int(datetime(2026, 3, 2, 12, tzinfo=UTC).timestamp() * 1e6)
LATER = NOON + 7 * 86_400_000_000
VOLUME, SHIFT = Check("v", "volume"), Check("s", "shift", columns=("value",))
FRESH = Check("f", "fresh", columns=("ts",), values=("host_samples",), max=1800)
PROTECTED = Check("p", "protected")


def judged(check, about, rows=None):
    """Judge some rows in two batches."""
    watch = KINDS[check.kind].watch
    batches = [] if rows is None else [Batch(rows.slice(0, 40)), Batch(rows.slice(40))]
    return watch.evaluate(check, [watch.summarize(check, one) for one in batches], about)


def before(figures, every=1):
    """Return figures by date, the last of them so many days before the day."""
    return {DAY - timedelta(every * (len(figures) - at)): one for at, one in enumerate(figures)}


@pytest.mark.parametrize(("rows", "failed"), [(1000, 0), (1400, 0), (1600, 1600), (400, 400), (0, 1)])
def test_volume_is_compared_with_earlier_dates(rows, failed):
    """Half as many rows again pass, and neither more nor fewer than half do."""
    usual = before([990, 1000, 1010, 1000, 990, 1010, 1000])
    found = judged(VOLUME, WatchContext(DAY, LATER, rows=rows, volumes=usual))
    assert (found.failed, found.unknown) == (failed, "")
    assert "by 7 dates before" in found.expected


def test_volume_knows_weekdays_and_what_it_does_not_know():
    """Four such weekdays are compared with alone; of fewer dates, or a date that goes on, nothing is said."""
    volumes = before([1000] * 30) | before([100] * 4, every=7)
    mondays = judged(VOLUME, WatchContext(DAY, LATER, rows=100, volumes=volumes))
    assert (mondays.failed, "by 4 such weekdays" in mondays.expected) == (0, True)
    assert judged(VOLUME, WatchContext(DAY, LATER, rows=1000, volumes=volumes)).failed == 1000
    assert judged(VOLUME, WatchContext(DAY, LATER, rows=9, volumes=before([1000] * 6))).unknown
    assert judged(VOLUME, WatchContext(DAY, NOON, rows=9, volumes=before([1000] * 7))).unknown


def test_shift_is_compared_with_medians_of_earlier_dates():
    """A median beyond half of the usual one away fails; it is kept for later dates, also where nothing is known."""
    earlier = before([{"median": value} for value in (9.9, 10.0, 10.1, 10.0, 9.9, 10.1, 10.0)])
    for value, failed in ((10.0, 0), (14.0, 0), (16.0, 100), (4.0, 100)):
        rows = pa.table({"value": pa.array([value] * 100)})
        found = judged(SHIFT, WatchContext(DAY, LATER, earlier=earlier), rows)
        assert (found.checked, found.failed, found.measured) == (100, failed, {"median": value, "values": 100.0})
        first = judged(SHIFT, WatchContext(DAY, LATER), rows)
        assert (first.failed, first.measured["median"], bool(first.unknown)) == (0, value, True)


@pytest.mark.parametrize(("behind_s", "failed"), [(0, 0), (1800, 0), (1801, 60), (None, None)])
def test_samplers_of_a_run_that_goes_on_are_fresh(behind_s, failed):
    """The run whose host samples end too long before its steps is told, and no other; without samples nothing is."""
    run = ["slow"] * 60 + ["other"] * 60
    rows = pa.table({"run": run, "ts": pa.array([NOON + at for at in range(120)], pa.timestamp("us", "UTC"))})
    ends = {("host_samples", "other"): NOON} | (
        {} if behind_s is None else {("host_samples", "slow"): NOON + 59 - behind_s * 1_000_000}
    )
    found = judged(FRESH, WatchContext(DAY, LATER, newest_ts=lambda: ends), rows)
    assert (found.checked, found.failed) == ((60, 0) if failed is None else (120, failed))
    assert ("run slow" in found.observed) == bool(failed)
    assert judged(FRESH, WatchContext(DAY, LATER), rows).unknown


def test_statistics_of_classified_columns_are_found():
    """A classified column with an extreme in the log is told by its name; others, and empty extremes, are not."""
    logs = contract("logs")
    secret = next(one.name for one in logs.columns if one.class_ != "operational")
    public = next(one.name for one in logs.columns if one.class_ == "operational")
    live = pa.table({"path": ["a", "b"], f"min.{public}": ["a", None], f"max.{secret}": pa.nulls(2, pa.string())})
    assert _classified_statistics(logs, live) == ()
    held = live.append_column(f"min.{secret}", pa.array([None, "a"]))
    assert _classified_statistics(logs, held) == (secret,)
    found = judged(PROTECTED, WatchContext(DAY, LATER, rows=7, classified_statistics=(secret,)))
    assert (found.checked, found.failed, found.observed) == (7, 7, secret)
    assert judged(PROTECTED, WatchContext(DAY, LATER, rows=7)).failed == 0


STUCK = Check("k", "stuck", columns=("value",), by=("rank",), min=5)


@given(st.lists(st.sampled_from([1.0, 1.0, 2.0, None]), min_size=1, max_size=40), st.sets(st.integers(1, 39)))
def test_a_sensor_that_stands_still_is_found_however_its_rows_are_cut_into_files(values, cuts):
    """Parts of a series, in any order, come to what the whole series comes to."""
    watch = KINDS["stuck"].watch
    own = [1.0 + at % 7 for at in range(len(values))]
    rows = pa.table({
        "rank": [0] * len(values) + [1] * len(own) + [2] * len(own),
        "ts": pa.array([NOON + at for at in range(len(values))] * 3, pa.timestamp("us", "UTC")),
        "value": pa.array([*values, *own, *own], pa.float64()),
    })  # fmt: skip
    ends = [0, *sorted(cut for cut in cuts if cut < len(values)), len(values)]
    times = rows["ts"].cast(pa.int64()).to_numpy() - NOON
    files = [rows.filter(pa.array((times >= begin) & (times < end))) for begin, end in pairwise(ends)]
    whole, cut = (
        watch.evaluate(STUCK, [watch.summarize(STUCK, Batch(some)) for some in parts], WatchContext(DAY, LATER))
        for parts in ([rows], files[::-1])
    )
    assert (whole.checked, whole.failed) == (cut.checked, cut.failed)


SIGNALS = Check(
    "g", "signals", columns=("stage",), by=("run", "attempt"), pattern="prod", values=("spans", "steps.loss")
)


@pytest.mark.parametrize(
    ("spans", "loss", "failed"),
    [({"r1", "r2"}, {"r1", "r2"}, 0), ({"r1"}, {"r1", "r2"}, 40), ({"r2"}, set(), 80), (set(), set(), 80)],
)
def test_runs_of_a_stage_record_what_they_must(spans, loss, failed):
    """Each run of the stage that lacks a signal is told, with what it lacks; runs of other stages are not judged."""
    stages = ["prod"] * 40 + ["PROD"] * 40 + ["dev"] * 20 + [None] * 20
    names = ["r1"] * 40 + ["r2"] * 40 + ["r3"] * 20 + ["r4"] * 20
    facts = {
        "run": names,
        "stage": stages,
        "attempt": [0] * 120,
        "ts": pa.array([NOON] * 120, pa.timestamp("us", "UTC")),
    }
    having = {"spans": frozenset(spans), "steps.loss": frozenset(loss)}
    found = judged(SIGNALS, WatchContext(DAY, LATER, runs_with_signal=having.__getitem__), pa.table(facts))
    assert (found.checked, found.failed, found.recheck) == (80, failed, False)
    assert ("run r2, attempt 0 lacks spans" in found.observed) is (failed >= 40 and "r2" not in spans)
    assert not {"r3", "r4"} & set(found.observed.replace(",", " ").split())
    young = judged(SIGNALS, WatchContext(DAY, NOON + 60_000_000, runs_with_signal=having.__getitem__), pa.table(facts))
    assert (young.checked, young.recheck, bool(young.unknown)) == (0, True, True)


def test_agents_owe_no_signals_and_one_rank_none_of_several():
    """A node's agent has no steps to record; rows of ``ranks`` are of runs with several ranks alone."""
    facts = {
        "run": ["ranklake-agent-n1-20260301T120000"],
        "stage": ["prod"],
        "attempt": [0],
        "ts": pa.array([NOON], pa.timestamp("us", "UTC")),
    }
    found = judged(SIGNALS, WatchContext(DAY, LATER, runs_with_signal=lambda _: frozenset()), pa.table(facts))
    assert (found.failed, bool(found.unknown)) == (0, True)
    (check,) = (one for one in contract("runs").checks if one.id == "production_signals")
    assert "ranks" not in check.values


def test_a_run_that_was_too_young_is_judged_by_the_next_check(site, monkeypatch):
    """A production run of some minutes ago is due again though nothing changes, until it is judged; then no more."""
    begin = datetime.now(UTC) - timedelta(minutes=5)
    rows = any_rows("runs", 1, start=begin, job=["gpt"], world_size=[1], deployment_environment=["Production"])
    site.bring(rows, "runs")
    site.bring(step_rows(10, start=begin))

    def told(report):
        return [one for one in report.results if one.check_id == "production_signals"]

    (young,) = told(run_checks(site.lake))
    assert (young.status, young.severity) == ("skipped", "warning")
    assert "judged again at the next check" in young.message
    (again,) = told(run_checks(site.lake))
    assert again.status == "skipped"
    monkeypatch.setattr(checking, "datetime", LaterClock)
    (old,) = told(run_checks(site.lake))
    assert (old.status, old.rows_failed) == ("failed", 1)
    assert "spans" in old.observed
    assert "steps.loss" not in old.observed
    assert run_checks(site.lake).results == ()
    assert told(run_checks(site.lake, again=True))


class LaterClock(datetime):
    """A clock that is two hours ahead."""

    @classmethod
    def now(cls, tz=None):
        """Return the time in two hours."""
        return datetime.now(tz) + timedelta(hours=2)
