"""Dates that grow: only what new rows can change is computed, and the rows are those of a full computation."""

from datetime import timedelta
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pytest
from rollup_inputs import NOON, append
from sampled import gpu_samples, with_links

from ranklake.lake.contracts.load import contract
from ranklake.lake.plans.workers import InProcess
from ranklake.lake.rollups import evaluate, growth, tasks
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
BY_PERIOD = [rollup.name for rollup in select_rollups() if rollup.lookback_s is not None]
EVENING = NOON + timedelta(hours=10)


@pytest.fixture
def grown(monkeypatch):
    """Give a list of the attempts whose groups were computed by themselves, one entry a date."""
    calls = []

    def keep_groups(ctx, tables, cut, groups):
        calls.append(groups)
        growth.keep_groups(ctx, tables, cut, groups)

    monkeypatch.setattr(tasks, "keep_groups", keep_groups)
    return calls


@pytest.fixture
def hours(monkeypatch):
    """Give a list of (rollup, hour of the day from which it was computed), one entry a date."""
    calls = []

    def first_period(lake, rollup, *arguments):
        since = growth.first_period(lake, rollup, *arguments)
        calls.append((rollup.name, since and since.hour))
        return since

    monkeypatch.setattr(tasks, "first_period", first_period)
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


def stored(lake, names=CUT):
    """Return the rows of rollups, in order."""
    return {
        name: read(lake.tables, contract(name)).sort_by([(one, "ascending") for one in contract(name).grain])
        for name in names
    }


def same_as_full(lake, names=CUT):
    """Assert that the rows are those of a full computation."""
    incremental = stored(lake, names)
    run_rollups(Lake.open(lake.uri), names, full=True)
    full = stored(lake, names)
    for name in names:
        assert incremental[name].equals(full[name]), name


def again(lake, names=CUT):
    """Bring the rollups up to date as a process of its own does."""
    run_rollups(Lake.open(lake.uri), names)


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


def xid(device, at):
    """Return an event: an error of a device."""
    return {"ts": at, "event": "xid", "attributes": f'{{"device_uuid": "{device}", "xid": 79}}'}


def test_new_samples_compute_the_hours_from_the_earliest_on(lake, hours):
    """A minute of the current hour, one that crosses an hour, a late one, an error, midnight; what changes no hour."""
    gpu = ["gpu_hourly"]
    late = NOON + timedelta(hours=2)
    append(lake, "gpu_samples", gpu_samples(60, every_s=60.0, start=NOON) + gpu_samples(60, every_s=60.0, start=late))
    again(lake, gpu)
    assert hours == []
    append(lake, "gpu_samples", gpu_samples(60, start=late + timedelta(minutes=60), slot=99))
    again(lake, gpu)
    append(lake, "gpu_samples", gpu_samples(3, every_s=60.0, start=late + timedelta(minutes=119), slot=199))
    again(lake, gpu)
    append(lake, "events", [xid("GPU-1", NOON + timedelta(minutes=5))])
    again(lake, gpu)
    merge(lake, "gpu_samples")
    again(lake, gpu)
    append(lake, "gpu_samples", gpu_samples(4, every_s=60.0, start=NOON + timedelta(hours=11, minutes=58), slot=299))
    again(lake, gpu)
    append(lake, "gpu_samples", gpu_samples(1, start=NOON + timedelta(hours=12, minutes=3), slot=399))
    again(lake, gpu)
    assert [hour for _, hour in hours] == [15, 15, 12, 23, 0]
    append(lake, "gpu_samples", gpu_samples(1, start=NOON - timedelta(minutes=5), slot=499))
    again(lake, gpu)
    assert {hour for _, hour in hours[5:]} == {11, None}, "no hour of the next day"
    assert sum(stored(lake, gpu)["gpu_hourly"]["xid_count"].to_pylist()) == 1
    same_as_full(lake, gpu)


def test_samples_that_are_taken_out_compute_the_whole_date(lake, hours):
    """Rows that an erasure or a check took out reach any hour."""
    append(lake, "gpu_samples", gpu_samples(60, every_s=60.0))
    again(lake, BY_PERIOD)
    rewrite(lake, "gpu_samples", lambda old: old.slice(7))
    append(lake, "gpu_samples", gpu_samples(60, start=NOON + timedelta(hours=1), slot=99))
    again(lake, BY_PERIOD)
    assert hours == []
    same_as_full(lake, BY_PERIOD)


def test_a_minute_of_samples_computes_its_minute(lake, monkeypatch):
    """The minute before stays, unless a sample came late; an erasure computes the whole date."""
    seen = []

    def evaluate_day(*arguments, **options):
        seen.append(options.get("since"))
        return evaluate.evaluate_day(*arguments, **options)

    monkeypatch.setattr(tasks, "evaluate_day", evaluate_day)
    gpu = ["gpu_minutes"]
    append(lake, "gpu_samples", gpu_samples(10, every_s=60.0))
    again(lake, gpu)
    for minutes, slot in ((10, 20), (11, 30), (4, 40)):
        append(lake, "gpu_samples", gpu_samples(3, start=NOON + timedelta(minutes=minutes, seconds=30), slot=slot))
        again(lake, gpu)
    assert [since and since.minute for since in seen[1:]] == [10, 11, 4]
    same_as_full(lake, gpu)
    seen.clear()
    rewrite(lake, "gpu_samples", lambda old: old.slice(1))
    again(lake, gpu)
    assert seen == [None]
    assert sum(stored(lake, gpu)["gpu_minutes"]["sample_count"].to_pylist()) == 18
    same_as_full(lake, gpu)


def test_facts_of_attempts_compute_the_hours_of_these_attempts(lake, hours, monkeypatch):
    """An attempt that begins, or ends, changes no hour before; another pool changes all hours of the attempt."""
    monkeypatch.setattr(growth, "MOST_COMMITS", 2)
    gpu = ["gpu_hourly"]
    append(lake, "runs", [{"ts": NOON, "run": "r1", "pool": "p"}])
    append(lake, "gpu_samples", gpu_samples(60, every_s=60.0, holder_run="r0"))
    append(lake, "gpu_samples", gpu_samples(60, every_s=60.0, start=NOON + timedelta(hours=1), slot=99))
    again(lake, gpu)
    later = NOON + timedelta(hours=3)
    append(lake, "runs", [{"ts": later, "run": "r2", "pool": "p"}])
    append(lake, "gpu_samples", gpu_samples(9, start=later, slot=199, holder_run="r2"))
    again(lake, gpu)
    append(lake, "runs", [{"ts": later + timedelta(hours=1), "run": "r1", "slot": 1}])
    again(lake, gpu)
    assert hours == [("gpu_hourly", 15), ("gpu_hourly", None)]
    for hour in range(4):  # rows of the next date: more commits than are read
        append(lake, "gpu_samples", gpu_samples(9, start=later + timedelta(hours=13 + hour), slot=300 + 9 * hour))
        again(lake, gpu)
    hours.clear()
    append(lake, "runs", [{"ts": NOON - timedelta(hours=1), "run": "r1", "pool": "q", "slot": 2}])
    again(lake, gpu)
    assert sorted(hours) == [("gpu_hourly", 4), ("gpu_hourly", 13)]
    assert set(stored(lake, gpu)["gpu_hourly"]["pool"].to_pylist()) == {None, "p", "q"}
    same_as_full(lake, gpu)


def test_new_facts_of_ranks_compute_the_hours_of_their_attempt(lake, hours):
    """FLOPs that a rank records later count for earlier hours of its attempt, too, but not for another run's."""
    flops = {"metric": "model/flops_per_token", "value": 1e6}
    for number, (run, hour) in enumerate([("r2", 11), ("r1", 12), ("r1", 14), ("r1", 16)]):
        start = NOON.replace(hour=hour)
        append(lake, "steps", [{**row, "tokens": 10} for row in stepped(run, 100 * number, 5, start=start)])
        if hour in (14, 16):
            append(lake, "scalars", [{**flops, "run": run, "ts": start, "value": 1e6 * hour, "slot": number}])
        again(lake, ["mfu"])
    assert hours == [("mfu", 12), ("mfu", 12), ("mfu", 12)]
    same_as_full(lake, ["mfu"])
    assert stored(lake, ["mfu"])["mfu"]["model_flops"].null_count == 1


def test_links_are_compared_with_stored_hours(lake, hours):
    """Where only the last hours are computed, a link is down that was up in an hour long before; midnight ends that."""
    host = ["host_hourly"]
    for number, start in enumerate((EVENING, EVENING + timedelta(hours=1, minutes=55), EVENING + timedelta(hours=7))):
        rows = with_links("n1", mlx5_0=number == 0, mlx5_1=number < 2)
        append(
            lake,
            "host_samples",
            [{**row, "ts": row["ts"] - NOON + start, "slot": 99 * number + n} for n, row in enumerate(rows)],
        )
        again(lake, host)
    rows = stored(lake, host)["host_hourly"].to_pylist()
    assert [(row["link_count"], row["link_down_count"]) for row in rows] == [(2, 0), (2, 1), (1, 0), (1, 1)]
    assert hours == [("host_hourly", 23), ("host_hourly", 5)]
    same_as_full(lake, host)


def test_full_files_of_earlier_hours_stay(lake, monkeypatch):
    """A minute writes its own hour and the last file that is not full."""
    monkeypatch.setattr(tasks, "FULL_ROWS", 2)
    seen = []
    for hour in range(4):
        samples = [row for n in range(3) for row in gpu_samples(5, device=f"G{n}", start=NOON + timedelta(hours=hour))]
        append(lake, "gpu_samples", [{**row, "slot": slot + 100 * hour} for slot, row in enumerate(samples)])
        again(lake, ["gpu_hourly"])
        seen.append(set(files(delta_table(lake.store, "gpu_hourly"))["path"].to_pylist()))
    assert [len(paths) for paths in seen] == [1, 2, 3, 4]
    assert all(before < now for before, now in pairwise(seen))


def random_minutes(rng, device, start, number):
    """Return samples of a device and of its host: intervals or none, counters that start again, links that change."""
    many, every_s = int(rng.integers(1, 30)), float(rng.choice([1, 30, 60, 200]))
    if rng.random() < 0.5:  # until shortly before the end of an hour, so that what follows begins with the next
        start = start.replace(minute=59, second=55) - (many - 1) * timedelta(seconds=every_s)
    own = {"incarnation": 10 * number + int(rng.integers(3)), "holder_run": str(rng.choice(["r1", "r2"]))}
    if rng.random() < 0.3:
        own["interval_ns"] = None
    joules = float(rng.choice([10.0, 1e6 * number]))
    gpu = gpu_samples(many, device=device, joules=joules, start=start, every_s=every_s, **own)
    speeds = {"mlx5_0": int(rng.choice([1, 2])) * 10**11}
    host = with_links(
        "n1", at=int(rng.integers(5)), speeds=speeds, count=many, mlx5_0=True, mlx5_1=bool(rng.random() < 0.5)
    )
    for n, (row, sample) in enumerate(zip(host, gpu, strict=True)):
        row |= {name: sample[name] for name in ("ts", "slot", "interval_ns", *own)}
        row |= {"disk_write_bytes": 10**6 * number + n, "boot_id": f"b{number // 8}"}
    return gpu, host


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(6))
def test_any_history_of_samples_gives_the_rows_of_a_full_computation(lake, hours, monkeypatch, seed):
    """New and late minutes, files across an hour and midnight, errors, resets, merges, rewritten files, attempts."""
    monkeypatch.setattr(tasks, "FULL_ROWS", 3)
    rng = np.random.default_rng(seed)
    at = {f"G{n}": EVENING for n in range(3)}
    for number in range(16):
        device = str(rng.choice(list(at)))
        kind = rng.choice(["on"] * 5 + ["late", "error", "merge", "rewrite", "attempt"])
        if kind in {"on", "late"}:
            start = at[device] + timedelta(seconds=int(rng.choice([10, 10, 290, 310, 1500])))
            start = start if kind == "on" else EVENING + timedelta(minutes=int(rng.integers(-30, 120)))
            gpu, host = random_minutes(rng, device, start, number)
            append(lake, "gpu_samples", gpu)
            append(lake, "host_samples", host)
            requests = {"model": "m", "incarnation": number}
            append(lake, "inferences", [{**requests, "ts": row["ts"], "latency_s": rng.random()} for row in gpu])
            rank = {"run": str(rng.choice(["r1", "r2"])), "rank": int(rng.integers(2)), "incarnation": number}
            steps = [{**rank, "ts": row["ts"], "slot": slot, "step": 100 * number + slot, "step_time_s": rng.random(),
                      "tokens": 10} for slot, row in enumerate(gpu)]  # fmt: skip
            append(lake, "steps", steps)
            if rng.random() < 0.3:
                fact = {"metric": "model/flops_per_token", "value": 1e6 * number + 1, "ts": start}
                append(lake, "scalars", [{**rank, **fact}])
            at[device] = max(at[device], gpu[-1]["ts"])
        elif kind == "error":
            append(lake, "events", [{**xid(device, at[device] - timedelta(minutes=1)), "slot": number}])
        elif kind == "attempt":
            facts = {"pool": f"p{number}", "device_name": "NVIDIA A100-SXM4-80GB", "compute_dtype": "bfloat16"}
            append(lake, "runs", [{"ts": EVENING, "run": "r1", "slot": number, **facts}])
        elif delta_table(lake.store, "gpu_samples") is not None:
            for table in ("gpu_samples", "host_samples", "inferences", "steps"):
                _ = merge(lake, table) if kind == "merge" else rewrite(lake, table, lambda old: old.slice(len(old) > 1))
        if rng.random() < 0.8:
            again(lake, BY_PERIOD)
    again(lake, BY_PERIOD)
    assert {name for name, _ in hours} == set(BY_PERIOD), "else this shows nothing"
    same_as_full(lake, BY_PERIOD)
