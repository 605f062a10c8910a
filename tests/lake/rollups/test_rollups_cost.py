"""The rollup `cost`: the operator's own prices times device time, in decimals."""

from datetime import date, timedelta
from decimal import Decimal
from fractions import Fraction
from functools import partial

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from rollup_inputs import DAY, NOON, append, computed, context

from ranklake import cli
from ranklake.lake.contracts.load import contract
from ranklake.lake.rollups.declaration import replace_table
from ranklake.lake.rollups.prices import COLUMNS, PriceError, price_table, read_prices
from ranklake.lake.rollups.runner import run_rollups
from ranklake.lake.store.lake import Lake
from ranklake.lake.store.lake_config import CostSection
from ranklake.lake.tables.read import read

HOUR = 3600 * 10**9
NEXT = DAY + timedelta(days=1)
PARTS = ("cost_productive", "cost_lost_work", "cost_idle", "cost_unrecorded", "cost_other")


def prices(folder, *lines):
    """Write a price table and return its path."""
    path = folder / "prices.csv"
    path.write_text("\n".join([",".join(COLUMNS), *lines]) + "\n")
    return str(path)


DEVICES = {"device_name": "NVIDIA H100 80GB HBM3", "device_count": 8, "pool": "train", "cluster": "c"}


def spent(wall_ns, attempt=0, *, day=DAY, **facts):
    """Return a row of `goodput_daily`."""
    kinds = ("init", "productive", "checkpoint", "evaluation", "restart", "lost_work", "stall", "unattributed")
    zero = {f"{kind}_ns": 0 for kind in kinds} | dict.fromkeys(
        ("downtime_ns", "unallocated_ns", "steps", "steps_lost"), 0
    )
    moment = {"ts": NOON, "end_ts": NOON, "date": day}
    return {"attempt": attempt, "wall_ns": wall_ns, **zero, **moment, **DEVICES, **facts}


def costs(table="", days=(DAY,), **tables):
    """Return the rows of `cost` under a price table."""
    ctx = context(**tables)
    replace_table(ctx, "prices", price_table(table))
    return computed(ctx, "cost", days).sort_by([(n, "ascending") for n in ("date", "attempt", "epoch")]).to_pylist()


def test_what_a_run_costs(tmp_path):
    """Eight devices for an hour at 2.50: 20.00 EUR, of which half was productive and a tenth repeated."""
    table = prices(tmp_path, "NVIDIA H100 80GB HBM3,train,2.50,EUR,2026-01-01,")
    facts = spent(HOUR, productive_ns=HOUR // 2, lost_work_ns=HOUR // 10, tokens=10**6, epoch=3, team="t")
    (row,) = costs(table, goodput_daily=[facts])
    assert (row["device_s"], row["device_price"], row["cost_total"]) == (8 * 3600, Decimal("2.5"), 20)
    assert [row[part] for part in PARTS] == [10, 2, 0, 0, 8]
    assert (row["run"], row["epoch"], row["currency"], row["tokens"], row["reason"]) == ("r1", 3, "EUR", 10**6, None)
    assert (row["cluster"], row["pool"], row["team"]) == ("c", "train", "t")
    assert row["price_source"].startswith("prices.csv (sha256 ")
    assert row["price_source"].endswith(" line 2")


def test_an_unknown_price_is_null_with_a_reason(tmp_path):
    """No table, another device, another date, unknown devices: no number, and each says why."""
    given = {"goodput_daily": [spent(HOUR)]}
    (row,) = costs(**given)
    assert (row["cost_total"], row["cost_other"], row["currency"]) == (None, None, None)
    assert (row["device_s"], row["reason"]) == (8 * 3600, "no price table is given")
    (row,) = costs(prices(tmp_path, "H200,,1,EUR,2026-01-01,"), **given)
    assert row["reason"] == "the price table has no price of NVIDIA H100 80GB HBM3 in pool train on 2026-03-01"
    (row,) = costs(prices(tmp_path, "NVIDIA H100 80GB HBM3,,1,EUR,2026-01-01,2026-03-01"), **given)
    assert row["cost_total"] is None
    (row,) = costs(prices(tmp_path, ",,1,EUR,2026-01-01,"), goodput_daily=[spent(HOUR, device_count=None)])
    assert (row["device_s"], row["reason"]) == (None, "the devices of the attempt are not recorded")


def test_prices_change_over_time_and_the_nearer_one_holds(tmp_path):
    """Device and pool before device before pool before any; valid_to is the first date without it."""
    table = prices(
        tmp_path,
        ",,9,USD,2026-01-01,",
        ",train,8,USD,2026-01-01,",
        "nvidia-h100 80gb_hbm3,,7,USD,2026-01-01,",
        "NVIDIA H100 80GB HBM3,train,2,USD,2026-01-01,2026-03-02",
        "NVIDIA H100 80GB HBM3,train,3,USD,2026-03-02,2026-03-03",
    )
    days = [DAY + timedelta(days=n) for n in range(3)]
    rows = costs(table, days, goodput_daily=[spent(HOUR, day=day, device_count=1) for day in days])
    assert [row["cost_total"] for row in rows] == [2, 3, 7]
    for facts, expected in (({"pool": "x"}, 7), ({"device_name": "A100"}, 8), ({"device_name": None, "pool": None}, 9)):
        (row,) = costs(table, goodput_daily=[spent(HOUR, **{"device_count": 1, **facts})])
        assert row["cost_total"] == expected


def test_downtime_is_paid_where_the_allocation_was_held(tmp_path):
    """A restart within one scheduler job leaves its devices idle and paid for; in a new job nobody held them."""
    table = prices(tmp_path, ",,1,EUR,2026-01-01,")
    begins = [{"event": "run_start", "attempt": n, "ts": NOON + timedelta(hours=2 * n)} for n in range(2)]
    ends = [{**one, "event": "run_end", "ts": one["ts"] + timedelta(hours=1)} for one in begins]
    for jobs, total, idle in ((("7", "7"), 16, 8), ((None, None), 16, 8), (("7", "8"), 8, 0)):
        runs = [{**DEVICES, **begins[n], "event": None, "scheduler_job_id": job} for n, job in enumerate(jobs)]
        ctx = context(runs=runs, events=[*begins, *ends])
        _, again = costs(table, goodput_daily=computed(ctx, "goodput_daily"))
        assert (again["cost_total"], again["cost_idle"]) == (total, idle)


SAMPLED = {
    "hour": NOON,
    "device_uuid": "u",
    "device_name": "A100",
    "pool": "p",
    "observed_s": 1800.0,
    "date": DAY,
    "ts": NOON,
}
SAMPLED |= {"sample_count": 1, "busy_observed_s": 0.0, "energy_observed_s": 0.0}


def test_devices_that_no_run_held(tmp_path):
    """What was sampled and not held is idle, in a row without a run; what a run held is in the run's rows."""
    table = prices(tmp_path, "A100,,2,EUR,2026-01-01,")
    sampled = [SAMPLED, {**SAMPLED, "observed_s": 900.0, "device_uuid": "v"}]
    sampled.append({**sampled[1], "holder_run": "r1"})
    (row,) = costs(table, gpu_hourly=sampled)
    assert (row["run"], row["pool"], row["device_s"]) == (None, "p", 2700)
    assert (row["cost_total"], row["cost_idle"], row["cost_other"]) == (Decimal("1.5"), Decimal("1.5"), 0)


@pytest.mark.slow
@settings(max_examples=25, deadline=None, phases=[Phase.generate])
@given(data=st.data())
def test_parts_add_up_and_agree_with_exact_arithmetic(tmp_path_factory, data):
    """Any price and any times: each part is the exact product, rounded at the ninth decimal; parts sum to the total."""
    price = Fraction(data.draw(st.integers(0, 10**13)), 10**9)
    table = prices(tmp_path_factory.mktemp("prices"), f",,{Decimal(int(price * 10**9)).scaleb(-9):f},EUR,2026-01-01,")
    devices = data.draw(st.integers(1, 100_000))
    nanoseconds = st.integers(0, 8 * HOUR)
    given_rows, expected = [], []
    for epoch in range(data.draw(st.integers(1, 4))):
        productive, lost, idle, other = (data.draw(nanoseconds) for _ in range(4))
        times = [productive, lost, idle, 0, other]
        kinds = {"productive_ns": productive, "lost_work_ns": lost, "downtime_ns": idle, "restart_ns": idle}
        given_rows.append(spent(sum(times), epoch=epoch, device_count=devices, **kinds))
        expected.append([devices * time * price / HOUR for time in times])
    rows = costs(table, goodput_daily=given_rows)
    for row, exact in zip(rows, expected, strict=True):
        for part, amount in zip(PARTS, exact, strict=True):
            assert abs(Fraction(row[part]) - amount) <= Fraction(501, 10**12)
        assert sum(row[part] for part in PARTS) == row["cost_total"]


MIDNIGHT = NOON.replace(hour=0)


def held(number, hours, *, start=MIDNIGHT, **columns):
    """Return the row of `jobs` of a job that held four GPUs."""
    times = {"submit_ts": start, "start_ts": start, "end_ts": start + timedelta(hours=hours)}
    row = {"job_id": str(number), "cluster": "c", "pool": "train", "team": "t", "gpu_count": 4, "gpu_type": "h100"}
    return {"ts": times["end_ts"], **row, "state": "completed", "outcome": "completed", **times, **columns}


def charged(table, jobs, days=(DAY,), *, date=DAY, **tables):
    """Return the rows of `cost` that jobs tell, of the days."""
    facts = computed(context(jobs=jobs), "job_facts", [date])
    return [row for row in costs(table, days, job_facts=facts, **tables) if row["told_by"] == "jobs"]


@pytest.mark.slow
def test_jobs_that_no_run_accounts_for_have_a_cost(tmp_path):
    """A job without a run is unrecorded, one that holds on after its run idle: by day, beyond the run."""
    table = prices(tmp_path, ",,2,EUR,2026-01-01,")
    (row,) = charged(table, [held(1, 3)])
    assert (row["cost_total"], row["cost_unrecorded"], row["cost_idle"]) == (24, 24, 0)
    assert (row["device_s"], row["device_name"], row["team"], row["run"]) == (4 * 3 * 3600, "h100", "t", None)
    run = {**DEVICES, "ts": NOON, "scheduler_job_id": "1"}
    accounted = spent(HOUR, device_count=4, productive_ns=HOUR)
    (row,) = charged(table, [held(1, 3)], runs=[run], goodput_daily=[accounted])
    assert (row["cost_total"], row["cost_unrecorded"], row["cost_idle"]) == (16, 0, 16)
    assert charged(table, [held(1, 1)], runs=[run], goodput_daily=[accounted]) == []
    rows = charged(table, [held(1, 30), held(2, 1, team="s")], (DAY, NEXT), runs=[run], goodput_daily=[accounted])
    found = {(row["date"], row["team"]): (row["cost_idle"], row["cost_unrecorded"]) for row in rows}
    assert found == {(DAY, "t"): (2 * 4 * 23, 0), (DAY, "s"): (0, 8), (NEXT, "t"): (2 * 4 * 6, 0)}


ATTEMPT = {**DEVICES, "ts": NOON, "scheduler_job_id": "1"}
UNKNOWN = {
    "no price table is given": {},
    "devices or times of jobs are not known": {"jobs": [held(1, 3), held(2, 1, gpu_count=None)]},
    "devices or times of jobs": {"runs": [ATTEMPT], "goodput_daily": [spent(HOUR, device_count=None)]},
    "were sampled without a run": {"gpu_hourly": [SAMPLED]},
    "a run names an unknown job": {"jobs": [held("1_4", 3)], "runs": [ATTEMPT], "goodput_daily": [spent(HOUR)]},
}


@pytest.mark.parametrize("reason", UNKNOWN)
def test_what_jobs_cost_is_null_where_it_is_not_known(tmp_path, reason):
    """No price, no devices of a job or of its run, devices that may be charged already: no amount, and why."""
    table = "" if "price" in reason else prices(tmp_path, ",,2,EUR,2026-01-01,")
    (row,) = charged(table, **{"jobs": [held(1, 3)], **UNKNOWN[reason]})
    assert (row["cost_total"], row["cost_idle"]) == (None, None)
    assert reason in row["reason"]


def test_quiet_days_in_one_row_have_no_cost(tmp_path):
    """Nobody knows who held the devices for years: no amount, whatever the price."""
    quiet = spent(60 * 24 * HOUR, end_ts=NOON + timedelta(days=60))
    (row,) = costs(prices(tmp_path, ",,2,EUR,2026-01-01,"), goodput_daily=[quiet])
    assert (row["cost_total"], row["device_s"]) == (None, None)
    assert row["reason"].startswith("nothing is known of the run for more than a month")


REFUSED = {
    "unknown column": ("device,pool", ":1: unknown column 'device'"),
    "missing column": ("device_name,pool", ":1: columns are missing: price_per_device_hour"),
    "no price": (partial("A,,{},EUR,2026-01-01,".format, "free"), ":2: price_per_device_hour is not a price"),
    "negative": (partial("A,,{},EUR,2026-01-01,".format, "-1"), ":2: price_per_device_hour is not a price"),
    "ten decimals": (
        partial("A,,{},EUR,2026-01-01,".format, "0.0123456789"),
        ":2: price_per_device_hour is not a price",
    ),
    "not a number": (partial("A,,{},EUR,2026-01-01,".format, "NaN"), ":2: price_per_device_hour is not a price"),
    "currency": (partial("A,,1,{},2026-01-01,".format, "Euro"), ":2: currency is not an ISO 4217 code"),
    "no begin": (partial("A,,1,EUR,{},".format, ""), ":2: valid_from is missing"),
    "no date": (partial("A,,1,EUR,{},".format, "1.1.2026"), ":2: valid_from is not a date"),
    "ends before": (partial("A,,1,EUR,2026-01-01,{}".format, "2025-01-01"), ":2: valid_to is not after valid_from"),
    "two at once": (partial("A,,1,EUR,2026-01-01,\na,,2,EUR,2026-02-01{}".format, ","), ": 2 and 3: two prices hold"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_price_table_that_says_nothing_is_refused_with_its_line(tmp_path, name):
    """Nothing is guessed: the file, the line and what to write."""
    text, message = REFUSED[name]
    path = tmp_path / "prices.csv"
    path.write_text(text if isinstance(text, str) else ",".join(COLUMNS) + "\n" + text() + "\n")
    with pytest.raises(PriceError) as refused:
        read_prices(str(path))
    assert f"{path}{message}" in str(refused.value)
    with pytest.raises(PriceError, match="no price table"):
        read_prices(str(tmp_path / "none.csv"))


def test_all_lines_that_are_no_price_are_told_at_once(tmp_path, monkeypatch, capsys):
    """By who reads the table, and by ``ranklake config check`` before anybody does."""
    path = tmp_path / "prices.csv"
    lines = ["A,,free,EUR,2026-01-01,", "B,,1,Euro,2026-01-01,", "C,,1,EUR,2026-01-01,", "c,,2,EUR,2026-02-01,"]
    path.write_text("\n".join([",".join(COLUMNS), *lines]))
    with pytest.raises(PriceError) as refused:
        read_prices(str(path))
    errors = [str(error) for error in (refused.value, *refused.value.others)]
    assert [error.removeprefix(str(path)).split(": ")[0] for error in errors] == [":2", ":3", ""]
    monkeypatch.chdir(tmp_path)
    (tmp_path / "ranklake.toml").write_text('[cost]\nprices = "prices.csv"\n')
    assert cli.run(["config", "check"]) == 1
    out = capsys.readouterr().out
    assert all(f"prices.csv{where}" in out for where in (":2: price_per", ":3: currency", ": 4 and 5: two prices"))


@pytest.mark.slow
def test_a_corrected_price_is_computed_again(tmp_path):
    """Costs in a lake: decimals come back as they are; other prices and jobs make dates due; a rebuild is the same."""
    lake = Lake.create(str(tmp_path / "lake"))
    for table, facts in {
        "runs": [{**DEVICES, "ts": NOON}],
        "events": [{"ts": NOON, "event": "run_start"}, {"ts": NOON + timedelta(hours=1), "event": "run_end"}],
    }.items():
        append(lake, table, facts)
    priced = lake.configured(cost=CostSection(prices(tmp_path, ",,0.123456789,EUR,2026-01-01,")))

    def brought():
        (done,) = (one for one in run_rollups(priced, ["cost"]) if one.name == "cost")
        return done.computed, read(lake.tables, contract("cost"))["cost_total"].to_pylist()

    assert brought() == (1, [Decimal("0.987654312")])
    assert brought() == (0, [Decimal("0.987654312")])
    prices(tmp_path, ",,2,EUR,2026-01-01,")
    assert brought() == (1, [16])
    assert read(lake.tables, contract("cost"))["date"].to_pylist() == [date(2026, 3, 1)]
    append(lake, "jobs", [held(9, 30)])
    assert brought()[0] == 2
    append(lake, "runs", [{**ATTEMPT, "run": "r2", "scheduler_job_id": "9", "incarnation": 8}])
    assert brought()[0] == 2
    costs_of = ["date", "told_by", "cost_total", "cost_idle"]
    incremental = read(lake.tables, contract("cost"), costs_of).sort_by(
        [("date", "ascending"), ("told_by", "ascending")]
    )
    assert [row["cost_idle"] for row in incremental.to_pylist() if row["told_by"] == "jobs"] == [192, 48]
    run_rollups(priced, ["cost"], full=True)
    again = read(lake.tables, contract("cost"), costs_of).sort_by([("date", "ascending"), ("told_by", "ascending")])
    assert again.equals(incremental)
