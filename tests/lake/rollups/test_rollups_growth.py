"""Dates that grow: only groups with new rows are computed, and the rows are those of a full computation."""

from datetime import timedelta
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pytest
from rollup_inputs import NOON, append

from ranklake.lake.contracts.load import contract
from ranklake.lake.plans.workers import InProcess
from ranklake.lake.rollups import growth, tasks
from ranklake.lake.rollups.evaluate import WHOLE_RANGE
from ranklake.lake.rollups.registry import select_rollups
from ranklake.lake.rollups.runner import run_rollups
from ranklake.lake.store.lake import Lake
from ranklake.lake.tables.commit import number_of, swap
from ranklake.lake.tables.live_files import files, files_digest
from ranklake.lake.tables.parquet import write_partition
from ranklake.lake.tables.read import read, read_some
from ranklake.lake.tables.tables import delta_table

CUT = [rollup.name for rollup in select_rollups() if rollup.cut]


@pytest.fixture
def grown(monkeypatch):
    """Give a list of the attempts whose groups were computed by themselves, one entry a date."""
    calls = []

    def keep_groups(ctx, tables, cut, groups):
        calls.append(groups)
        growth.keep_groups(ctx, tables, cut, groups)

    monkeypatch.setattr(tasks, "keep_groups", keep_groups)
    return calls


def stepped(run, first, count, *, attempt=0, ranks=3, start=NOON, seed=0, incarnation=0):
    """Return rows of `steps`, of a few ranks that begin a step one after the other."""
    rng = np.random.default_rng([seed, first])
    return [
        {
            "run": run,
            "attempt": attempt,
            "rank": rank,
            "incarnation": incarnation + 100 * attempt + rank,
            "slot": step,
            "step": step,
            "ts": start + timedelta(seconds=step + 0.3 * rank),
            "step_time_s": float(np.float32(rng.uniform(0.5, 1))),
            "loss": float(np.float32(rng.normal(3, 1))),
        }
        for step in range(first, first + count)
        for rank in range(ranks)
    ]


def logged(run, first, count, *, attempt=0, metric="loss", start=NOON):
    """Return rows of `scalars` of rank 0, one a step."""
    return [
        {
            "run": run,
            "attempt": attempt,
            "incarnation": 100 * attempt,
            "slot": step,
            "step": step,
            "ts": start + timedelta(seconds=step + 0.1),
            "metric": metric,
            "value": step / 7,
        }
        for step in range(first, first + count)
    ]


def merge(lake, table):
    """Merge all files of each date of a table, as compaction does."""
    handle = delta_table(lake.store, table)
    for day in set(files(handle)["date"].to_pylist()):
        handle = delta_table(lake.store, table)
        live = files(handle, [day])
        number = number_of(handle) + 1
        parts = [part for _, part in read_some(lake.tables, contract(table), live)]
        digest = files_digest(live["path"].to_pylist())
        file = write_partition(lake.store, contract(table), pa.concat_tables(parts), day, number, merged=digest)
        assert swap(handle, number, add=[file], remove=live, data_change=False)


def rewrite(lake, table, change):
    """Replace the first file of a table by one of other rows, as an erasure, a quarantine or a migration does."""
    handle = delta_table(lake.store, table)
    live = files(handle).slice(0, 1)
    number = number_of(handle) + 1
    ((_, old),) = read_some(lake.tables, contract(table), live)
    file = write_partition(lake.store, contract(table), change(old), live["date"][0].as_py(), number)
    assert swap(handle, number, add=[file], remove=live)


def stored(lake):
    """Return the rows of rollups that are cut, in order."""
    return {
        name: read(lake.tables, contract(name)).sort_by([(one, "ascending") for one in contract(name).grain])
        for name in CUT
    }


def same_as_full(lake):
    """Assert that the rows are those of a full computation."""
    incremental = stored(lake)
    run_rollups(Lake.open(lake.uri), CUT, full=True)
    full = stored(lake)
    for name in CUT:
        assert incremental[name].equals(full[name]), name


def again(lake):
    """Bring the rollups up to date as a process of its own does."""
    run_rollups(Lake.open(lake.uri), CUT)


def test_a_minute_computes_its_own_steps(lake, grown):
    """New steps of one run, and steps of which one more rank tells now; merged files are no news."""
    append(lake, "steps", [*stepped("a", 0, 40), *stepped("b", 5000, 40)])
    again(lake)
    assert grown == []
    append(lake, "steps", stepped("a", 40, 10))
    again(lake)
    merge(lake, "steps")
    again(lake)
    append(lake, "steps", [*stepped("a", 50, 10, ranks=2), *stepped("b", 5039, 1, ranks=5)[3:]])
    merge(lake, "steps")
    again(lake)
    append(lake, "steps", stepped("a", 55, 1)[2:])
    again(lake)
    ranges = [{attempt[0]: some for attempt, some in groups.items()} for groups in grown]
    assert ranges == [{"a": [(40, 49)]}, {"a": [(50, 59)], "b": [(5039, 5039)]}, {"a": [(55, 55)]}]
    same_as_full(lake)


def test_workers_are_started_for_new_rows_only(lake):
    """The expected work of a date that grew counts its new rows."""
    (rollup,) = (each for each in select_rollups(["step_rollup"]) if each.name == "step_rollup")
    expected = []

    class Counting(InProcess):
        def fitting(self, cpu_s):
            expected.append(cpu_s)
            return self

    append(lake, "steps", stepped("a", 0, 400))
    run_rollups(lake, ["step_rollup"], workers=Counting())
    append(lake, "steps", stepped("a", 400, 10))
    run_rollups(Lake.open(lake.uri), ["step_rollup"], workers=Counting())
    assert expected == pytest.approx([tasks.TASK_CPU_S + rows * rollup.row_cpu_s for rows in (1200, 30)])


def test_what_is_taken_out_or_changed_is_computed_as_a_whole(lake, grown):
    """Rows that an erasure or a check took out, and values that a migration or a mask changed, give another digest."""
    append(lake, "steps", stepped("a", 0, 40))
    append(lake, "steps", stepped("a", 40, 40))
    again(lake)
    rewrite(lake, "steps", lambda old: old.slice(7))
    append(lake, "steps", stepped("a", 80, 5))
    again(lake)
    assert stored(lake)["step_rollup"]["ranks"].to_pylist().count(3) < 85
    rewrite(
        lake,
        "steps",
        lambda old: old.set_column(old.schema.get_field_index("loss"), "loss", pa.nulls(len(old), pa.float32())),
    )
    again(lake)
    assert grown == []
    same_as_full(lake)


def test_rows_that_somebody_else_wrote_are_computed_as_a_whole(lake, grown):
    """Stored rows stand only as the rollup wrote them: a file of the output that was rewritten ends that."""
    append(lake, "steps", stepped("a", 0, 40))
    again(lake)
    rewrite(lake, "step_rollup", lambda old: old.slice(3))
    append(lake, "steps", stepped("a", 40, 5))
    again(lake)
    assert grown == []
    assert stored(lake)["step_rollup"].num_rows == 45
    same_as_full(lake)


def test_an_attempt_that_begins_to_tell_steps_loses_those_of_its_values(lake, grown):
    """Steps that only values told of go with the first row in `steps`, whichever they were."""
    append(lake, "steps", stepped("b", 0, 5))
    append(lake, "scalars", logged("a", 0, 20, metric="other"))
    again(lake)
    assert stored(lake)["step_rollup"].num_rows == 25
    append(lake, "scalars", logged("a", 20, 5, metric="other"))
    again(lake)
    append(lake, "steps", stepped("a", 18, 3))
    again(lake)
    assert stored(lake)["step_rollup"].num_rows == 8
    append(lake, "scalars", [*logged("a", 40, 5, metric="other"), *logged("a", 50, 5)])
    again(lake)
    assert stored(lake)["step_rollup"].num_rows == 13
    assert [list(groups.values()) for groups in grown] == [[[WHOLE_RANGE]], [[WHOLE_RANGE]], [[(40, 54)]]]
    same_as_full(lake)


def test_full_files_stay(lake, monkeypatch):
    """A minute writes its own rows and those of the last file that is not full."""
    monkeypatch.setattr(tasks, "FULL_ROWS", 50)
    seen = []
    for minute in range(6):
        append(lake, "steps", stepped("a", minute * 20, 21))  # the last step goes on in the next minute
        again(lake)
        live = files(delta_table(lake.store, "step_rollup"))
        seen.append(dict(zip(live["path"].to_pylist(), live["num_records"].to_pylist(), strict=True)))
    assert sum(seen[-1].values()) == 121
    assert max(seen[-1].values()) < 50 + 21 + 1
    assert len(seen[-1]) <= 3
    assert all(len(set(now) - set(before)) <= 2 for before, now in pairwise(seen))
    same_as_full(lake)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(6))
def test_any_history_gives_the_rows_of_a_full_computation(lake, grown, monkeypatch, seed):
    """Late, early, doubled ranks, values before steps, midnight, merges and rewritten files, in random order."""
    monkeypatch.setattr(tasks, "FULL_ROWS", 30)
    rng = np.random.default_rng(seed)
    night = NOON + timedelta(hours=11, minutes=59)
    at = {(run, attempt): 0 for run in "ab" for attempt in range(2)}
    for _ in range(14):
        kind = rng.choice(["on", "on", "on", "late", "values", "merge", "rewrite"])
        (run, attempt), step = list(at.items())[rng.integers(len(at))]
        many = int(rng.integers(1, 30))
        first = step if kind == "on" else int(rng.integers(0, step + 30))
        if kind in {"on", "late"}:
            ranks = int(rng.integers(1, 4))
            append(
                lake,
                "steps",
                stepped(
                    run, first, many, attempt=attempt, ranks=ranks, start=night, incarnation=int(rng.integers(10**6))
                ),
            )
            at[run, attempt] = max(step, first + many)
        elif kind == "values":
            metric = str(rng.choice(["loss", "lr", "other"]))
            append(lake, "scalars", logged(run, first, many, attempt=attempt, metric=metric, start=night))
        elif delta_table(lake.store, "steps") is not None:
            if kind == "merge":
                merge(lake, "steps")
            else:
                rewrite(lake, "steps", lambda old: old.slice(1) if len(old) > 1 else old)
        if rng.random() < 0.8:
            again(lake)
    again(lake)
    assert grown, "else this shows nothing"
    same_as_full(lake)


def test_a_log_that_is_gone_has_all_computed(lake, grown):
    """Without the commits since, nothing tells what came."""
    append(lake, "steps", stepped("a", 0, 40))
    again(lake)
    append(lake, "steps", stepped("a", 40, 5))
    handle = delta_table(lake.store, "steps")
    handle.create_checkpoint()
    lake.store.fs.rm_file(lake.store.path("tables", "steps", "_delta_log", f"{handle.version():020}.json"))
    again(lake)
    assert grown == []
    assert stored(lake)["step_rollup"].num_rows == 45


def test_the_day_before_ends_an_hour_after_midnight(lake, grown):
    """The next date's rows make no date due that none of them is within an hour of."""
    append(lake, "steps", stepped("a", 0, 10))
    append(lake, "steps", stepped("a", 10, 10, start=NOON + timedelta(hours=12, minutes=30)))
    first = {result.name: result.computed for result in run_rollups(Lake.open(lake.uri), [*CUT, "rank_health"])}
    assert first == dict.fromkeys(first, 2)
    append(lake, "steps", stepped("a", 20, 10, start=NOON + timedelta(hours=14)))
    later = {result.name: result.computed for result in run_rollups(Lake.open(lake.uri), [*CUT, "rank_health"])}
    assert later == dict.fromkeys(first, 1)
    assert [list(groups.values()) for groups in grown] == [[[(20, 29)]]]
    same_as_full(lake)
