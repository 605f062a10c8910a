"""The executive page: weeks and groups as plain sums give them, numbers by their SQL, the unknown with its reason."""

import re
import shutil
import statistics
from datetime import timedelta

import altair as alt
import pytest
from page_read import Read, compared
from rollup_inputs import DAY, NOON, bring, run_of, told

from ranklake.insight.overview.fleet import WEEKS, fleet_state
from ranklake.lake.rollups.runner import run_rollups
from ranklake.lake.store.lake import Lake
from ranklake.views.html.executive_pages import section
from ranklake.views.html.shell import render
from ranklake.views.words import hours_text

pytestmark = pytest.mark.slow
HOUR = 3600 * 10**9
TEAMS = ("vision", "<b>text</b>", None)
KINDS = (
    "init",
    "productive",
    "checkpoint",
    "evaluation",
    "restart",
    "lost_work",
    "stall",
    "unattributed",
    "unallocated",
)


def spent(day, team, devices, **hours):
    """Return a row of goodput_daily: wall time of ten hours, of which some kinds are told."""
    kinds = {f"{kind}_ns": int(hours.get(kind, 0) * HOUR) for kind in KINDS}
    date = DAY - timedelta(days=day)
    return {
        "run": f"r-{team}-{day}",
        "ts": NOON - timedelta(days=day),
        "date": date,
        "wall_ns": 10 * HOUR,
        **kinds,
        "team": team,
        "pool": "p",
        "device_name": "H100",
        "device_count": devices,
    }


ACCOUNTS = [
    spent(day, team, 8 * (number + 1), productive=9 - number - day / 30, lost_work=0.5, restart=0.25, unallocated=0.125)
    for day in range(20)
    for number, team in enumerate(TEAMS)
]


@pytest.fixture(scope="module")
def lake(tmp_path_factory):
    """Give a lake with twenty days of three teams; rollups are as they would be, with numbers made by hand."""
    lake = Lake.create(str(tmp_path_factory.mktemp("executive") / "lake"))
    told(lake, "goodput_daily", ACCOUNTS)
    hour = {
        "scope_name": "p",
        "gpu_delivered_s": 36_000.0,
        "gpu_busy_s": 9_000.0,
        "gpu_busy_observed_s": 18_000.0,
        "gpu_idle_allocated_s": 3_600.0,
        "job_completed_count": 3,
        "job_failed_count": 1,
    }
    days = [DAY - timedelta(days=day) for day in range(12)]
    scopes = ({"scope": "cluster"}, {"scope": "pool", "pool": "p"})
    told(lake, "cluster_hourly", [{**hour, **scope, "date": day} for day in days[:10] for scope in scopes])
    flops = {"model_flops": 2.0, "peak_flops": 10.0, "mfu_ratio": 0.2, "step_time_ns": HOUR}
    told(lake, "mfu", [{**flops, "run": one["run"], "date": one["date"]} for one in ACCOUNTS])
    told(lake, "attempt_facts", [{name: one[name] for name in ("run", "date", "team")} for one in ACCOUNTS])
    ends = ({"status": "finished"}, {"status": "failed", "failures": 1}, {"status": "preempted", "preemptions": 1})
    told(lake, "run_goodput", [
        {**(*ends, {"status": "running"})[number % 4], "run": f"g{number}", "date": day,
         "time_to_train_ns": None if number % 4 else HOUR * (number + 1)}
        for number, day in enumerate(days)
    ])  # fmt: skip
    cost = {"team": "vision", "device_name": "H100", "cost_total": 10, "cost_idle": 1, "cost_lost_work": 2}
    told(lake, "cost", [
        {**cost, "date": days[number], "currency": money}
        for number, money in ((0, "EUR"), (1, "EUR"), (8, "EUR"), (9, "USD"))
    ])  # fmt: skip
    return lake


def sums(rows):
    """Return device-hours, wasted device-hours and goodput of accounts, by plain sums."""
    held = sum((one["wall_ns"] - one["unallocated_ns"]) * one["device_count"] for one in rows) / HOUR
    lost = sum(
        (one["lost_work_ns"] + one["stall_ns"] + one["restart_ns"] - one["unallocated_ns"]) * one["device_count"]
        for one in rows
    )
    wall = sum(one["wall_ns"] * one["device_count"] for one in rows)
    return held, lost / HOUR, sum(one["productive_ns"] * one["device_count"] for one in rows) / wall


def test_weeks_and_groups_are_plain_sums(lake):
    """Weeks are counted back from the last date; a team's change is this week's sum less the last one's."""
    found = fleet_state(lake)
    assert (found.through, len(found.weeks.rows)) == (DAY, WEEKS)
    for number, week in enumerate(found.weeks.rows):
        mine = [one for one in ACCOUNTS if 7 * number <= (DAY - one["date"]).days < 7 * number + 7]
        assert week["last_day"] == DAY - timedelta(days=7 * number)
        if mine:
            assert (week["device_h"], week["wasted_h"], week["goodput_ratio"]) == pytest.approx(sums(mine))
        else:
            assert (week["device_h"], week["goodput_ratio"], week["runs"]) == (None, None, 0)
    now, before = found.weeks.rows[:2]
    assert found.week.first_row == now
    assert (now["delivered_h"], now["busy_h"], now["idle_h"], now["utilization_ratio"]) == (70, 17.5, 7, 0.5)
    assert (now["mfu_ratio"], now["runs"], now["failures"], now["preemptions"]) == (pytest.approx(0.2), 7, 2, 2)
    assert now["success_ratio"] == pytest.approx(2 / 6)
    assert (now["time_to_train_median_h"], now["time_to_train_p90_h"]) == pytest.approx((3, 4.6))
    assert (now["currency"], now["cost_total"], now["cost_idle"]) == ("EUR", 20, 2)
    assert (before["cost_total"], before["cost_reason"]) == (None, "several currencies")
    teams = {row["name"]: row for row in found.groups[0].rows}
    assert list(teams) == ["not recorded", "<b>text</b>", "vision"]
    for team in TEAMS:
        mine = [one for one in ACCOUNTS if one["team"] == team]
        week, last = ([one for one in mine if low <= (DAY - one["date"]).days < low + 7] for low in (0, 7))
        row = teams[team or "not recorded"]
        assert (row["device_h"], row["wasted_h"], row["goodput_ratio"]) == pytest.approx(sums(week))
        assert row["device_h_change"] == pytest.approx(sums(week)[0] - sums(last)[0])
        assert row["goodput_change"] == pytest.approx(sums(week)[2] - sums(last)[2])
        assert (row["mfu_ratio"], row["mfu_change"]) == pytest.approx((0.2, 0))
    (pool,) = found.groups[1].rows[:1]
    assert (pool["name"], pool["delivered_h"], pool["utilization_ratio"]) == ("p", 70, 0.5)
    assert pool["delivered_h_change"] == 70 - 30


def test_what_changed_adds_up_by_each_group(lake):
    """Parts by team, pool and device sum to the change of the weeks; a team's own part is share times change."""
    found = fleet_state(lake)
    now, before = found.weeks.rows[:2]
    for answered in found.changes:
        *parts, whole = answered.rows
        assert whole["name"] == "all together"
        for name, of in (("device_h", "device_h"), ("wasted_h", "wasted_h"), ("goodput", "goodput_ratio")):
            assert whole[f"{name}_change"] == pytest.approx(now[of] - before[of])
            assert sum(row[f"{name}_change"] for row in parts) == pytest.approx(whole[f"{name}_change"])
        assert whole["cost_change"] is None  # the week before has two currencies
    teams = {row["name"]: row for row in found.changes[0].rows}
    mine = [one for one in ACCOUNTS if one["team"] == "vision"]
    (_, _, ratio), (_, _, ratio_before) = (
        sums([one for one in mine if low <= (DAY - one["date"]).days < low + 7]) for low in (0, 7)
    )
    assert teams["vision"]["goodput_own"] == pytest.approx(8 / 48 * (ratio - ratio_before))
    assert teams["vision"]["goodput_mix"] == pytest.approx(0)


def test_teams_that_come_and_go_add_up_and_many_are_told_as_others(tmp_path):
    """A new team and one that left are mix; beyond ten the rest is one row; one week alone tells nothing."""
    lake = Lake.create(str(tmp_path / "lake"))
    rows = [spent(0, "new", 8, productive=2), spent(7, "gone", 16, productive=8, stall=1), spent(9, "some", 8, stall=1)]
    rows += [spent(day, f"t{n}", 8, productive=n / 2) for day in (0, 7) for n in range(12)]
    told(lake, "goodput_daily", rows)
    found = fleet_state(lake)
    *parts, whole = found.changes[0].rows
    assert (len(parts), parts[-1]["name"]) == (11, "all others")
    now, before = found.weeks.rows[:2]
    assert whole["goodput_change"] == pytest.approx(now["goodput_ratio"] - before["goodput_ratio"])
    assert sum(row["goodput_change"] for row in parts) == pytest.approx(whole["goodput_change"])
    assert {row["name"]: row["goodput_own"] for row in parts if row["name"] in {"new", "gone"}} == {"new": 0, "gone": 0}
    alone = Lake.create(str(tmp_path / "alone"))
    told(alone, "goodput_daily", rows[:1])
    assert [one.rows for one in fleet_state(alone).changes] == [(), (), ()]


def test_a_forecast_is_the_mean_of_whole_weeks_with_its_interval(tmp_path):
    """Of six known weeks the oldest is left out; with fewer than five there is none, and the reason."""
    lake = Lake.create(str(tmp_path / "lake"))
    hours = [10, 12, 8, 11, 9, 500]
    told(lake, "goodput_daily", [{**spent(7 * week, "a", 1), "wall_ns": h * HOUR} for week, h in enumerate(hours)])
    forecast = {row["measure"]: row for row in fleet_state(lake).forecast.rows}
    runs = forecast["device time of runs"]
    used = hours[:5]
    half = 1.533 * statistics.stdev(used) * (1 + 1 / 5) ** 0.5
    assert (runs["weeks_used"], runs["reason"]) == (5, "")
    assert (runs["forecast"], runs["low"], runs["high"]) == pytest.approx((10, 10 - half, 10 + half))
    assert (forecast["cost"]["forecast"], forecast["cost"]["reason"]) == (None, "four whole weeks are needed")
    short = Lake.create(str(tmp_path / "short"))
    told(short, "goodput_daily", [spent(7 * week, "a", 1) for week in range(4)])
    row = fleet_state(short).forecast.rows[0]
    assert (row["weeks_used"], row["forecast"], row["reason"]) == (3, None, "four whole weeks are needed")


def test_every_number_is_what_its_sql_gives(lake):
    """Figures and cells by the SQL beside them; curves are rows of theirs; names are text; a low MFU is marked."""
    (page,) = section(fleet_state(lake)).pages
    text = render(page).decode()
    assert len(text) < 2_000_000
    assert compared(lake, text) > 150
    for spec in Read(text).specs:
        alt.Chart.from_dict(spec)  # raises for what is no Vega-Lite
    assert "&lt;b&gt;text" in text
    assert "<b>text" not in text
    assert "MFU (below 30 %)" in text
    assert re.search(r"scheduled.*?<span|unknown</data> <small>no scheduler", text, re.DOTALL)
    assert "energy" in text


def test_a_team_that_began_or_ended_is_told_by_how_much(tmp_path):
    """Who ran nothing in one of two known weeks held no device in it; of weeks before all of these nobody knows."""
    lake = Lake.create(str(tmp_path / "lake"))
    told(lake, "goodput_daily", [
        spent(0, "old", 8, productive=9), spent(7, "old", 8, productive=9),
        spent(1, "new", 4, productive=9), spent(8, "gone", 2, productive=9),
    ])  # fmt: skip
    cost = {"device_name": "H100", "currency": "EUR", "date": DAY}
    told(lake, "cost", [
        {**cost, "team": "old", "cost_total": 5}, {**cost, "team": "new", "cost_total": 10},
        {**cost, "team": "gone", "cost_total": 7, "date": DAY - timedelta(days=8)},
    ])  # fmt: skip
    teams = {row["name"]: row for row in fleet_state(lake).groups[0].rows}
    assert {name: (row["device_h"], row["device_h_change"]) for name, row in teams.items()} == {
        "old": (80, 0), "new": (40, 40), "gone": (0, -20),
    }  # fmt: skip
    assert {name: (row["cost_total"], row["cost_change"]) for name, row in teams.items()} == {
        "old": (5, 5), "new": (10, 10), "gone": (0, -7),
    }  # fmt: skip
    first = Lake.create(str(tmp_path / "first"))
    told(first, "goodput_daily", [spent(0, "new", 4, productive=9)])
    (row,) = fleet_state(first).groups[0].rows
    assert (row["device_h"], row["device_h_change"], row["cost_total"]) == (40, None, None)


def test_what_has_no_price_is_told_beside_the_cost(tmp_path):
    """A sum over part of the device time is no cost of all of it: the page says of which part it is known."""
    lake = Lake.create(str(tmp_path / "lake"))
    cost = {"date": DAY, "device_name": "H100", "currency": "EUR", "cost_total": 10, "device_s": 3600}
    odd = {"date": DAY, "device_name": "X1", "device_s": 10800, "reason": "the price table has no price of X1"}
    told(lake, "cost", [cost, odd])
    found = fleet_state(lake)
    assert (found.week.first_row["cost_total"], found.week.first_row["cost_known_ratio"]) == (10, 0.25)
    assert (
        "known of 25.0 % of the device time: the price table has no price of X1"
        in render(section(found).pages[0]).decode()
    )


def test_a_wrong_clock_moves_no_week(tmp_path):
    """Rows that are dated after the last ingest tell nothing of which day is the last."""
    lake = Lake.create(str(tmp_path / "lake"))
    told(lake, "goodput_daily", [spent(0, "a", 8, productive=9), spent(-20_000, "a", 8, productive=9)])
    told(lake, "ingest_plans", [{"committed_ts": NOON, "date": DAY, "kind": "ingest"}])
    found = fleet_state(lake)
    assert (found.through, found.week.first_row["device_h"]) == (DAY, 80)


def test_the_same_tables_give_the_same_page(lake, tmp_path):
    """A page does not depend on when it is made; of a lake that nothing told anything the page says so."""
    first, again = (section(fleet_state(lake)).pages[0].fingerprint for _ in range(2))
    assert first == again
    week = fleet_state(lake).week.first_row
    assert f": {hours_text(week['delivered_h'])} of GPU time delivered, " in section(fleet_state(lake)).headline
    found = section(fleet_state(Lake.create(str(tmp_path / "lake"))))
    assert (found.state, found.headline) == ("unchecked", "Nothing to tell yet")
    assert "unknown: no run and no scheduler told of anything yet" in render(found.pages[0]).decode()
    shutil.rmtree(tmp_path / "lake")


def test_what_is_unknown_comes_last_and_labels_of_axes_differ(tmp_path):
    """Without a scheduler, samples and prices the page begins with what is known; labels have the digits they need."""
    made = Lake.create(str(tmp_path / "lake"))
    bring(made, run_of("a"))
    run_rollups(made)
    page = Read(render(section(fleet_state(made)).pages[0]).decode())
    values = [value for _, _, value in page.figures]
    known = [value for value in values if value]
    assert values == known + [""] * (len(values) - len(known))
    assert 0 < len(known) < len(values)
    (spec,) = (spec for spec in page.specs if spec["encoding"]["y"]["title"] == "ratio")
    assert spec["encoding"]["y"]["axis"]["format"] == ".3~%"
