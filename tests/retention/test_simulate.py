"""Simulation: what tables will hold, by hand-made figures, under two policies; and budgets."""

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from archiving import archived, policies_in
from governed import any_rows
from retaining import CONTRACTS, POLICIES, TODAY, agree, bring_days, carry_out, days_ago, plan, with_period

from ranklake.cli import run
from ranklake.retention.plans.forecast import over_budget, simulate
from ranklake.retention.policies.model import Place, Rule


def of(found, table="steps"):
    return next(one for one in found if one.table == table)


def test_rows_that_become_aggregates_leave_their_table_and_add_to_that_of_aggregates(site, tmp_path):
    """Before the first were downsampled nobody knows how much is left of a row; then as much as so far."""
    curves = "curves: {where: {table: scalars}, downsample: {after_days: 30, interval: 1m}, reason: curves stay}"
    found = policies_in(tmp_path, curves)
    for segment, age in enumerate((50, 10)):
        values = {"metric": ["loss"] * 60, "value": [1.0] * 60, "kind": ["gauge"] * 60}
        moments = [days_ago(age) + timedelta(seconds=at) for at in range(60)]
        rows = any_rows("scalars", 60, segment=segment, **{"ts": moments, **values})
        site.bring(rows, "scalars", rows_before=60 * segment)
    before = of(simulate(site.lake, CONTRACTS, found, TODAY, 2), "scalars")
    rate = before.rows_per_day
    assert before.rows == 120
    assert before.months[0].rows == round(rate * 30)
    archived(site, found)
    told = {one.table: one for one in simulate(site.lake, CONTRACTS, found, TODAY, 2)}
    assert told["downsampled"].rows == 2
    folded = [60 + 60 + told["scalars"].rows_per_day * days for days in (0, 29)]
    assert [one.rows for one in told["downsampled"].months] == [round(one * 2 / 60) for one in folded]


@pytest.mark.slow
def test_growth_and_retention(site):
    """Ten rows a day are 300 a month until the period of 90 days, and 91 days' rows from then on."""
    bring_days(site, list(range(1, 11)))
    found = of(simulate(site.lake, CONTRACTS, POLICIES, TODAY, 12, price_per_gb_month=2.0))
    assert (found.rows, found.rows_per_day) == (100, 10.0)
    rows = [one.rows for one in found.months]
    assert rows[:2] == [100 + 300, 100 + 600]
    assert rows[3:] == [910] * 9, "90 days and the day itself"
    last = found.months[-1]
    assert last.cost == pytest.approx(last.bytes / 1e9 * 2.0, rel=1e-6)
    assert last.bytes == pytest.approx(found.bytes * 9.1, rel=0.01)


@pytest.mark.slow
def test_a_changed_policy_holds_less(site):
    """A shorter period shows in the month in which it is reached; without a price there is no cost."""
    bring_days(site, list(range(1, 11)))
    found = of(simulate(site.lake, CONTRACTS, with_period("raw", 30), TODAY, 3))
    assert [one.rows for one in found.months] == [300, 310, 310]
    assert (found.cost, found.months[0].cost) == (None, None)
    forever = of(simulate(site.lake, CONTRACTS, with_period("raw", None), TODAY, 3))
    assert [one.rows for one in forever.months] == [400, 700, 1000]


def test_rows_of_a_rule(site):
    """A rule below the table takes its share of what is there and of what comes."""
    site.bring(any_rows("logs", 6, start=days_ago(1), severity_number=[5, 5, 5, 9, 9, 17]), "logs")
    at = Place(Path("p.yaml"), 1)
    where = {"severity": ("debug",), "table": ("logs",)}
    debug = Rule("debug", where, "me", "why", "law", at, deletes=True, delete_after_days=7)
    found = of(simulate(site.lake, CONTRACTS, replace(POLICIES, rules=(*POLICIES.rules, debug)), TODAY, 2), "logs")
    assert found.months[1].rows == 3 * 8 + 3 * 31


def test_a_table_of_today_tells_no_growth(site):
    """Its growth is unknown, and nothing is assumed to come."""
    bring_days(site, [0])
    found = of(simulate(site.lake, CONTRACTS, POLICIES, TODAY, 4))
    assert (found.rows_per_day, [one.rows for one in found.months]) == (None, [10, 10, 10, 0])


def test_it_foretells_what_plans_do(site):
    """What is simulated for today is what is left when today's plan is applied."""
    bring_days(site, [0, 89, 90, 91, 200])
    made = plan(site)
    agree(site, made.name)
    carry_out(site, made.name)
    left = len(site.rows("steps"))
    assert left == 30
    found = of(simulate(site.lake, CONTRACTS, with_period("raw", 120), TODAY, 1))
    assert found.months[0].rows == left + round(found.rows_per_day * 30)


def test_budgets(site):
    """One that is passed is told with its rule, and deletes nothing."""
    bring_days(site, [0])
    at = Place(Path("p.yaml"), 1)
    rules = [
        Rule(name, {"table": ("steps",)}, "me", "w", "l", at, budget_bytes=most)
        for name, most in (("a", 1), ("b", 10**9))
    ]
    (line,) = over_budget(site.lake.tables, CONTRACTS, replace(POLICIES, rules=(*POLICIES.rules, *rules)))
    assert "over the 1 of rule a (me)" in line


def test_the_command(site, monkeypatch, capfd):
    """Both policies side by side, as text and as JSON."""
    monkeypatch.chdir(site.folder)
    monkeypatch.setenv("RANKLAKE_LAKE", str(site.folder / "lake"))
    late = (datetime.now(UTC).date() - TODAY).days  # the command goes by the clock
    bring_days(site, [1 - late, 2 - late])
    assert run(["retain", "new", "own"]) == 0
    capfd.readouterr()
    arguments = ["retain", "simulate", "--policies", "own", "--price", "20", "--currency", "EUR"]
    assert run(arguments) == 0
    out = capfd.readouterr().out
    assert "changed: cost EUR" in out
    assert run([*arguments, "--json"]) == 0
    told = json.loads(capfd.readouterr().out)
    assert of([type("T", (), one) for one in told["configured"]]).months[-1]["rows"] == 910
    assert told["configured"] == told["changed"]
    assert told["currency"] == "EUR"
