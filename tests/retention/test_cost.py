"""What storage costs: growth by table, team and metric, budgets that will be passed, and the change that mends it."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from governed import any_rows
from retaining import CONTRACTS, POLICIES, TODAY, days_ago
from segments import put_segment

from ranklake.cli import run
from ranklake.lake.ingest.run import ingest
from ranklake.lake.ingest.spool.spool import Spool
from ranklake.lake.plans.workers import InProcess
from ranklake.retention.plans.alerts import Outlook, alerts
from ranklake.retention.plans.forecast import growth, simulate
from ranklake.retention.policies.model import Place, Rule
from ranklake.retention.policies.policies import load_policies
from ranklake.retention.policies.read import PACKAGED

AT = Place(Path("p.yaml"), 7)


def bring_scalars(site, ages, count=50):
    """Ingest rows of two metrics of two runs, so many of each a day."""
    for segment, age in enumerate(ages):
        for run_, incarnation in (("vision-1", 7), ("stray", 8)):
            metrics = ["train/loss", "train/lr"] * count
            values = np.random.default_rng([segment, incarnation]).standard_normal(2 * count)
            rows = any_rows(
                "scalars", 2 * count, segment=segment, incarnation=incarnation, run=run_, start=days_ago(age),
                metric=metrics, value=values,
            )  # fmt: skip
            put_segment(site.spool, rows, "scalars", rows_before=2 * count * segment)
    ingest(site.lake, Spool(str(site.spool)), InProcess())


def outlook(site, *rules, months=12, price=None):
    policies = replace(POLICIES, rules=(*POLICIES.rules, *rules))
    return Outlook(site.lake, CONTRACTS, policies, TODAY, months, price)


def told(site, *rules, months=12, price=None):
    """Return the alerts of rules beside the packaged ones."""
    view = outlook(site, *rules, months=months, price=price)
    tables, _, _ = growth(site.lake, CONTRACTS)
    forecasts = simulate(site.lake, CONTRACTS, view.policies, TODAY, months, price)
    return list(alerts(view, tables, forecasts))


def rule(name="ours", where=None, **facts):
    return Rule(name, where or {"table": ("scalars",)}, "me", "why", "law", AT, **facts)


def held(site):
    return next(one for one in growth(site.lake, CONTRACTS)[0] if one.name == "scalars")


def test_growth_by_table_team_and_metric(site):
    """Rows and bytes are shared out by team and metric, and add up to those of the table."""
    site.bring(any_rows("runs", 1, run="vision-1", team=["vision"], start=days_ago(3)), "runs")
    bring_scalars(site, [3, 2, 1])
    tables, teams, metrics = growth(site.lake, CONTRACTS)
    mine = next(one for one in tables if one.name == "scalars")
    assert mine.rows == 3 * 2 * 100
    assert mine.bytes_per_day(TODAY) == pytest.approx(mine.bytes / 3)
    assert {one.name: one.rows for one in metrics} == {"train/loss": 300, "train/lr": 300}
    assert {one.name: one.rows for one in teams} == {"vision": 301, None: 300}
    assert sum(one.bytes for one in metrics) == pytest.approx(mine.bytes)


def test_a_table_of_today_tells_no_growth(site):
    """Its growth is unknown, not nothing."""
    bring_scalars(site, [0])
    assert held(site).bytes_per_day(TODAY) is None


def test_a_budget_that_is_passed_is_mended_by_a_period(site):
    """The longest period that keeps the budget is told, and what it saves; under it the budget holds."""
    bring_scalars(site, range(1, 31))
    budget = int(held(site).bytes * 0.68)
    (one,) = told(site, rule(budget_bytes=budget), price=2.0)
    assert (one.kind, one.day) == ("budget", None)
    assert one.hint.text == "p.yaml:7: add delete_after_days: 19 to rule ours"
    longer = replace(POLICIES, rules=(*POLICIES.rules, rule(deletes=True, delete_after_days=19)))
    end = next(one for one in simulate(site.lake, CONTRACTS, longer, TODAY) if one.table == "scalars").months[-1]
    assert end.bytes <= budget
    before = next(one for one in simulate(site.lake, CONTRACTS, POLICIES, TODAY) if one.table == "scalars").months[-1]
    assert one.hint.saves_bytes == before.bytes - end.bytes
    assert one.hint.saves_per_month == pytest.approx(one.hint.saves_bytes / 1e9 * 2)


def test_a_budget_that_will_be_passed(site):
    """The month in which it is passed is told; one that holds is not told."""
    bring_scalars(site, range(1, 11))
    size = held(site).bytes
    (one,) = told(site, rule(budget_bytes=int(size * 5)))
    assert (one.kind, (one.day - TODAY).days) == ("budget_forecast", 60)
    assert told(site, rule(budget_bytes=int(size * 10))) == []


def test_growth_above_what_is_allowed(site):
    """The period that makes up for it is in proportion."""
    bring_scalars(site, range(1, 11))
    per_day = held(site).bytes_per_day(TODAY)
    (one,) = told(site, rule(growth_bytes_per_day=int(per_day / 2)))
    assert one.kind == "growth"
    assert "add delete_after_days: 44 " in one.hint.text, "half of the 91 days that are held"
    assert told(site, rule(growth_bytes_per_day=int(per_day * 2))) == []


def test_a_minimum_lets_no_period_mend_it(site):
    """A change that a legal minimum makes useless is not told as a remedy."""
    bring_scalars(site, range(1, 11))
    least = rule("least", minimum_days=90)
    (one,) = told(site, rule(budget_bytes=1000), least)
    assert one.hint is None
    assert "legal minimums" in one.why_not


def test_a_rule_that_has_a_period_is_changed(site):
    """Where the rule gives a period already, that is what to change."""
    bring_scalars(site, range(1, 31))
    budget = int(held(site).bytes * 0.68)
    (one,) = told(site, rule(budget_bytes=budget, deletes=True, delete_after_days=60))
    assert one.hint.text == "p.yaml:7: delete_after_days: 19 (60 days now)"


def test_the_command(site, tmp_path, capsys, monkeypatch):
    """It tells the same as text and JSON, and with --check exits 1 where an alert stands."""
    bring_scalars(site, range(1, 11))
    place = tmp_path / "policies"
    place.mkdir()
    (place / "defaults.yaml").write_text((PACKAGED / "defaults.yaml").read_text())
    ours = "ours: {where: {table: scalars}, budget_bytes: 20000, growth_bytes_per_day: 100, reason: disks are small}"
    (place / "ours.yaml").write_text(f"version: 1\nowner: me\nbasis: law\nreview: 2999-01-01\nrules:\n  {ours}\n")
    load_policies(CONTRACTS, place)
    (tmp_path / "ranklake.toml").write_text(f'[lake]\nuri = "{tmp_path}/lake"\n[retention]\npolicies = "{place}"\n')
    monkeypatch.chdir(tmp_path)
    given = ["retain", "cost", "--price", "0.02", "--currency", "EUR"]
    assert run([*given, "--check", "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert [one["kind"] for one in found["alerts"]] == ["budget", "growth"]
    (mine,) = (one for one in found["tables"] if one["table"] == "scalars")
    assert mine["cost_per_month"] == pytest.approx(mine["bytes"] / 1e9 * 0.02)
    assert run(given) == 0
    text = capsys.readouterr().out
    assert "would fix it: " in text
    assert "train/loss" in text
