"""Jobs and clusters by the hour: what plain loops give, whatever arrives late, and sums that add up to the whole."""

import json
from collections import defaultdict
from datetime import UTC, datetime, timedelta
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from rollup_inputs import DAY, NOON, append, computed, context, rows

from ranklake.errors import RanklakeError
from ranklake.lake.contracts.arrow import arrow_schema
from ranklake.lake.contracts.load import contract
from ranklake.lake.rollups.lookups import pseudonym
from ranklake.lake.rollups.runner import run_rollups
from ranklake.lake.store.lake import Lake
from ranklake.lake.tables.commit import number_of, swap
from ranklake.lake.tables.live_files import files
from ranklake.lake.tables.read import read
from ranklake.lake.tables.tables import delta_table
from ranklake.segments.keys import read_keyring

MIDNIGHT = datetime(DAY.year, DAY.month, DAY.day, tzinfo=UTC)
HOUR = timedelta(hours=1)
DAYS = [DAY + timedelta(days=number) for number in range(-2, 4)]
FLEET = ("job_facts", "gpu_hourly", "cluster_hourly")
ENDS = {"completed": "completed", "cancelled": "cancelled", "failed": "failed", "timeout": "failed"}


def job(number=1, *, submit=MIDNIGHT, waits=HOUR, runs=2 * HOUR, state="completed", **columns):
    """Return the row of a job that is over, dated to its end as sacct's are."""
    start = submit + waits
    row = {"job_id": str(number), "cluster": "c", "pool": "p", "team": "t", "user": "u", "state": state}
    row |= {"outcome": ENDS.get(state), "submit_ts": submit, "start_ts": start, "end_ts": start + runs, "gpu_count": 8}
    return {"ts": start + runs, **row, **columns}


def snapshot(at, pool="p", **columns):
    row = {"cluster": "c", "pool": pool, "interval_ns": 60 * 10**9, "gpu_total": 16.0, "gpu_allocated": 8.0}
    return {"ts": at, **row, "gpu_idle": 8.0, "job_pending": 2, **columns}


def facts_of(jobs, days=DAYS):
    return computed(context(jobs=jobs), "job_facts", days=days)


def fleet(jobs=(), pools=(), gpus=(), days=(DAY,), **tables):
    """Return {(hour number of the day, scope, scope name): row} of the days."""
    schema = arrow_schema(contract("gpu_hourly"))
    hourly = pa.Table.from_pylist([{name: row.get(name) for name in schema.names} for row in gpus], schema=schema)
    ctx = context(job_facts=facts_of(list(jobs)), pools=list(pools), gpu_hourly=hourly, **tables)
    found = computed(ctx, "cluster_hourly", days=days).to_pylist()
    keyed = {(row["hour"], row["scope"], row["scope_name"]): row for row in found}
    assert len(keyed) == len(found)
    columns = {"pool": "pool", "team": "team", "user": "user", "job": "job_id"}
    for row in found:
        named = {scope: row[column] for scope, column in columns.items() if row[column] is not None}
        assert named == ({} if row["scope"] == "cluster" else {row["scope"]: row["scope_name"]})
    return keyed if len(days) > 1 else {(key[0].hour, *key[1:]): row for key, row in keyed.items()}


def device_hour(hour=0, device="G1", **columns):
    row = {"hour": MIDNIGHT + hour * HOUR, "host": "n1", "device_uuid": device, "holder_run": "r1", "holder_attempt": 0}
    row |= {"cluster": "c", "pool": "p", "sample_count": 1, "observed_s": 3600.0, "allocated_s": 3600.0, "date": DAY}
    row |= {"busy_s": 1800.0, "busy_observed_s": 3600.0, "energy_joules": 3.6e6, "energy_observed_s": 3600.0}
    row |= {"idle_allocated_s": 0.0, "allocated_observed_s": 3600.0}
    return {**row, **columns}


def random_jobs(seed, count):
    """Return rows of jobs over four days: states on the way, corrections, and what no scheduler should say."""
    rng = np.random.default_rng(seed)
    found = []
    for number in range(count):
        submit = MIDNIGHT + timedelta(seconds=int(rng.integers(-36 * 3600, 40 * 3600)))
        waits = timedelta(seconds=int(rng.exponential(2000)))
        runs = timedelta(seconds=int(rng.exponential(20_000)))
        names = {"pool": f"p{rng.integers(2)}", "team": str(rng.choice(["a", "b"])), "user": f"u{rng.integers(3)}"}
        names |= {"gpu_count": int(rng.integers(1, 9)), "cpu_count": 4}
        row = job(number, submit=submit, waits=waits, runs=runs, state=str(rng.choice(list(ENDS))), **names)
        odd = rng.random()
        if odd < 0.05:
            row |= {"end_ts": row["start_ts"] - HOUR}
        elif odd < 0.1:
            row |= {"end_ts": None, "state": "running", "outcome": None}
        elif odd < 0.15:
            row |= {"start_ts": None, "outcome": "cancelled", "end_ts": row["start_ts"], "ts": row["start_ts"]}
        elif odd < 0.2:
            row |= {"gpu_count": None, "cpu_count": 4}
        if rng.random() < 0.5:
            living = {"end_ts": None, "outcome": None, "ts": row["ts"] - runs / 2, "state": "running"}
            found.append({**row, **living} | ({"start_ts": None} if rng.random() < 0.3 else {}))
        found.append(row)
    for slot, row in enumerate(found):
        row["slot"] = slot
    rng.shuffle(found)
    return found


def spread(begin, end, amount):
    """Yield (hour, amount x seconds of it) of an interval."""
    hour = begin.replace(minute=0, second=0, microsecond=0)
    while hour < end:
        yield hour, amount * (min(end, hour + HOUR) - max(begin, hour)).total_seconds()
        hour += HOUR


def oracle(jobs):
    """Return {(hour, scope, name): sums} by plain loops over the last rows of jobs, and which of them are not known."""
    last = {}
    for row in sorted(jobs, key=lambda row: (row["outcome"] is not None, row["ts"])):
        last[row["job_id"]] = row
    sums = defaultdict(lambda: defaultdict(float))
    unknown = set()
    counted = {row["submit_ts"].date() for row in last.values() if row["gpu_count"] is not None}
    for row in last.values():
        scopes = {"cluster": "c", "job": row["job_id"], **{scope: row[scope] for scope in ("pool", "team", "user")}}
        gpus = row["gpu_count"]
        if gpus is None and row["submit_ts"].date() in counted:  # a scheduler that counts devices leaves out none
            gpus = 0
        for place in scopes.items():
            add_job(row, gpus, place, sums, unknown)
    return sums, unknown


def add_job(row, gpus, place, sums, unknown):
    submit, start, end, outcome = (row[name] for name in ("submit_ts", "start_ts", "end_ts", "outcome"))
    held_until = end if start and end and end >= start else row["ts"] if start and not end else None
    for hour, amount in spread(submit, start or end or row["ts"], 1):
        sums[hour, *place]["queue_job_s"] += amount
    if held_until and gpus is None:
        unknown |= {(hour, *place, "gpu_delivered_s") for hour, _ in spread(start, held_until, 1)}
    elif held_until:
        for hour, amount in spread(start, held_until, gpus):
            sums[hour, *place]["gpu_delivered_s"] += amount
    elif start and gpus != 0:
        hours = [hour for hour, _ in spread(end, start + timedelta(microseconds=1), 1)]
        unknown |= {(hour, *place, "gpu_delivered_s") for hour in hours if hour.date() >= submit.date()}
    if start:
        one = sums[start.replace(minute=0, second=0, microsecond=0), *place]
        one["queue_time_sum_s"] += (start - submit).total_seconds()
        one["queue_time_count"] += 1
    if outcome and end and end.date() >= submit.date():  # no date before that of its submission knows of it
        at = end.replace(minute=0, second=0, microsecond=0)
        sums[at, *place][f"job_{outcome}_count"] += 1
        if held_until and gpus is not None:
            sums[at, *place][f"gpu_{outcome}_s"] += gpus * (held_until - start).total_seconds()
        elif start and gpus != 0:
            unknown.add((at, *place, f"gpu_{outcome}_s"))


@settings(max_examples=2, deadline=None)
@example(seed=20487124, count=6)  # the only job of a day, whose devices nobody counts
@given(seed=st.integers(0, 2**32), count=st.integers(1, 60))
@pytest.mark.slow
def test_hours_of_jobs_are_what_plain_loops_give(seed, count):
    """Waits, device time and outcomes of any jobs, in each scope and hour, are those of loops over their last rows."""
    jobs = random_jobs(seed, count)
    if not any(row["gpu_count"] for row in jobs):
        return
    found = fleet(jobs, days=DAYS)
    sums, unknown = oracle(jobs)
    one_day = {key for key, _ in found.items()}
    expected = {key for key in sums if key[0].date() in DAYS and any(sums[key].values())}
    assert expected <= one_day
    for key, row in found.items():
        for name in (
            "gpu_delivered_s", "queue_job_s", "queue_time_count", "job_completed_count", "job_cancelled_count",
            "job_failed_count", "gpu_completed_s", "gpu_cancelled_s", "gpu_failed_s",
        ):  # fmt: skip
            value = None if (*key, name) in unknown else sums[key][name]
            assert row[name] == (value if value is None else pytest.approx(value, abs=1e-5)), (key, name)
        assert (row["queue_time_sum_s"] or 0) == pytest.approx(sums[key]["queue_time_sum_s"])


def allocation(hours):
    counted = [row for row in hours if row["gpu_total_s"]]
    return sum(row["gpu_delivered_s"] for row in counted) / sum(row["gpu_total_s"] for row in counted)


@settings(max_examples=2, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_rollups_of_rollups_are_direct(seed):
    """Sums over hours, pools and jobs are those over the raw rows; ratios of sums are exact for any period."""
    rng = np.random.default_rng(seed)
    jobs = [row for row in random_jobs(seed, 30) if row["gpu_count"] and row["end_ts"] and row["start_ts"]]
    jobs = [row for row in jobs if row["end_ts"] >= row["start_ts"]]
    pools = [
        snapshot(MIDNIGHT + timedelta(minutes=30 * n), pool, interval_ns=1800 * 10**9, gpu_total=float(size),
                 gpu_allocated=float(rng.integers(0, size + 1)))
        for pool, size in (("p0", 8), ("p1", 64)) for n in range(96)
    ]  # fmt: skip
    for row in pools:
        row["gpu_idle"] = row["gpu_total"] - row["gpu_allocated"]
    found = fleet(jobs, pools, days=DAYS)
    by_scope = defaultdict(float)
    for (_, scope, _), row in found.items():
        if row["gpu_delivered_source"] == "jobs":
            by_scope[scope] += row["gpu_delivered_s"]
    final = {row["job_id"]: row for row in jobs}
    direct = sum(row["gpu_count"] * (row["end_ts"] - row["start_ts"]).total_seconds() for row in final.values())
    assert by_scope["job"] == by_scope["team"] == by_scope["user"] == pytest.approx(direct)
    days = {row["hour"].date() for row in found.values() if row["gpu_total_s"]}
    assert len(days) == 2
    for names in ({"p0"}, {"p1"}, {"p0", "p1"}):
        mine = [
            row for (_, scope, name), row in found.items() if scope == "pool" and name in names and row["gpu_total_s"]
        ]
        ratio = sum(row["gpu_delivered_s"] for row in mine) / sum(row["gpu_total_s"] for row in mine)
        raw = [row for row in pools if row["pool"] in names]
        assert ratio == pytest.approx(
            sum(r["gpu_allocated"] for r in raw) / sum(r["gpu_total"] for r in raw), rel=1e-12
        )
    whole = [row for (_, scope, _), row in found.items() if scope == "cluster" and row["gpu_total_s"]]
    assert sum(row["gpu_delivered_s"] for row in whole) / sum(row["gpu_total_s"] for row in whole) == pytest.approx(
        ratio
    )


def samples_of(rng, device, start, count, run):
    return [
        {"ts": start + timedelta(seconds=15 * n), "slot": n, "incarnation": device + 1, "host": f"n{device}",
         "device_uuid": f"G{device}", "source": "nvml", "interval_ns": 15 * 10**9 if n else None, "holder_run": run,
         "holder_attempt": 0, "holder_rank": device, "holder_count": 1, "energy_joules": 1e6 + 5e3 * n,
         "gpu_utilization_ratio": float(np.float32(rng.random()))}
        for n in range(count)
    ]  # fmt: skip


def state(lake):
    found = {}
    for name in FLEET:
        grain = [(column, "ascending") for column in contract(name).grain]
        found[name] = read(lake.tables, contract(name)).sort_by(grain).combine_chunks()
    return found


@pytest.mark.slow
@settings(max_examples=1, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_dates_in_a_row_come_out_as_each_alone(seed):
    """However many dates are computed at once, each is as by itself: jobs and snapshots over many, ids used again."""
    rng = np.random.default_rng(seed)
    jobs = [{**row, "job_id": str(int(row["job_id"]) % 7)} for row in random_jobs(seed, 20)]
    pools = [
        snapshot(
            MIDNIGHT + int(rng.integers(-40, 70)) * HOUR,
            f"p{n % 3}",
            interval_ns=int(rng.integers(0, 80)) * 3600 * 10**9,
        )
        for n in range(20)
    ]
    pools += [{**row, "interval_ns": None, "ts": row["ts"] + timedelta(minutes=5)} for row in pools[:10]]
    starts = [DAY + timedelta(days=int(rng.integers(-2, 4))) for _ in range(4)]
    about = [
        {
            "run": f"r{n}",
            "ts": MIDNIGHT,
            "date": day,
            "scheduler_job_id": str(n),
            "user": f"u{n}",
            "cluster": [None, "c"][n % 2],
        }
        for n, day in enumerate(starts)
    ]
    hours = [
        device_hour(hour=24 * day + int(rng.integers(24)), device=f"G{n}", date=DAY + timedelta(days=day),
                    holder_run=f"r{n}", host=f"n{n % 2}", cluster=[None, "c"][int(rng.integers(2))])
        for day in range(-2, 4) for n in range(4)
    ]  # fmt: skip
    schema = arrow_schema(contract("gpu_hourly"))
    hourly = pa.Table.from_pylist([{name: row.get(name) for name in schema.names} for row in hours], schema=schema)
    ctx = context(job_facts=facts_of(jobs), pools=pools, gpu_hourly=hourly, runs=about)
    together = computed(ctx, "cluster_hourly", DAYS)
    order = [(name, "ascending") for name in contract("cluster_hourly").grain]
    for day in DAYS:
        alone = computed(ctx, "cluster_hourly", [day]).sort_by(order)
        mine = together.filter(pc.equal(together["date"], pa.scalar(day, pa.date32()))).sort_by(order)
        assert mine.equals(alone), day
    assert together.num_rows > 100


@pytest.mark.slow
@settings(max_examples=1, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 2**32))
def test_incremental_is_full_whatever_the_order_of_arrival(tmp_path_factory, seed):
    """Jobs over days, corrected later, pools and samples in random pieces with rollups between: a rebuild's rows."""
    rng = np.random.default_rng(seed)
    jobs = random_jobs(seed, 8)
    pools = [snapshot(MIDNIGHT + n * HOUR, f"p{n % 2}", interval_ns=3600 * 10**9) for n in range(0, 48, 5)]
    gpus = [row for n in range(3) for row in samples_of(rng, n, MIDNIGHT + 11.99 * n * HOUR, 20, "r1")]
    runs = [{"ts": MIDNIGHT, "run": "r1", "cluster": "c", "pool": "p0", "scheduler_job_id": "3"}]
    whole = {"jobs": jobs, "pools": pools, "gpu_samples": gpus, "runs": runs}
    pieces = [(table, {"slot": slot, **row}) for table, facts in whole.items() for slot, row in enumerate(facts)]
    rng.shuffle(pieces)
    incremental = Lake.create(str(tmp_path_factory.mktemp("incremental")))
    cuts = sorted(rng.integers(0, len(pieces), 2))
    for low, high in pairwise([0, *cuts, len(pieces)]):
        arrived = defaultdict(list)
        for table, row in pieces[low:high]:
            arrived[table].append(row)
        for table, facts in arrived.items():
            append(incremental, table, facts)
        run_rollups(incremental, ["cluster_hourly"])
    fresh = Lake.create(str(tmp_path_factory.mktemp("fresh")))
    for table, facts in whole.items():
        append(fresh, table, rows(table, facts))
    run_rollups(fresh, ["cluster_hourly"])
    one, other = state(incremental), state(fresh)
    for name in FLEET:
        assert one[name].num_rows > 0
        assert one[name].equals(other[name]), name
    assert not any(result.computed for result in run_rollups(incremental, ["cluster_hourly"]))


def test_a_job_over_many_dates_and_its_correction(lake):
    """A job's hours are in each date that it went over; corrected, it leaves those that it was not in after all."""
    long = job(1, submit=MIDNIGHT, runs=timedelta(days=3), gpu_count=2)
    append(lake, "jobs", [long])
    run_rollups(lake, ["cluster_hourly"])
    held = read(lake.tables, contract("cluster_hourly"), ["date", "scope", "gpu_delivered_s"]).to_pylist()
    days = sorted({row["date"] for row in held})
    assert days == [DAY + timedelta(days=n) for n in range(4)]
    assert sum(row["gpu_delivered_s"] for row in held if row["scope"] == "job") == 3 * 86400 * 2
    short = {**long, "end_ts": MIDNIGHT + 30 * HOUR, "ts": long["ts"] + HOUR, "state": "failed", "outcome": "failed"}
    append(lake, "jobs", [{**short, "slot": 1}])
    run_rollups(lake, ["cluster_hourly"])
    held = read(lake.tables, contract("cluster_hourly"), ["date", "scope", "gpu_delivered_s"]).to_pylist()
    assert sorted({row["date"] for row in held}) == days[:2]
    assert sum(row["gpu_delivered_s"] for row in held if row["scope"] == "job") == 29 * 3600 * 2


def test_only_dates_that_a_job_touches_are_computed(lake):
    """A job that comes in later makes its own dates due and no others; a second run finds nothing to do."""
    append(lake, "jobs", [job(n, submit=MIDNIGHT + timedelta(days=n)) for n in range(5)])
    run_rollups(lake, ["cluster_hourly"])
    append(lake, "jobs", [job(9, submit=MIDNIGHT + timedelta(days=2), slot=9)])
    done = {result.name: result for result in run_rollups(lake, ["cluster_hourly"])}
    day = (DAY + timedelta(days=2)).isoformat()
    assert (done["job_facts"].partitions, done["cluster_hourly"].partitions) == ((day,), (day,))
    assert (done["job_facts"].computed, done["cluster_hourly"].computed) == (1, 1)
    assert {result.computed for result in run_rollups(lake, ["cluster_hourly"])} == {0}


def test_what_retention_took_stays_in_the_hours(lake):
    """Job rows that retention took away leave their dates as they were, also when others of those dates come late."""
    append(lake, "jobs", [job(1), job(2, submit=MIDNIGHT + timedelta(days=1))])
    run_rollups(lake, ["cluster_hourly"])
    before = state(lake)
    table = delta_table(lake.store, "jobs")
    swap(table, number_of(table) + 1, remove=files(table, [DAY]))
    item = {"retention_plan": "p", "row_kind": "item", "table": "jobs", "partition_date": DAY, "ts": NOON}
    append(lake, "retention_plans", [item, {"retention_plan": "p", "row_kind": "application", "ts": NOON}])
    run_rollups(lake, ["cluster_hourly"])
    assert all(state(lake)[name].equals(before[name]) for name in FLEET)


@pytest.mark.parametrize(
    ("flaw", "column", "why"),
    [
        ({"end_ts": MIDNIGHT + timedelta(minutes=30)}, "held_until_ts", "it ends before it begins"),
        ({"end_ts": None}, "held_until_ts", "it is over, and nobody says when it ended"),
        ({"gpu_count": None}, "gpu_count", "the scheduler does not say"),
        ({"submit_ts": MIDNIGHT + timedelta(hours=2)}, "queue_time_s", "it starts before it was submitted"),
    ],
)
def test_what_a_scheduler_should_not_say_is_unknown(flaw, column, why):
    """Contradictions and holes of a job become NULL with a reason, and the hours that they touch have no sum."""
    (row,) = facts_of([job(**flaw)]).to_pylist()
    assert row[column] is None
    assert json.loads(row["unavailable"])[column] == why
    hours = fleet([job(**flaw)])
    delivered = {key[0]: row["gpu_delivered_s"] for key, row in hours.items() if key[1] == "cluster"}
    if column == "queue_time_s":
        assert sum(delivered.values()) == 2 * 3600 * 8
    else:
        assert None in delivered.values()
        assert sum(value or 0 for value in delivered.values()) == 0
        reasons = [row["unavailable"] for row in hours.values() if row["gpu_delivered_s"] is None]
        assert all("devices or times of jobs are not known" in reason for reason in reasons)


def test_a_job_without_gpus_is_none():
    """A job of no GPUs waits and ends like others, and holds nothing; so does one that tells its CPUs alone."""
    jobs = [job(1), job(2, gpu_count=0), job(3, gpu_count=None, cpu_count=4)]
    row = fleet(jobs)[1, "cluster", "c"]
    assert (row["gpu_delivered_s"], row["queue_time_count"]) == (8 * 3600, 3)
    assert fleet(jobs)[1, "job", "3"]["gpu_delivered_s"] == 0


def test_a_day_of_cpu_jobs_keeps_the_gpu_hours():
    """A job that names no GPUs holds none on each day on which the scheduler counted some."""
    long = job(1, submit=MIDNIGHT - timedelta(days=1), runs=timedelta(days=3), node_count=1)
    cpus = job(2, gpu_count=None, cpu_count=4, node_count=1)
    assert fleet([long, cpus])[1, "cluster", "c"]["gpu_delivered_s"] == 8 * 3600
    assert fleet([cpus])[1, "cluster", "c"]["gpu_delivered_s"] is None


def test_more_allocated_than_there_is():
    """A pool that says more devices are allocated than it has gives neither a sum nor a ratio, and says why."""
    pools = [snapshot(MIDNIGHT + timedelta(minutes=n)) for n in range(60)]
    pools[7]["gpu_allocated"] = 17.0
    row = fleet(pools=pools)[0, "pool", "p"]
    assert (row["gpu_delivered_s"], row["gpu_allocation_ratio"], row["gpu_total_s"]) == (None, None, 16 * 3600)
    assert json.loads(row["unavailable"])["gpu_delivered_s"] == "more devices are allocated than there are"


def test_snapshots_stand_until_the_next():
    """Without an interval a snapshot stands until the next, not over a gap; with one, no longer than it says."""
    times = [0, 10, 20, 50, 55]
    pools = [snapshot(MIDNIGHT + timedelta(minutes=n), interval_ns=None) for n in times]
    assert fleet(pools=pools)[0, "pool", "p"]["gpu_total_s"] == 16 * 25 * 60
    pools = [snapshot(MIDNIGHT + timedelta(minutes=n), interval_ns=3600 * 10**9) for n in (30, 40)]
    hours = fleet(pools=pools)
    assert [hours[n, "pool", "p"]["gpu_total_s"] for n in (0, 1)] == [16 * 1800, 16 * 2400]


def test_fragmentation_and_queue_of_pools():
    """Free devices in small blocks are told apart from free ones in one; depth is over all pools of a moment."""
    pools = [
        snapshot(MIDNIGHT + timedelta(minutes=n), pool, gpu_largest_free_block=block)
        for n in range(60) for pool, block in (("p", 2.0), ("q", 6.0))
    ]  # fmt: skip
    found = fleet(pools=pools)
    assert found[0, "pool", "p"]["gpu_fragmentation_ratio"] == 0.75
    assert found[0, "cluster", "c"]["gpu_fragmentation_ratio"] == 0.5
    assert (found[0, "cluster", "c"]["queue_depth_max"], found[0, "cluster", "c"]["queue_job_s"]) == (4, 4 * 3600)


def test_use_of_devices(monkeypatch):
    """Busy time, its spread over devices and nodes, and energy with what the building adds, for each scope."""
    monkeypatch.setenv("RANKLAKE_POWER_USAGE_EFFECTIVENESS", "1.25")
    gpus = [device_hour(device=f"G{n}", busy_s=36.0 * n, host=f"n{n // 50}") for n in range(100)]
    gpus.append(device_hour(device="G0", holder_run=None, cluster=None, pool=None, allocated_s=0.0, observed_s=1.0,
                            busy_s=0.0, busy_observed_s=0.0, host="n0"))  # fmt: skip
    runs = [{"ts": MIDNIGHT - timedelta(days=5), "run": "r1", "team": "t", "user": "u", "scheduler_job_id": "77"}]
    found = fleet(gpus=gpus, runs=runs)
    assert {key[1:] for key in found} == {("cluster", "c"), ("pool", "p"), ("team", "t"), ("user", "u"), ("job", "77")}
    row = found[0, "team", "t"]
    assert (row["gpu_busy_s"], row["gpu_busy_observed_s"]) == (36 * 4950, 360_000)
    assert row["gpu_utilization_ratio"] == pytest.approx(0.495)
    spread_ = [row[f"gpu_utilization_p{n}_ratio"] for n in (10, 50, 90)]
    assert spread_ == pytest.approx([0.099, 0.495, 0.891])
    assert row["gpu_utilization_counts"] == [5] * 20
    assert (row["gpu_delivered_s"], row["gpu_delivered_source"]) == (360_000, "samples")
    assert (row["energy_joules"], row["facility_energy_joules"]) == (3.6e8, 4.5e8)
    assert (row["node_count"], row["node_low_count"]) == (2, 0)
    low = fleet(gpus=[device_hour(device=f"G{n}", busy_s=100.0) for n in range(8)])[0, "cluster", "c"]
    assert (low["node_count"], low["node_low_count"]) == (1, 1)


def test_jobs_for_a_kwh():
    """Completed jobs over the energy of the devices; not where most of the devices that jobs held tell no energy."""
    jobs = [job(n, gpu_count=2, state="completed" if n < 3 else "failed") for n in range(4)]
    gpus = [device_hour(hour, device, energy_joules=7.2e6) for hour in (2, 3) for device in ("G1", "G2")]
    found = fleet(jobs, gpus=gpus)
    row = found[3, "cluster", "c"]
    assert (row["job_completed_count"], row["energy_joules"], row["jobs_per_kwh"]) == (3, 14.4e6, 0.75)
    held = found[2, "cluster", "c"]
    assert (held["gpu_delivered_s"], held["energy_observed_s"], held["jobs_per_kwh"]) == (8 * 3600, 2 * 3600, None)
    assert json.loads(held["unavailable"])["jobs_per_kwh"] == "too few of the devices tell their energy"


def test_mig_instances_stand_apart_from_devices():
    """Who holds instances has a row, with their time and SM activity; devices' own sums are as without them."""
    part = {"mig_compute_instance": 0, "busy_s": None, "busy_observed_s": 0.0, "energy_joules": None}
    part |= {"energy_observed_s": 0.0, "sm_active_s": 900.0, "sm_active_observed_s": 1800.0}
    parts = [device_hour(mig_gpu_instance=n, holder_run="r2" if n else None, **part) for n in range(3)]
    parts[0]["allocated_s"] = 0.0
    runs = [{"ts": MIDNIGHT, "run": run, "team": team} for run, team in (("r1", "t"), ("r2", "s"))]
    found = fleet(gpus=[device_hour(), *parts], runs=runs)
    mig = ("mig_instance_s", "mig_allocated_s", "mig_sm_active_s", "mig_sm_active_observed_s")
    assert [found[0, "cluster", "c"][name] for name in mig] == [3 * 3600, 2 * 3600, 2700, 5400]
    assert [found[0, "team", "s"][name] for name in mig] == [2 * 3600, 2 * 3600, 1800, 3600]
    assert found[0, "team", "s"]["gpu_delivered_s"] is None
    assert [found[0, "team", "t"][name] for name in mig] == [None] * 4
    for key in ((0, "team", "t"), (0, "cluster", "c")):
        row = found[key]
        assert (row["gpu_busy_s"], row["gpu_delivered_s"], row["gpu_sm_active_s"]) == (1800, 3600, None)
        assert (row["energy_joules"], row["node_count"], sum(row["gpu_utilization_counts"])) == (3.6e6, 1, 1)


def test_users_are_pseudonymous_under_a_key(monkeypatch):
    """With a key a user's hours go by a keyed hash, the same for jobs and runs, another with another key."""
    monkeypatch.setenv("RANKLAKE_PSEUDONYM_KEY", "env:OUR_KEY")
    monkeypatch.setenv("OUR_KEY", "a" * 64)
    runs = [{"ts": MIDNIGHT, "run": "r1", "user": "ada"}]
    found = {
        name for _, scope, name in fleet([job(1, user="ada")], gpus=[device_hour(20)], runs=runs) if scope == "user"
    }
    assert found == {pseudonym(read_keyring("env:OUR_KEY").active, "ada")}
    monkeypatch.setenv("OUR_KEY", "b" * 64)
    found.add(pseudonym(read_keyring("env:OUR_KEY").active, "ada"))
    assert len(found) == 2
    assert not any("ada" in name for name in found)


def test_a_key_that_is_none_is_refused(monkeypatch):
    """A key that cannot be read stops the rollup, with the variable's name and without a word of the key."""
    monkeypatch.setenv("RANKLAKE_PSEUDONYM_KEY", "env:OUR_KEY")
    monkeypatch.setenv("OUR_KEY", "hunter2")
    with pytest.raises(RanklakeError) as refused:
        fleet(gpus=[device_hour()])
    assert "RANKLAKE_PSEUDONYM_KEY" in str(refused.value)
    assert "hunter2" not in str(refused.value)


def test_a_wrong_effectiveness_is_refused(monkeypatch):
    """A building that takes less than its devices is a slip: it is refused with the variable's name."""
    monkeypatch.setenv("RANKLAKE_POWER_USAGE_EFFECTIVENESS", "0.8")
    with pytest.raises(Exception, match="RANKLAKE_POWER_USAGE_EFFECTIVENESS"):
        fleet(gpus=[device_hour()])


def test_days_that_look_like_an_outage_or_a_slip():
    """A day on which no pool of a cluster had a job, and one on which one pool has all devices, are told."""
    times = [MIDNIGHT + timedelta(minutes=30 * n) for n in range(48)]
    idle = [
        snapshot(at, pool, gpu_allocated=0.0, gpu_idle=16.0, interval_ns=1800 * 10**9) for at in times for pool in "pq"
    ]
    assert {row["is_idle_day"] for row in fleet(pools=idle).values()} == {True}
    idle[13]["gpu_allocated"] = 1.0
    assert {row["is_idle_day"] for row in fleet(pools=idle).values()} == {False}
    alone = [snapshot(MIDNIGHT, pool, gpu_total=840.0 * (pool == "q"), gpu_allocated=None, interval_ns=86_400 * 10**9)
             for pool in "pqr"]  # fmt: skip
    found = fleet(pools=alone)
    assert {row["is_capacity_in_one_pool"] for row in found.values()} == {True}
    assert found[23, "pool", "q"]["gpu_total_s"] == 840 * 3600
