"""Rows that are old enough become interval aggregates: exact, once, and whatever kills whoever does it."""

import math
import os
import random
import signal
import subprocess
import sys
import time
from collections import defaultdict
from datetime import UTC, date, datetime, timedelta
from fractions import Fraction
from itertools import chain
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from governed import any_rows, die_before
from hypothesis import example, given, settings
from hypothesis import strategies as st
from retaining import CONTRACTS, TODAY, agree, carry_out, days_ago, plan, with_period

from ranklake.lake.ingest.replay.run import replay
from ranklake.lake.ingest.spool.spool import Spool
from ranklake.lake.plans.plan import RefusedPlanError, last_finished, read_plan
from ranklake.lake.plans.workers import InProcess
from ranklake.lake.query.roles import Role
from ranklake.lake.query.sql import query
from ranklake.lake.rollups.life.series import series
from ranklake.lake.tables.live_files import DamagedFileError
from ranklake.retention.holds.holds import set_hold
from ranklake.retention.plans.downsample import Fold, write_aggregates
from ranklake.retention.plans.histograms import MOST, SCALE, buckets, exact_sum_parts, round_sums
from ranklake.retention.plans.plan import due
from ranklake.retention.plans.removals import removal_faults
from ranklake.retention.policies.policies import lint_policies

SCALARS = "curves: {where: {table: scalars}, downsample: {after_days: 30, interval: 1m}, reason: curves stay}"
BEGIN = datetime(2026, 3, 1, tzinfo=UTC)
NUMBERS = st.one_of(
    st.floats(width=64), st.floats(-10, 10), st.sampled_from([0.0, -0.0, 1e308, -1e308, 5e-324, 1e16, 1.0, -1e16])
)


def bring_scalars(site, count, *, age=40, segment=0, metric="train/loss", every_s=1, rows_before=None, **columns):
    """Ingest rows of ``scalars``, one every so many seconds."""
    values = np.random.default_rng(segment).standard_normal(count)
    moments = [days_ago(age) + timedelta(seconds=n * every_s) for n in range(count)]
    facts = {
        "metric": [metric] * count,
        "ts": moments,
        "value": values,
        "step": np.arange(count),
        "kind": ["gauge"] * count,
    }
    rows = any_rows("scalars", count, segment=segment, **{**facts, **columns})
    site.bring(rows, "scalars", rows_before=count * segment if rows_before is None else rows_before)
    return moments, values


def downsample(site, found):
    """Plan, approve and apply what is due; return its items."""
    made = plan(site, TODAY, found)
    agree(site, made.name)
    carry_out(site, made.name, TODAY, found)
    return made.items


def told(site, column="value"):
    """Return the aggregates of a column by begin of interval, added up over plans as readers do."""
    found = defaultdict(list)
    for row in site.rows("downsampled"):
        if row["column"] == column:
            found[row["ts"]].append(row)
    return found


def test_a_series_goes_on_where_rows_were_downsampled(site, policies):
    """In the place of its rows come the means of intervals, from all plans together; a role is not shown them."""
    (moments, values), _ = bring_scalars(site, 180, age=40), bring_scalars(site, 60, age=10, segment=1, every_s=60)
    downsample(site, policies(SCALARS))
    bring_scalars(site, 60, age=40, segment=2, rows_before=240)
    downsample(site, policies(SCALARS))
    rows = series(site.lake, "train/loss").rows.to_pylist()
    assert len(rows) == 3 + 60
    late = np.random.default_rng(2).standard_normal(60)
    means = [np.mean([*values[:60], *late]), values[60:120].mean(), values[120:].mean()]
    assert [row["value"] for row in rows[:3]] == pytest.approx(means)
    assert [row["ts"] for row in rows[:3]] == [moments[at] for at in (0, 60, 120)]
    assert {(row["source"], row["step"]) for row in rows[:3]} == {("train/loss, means of 60 s", None)}
    reader = Role("reader", frozenset({"operational"}), frozenset({"scalars", "steps"}))
    assert series(site.lake, "train/loss", role=reader).rows.num_rows == 60


def test_aggregates_go_by_their_own_period_while_others_come(site, policies):
    """One plan takes old ones and brings new ones, and whoever finds it may carry it out."""
    bring_scalars(site, 60, age=50)
    downsample(site, policies(SCALARS))
    bring_scalars(site, 60, age=40, segment=1)
    found = with_period("derived", 45, policies(SCALARS))
    assert {item.table for item in downsample(site, found)} == {"scalars", "downsampled"}
    assert {row["date"] for row in site.rows("downsampled")} == {days_ago(40).date()}
    assert read_plan(site.lake.store, last_finished(site.lake.tables)).kind == "retention"
    assert removal_faults(site.lake) == []
    site.balances()


@pytest.mark.slow
def test_dates_side_by_side_become_what_they_become_alone(site, policies):
    """However many at a time: the same rows of the same dates; one that is damaged is told, and nothing goes."""
    for number in range(6):
        bring_scalars(site, 500, age=40 + number, segment=number, every_s=7)
    found = [one for one in due(site.lake, CONTRACTS, policies(SCALARS), TODAY) if one.aggregates is not None]
    assert len(found) == 6
    alone, beside = (write_aggregates(site.lake, found, 1, at_once=number) for number in (1, 4))
    for one, other in zip(alone, beside, strict=True):
        assert [file.partition for file in one] == [file.partition for file in other]
        paths = [[site.lake.path("tables/downsampled", file.path) for file in some] for some in (one, other)]
        assert [pq.read_table(path) for path in paths[0]] == [pq.read_table(path) for path in paths[1]]
    (row,) = found[3].files.to_pylist()
    place = Path(site.lake.path("tables/scalars", row["path"]))
    place.write_bytes(place.read_bytes()[:-20])
    with pytest.raises(DamagedFileError):
        write_aggregates(site.lake, found, 1)
    made = plan(site, TODAY, policies(SCALARS))
    agree(site, made.name)
    with pytest.raises(DamagedFileError):
        carry_out(site, made.name, TODAY, policies(SCALARS))
    assert len(site.rows("downsampled")) == 0


@given(st.lists(st.lists(NUMBERS.filter(math.isfinite), min_size=1, max_size=30), min_size=1, max_size=8), st.randoms())
@example([[1e308, 1e308, -1e308], [5e-324] * 3, [1.0, 1e16, -1e16]], None)
def test_sums_are_exact(groups, order):
    """Each sum is the exact one, rounded once, in whatever order values come and batches are cut."""
    expected = [_summed(values) for values in groups]
    some = []
    for cut in (0, 1):  # two batches, as files are read
        halves = [values[cut::2] for values in groups]
        if order is not None:
            for half in halves:
                order.shuffle(half)
        places = [place for place, half in enumerate(halves) if half]
        lengths = [len(half) for half in halves if half]
        if places:
            at, found = exact_sum_parts(np.array(list(chain(*halves))), np.append(0, np.cumsum(lengths))[:-1])
            some.append((np.array(places)[at], found))
    sums = round_sums(*(np.concatenate(one) for one in zip(*some, strict=True)), len(groups))
    for one, other in zip(sums.tolist(), expected, strict=True):
        assert one == other or (math.isnan(one) and math.isnan(other))


def _summed(values):
    """Return the exact sum, rounded once; NaN where no float can tell it. The way there may pass the limit."""
    try:
        return float(sum(map(Fraction, values)))
    except OverflowError:
        return math.nan


ROWS = st.lists(
    st.tuples(
        st.integers(0, 86_399),
        st.sampled_from(["a", "b"]),
        st.integers(0, 2),
        st.one_of(st.none(), NUMBERS),
        st.one_of(st.none(), st.integers(-(2**63), 2**63 - 1)),
    ),
    min_size=1,
    max_size=60,
)


@settings(max_examples=50)
@given(ROWS, st.sampled_from([1, 60, 3600, 86_400]), st.integers(1, 7))
def test_aggregates_are_exact(rows, interval_s, cut):
    """Counts, sums, extremes and histograms are those of the rows, however they are ordered and cut into batches."""
    fold = Fold(CONTRACTS["scalars"], date(2026, 3, 1), interval_s, 5)
    for at in range(0, len(rows), cut):
        some = rows[at : at + cut]
        columns = {
            "ts": [BEGIN + timedelta(seconds=row[0]) for row in some],
            "metric": [row[1] for row in some],
            "rank": [row[2] for row in some],
            "value": [row[3] for row in some],
            "interval_ns": [row[4] for row in some],
        }
        batch = any_rows("scalars", len(some), **columns).select(fold.columns)
        fold.add(batch)
    groups = defaultdict(list)
    for row in rows:
        groups[row[0] // interval_s, row[1], row[2]].append(row)
    found = fold.rows().to_pylist()
    assert {row["plan"] for row in found} == {5}
    by_column = defaultdict(dict)
    for row in found:
        key = (round((row["ts"] - BEGIN).total_seconds()) // interval_s, row["metric"], row["rank"])
        assert key not in by_column[row["column"]]
        by_column[row["column"]][key] = row
    assert {key: row["rows"] for key, row in by_column[None].items()} == {
        key: len(some) for key, some in groups.items()
    }
    for key, some in groups.items():
        _agrees(by_column["value"].get(key), [row[3] for row in some])
        _agrees(by_column["interval_ns"].get(key), [row[4] for row in some], whole=True)
    assert "step" not in by_column


def _agrees(row, values, *, whole=False):
    there = [one for one in values if one is not None]
    if not there:
        assert row is None
        return
    finite = [one for one in there if whole or math.isfinite(one)]
    counts = (
        len(finite),
        values.count(None),
        sum(map(_is_nan, there)),
        len(there) - len(finite) - sum(map(_is_nan, there)),
    )
    assert (row["count"], row["null_count"], row["nan_count"], row["infinite_count"]) == counts
    assert row["zero_count"] == finite.count(0)
    if not finite:
        assert (row["sum"], row["min"], row["max"]) == (None, None, None)
        return
    assert (row["min"], row["max"]) == (float(min(finite)), float(max(finite)))
    assert (math.nan if row["sum"] is None else row["sum"]) == pytest.approx(_summed(finite), rel=0, abs=0, nan_ok=True)
    if whole:
        assert (int(row["sum_whole"]), row["min_whole"], row["max_whole"]) == (sum(finite), min(finite), max(finite))
    for sign, name in ((1, "positive"), (-1, "negative")):
        magnitudes = [abs(float(one)) for one in finite if one * sign > 0]
        assert sum(row[f"{name}_counts"] or []) == len(magnitudes)
        assert len(row[f"{name}_counts"] or []) <= MOST
        for place, count in enumerate(row[f"{name}_counts"] or []):
            bucket = row[f"{name}_offset"] + place
            assert count == sum(int(one) >> (SCALE - row["scale"]) == bucket for one in buckets(np.array(magnitudes)))


def _is_nan(one):
    return isinstance(one, float) and math.isnan(one)


def test_a_bucket_holds_its_upper_bound():
    """Bucket i holds magnitudes above 2^(i/16) up to 2^((i+1)/16)."""
    assert buckets(np.array([1.0, np.nextafter(1.0, 2), 2.0, np.nextafter(2.0, 3), 0.5])).tolist() == [
        -1,
        0,
        15,
        16,
        -17,
    ]


def test_rows_become_aggregates(site, policies):
    """What is old becomes one row an interval and column; what is younger stays; the books add up."""
    found = policies(SCALARS)
    moments, values = bring_scalars(site, 150)
    bring_scalars(site, 20, age=10, segment=1, rows_before=150)
    (item,) = downsample(site, found)
    assert (item.table, item.rows, item.action, item.interval_s, item.rule) == (
        "scalars",
        150,
        "downsample",
        60,
        "curves",
    )
    assert len(site.rows("scalars")) == 20
    assert {begin: [row["sum"] for row in rows] for begin, rows in told(site).items()} == {
        moments[at]: [math.fsum(values[at : at + 60])] for at in (0, 60, 120)
    }
    (row,) = query(site.lake, "SELECT sum(rows) AS n, count(DISTINCT metric) AS m FROM downsampled").to_pylist()
    assert row == {"n": 150, "m": 1}
    assert site.balances()["scalars"].retired == 150
    assert removal_faults(site.lake) == []
    assert plan(site, TODAY, found) is None


def test_late_rows_are_merged_by_adding_up(site, policies):
    """Rows that come late to a downsampled date are downsampled, too, and add up with those of before."""
    found = policies(SCALARS)
    _, first = bring_scalars(site, 60)
    downsample(site, found)
    bring_scalars(site, 60)  # the same segment again
    assert site.rows("scalars") == []
    _, second = bring_scalars(site, 60, segment=1)
    (item,) = downsample(site, found)
    assert item.rows == 60
    ((begin, rows),) = told(site).items()
    assert begin == days_ago(40)
    assert sum(row["count"] for row in rows) == 120
    assert sorted(row["sum"] for row in rows) == sorted([math.fsum(first), math.fsum(second)])
    assert removal_faults(site.lake) == []
    day = days_ago(40).date()
    replay(site.lake, Spool(str(site.spool)), InProcess(), "scalars", (day, day))
    assert site.rows("scalars") == []


@pytest.mark.parametrize("table", ["downsampled", "retention_plans", "ingest_plans", "audit"])
def test_killed_on_the_way_it_converges(site, policies, monkeypatch, table):
    """Whatever dies before whichever commit, the next call ends with each row in one interval, once."""
    found = policies(SCALARS)
    moments, values = bring_scalars(site, 60)
    made = plan(site, TODAY, found)
    agree(site, made.name)
    with monkeypatch.context() as patch:
        die_before(patch, table)
        with pytest.raises(SystemExit):
            carry_out(site, made.name, TODAY, found)
    carry_out(site, made.name, TODAY, found)
    assert site.rows("scalars") == []
    assert {begin: [row["sum"] for row in rows] for begin, rows in told(site).items()} == {
        moments[0]: [math.fsum(values)]
    }
    assert removal_faults(site.lake) == []


CHILD = """
import sys
from datetime import date
from pathlib import Path
from ranklake.lake.store.lake import Lake
from ranklake.retention.plans.apply import apply
from ranklake.retention.policies.policies import load_policies

uri, place, name, today = sys.argv[1:]
lake = Lake.open(uri)
contracts = lake.contracts()
print("ready", flush=True)
apply(lake, name, "Otto Operator", contracts, load_policies(contracts, Path(place)), date.fromisoformat(today))
"""


@pytest.mark.slow
def test_killed_at_any_moment_it_converges(site, policies, tmp_path):
    """SIGKILL at random moments of the application: each row is counted in aggregates once, and gone."""
    chance = random.Random(7)
    found = policies(SCALARS)
    sums = {}
    for segment in range(8):
        moments, values = bring_scalars(site, 60, age=60 - segment, segment=segment)
        sums[moments[0]] = [math.fsum(values)]
    made = plan(site, TODAY, found)
    agree(site, made.name)
    arguments = [site.lake.uri, str(tmp_path / "policies"), made.name, TODAY.isoformat()]
    for _ in range(10):
        child = subprocess.Popen([sys.executable, "-c", CHILD, *arguments], stdout=subprocess.PIPE, text=True)
        assert child.stdout.readline() == "ready\n"
        time.sleep(chance.random() * 0.5)  # where it is then is what differs
        os.kill(child.pid, signal.SIGKILL)
        child.communicate()
    done, _ = carry_out(site, made.name, TODAY, found)
    assert done.state == "applied"
    assert site.rows("scalars") == []
    assert {begin: [row["sum"] for row in rows] for begin, rows in told(site).items()} == sums
    assert removal_faults(site.lake) == []
    site.balances()


def test_aggregates_that_count_other_rows_are_refused(site, policies, monkeypatch):
    """A plan that was found, and whose aggregates are of fewer rows than go, is not carried out."""
    found = policies(SCALARS)
    bring_scalars(site, 60)
    made = plan(site, TODAY, found)
    agree(site, made.name)
    genuine = Fold.rows
    monkeypatch.setattr(Fold, "rows", lambda self: _fewer(genuine(self)))
    with monkeypatch.context() as patch:
        die_before(patch, "downsampled")
        with pytest.raises(SystemExit):
            carry_out(site, made.name, TODAY, found)
    with pytest.raises(RefusedPlanError, match="other aggregates than were approved"):
        carry_out(site, made.name, TODAY, found)
    assert len(site.rows("scalars")) == 60


def _fewer(rows):
    counts = [one and one - 1 for one in rows["rows"].to_pylist()]
    return rows.set_column(rows.schema.get_field_index("rows"), rows.schema.field("rows"), pa.array(counts, pa.int64()))


def test_a_hold_and_a_minimum_go_before(site, policies):
    """A date that a legal hold may be about stays as it is, and none is downsampled before a legal minimum."""
    bring_scalars(site, 60)
    least = "least: {where: {team: x}, minimum_days: 41, reason: law}"
    assert plan(site, TODAY, policies(SCALARS, least)) is None
    found = policies(SCALARS)
    made = plan(site, TODAY, found)
    agree(site, made.name)
    set_hold(site.lake, ["run=r1"], "court", TODAY + timedelta(days=9), "Lena Legal")
    assert plan(site, TODAY, found) is None


def test_a_device_is_a_series(site, policies):
    """What tells devices apart stands in the series, and hosts, which may tell of people, nowhere."""
    found = policies("gpus: {where: {table: gpu_samples}, downsample: {after_days: 30, interval: 1d}, reason: why}")
    moments = [days_ago(40) + timedelta(seconds=n) for n in range(4)]
    columns = {"device_uuid": ["a", "b", "a", "b"], "power_watts": [1, 2, 4, 8], "host": ["node-of-ada"] * 4}
    site.bring(any_rows("gpu_samples", 4, **columns, ts=moments, memory_used_bytes=[2**60 + 1] * 4), "gpu_samples")
    downsample(site, found)
    assert {row["series"]: row["sum"] for row in site.rows("downsampled") if row["column"] == "power_watts"} == {
        '{"device_uuid": "a"}': 5.0,
        '{"device_uuid": "b"}': 10.0,
    }
    assert {int(row["sum_whole"]) for row in site.rows("downsampled") if row["column"] == "memory_used_bytes"} == {
        2**61 + 2
    }
    assert site.places_of("node-of-ada") == []


@pytest.mark.parametrize(
    ("rule", "what"),
    [
        ("a: {where: {table: scalars}, downsample: {after_days: 3, interval: 7s}, reason: why}", "do not divide a day"),
        ("a: {where: {team: x}, downsample: {after_days: 3, interval: 1m}, reason: why}", "whole tables"),
        ("a: {where: {table: logs}, downsample: {after_days: 3, interval: 1m}, reason: why}", "can be downsampled"),
    ],
)
def test_lint_finds_what_cannot_be_downsampled(policies, rule, what):
    """Intervals that do not divide a day, rows of some runs, tables without series are mistakes."""
    (finding,) = (one for one in lint_policies(CONTRACTS, policies(rule, check=False)) if one.code == "RP025")
    assert what in finding.message
    assert finding.error


def test_the_plan_names_what_it_did(site, policies):
    """The numbered plan says which dates were downsampled."""
    found = policies(SCALARS)
    bring_scalars(site, 3)
    downsample(site, found)
    number = max(row["plan"] for row in site.rows("ingest_plans"))
    assert read_plan(site.lake.store, number).body["facts"]["downsampled"] == {"scalars": [str(days_ago(40).date())]}
