"""Rows of a metric that is sunset are due, by a rule that goes by the same order as all others."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from governed import any_rows
from retaining import CONTRACTS, TODAY, agree, carry_out, days_ago, plan

from ranklake.cli import run as command
from ranklake.config import load_config
from ranklake.context import Context
from ranklake.lake.rollups.life.register import move
from ranklake.retention.policies import parts as parts_module
from ranklake.retention.policies.model import Place, Rule
from ranklake.retention.policies.policies import load_policies, with_sunset

METRICS = """version: 1
metrics:
  - {name: own/old, unit: s, kind: gauge, owner: team, sampling: step, doc: Old., aka: [older]}
  - {name: own/new, unit: s, kind: gauge, owner: team, sampling: step, doc: New.}
"""
SUNSET = Rule("s", {}, "o", "r", "b", Place(Path("x"), 0), deletes=True, delete_after_days=0)
NAMES = ["own/old", "own/new", "older", "own/older"]


@pytest.fixture
def own(site):
    """Return a lake with metrics of its own, eight rows of scalars of yesterday and the policies of it."""
    site.lake = site.lake.configured(contracts=type(site.lake.config.contracts)(str(site.overlay(metrics=METRICS))))
    rows = any_rows("scalars", 8, start=days_ago(1), metric=NAMES * 2, value=[1.0] * 8, kind=["gauge"] * 8)
    site.bring(rows, "scalars")
    return site


def sunset(site, name):
    for state in ("deprecated", "retired", "sunset"):
        move(site.lake, name, state, "Ada")


def test_rows_of_a_sunset_metric_go_by_plan_and_no_others(own):
    """Under all its names, none before it is sunset; the plan says why, and another metric's rows stay."""
    for state in ("deprecated", "retired"):
        move(own.lake, "own/old", state, "Ada")
        assert plan(own, TODAY, with_sunset(load_policies(CONTRACTS), own.lake)) is None
    move(own.lake, "own/old", "sunset", "Ada")
    policies = with_sunset(load_policies(CONTRACTS), own.lake)
    made = plan(own, TODAY, policies)
    (item,) = made.items
    assert (item.table, item.rows, item.rule, item.period_days) == ("scalars", 4, "sunset own/old", 0)
    assert "own/old is sunset since " in item.reason
    agree(own, made.name)
    carry_out(own, made.name, TODAY, policies)
    assert {row["metric"] for row in own.rows("scalars")} == {"own/new", "own/older"}
    assert own.balances()["scalars"].retired == 4
    assert plan(own, TODAY, policies) is None


@pytest.mark.parametrize(
    ("rule", "rows"),
    [
        ("longer: {where: {metric: own/old}, delete_after_days: 30, reason: an audit looks}", 2),  # `older` still goes
        ("wide: {where: {metric: 'own/*'}, delete_after_days: 30, reason: an audit looks}", 4),
        ("of_run: {where: {run: r1}, delete_after_days: 30, reason: an audit looks}", 0),
        ("law: {where: {table: scalars}, minimum_days: 5, reason: the law}", 0),
    ],
)
def test_what_goes_before_the_rule(own, policies, rule, rows):
    sunset(own, "own/old")
    made = plan(own, TODAY, with_sunset(policies(rule), own.lake))
    assert (0 if made is None else sum(item.rows for item in made.items)) == rows


def test_the_stage_and_explain_know_it(own, tmp_path, monkeypatch, capsys):
    """By the configured lake: the plan of the stage has the rows, and the command names the rule and its place."""
    sunset(own, "own/old")
    config = f'[lake]\nuri = "{own.lake.uri}"\n[contracts]\noverlay = "{own.folder / "overlay"}"\n'
    (tmp_path / "ranklake.toml").write_text(config)
    monkeypatch.chdir(tmp_path)
    policies = Context.of(load_config()).policies(own.lake)
    assert [rule.name for rule in policies.rules if rule.where.get("metric")] == ["sunset own/old"]
    day = str(days_ago(1).date())
    assert command(["retain", "explain", "scalars", day, "--metric", "own/old", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["rule"], told["is_due"], told["at"]) == ("sunset own/old", True, "ranklake metric show own/old")
    assert command(["retain", "plan"]) == 0
    assert "sunset own/old" in capsys.readouterr().out


def test_files_whose_log_rules_its_names_out_are_not_read(own, monkeypatch):
    """A name before, after or between those of a file: only the last has to be looked for, and so has a beginning."""
    policies = with_sunset(load_policies(CONTRACTS), own.lake)
    monkeypatch.setattr(parts_module, "read_batches", lambda *_, **__: pytest.fail("a data file was read"))
    for names in (("a",), ("old", "p"), ("own/olders", "zz/*")):  # of a file from older to own/older
        rule = replace(SUNSET, where={"metric": names})
        assert plan(own, TODAY, replace(policies, rules=(*policies.rules, rule))) is None
    for name in ("own/n", "own/olde*", "ol*", "*", "older", "own/older"):
        rule = replace(SUNSET, where={"metric": (name,)})
        with pytest.raises(pytest.fail.Exception, match="was read"):
            plan(own, TODAY, replace(policies, rules=(*policies.rules, rule)))
