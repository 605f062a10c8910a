"""Edge policies: what becomes of metrics that are not what the registry says, and of values out of range."""

import math
import signal
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from recorded import check_books, gaps
from recorded import rows as every_row

from ranklake.capture.common.gaps import OUT_OF_RANGE, RETIRED, TOO_MANY_SERIES, UNREGISTERED, WRONG_KIND, WRONG_UNIT
from ranklake.capture.lanes.policies import OVERFLOW
from ranklake.capture.recover import recover
from ranklake.capture.sealing.rows import check_ranges
from ranklake.capture.spool.meta import Meta, Metric

# What users do wrong: (setting, how, reason of the gap). Each records three values, of 1, 2 and 3, in the same way.
WRONG = {
    "unregistered": (lambda run: run.scalar("my/metric"), UNREGISTERED),
    "wrong_kind": (lambda run: run.scalar("eval/loss", "counter"), WRONG_KIND),
    "wrong_unit": (lambda run: run.scalar("eval/loss", unit="nat"), WRONG_UNIT),
    "out_of_range": (lambda run: run.scalar("eval/accuracy"), OUT_OF_RANGE),
}


def rows(spool, table):
    """Return a table's rows but for those in which the process counts what it told."""
    return [row for row in every_row(spool, table) if row.get("metric") != "ranklake/misuses"]


def flagged(place, table="scalars"):
    """Return (metric, value, edge_flag) of all rows."""
    return [(row["metric"], row.get("value"), row["edge_flag"]) for row in rows(place.spool, table)]


def record(place, wrong, policy):
    """Record 2.0 and 3.0 of a wrong series, and one value of a good one, under a policy."""
    with place.start(**{wrong: policy}) as run:
        handle = WRONG[wrong][0](run)
        handle.add(2.0, 1)
        handle.add(3, 2)
        run.log({"train/epoch": 1.0})
    return run


@pytest.mark.parametrize("wrong", WRONG)
def test_flag_stores_the_rows_and_says_what_was_noticed(place, wrong):
    """By default nothing is lost, and the column edge_flag tells what is wrong."""
    run = record(place, wrong, "flag")
    found = flagged(place)
    assert [(value, flag) for _, value, flag in found] == [(2.0, wrong), (3.0, wrong), (1.0, None)]
    assert run.gaps() == {}
    check_books(place.spool)


@pytest.mark.parametrize("wrong", WRONG)
def test_drop_counts_each_row_by_its_reason(place, wrong, warnings_told):
    """Two values are two gaps; the good metric is stored."""
    run = record(place, wrong, "drop")
    assert flagged(place) == [("train/epoch", 1.0, None)]
    assert gaps(place.spool) == {"scalars": {WRONG[wrong][1]: 2}}
    assert run.gaps() == {"scalars": {WRONG[wrong][1]: 2}}
    assert WRONG[wrong][1] in warnings_told.text
    check_books(place.spool)


@pytest.mark.parametrize("wrong", WRONG)
def test_quarantine_marks_the_rows(place, wrong):
    """The mark is what ingest goes by; see tests/lake/test_ingest_edge.py."""
    run = record(place, wrong, "quarantine")
    mark = f"quarantine:{wrong}"
    assert [(value, flag) for _, value, flag in flagged(place)] == [(2.0, mark), (3.0, mark), (1.0, None)]
    assert run.gaps() == {}


def test_every_lane_is_judged_alike(place):
    """Single values, mappings, counters, intervals and histograms: the same flag for the same wrong."""
    with place.start() as run:
        run.scalar("train/accuracy").add(1.5)
        run.log({"train/accuracy": 2.5, "train/momentum": -1.0, "train/epoch": 1.0})
        folded, many = run.aggregate("train/accuracy"), run.histogram("train/accuracy")
        for value in (0.5, 1.5, 0.5):
            folded.add(value)
            many.record([value])
        run.counter("eval/accuracy").add(1)
    assert sorted(flagged(place), key=str) == [
        ("eval/accuracy", 1.0, "wrong_kind"),
        ("train/accuracy", 0.5, "out_of_range"),  # the last value of an interval that held 1.5
        ("train/accuracy", 1.5, "out_of_range"),
        ("train/accuracy", 2.5, "out_of_range"),
        ("train/epoch", 1.0, None),
        ("train/momentum", -1.0, "out_of_range"),
    ]
    assert flagged(place, "distributions") == [("train/accuracy", None, "out_of_range")]


# ── what was declared ──


def test_a_handle_that_declares_nothing_has_what_the_registry_says(place):
    """Kind comes from the registry; a right declaration is the same series as none."""
    with place.start() as run:
        run.log({"eval/accuracy": 0.5})
        run.scalar("eval/accuracy", "ratio", "ratio").add(0.6)
        run.scalar("data/bytes_read").add(1.0)
        run.counter("data/bytes_read", unit="By").add(2)
    found = [(row["metric"], row["kind"], row["edge_flag"]) for row in rows(place.spool, "scalars")]
    assert found == [("eval/accuracy", "ratio", None)] * 2 + [("data/bytes_read", "counter", None)] * 2


def test_of_a_metric_that_is_not_registered_the_first_declaration_holds(place):
    """What declares something else later is flagged, and what declares nothing has the first one's kind."""
    with place.start() as run:
        run.scalar("mine", "delta", "{cat}").add(1.0)
        run.log(mine=2.0)
        run.scalar("mine", "gauge").add(3.0)
        run.scalar("mine", unit="{dog}").add(4.0)
        run.scalar("mine", "sum").add(5.0)
    assert [(row["value"], row["kind"], row["edge_flag"]) for row in rows(place.spool, "scalars")] == [
        (1.0, "delta", "unregistered"),
        (2.0, "delta", "unregistered"),
        (3.0, "gauge", "unregistered,wrong_kind"),
        (4.0, "delta", "unregistered,wrong_unit"),
        (5.0, "delta", "unregistered,wrong_kind"),
    ]


@pytest.mark.parametrize("odd", [5, object(), [], {}, "", "x" * 10_000, "\ud800"])
def test_odd_declarations_are_flagged(place, odd):
    """Whatever is given for kind and unit, the value is stored with a kind that the contract knows."""
    with place.start() as run:
        run.scalar("eval/loss", odd, odd).add(1.0)
        run.aggregate("eval/loss", kind=odd, unit=odd).add(2.0)
        run.histogram("eval/loss", unit=odd).record([3.0])
        run.counter("eval/loss", unit=odd).add(4)
    flags = {(row["metric"], row["kind"], row["edge_flag"]) for row in rows(place.spool, "scalars")}
    assert flags == {
        ("eval/loss", "gauge", "wrong_kind,wrong_unit"),
        ("eval/loss", "counter", "wrong_kind,wrong_unit"),
    }
    assert flagged(place, "distributions") == [("eval/loss", None, "wrong_unit")]
    assert run.gaps() == {}


def test_all_that_is_wrong_is_named(place):
    """Flags and marks stand side by side; a drop wins over both."""
    with place.start(wrong_unit="quarantine", out_of_range="quarantine", unregistered="drop") as run:
        run.scalar("eval/accuracy", "gauge", "%").add(95.0)
        run.scalar("mine", "gauge", "%").add(95.0)
    assert flagged(place) == [("eval/accuracy", 95.0, "wrong_kind,quarantine:wrong_unit,quarantine:out_of_range")]
    assert run.gaps() == {"scalars": {UNREGISTERED: 1}}


# ── ranges ──


def test_the_ends_of_a_range_are_in_it_and_what_is_not_finite_is_in_none(place):
    """A NaN or infinite value has its own flag, and no range is held against it."""
    with place.start(out_of_range="drop") as run:
        for value in (0.0, 1.0, math.nan, math.inf, -math.inf, 1.0000001, -1e-300):
            run.log({"eval/accuracy": value})
        run.aggregate("eval/accuracy").add(math.inf)
        run.histogram("eval/accuracy").record([math.nan])
    found = [row["value"] if row["value_flag"] is None else row["value_flag"] for row in rows(place.spool, "scalars")]
    assert found == [0.0, 1.0, "nan", "+inf", "-inf", "+inf"]
    assert len(rows(place.spool, "distributions")) == 1
    assert gaps(place.spool) == run.gaps() == {"scalars": {OUT_OF_RANGE: 2}}


RANGES = st.one_of(st.none(), st.floats(-10, 10))
SERIES = st.builds(
    Metric,
    st.text(max_size=3),
    st.just("gauge"),
    edge=st.sampled_from([None, "unregistered", "quarantine:wrong_kind"]),
    low=RANGES,
    high=RANGES,
    outside=st.sampled_from(["flag", "quarantine", "drop"]),
)


@given(st.lists(SERIES, min_size=1, max_size=5), st.data())
def test_the_judge_agrees_with_a_plain_one(metrics, data):
    """Whole arrays are judged as an oracle judges row by row."""
    meta = Meta(metrics={3 * number: metric for number, metric in enumerate(metrics)})
    values = st.one_of(st.floats(-12, 12), st.sampled_from([math.nan, math.inf, -math.inf]))
    given_rows = data.draw(st.lists(st.tuples(st.sampled_from(sorted(meta.metrics)), values, values), max_size=20))
    series, one, other = (
        (np.array(column) for column in zip(*given_rows, strict=True)) if given_rows else [np.array([])] * 3
    )
    least, greatest = np.fmin(one, other), np.fmax(one, other)
    found = check_ranges(series, least, greatest, meta)
    for at, (number, *_) in enumerate(given_rows):
        metric = meta.metrics[number]
        low = metric.low is not None and math.isfinite(least[at]) and least[at] < metric.low
        high = metric.high is not None and math.isfinite(greatest[at]) and greatest[at] > metric.high
        mark = ["quarantine:out_of_range" if metric.outside == "quarantine" else "out_of_range"] * int(low or high)
        expected = ",".join([metric.edge or "", *mark]).strip(",") or None
        assert found.flags[at].as_py() == expected
        assert found.dropped[at] == ((low or high) and metric.outside == "drop")
    assert len(found.flags) == len(given_rows)


def test_sealing_again_counts_a_dropped_row_once(place):
    """A process that is killed after sealing, before it was written down, leaves its books in order."""
    done = subprocess.run([sys.executable, "-c", KILLED, str(place.spool), str(place.local)], check=False, timeout=60)
    assert done.returncode == -signal.SIGKILL
    assert recover(place.local, place.spool).troubles == ()
    assert len(rows(place.spool, "scalars")) == 50
    assert gaps(place.spool) == {"scalars": {OUT_OF_RANGE: 50}}
    check_books(place.spool)


KILLED = """
import os, signal, sys
from ranklake import capture
from ranklake.capture.sealing import seal
run = capture.start(job="j", run="r", spool=sys.argv[1], local_dir=sys.argv[2], out_of_range="drop", seal_every_s=3600)
for n in range(50):
    run.log({"eval/accuracy": 2.0, "eval/loss": 2.0})
seal._note = lambda *_, **__: os.kill(os.getpid(), signal.SIGKILL)
run.close()
"""


# ── too many series ──


@pytest.mark.parametrize("policy", ["flag", "quarantine"])
def test_series_beyond_the_limit_share_one(place, policy):
    """Their values are stored under one name, flagged or marked; none is lost."""
    with place.start(max_series=3, over_max_series=policy) as run:
        for _ in range(2):
            run.log({f"k{n}": float(n) for n in range(6)})
        run.scalar("k9").add(9.0)
        run.counter("k10").add(10)
    flag = "over_max_series" if policy == "flag" else "quarantine:over_max_series"
    found = [(metric, value) for metric, value, what in flagged(place) if what == flag]
    assert sorted(found) == [(OVERFLOW, value) for value in (3.0, 3.0, 4.0, 4.0, 5.0, 5.0, 9.0, 10.0)]
    assert len(rows(place.spool, "scalars")) == 14
    assert run.gaps() == {}
    check_books(place.spool)


def test_series_beyond_the_limit_are_counted(place):
    """By default each of their values is a gap, and what was known before goes on."""
    with place.start(max_series=3) as run:
        for _ in range(5):
            run.log({f"k{n}": float(n) for n in range(6)})
        run.scalar("k9").add(9.0)
        run.histogram("k10").record([1.0, 2.0])
    assert len(rows(place.spool, "scalars")) == 15
    assert gaps(place.spool) == run.gaps() == {"scalars": {TOO_MANY_SERIES: 16}, "distributions": {TOO_MANY_SERIES: 1}}


def test_sampling_and_dropping_add_up(place):
    """A value that sampling would keep is counted as dropped, and stored, sampled out and dropped are all there is."""
    with place.start(sampling="*=0.5", unregistered="drop") as run:
        for n in range(100):
            run.log({"mine": 1.0, "eval/loss": 1.0}, step=n)
    counted = run.gaps()["scalars"]
    assert {row["metric"] for row in rows(place.spool, "scalars")} == {"eval/loss"}
    assert len(rows(place.spool, "scalars")) + sum(counted.values()) == 200
    check_books(place.spool)


# ── the registry ──


def write_overlay(folder, *names):
    """Write an overlay that registers metrics of the user's own, in cats from 0 to 9."""
    folder.mkdir()
    lines = [
        f'  - {{name: {name}, unit: "{{cat}}", kind: delta, owner: me, sampling: step, min: 0, max: 9, doc: "Cats."}}'
        for name in names
    ]
    (folder / "metrics.yaml").write_text("\n".join(["version: 1", "metrics:", *lines]) + "\n")


@pytest.mark.slow
def test_an_overlay_registers_metrics_of_ones_own(place, tmp_path, monkeypatch):
    """The overlay that the commands use is the one that the recorder uses, unless it has one of its own."""
    write_overlay(tmp_path / "mine", "my/cats")
    write_overlay(tmp_path / "other", "my/dogs")
    (tmp_path / "ranklake.toml").write_text(f'[contracts]\noverlay = "{tmp_path / "mine"}"\n')
    monkeypatch.setenv("RANKLAKE_CONFIG", str(tmp_path / "ranklake.toml"))
    for settings in ({}, {"contracts_overlay": str(tmp_path / "other")}):
        with place.start(**settings) as run:
            run.scalar("my/cats", unit="{cat}").add(3.0)
            run.log({"my/cats": 10.0})
    assert [(row["kind"], row["edge_flag"]) for row in rows(place.spool, "scalars")] == [
        ("delta", None),
        ("delta", "out_of_range"),
        ("gauge", "unregistered"),
        ("gauge", "unregistered"),
    ]


@pytest.mark.parametrize("broken", ["/nowhere", "file", "yaml", "\0"])
def test_without_the_overlay_nothing_is_dropped_for_not_being_registered(place, tmp_path, warnings_told, broken):
    """A folder that cannot be read is told; its metrics are flagged, whatever the policy, and no others suffer."""
    folder = tmp_path / "overlay"
    if broken == "file":
        folder.write_text("")
    if broken == "yaml":
        folder.mkdir()
        (folder / "metrics.yaml").write_text("version: 1\nmetrics: [{name: x")
    given_folder = str(folder) if broken in {"file", "yaml"} else broken
    with place.start(contracts_overlay=given_folder, unregistered="drop") as run:
        run.log({"my/cats": 1.0, "eval/loss": 2.0})
    assert flagged(place) == [("my/cats", 1.0, "unregistered"), ("eval/loss", 2.0, None)]
    assert "contracts_overlay" in warnings_told.text
    assert run.gaps() == {}


# ── what is told ──


def test_a_name_that_is_nearly_another_is_told_once(place, warnings_told):
    """A misspelt name is told with the right one; the user's own names are told nothing about."""
    with place.start() as run:
        for _ in range(3):
            run.log({"train/los": 1.0, "eval/acuracy": 1.0, "mine/own": 1.0})
    told = [record.getMessage() for record in warnings_told.records]
    assert len(told) == 2
    assert "'train/los'" in told[0]
    assert "did you mean 'train/loss'?" in told[0]
    assert "did you mean 'eval/accuracy'?" in told[1]


def test_each_dropped_metric_is_told_once_and_not_without_end(place, warnings_told):
    """One line per name, for a hundred of them."""
    with place.start(unregistered="drop") as run:
        for _ in range(2):
            run.log({f"mine/{n}": 1.0 for n in range(500)})
    assert run.gaps() == {"scalars": {UNREGISTERED: 1000}}
    told = [record.getMessage() for record in warnings_told.records]
    assert sum("'mine/7'" in line for line in told) == 1
    assert 100 <= len(told) <= 102


def test_a_deprecated_metric_is_told_with_its_successor(place, tmp_path, warnings_told):
    """It is recorded, and flagged."""
    write_overlay(tmp_path / "mine", "my/cats")
    path = tmp_path / "mine" / "metrics.yaml"
    path.write_text(path.read_text().replace('doc: "Cats."', 'doc: "Cats.", replaced_by: my/felines'))
    with place.start(contracts_overlay=str(tmp_path / "mine")) as run:
        run.log({"my/cats": 1.0})
        run.log({"my/cats": 2.0})
    assert [flag for _, _, flag in flagged(place)] == ["deprecated"] * 2
    assert [record.getMessage() for record in warnings_told.records] == [
        "ranklake: metric 'my/cats' is deprecated; use 'my/felines'; its rows are kept, and flagged"
    ]


@pytest.mark.parametrize("status", ["retired", "sunset"])
@pytest.mark.parametrize(
    ("when", "flags", "words"),
    [
        ("", ["retired"] * 2, "its rows are kept, and flagged"),
        ("when_retired: quarantine, ", ["quarantine:retired"] * 2, "its rows are sent to quarantine"),
        ("when_retired: drop, ", [], "its rows are dropped and counted"),
    ],
)
def test_a_retired_metric_is_flagged_or_refused_as_its_entry_says(
    place, tmp_path, warnings_told, status, when, flags, words
):
    """Whatever the settings say of other wrongs; told once."""
    write_overlay(tmp_path / "mine", "my/cats")
    path = tmp_path / "mine" / "metrics.yaml"
    path.write_text(path.read_text().replace('doc: "Cats."', f'doc: "Cats.", {when}status: {status}'))
    with place.start(contracts_overlay=str(tmp_path / "mine")) as run:
        run.log({"my/cats": 1.0})
        run.scalar("my/cats").add(2.0)
    assert [flag for _, _, flag in flagged(place)] == flags
    assert run.gaps() == ({} if flags else {"scalars": {RETIRED: 2}})
    told = [record.getMessage() for record in warnings_told.records]
    assert told[0] == f"ranklake: metric 'my/cats' is retired; record it no more; {words}"
    assert sum("record it no more" in line for line in told) == 1
    check_books(place.spool)
