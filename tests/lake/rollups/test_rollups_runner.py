"""Keeping rollups up to date in a real lake: what changed is computed again, to the rows of a full rebuild."""

import pickle
import subprocess
import sys
from dataclasses import replace
from datetime import timedelta
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from lake_fixtures import copied
from rollup_inputs import DAY, FLEET, NOON, OF_RUNS, append, bring, rows, run_of, state

from ranklake.lake.contracts.load import contract
from ranklake.lake.rollups import due
from ranklake.lake.rollups.declaration import Input
from ranklake.lake.rollups.due import due_runs
from ranklake.lake.rollups.inputs import by_only_run, snapshot
from ranklake.lake.rollups.lineage import Lineage, newest_rows
from ranklake.lake.rollups.registry import ROLLUPS, UnknownRollupError, select_rollups
from ranklake.lake.rollups.runner import run_rollups
from ranklake.lake.store.lake import Lake
from ranklake.lake.store.lake_config import CostSection
from ranklake.lake.tables.commit import number_of, replace_partitions, swap
from ranklake.lake.tables.live_files import files
from ranklake.lake.tables.read import read
from ranklake.lake.tables.table_schema import CONTRACT_VERSION
from ranklake.lake.tables.tables import delta_table

NEXT = DAY + timedelta(days=1)
SOME = select_rollups(["goodput", "rank_health"])
"""Enough to see how dates and runs are kept, at a third of the time that all take."""


def roll_some(lake, **options):
    return run_rollups(lake, [rollup.name for rollup in SOME], **options)


def versions(lake):
    names = [*(rollup.name for rollup in ROLLUPS), "lineage"]
    return {name: None if (table := delta_table(lake.store, name)) is None else table.version() for name in names}


def written(results):
    return {result.name: result.partitions for result in results if result.partitions}


@pytest.fixture(scope="module")
def of_one_run(tmp_path_factory):
    """Give a lake with a run, all of it rolled up, and what that wrote; tests take copies."""
    made = Lake.create(str(tmp_path_factory.mktemp("one") / "lake"))
    bring(made, run_of("a"))
    return made, written(run_rollups(made))


@pytest.fixture(scope="module")
def of_two_days(tmp_path_factory):
    """Give a lake with a run on each of two days, rolled up in part; tests take copies."""
    made = Lake.create(str(tmp_path_factory.mktemp("two") / "lake"))
    bring(made, run_of("a"), run_of("b", start=NOON + timedelta(days=1), seed=1))
    roll_some(made)
    return made


@pytest.fixture
def rolled(of_one_run, tmp_path):
    """Give a lake with run ``a``, all of it rolled up."""
    return copied(of_one_run[0], tmp_path)


@pytest.fixture
def two_days(of_two_days, tmp_path):
    """Give a lake with run ``a``, and ``b`` on the next day, rolled up in part (`SOME`)."""
    return copied(of_two_days, tmp_path)


def test_a_second_run_commits_nothing(of_one_run, rolled):
    """The first run writes every rollup; the second finds nothing changed and touches no table, nor lineage."""
    lake = rolled
    assert set(of_one_run[1]) == {rollup.name for rollup in OF_RUNS} - {"run_findings"}  # it is a sound run
    before = versions(lake)
    again = run_rollups(lake)
    assert written(again) == {}
    assert [result.computed for result in again] == [0] * len(ROLLUPS)
    assert versions(lake) == before


def test_a_table_of_a_newer_release_holds_up_no_other(rolled):
    """Where nothing is due for it, what cannot be written is left alone, and the rest is looked at."""
    delta_table(rolled.store, "run_summary").alter.set_column_metadata("date", {CONTRACT_VERSION: "99"})
    assert written(run_rollups(Lake.open(rolled.uri))) == {}


@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(*[st.integers(0, 2)] * 3, st.none() | st.integers(0, 9)), max_size=30), st.randoms())
def test_lineage_keeps_the_newest_row_of_each_input(facts, chance):
    """In whatever order the table has them, and NULL where the newest row is."""
    names = ["output_partition", "input_table", "input_partition", "input_version"]
    rows = [dict(zip(names, (*map(str, some[:3]), some[3]), strict=True), ts=at) for at, some in enumerate(facts)]
    expected = {tuple(row[name] for name in names[:3]): row for row in rows}
    chance.shuffle(rows)
    types = [*((name, pa.string()) for name in names[:3]), ("input_version", pa.int64()), ("ts", pa.int64())]
    found = newest_rows(pa.Table.from_pylist(rows, schema=pa.schema(types))).to_pylist()
    assert {tuple(row[name] for name in names[:3]): row for row in found} == expected
    assert len(found) == len(expected)


@pytest.mark.slow
def test_quiet_days_come_and_go_with_what_arrives(lake):
    """A run seen twice in 900 days has 4 dates; a sign from between makes others, as a full rebuild does."""
    event = {"run": "a", "event": "checkpoint", "duration_ns": 10**9}
    later = [NOON + timedelta(days=days) for days in (1, 900, 500)]
    append(lake, "events", [{**event, "ts": NOON}, {**event, "ts": later[0]}])
    run_rollups(lake, ["goodput"])
    dates = []
    for number, ts in enumerate(later[1:], 1):
        append(lake, "events", [{**event, "ts": ts, "incarnation": number}])
        run_rollups(lake, ["goodput"])
        dates.append(sorted({str(day) for day in read(lake.tables, contract("goodput_daily"))["date"].to_pylist()}))
    ends = ["2026-03-01", "2026-03-02", "2026-03-03"]
    assert dates == [[*ends, "2028-08-17"], [*ends, "2027-07-14", "2027-07-15", "2028-08-17"]]
    incremental = state(lake, SOME)
    run_rollups(lake, ["goodput"], full=True)
    assert state(lake, SOME) == incremental


@pytest.mark.parametrize("rollup", ROLLUPS, ids=lambda rollup: rollup.name)
def test_a_rollup_can_be_sent_to_a_worker(rollup):
    """Whatever computes its rows: a function that another one makes could not be."""
    assert pickle.loads(pickle.dumps(rollup)).sha256 == rollup.sha256


def test_an_empty_lake_has_nothing_to_roll_up(lake):
    """Without facts no table is made."""
    assert written(run_rollups(lake)) == {}
    assert set(versions(lake).values()) == {None}


def test_what_yields_no_rows_is_not_computed_again(lake):
    """Scalars without a single fact of the model give no rows; that they were looked at is remembered."""
    append(lake, "scalars", [{"ts": NOON, "metric": "train/epoch", "value": 1.0}])
    first, second = (run_rollups(lake, ["run_facts"]) for _ in range(2))
    assert [(result.computed, result.partitions, result.version) for result in first + second] == [
        (1, (), None),
        (0, (), None),
    ]


@pytest.mark.slow
def test_only_changed_dates_are_computed(rolled):
    """Another run on the next day leaves the first day's partitions as they are."""
    bring(rolled, run_of("b", start=NOON + timedelta(days=1), seed=1))
    done = written(run_rollups(rolled))
    for name in ("run_facts", "mfu", "goodput", "run_summary", "step_rollup", "rank_health"):
        assert done[name] == (NEXT.isoformat(),), name


@pytest.mark.slow
def test_an_unchanged_result_stops_the_cascade(rolled):
    """A rewritten input with the same rows (compaction) is computed again and found the same: nothing is committed."""
    lake = rolled
    before = versions(lake)
    for name in ("steps", "scalars", "events", "runs", "spans"):
        table = delta_table(lake.store, name)
        replace_partitions(
            lake.tables, contract(name), read(lake.tables, contract(name)), files(table)["date"].unique().to_pylist()
        )
    done = run_rollups(lake)
    assert written(done) == {}
    assert sum(result.computed for result in done) > 0
    after = versions(lake)
    assert {name: after[name] for name in before if name != "lineage"} == {
        name: before[name] for name in before if name != "lineage"
    }
    assert all(result.computed == 0 for result in run_rollups(lake))


@pytest.mark.slow
def test_a_run_that_goes_on_is_computed_as_a_whole(lake):
    """More steps on the next day change the run's row on its first date; other runs of that date keep theirs."""
    bring(lake, run_of("a"), run_of("other", seed=3))
    run_rollups(lake, ["run_summary"])
    other = read(lake.tables, contract("run_summary")).filter(pc.field("run") == "other")
    bring(lake, run_of("a", start=NOON + timedelta(days=1), attempt=1, first=20, seed=2))
    assert written(run_rollups(lake, ["run_summary"]))["run_summary"] == (DAY.isoformat(),)
    found = read(lake.tables, contract("run_summary")).sort_by([("run", "ascending"), ("attempt", "ascending")])
    assert found.select(["run", "attempt", "date"]).to_pylist() == [
        {"run": "a", "attempt": 0, "date": DAY},
        {"run": "a", "attempt": 1, "date": DAY},
        {"run": "other", "attempt": 0, "date": DAY},
    ]
    assert found.filter(pc.field("run") == "other").equals(other)
    lost = (
        read(lake.tables, contract("goodput"))
        .filter(pc.field("run") == "a")
        .sort_by("attempt")["steps_lost"]
        .to_pylist()
    )
    assert lost == [10, 0]


@pytest.mark.slow
def test_an_earlier_day_that_arrives_late_moves_the_run(lake):
    """A run first seen on its second day moves to its first when that arrives: no row stays behind."""
    facts = run_of("a", start=NOON + timedelta(hours=11, minutes=59, seconds=50), steps=60)
    early, late = ({}, {})
    for table, given_rows in facts.items():
        early[table] = [row for row in given_rows if row["ts"].date() == DAY]
        late[table] = [row for row in given_rows if row["ts"].date() != DAY]
    bring(lake, late)
    run_rollups(lake, ["run_summary"])
    assert read(lake.tables, contract("goodput"))["date"].to_pylist() == [NEXT]
    bring(lake, early)
    assert written(run_rollups(lake, ["run_summary"]))["goodput"] == (DAY.isoformat(), NEXT.isoformat())
    assert read(lake.tables, contract("goodput"))["date"].to_pylist() == [DAY]
    assert read(lake.tables, contract("run_summary"))["steps"].to_pylist() == [60]


def test_the_log_names_the_runs_of_files_that_hold_one(of_two_days, tmp_path, monkeypatch):
    """Files of one run and a file of two: the log and their rows together say what is due as all rows would."""
    lake = copied(of_two_days, tmp_path)
    both = [run_of(name, seed=seed) for seed, name in enumerate("cd", 2)]
    bring(lake, {table: [*rows, *both[1][table]] for table, rows in both[0].items()})  # in one file
    (rollup,) = (one for one in ROLLUPS if one.name == "attempt_facts")
    inputs = {name: snapshot(lake.tables, name) for name in rollup.tables}
    told, asked = by_only_run(inputs["runs"].files())
    assert (sorted(told["min.run"].to_pylist()), asked.num_rows) == (["a", "b"], 1)
    found = due_runs(lake, rollup, inputs, snapshot(lake.tables, rollup.name), {}, set())
    assert found.starts == {"a": DAY, "b": NEXT, "c": DAY, "d": DAY}
    monkeypatch.setattr(due, "by_only_run", lambda live: (live.slice(0, 0), live))
    assert due_runs(lake, rollup, inputs, snapshot(lake.tables, rollup.name), {}, set()) == found


@pytest.mark.slow
def test_rows_that_are_taken_out_are_taken_out_of_the_rollups(lake):
    """When a run is erased from the facts it vanishes from every rollup; its neighbours stay as they were."""
    bring(lake, run_of("a"), run_of("gone", seed=5))
    roll_some(lake)
    for name in ("steps", "scalars", "events", "runs", "spans"):
        kept = read(lake.tables, contract(name)).filter(pc.field("run") != "gone")
        dates = files(delta_table(lake.store, name))["date"].unique().to_pylist()
        replace_partitions(lake.tables, contract(name), kept, dates)
    roll_some(lake)
    for name, found in state(lake, SOME).items():
        assert set(found["run"].to_pylist()) == {"a"}, name


def test_a_whole_day_taken_out_empties_its_partitions(two_days):
    """A date that lost all its facts otherwise than by retention loses its rollups too, and is then at rest."""
    lake = two_days
    drop(lake, NEXT)
    assert all(NEXT.isoformat() in partitions for partitions in written(roll_some(lake)).values())
    for name, found in state(lake, SOME).items():
        assert set(found["run"].to_pylist()) == {"a"}, name
    assert written(roll_some(lake)) == {}


def drop(lake, day):
    for name in ("steps", "scalars", "events", "runs", "spans"):
        table = delta_table(lake.store, name)
        swap(table, number_of(table) + 1, remove=files(table, [day]))


def retire(lake, day):
    """Take a date's facts away as an applied retention plan does."""
    drop(lake, day)
    items = [
        {"retention_plan": "p", "row_kind": "item", "table": name, "partition_date": day, "ts": NOON}
        for name in ("steps", "scalars", "events", "runs", "spans")
    ]
    application = {"retention_plan": "p", "row_kind": "application", "ts": NOON}
    append(lake, "retention_plans", rows("retention_plans", [*items, application]))


@pytest.mark.slow
@pytest.mark.parametrize("why", ["nothing", "full", "code"])
def test_what_retention_took_leaves_the_rollups_as_they_were(two_days, why, monkeypatch):
    """Rollups outlive the facts they came from: not even new code or a full rebuild touches them."""
    lake = two_days
    before = state(lake, SOME)
    retire(lake, DAY)
    if why == "code":
        for rollup in ROLLUPS:
            monkeypatch.setitem(rollup.__dict__, "sha256", "0" * 64)
    roll_some(lake, full=why == "full")
    after = state(lake, SOME)
    assert all(after[name].equals(before[name]) for name in before)
    bring(lake, run_of("c", start=NOON + timedelta(days=1), seed=2))
    roll_some(lake, full=why == "full")
    assert sorted(read(lake.tables, contract("goodput"))["run"].to_pylist()) == ["a", "b", "c"]


def test_late_rows_of_a_retired_day_do_not_stand_for_the_day(rolled):
    """A few rows that arrive after retention took their date would make a rollup of those alone: they are left out."""
    lake = rolled
    before = state(lake, SOME)
    retire(lake, DAY)
    append(lake, "steps", [{"run": "a", "rank": 5, "step": 99, "ts": NOON, "step_time_s": 1.0}])
    assert written(roll_some(lake)) == {}
    assert all(found.equals(before[name]) for name, found in state(lake, SOME).items())


@pytest.mark.slow
def test_a_long_run_goes_on_after_its_first_day_was_retired(rolled):
    """New rows of a run whose first events are gone still reach its summary; its steps are kept by step_rollup."""
    lake = rolled
    retire(lake, DAY)
    bring(lake, run_of("a", start=NOON + timedelta(days=1), attempt=1, first=30, seed=2))
    run_rollups(lake, ["run_summary"])
    found = read(lake.tables, contract("run_summary")).sort_by("attempt")
    assert found.select(["attempt", "date", "steps"]).to_pylist() == [
        {"attempt": 0, "date": DAY, "steps": 30},
        {"attempt": 1, "date": DAY, "steps": 30},
    ]


def test_changed_code_is_computed_again(rolled, monkeypatch):
    """New SQL or another threshold makes every partition of that rollup due."""
    lake = rolled
    (rollup,) = (one for one in ROLLUPS if one.name == "rank_health")
    monkeypatch.setitem(rollup.parameters, "min_steps", 7)
    monkeypatch.delitem(rollup.__dict__, "sha256")
    done = {result.name: result for result in run_rollups(lake)}
    assert done["rank_health"].computed == 1
    assert done["step_rollup"].computed == 0
    monkeypatch.undo()
    rollup.__dict__.pop("sha256", None)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["goodput", "step_rollup"])
def test_code_that_no_longer_reads_a_table_goes_on(lake, name):
    """Lineage of an older version names a table that the rollup reads no more: computed again, it is at rest."""
    bring(lake, run_of("a"))
    run_rollups(lake, [name])
    (rollup,) = (one for one in ROLLUPS if one.name == name)
    older = replace(rollup, inputs=(*rollup.inputs, Input("runs", rollup.inputs[0].reach)))
    inputs = {table: snapshot(lake.tables, table) for table in older.tables}
    output = "" if rollup.scope == "run" else f"date={DAY}"
    with Lineage(lake.tables) as lineage:
        lineage.note(older, delta_table(lake.store, name).version(), inputs, {output: {("runs", f"date={DAY}"): "x"}})
    bring(lake, run_of("b", seed=1))
    assert all(result.version is not None for result in run_rollups(lake, [name]) if result.name == name)
    assert written(run_rollups(lake, [name])) == {}


def dies(*_arguments):
    raise KeyboardInterrupt


def roll_without_lineage(lake, monkeypatch):
    """Roll up, as a process does that is killed when all is committed and lineage is not."""
    with monkeypatch.context() as patched:
        patched.setattr(Lineage, "write", dies)
        with pytest.raises(KeyboardInterrupt):
            roll_some(lake)


def test_a_round_writes_lineage_once(lake):
    """What all rollups of a round were computed from is one commit: the table is made, and written to."""
    bring(lake, run_of("a"))
    roll_some(lake)
    assert versions(lake)["lineage"] == 1


def test_a_round_that_fails_writes_lineage_of_what_it_committed(lake):
    """Rollups before the failing one are at rest afterwards."""
    bring(lake, run_of("a"))

    def fails(done, _total):
        if done == 1:
            raise LookupError("of the second rollup")

    names = ["step_rollup", "rank_health"]
    with pytest.raises(LookupError, match="second"):
        run_rollups(lake, names, progress=fails)
    assert sorted(result.computed for result in run_rollups(lake, names)) == [0, 1]


def test_a_crash_before_lineage_does_no_harm(lake, monkeypatch):
    """Killed between its commits and their lineage, a round is computed again to the same rows, and written down."""
    bring(lake, run_of("a"))
    roll_without_lineage(lake, monkeypatch)
    before = versions(lake)
    assert before["lineage"] is None
    assert before["goodput"] is not None
    again = roll_some(lake)
    assert all(result.computed for result in again)
    assert written(again) == {}
    assert versions(lake) == {**before, "lineage": 1}
    assert [result.computed for result in roll_some(lake)] == [0] * len(again)


@pytest.mark.slow
def test_what_is_gone_after_a_crash_before_lineage_goes_from_the_rollups(lake, monkeypatch):
    """A run that only the killed round knew, on a date of its own, is erased from the facts: no rollup keeps it."""
    bring(lake, run_of("a"))
    roll_some(lake)
    bring(lake, run_of("gone", start=NOON + timedelta(days=1), seed=5))
    roll_without_lineage(lake, monkeypatch)
    assert "gone" in read(lake.tables, contract("goodput"))["run"].to_pylist()
    drop(lake, NEXT)
    roll_some(lake)
    for name, found in state(lake, SOME).items():
        assert set(found["run"].to_pylist()) == {"a"}, name
    assert written(roll_some(lake)) == {}


def test_lineage_says_which_versions_a_partition_came_from(rolled):
    """Each output partition names its input partitions, their table's version and the digest of the code."""
    lake = rolled
    found = read(lake.tables, contract("lineage")).to_pylist()
    (step,) = (row for row in found if (row["output_table"], row["input_table"]) == ("step_rollup", "steps"))
    assert (step["output_partition"], step["input_table"], step["input_partition"]) == (
        f"date={DAY}",
        "steps",
        f"date={DAY}",
    )
    assert step["input_version"] == delta_table(lake.store, "steps").version()
    assert step["output_version"] == delta_table(lake.store, "step_rollup").version()
    assert step["transform_sha256"] == next(one.sha256 for one in ROLLUPS if one.name == "step_rollup")
    metadata = delta_table(lake.store, "step_rollup").history(1)[0]
    assert f"date={DAY}" in metadata["inputs"]


def test_a_named_rollup_brings_what_it_reads(lake):
    """`mfu` needs what is said of runs; what none of them reads is not computed. An unknown name says which is near."""
    bring(lake, run_of("a"))
    read_by_it = ["run_facts", "step_rollup", "attempt_facts", "rank_facts"]
    assert [result.name for result in run_rollups(lake, ["mfu"])] == [*read_by_it, "mfu"]
    with pytest.raises(UnknownRollupError, match="did you mean 'goodput'"):
        select_rollups(["godput"])


def test_progress_counts_rollups(lake):
    """The caller learns how many rollups are done, from 0 to all."""
    calls = []
    run_rollups(lake, progress=lambda done, total: calls.append((done, total)))
    assert calls == [(number, len(ROLLUPS)) for number in range(len(ROLLUPS) + 1)]


def sampled(run, device, seed):
    """Return rows of `gpu_samples` around midnight: one process, a counter of energy, and now and then a gap."""
    rng = np.random.default_rng(seed)
    at_s = np.cumsum(rng.choice([1.0, 1.0, 1.0, 400.0], 40))
    whose = {"incarnation": seed + 100, "host": "n1", "device_uuid": device, "source": "nvml", "interval_ns": 10**9}
    held = {"holder_run": run, "holder_attempt": 0, "holder_rank": seed, "holder_count": 1}
    return [
        {
            **whose,
            **held,
            "slot": number,
            "ts": NOON + timedelta(hours=11, minutes=50, seconds=float(after_s)),
            "gpu_utilization_ratio": float(np.float32(rng.random())),
            "power_watts": 300.0,
            "energy_joules": 1e6 + 300.0 * float(after_s),
        }
        for number, after_s in enumerate(at_s)
    ]


def anything(table, seed, count=25):
    """Return rows of any table whose values are of the contract's types and of few kinds, so that they group."""
    rng = np.random.default_rng(seed)
    makers = {
        "string": lambda: str(rng.choice(["a", "b"])),
        "bool": lambda: bool(rng.random() < 0.5),
        "timestamp": lambda: NOON + timedelta(hours=int(rng.integers(0, 30))),
    }
    found = []
    for slot in range(count):
        row = {"slot": slot, "incarnation": seed, "ts": NOON + timedelta(hours=int(rng.integers(0, 24)))}
        for column in contract(table).columns:
            if column.name in {*row, "date", "segment"} or (not column.required and rng.random() < 0.2):
                continue
            kind = next((kind for kind in makers if str(column.type).startswith(kind)), "")
            row[column.name] = makers[kind]() if kind else int(rng.integers(0, 5))
        if len(contract(table).grain) == 1:  # an id: no two rows of a table have the same
            row.update(dict.fromkeys(contract(table).grain, f"{seed}-{slot}"))
        found.append(row)
    return found


@pytest.mark.slow
@settings(
    max_examples=1,
    deadline=None,
    phases=[Phase.explicit, Phase.generate],  # one run takes half a minute: nobody waits for a smaller one that fails
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(seed=st.integers(0, 2**32), arrivals=st.just(2))
def test_incremental_is_full_whatever_the_order_of_arrival(tmp_path_factory, seed, arrivals):
    """Facts of every input, cut into pieces that arrive in random order with rollups between: the rows of a rebuild.

    Of every rollup that is registered. A table that the runs and devices here do not fill gets rows of its contract.
    """
    rng = np.random.default_rng(seed)
    whole = [
        run_of("a", start=NOON + timedelta(hours=11, minutes=59, seconds=52), steps=40, seed=1),
        run_of("a", start=NOON + timedelta(hours=12, seconds=40), steps=20, attempt=1, first=25, seed=2),
        run_of("b", start=NOON, steps=10, ranks=3, seed=3),
        run_of("c", start=NOON + timedelta(days=2), steps=5, seed=4),
        {"gpu_samples": [*sampled("a", "GPU-1", 0), *sampled("a", "GPU-2", 1)]},
    ]
    whole[2]["steps"][7].update(loss=None, non_finite="loss:inf")  # a finding
    filled = {table for facts in whole for table in facts}
    derived = {rollup.name for rollup in ROLLUPS}
    others = {table for rollup in ROLLUPS for table in rollup.tables} - derived - filled
    whole += [{table: anything(table, number)} for number, table in enumerate(sorted(others))]
    pieces = [(table, row) for run in whole for table, facts in run.items() for row in facts]
    rng.shuffle(pieces)
    prices = tmp_path_factory.mktemp("prices") / "prices.csv"
    prices.write_text(
        "device_name,pool,price_per_device_hour,currency,valid_from,valid_to\n"
        f"a CPU,,0.123456789,EUR,2026-01-01,{NEXT}\na CPU,,2.5,EUR,{NEXT},\n"
    )
    incremental = Lake.create(str(tmp_path_factory.mktemp("incremental"))).configured(cost=CostSection(str(prices)))
    cuts = sorted(rng.integers(0, len(pieces), arrivals))
    for low, high in zip([0, *cuts], [*cuts, len(pieces)], strict=True):
        arrived = {}
        for table, row in pieces[low:high]:
            arrived.setdefault(table, []).append(row)
        bring(incremental, arrived)
        run_rollups(incremental)
    fresh = Lake.create(str(tmp_path_factory.mktemp("fresh"))).configured(cost=CostSection(str(prices)))
    for table in sorted(filled | others):
        append(fresh, table, pa.concat_tables([rows(table, facts[table]) for facts in whole if table in facts]))
    run_rollups(fresh)
    one, other = state(incremental, ROLLUPS), state(fresh, ROLLUPS)
    for name in one:
        differing = [column for column in one[name].column_names if not one[name][column].equals(other[name][column])]
        assert one[name].equals(other[name]), f"{name}: {differing}"
    empty = {name for name, found in one.items() if not found.num_rows} - (FLEET - {"gpu_hourly"})
    assert not empty, "else they show nothing"
    assert sum(one["step_rollup"]["ranks"].to_pylist()) == sum(len(run.get("steps", ())) for run in whole)
    assert one["step_rollup"].num_rows == 40 + 20 + 10 + 5
    assert one["mfu"]["mfu_ratio"].null_count == 0
    by_recorders = one["cost"].filter(pc.not_equal(one["cost"]["told_by"], "jobs"))
    assert by_recorders["cost_total"].null_count == 0
    assert set(by_recorders["device_price"].to_pylist()) == {Decimal("0.123456789"), Decimal("2.5")}


@pytest.mark.slow
def test_digests_are_the_same_in_every_process():
    """What is vouched for by one process is not due for the next: no digest depends on the order of a set."""
    program = "from ranklake.lake.rollups.registry import ROLLUPS; print([one.sha256 for one in ROLLUPS])"
    said = [
        subprocess.run(
            [sys.executable, "-c", program], capture_output=True, check=True, env={"PYTHONHASHSEED": seed}
        ).stdout
        for seed in ("1", "2")
    ]
    assert said[0] == said[1]
