"""Rows of a partition go by rules below a table: run, labels, team, environment, metric, severity."""

import json

import pytest
from governed import any_rows, die_before
from retaining import CONTRACTS, POLICIES, TODAY, agree, carry_out, days_ago, plan
from segments import step_rows

from ranklake.lake.ingest.replay.run import replay
from ranklake.lake.ingest.replay.selection import ReplayError
from ranklake.lake.ingest.spool.spool import Spool
from ranklake.lake.plans.plan import RefusedPlanError, last_finished, read_plan
from ranklake.lake.plans.workers import InProcess
from ranklake.retention.plans.removals import removal_faults
from ranklake.retention.policies import parts as parts_module
from ranklake.retention.policies.parts import Parts, all_run_facts, severity_of
from ranklake.retention.policies.policies import PolicyError, load_policies
from ranklake.retention.policies.read import PACKAGED
from ranklake.retention.proposals.kept import retired_dates, thinned_dates
from ranklake.retention.proposals.proposals import VoidProposalError

MORE = """version: 1
owner: me
basis: law
review: 2999-01-01
rules:
"""


@pytest.fixture
def policies(tmp_path):
    """Return the packaged policies and further rules, given as lines of YAML."""

    def give(*rules):
        place = tmp_path / "policies"
        place.mkdir(exist_ok=True)
        (place / "defaults.yaml").write_text((PACKAGED / "defaults.yaml").read_text())
        (place / "more.yaml").write_text(MORE + "".join(f"  {rule}\n" for rule in rules))
        return load_policies(CONTRACTS, place)

    return give


def logs(count, severities, *, age, segment=0, run="r1", incarnation=7):
    texts = [severities[at % len(severities)] for at in range(count)]
    numbers = [{"debug": 5, "info": 9, "error": 17}[text] for text in texts]
    return any_rows(
        "logs", count, segment=segment, run=run, incarnation=incarnation, start=days_ago(age), severity_number=numbers
    )


def bring_run(site, run, incarnation, *, age, team=None, labels=None, environment=None):
    """Ingest what rank 0 says of a run, and ten steps of it."""
    told = {"team": [team], "labels": [None if labels is None else json.dumps(labels)]}
    told["deployment_environment"] = [environment]
    site.bring(any_rows("runs", 1, run=run, incarnation=incarnation, start=days_ago(age), **told), "runs")
    site.bring(step_rows(10, run=run, incarnation=incarnation, start=days_ago(age)))


DEBUG = "debug: {where: {table: logs, severity: [debug, trace]}, delete_after_days: 7, reason: nobody reads it}"
PROD = "prod: {where: {tag: tier=prod}, delete_after_days: 365, reason: audits look back a year}"
TEAM = "team: {where: {team: vision}, delete_after_days: 14, reason: they asked for it}"


def test_rows_of_a_severity_go(site, policies):
    """Old debug lines go by plan, approval and application; all other rows stay byte for byte, the books add up."""
    found = policies(DEBUG)
    site.bring(logs(9, ["debug", "info", "error"], age=10), "logs")
    site.bring(logs(9, ["debug", "info", "error"], age=5, segment=1), "logs", rows_before=9)
    before = [row for row in site.rows("logs") if row["ts"] != days_ago(10) or row["severity_number"] != 5]
    made = plan(site, TODAY, found)
    (item,) = made.items
    assert (item.table, item.partition_date, item.rows, item.rule) == ("logs", days_ago(10).date(), 3, "debug")
    assert (item.period_days, item.reason, item.files) == (7, "nobody reads it", 1)
    assert 0 < item.bytes < sum(path.stat().st_size for path in folder(site, 10).iterdir())
    agree(site, made.name)
    done, fresh = carry_out(site, made.name, TODAY, found)
    assert (fresh, done.rows) == (True, 3)
    assert sorted(site.rows("logs"), key=str) == sorted(before, key=str)
    assert (site.balances()["logs"].stored, site.balances()["logs"].retired) == (15, 3)
    assert len(list(folder(site, 10).iterdir())) == 1, "no older version of the partition is left"
    assert plan(site, TODAY, found) is None


def folder(site, age, table="logs"):
    return site.folder / f"lake/tables/{table}/date={days_ago(age).date()}"


@pytest.mark.slow
def test_runs_go_and_stay_by_team_and_label(site, policies):
    """A team's rows go early, those of a tagged run stay long, all others go by their class."""
    found = policies(PROD, TEAM)
    for age in (20, 100):
        bring_run(site, f"vision-{age}", 100 + age, age=age, team="vision")
        bring_run(site, f"prod-{age}", 300 + age, age=age, team="vision", labels={"tier": "prod"})
        bring_run(site, f"plain-{age}", 500 + age, age=age, labels={"tier": "dev"})
    made = plan(site, TODAY, found)
    told = {(item.table, (TODAY - item.partition_date).days): (item.rows, item.rule) for item in made.items}
    assert told == {
        ("runs", 20): (1, "team"),
        ("runs", 100): (1, "team"),
        ("steps", 20): (10, "team"),
        ("steps", 100): (20, "raw, team"),
    }
    agree(site, made.name)
    carry_out(site, made.name, TODAY, found)
    assert {row["run"] for row in site.rows("steps")} == {"prod-20", "prod-100", "plain-20"}
    site.balances()
    assert plan(site, TODAY, found) is None


def test_a_partition_all_of_whose_rows_are_due_goes_whole(site, policies):
    """Nothing is rewritten where nothing is to stay."""
    found = policies(DEBUG)
    site.bring(logs(4, ["debug"], age=10), "logs")
    made = plan(site, TODAY, found)
    assert [(item.rows, item.part_sha256) for item in made.items] == [(4, None)]
    agree(site, made.name)
    carry_out(site, made.name, TODAY, found)
    assert not list(folder(site, 10).iterdir())
    assert read_plan(site.lake.store, last_finished(site.lake.tables)).body["remove"]["logs"]


def test_the_log_is_enough_where_files_are_of_one_run(site, policies, monkeypatch):
    """Files of one run each are told apart without a look into them."""
    found = policies(TEAM)
    bring_run(site, "a", 7, age=20, team="vision")
    bring_run(site, "b", 8, age=20)
    monkeypatch.setattr(parts_module, "read_batches", lambda *_, **__: pytest.fail("a data file was read"))
    made = plan(site, TODAY, found)
    assert {(item.table, item.rows) for item in made.items} == {("steps", 10), ("runs", 1)}


def test_late_rows_make_the_plan_void(site, policies):
    """Rows that came after the plan are in none of its files, and rows of a file that is no more make it void."""
    found = policies(DEBUG)
    site.bring(logs(4, ["debug", "info"], age=10), "logs")
    made = plan(site, TODAY, found)
    agree(site, made.name)
    site.bring(logs(4, ["debug", "info"], age=10, segment=1), "logs", rows_before=4)
    with pytest.raises(VoidProposalError, match="other files than planned"):
        carry_out(site, made.name, TODAY, found)
    assert len(site.rows("logs")) == 8


def test_changed_rules_make_the_plan_void(site, policies):
    """What is due by other rules than when it was approved does not go."""
    found = policies(DEBUG)
    site.bring(logs(6, ["debug", "info", "error"], age=10), "logs")
    made = plan(site, TODAY, found)
    agree(site, made.name)
    other = policies(DEBUG.replace("[debug, trace]", "[debug, info]"))
    with pytest.raises(VoidProposalError, match="other rows that are due than planned"):
        carry_out(site, made.name, TODAY, other)
    with pytest.raises(VoidProposalError, match="not due under the policies of today"):
        carry_out(site, made.name, TODAY, POLICIES)
    assert len(site.rows("logs")) == 6


def test_nothing_comes_back(site, policies):
    """The same segment again stores nothing; a replay of the date, which would bring rows back, is refused."""
    found = policies(DEBUG)
    rows = logs(4, ["debug", "info"], age=10)
    site.bring(rows, "logs")
    made = plan(site, TODAY, found)
    agree(site, made.name)
    carry_out(site, made.name, TODAY, found)
    site.bring(rows, "logs")
    assert len(site.rows("logs")) == 2
    day = days_ago(10).date()
    assert (retired_dates(site.lake.tables), thinned_dates(site.lake.tables, "logs")) == ({}, {day})
    with pytest.raises(ReplayError, match="retention removed or masked some rows"):
        replay(site.lake, Spool(str(site.spool)), InProcess(), "logs", (day, day))
    site.balances()


def test_a_rule_of_two_approvers_needs_signed_approvals(site, policies):
    """Where one approves, or names are not checked, no plan is made by such a rule; other rules' plans are."""
    found = policies(DEBUG.replace("reason:", "tier: 2, reason:"))
    site.bring(logs(4, ["debug", "info"], age=10), "logs")
    with pytest.raises(PolicyError, match="asks for 2 approvers, and approvals here take 1"):
        plan(site, TODAY, found)
    made = plan(site, TODAY, policies(DEBUG))
    agree(site, made.name)
    with pytest.raises(PolicyError, match="asks for 2 approvers"):
        carry_out(site, made.name, TODAY, found)
    assert len(site.rows("logs")) == 4


def test_facts_of_runs(site):
    """Team, labels and environment of all attempts are a run's; a label is known by name, value, and both."""
    bring_run(site, "a", 7, age=1, team="vision", labels={"environment": "staging", "tier": "prod"})
    bring_run(site, "a", 8, age=0, team="speech", environment="production")
    found = all_run_facts(site.lake.tables)["a"]
    assert found["team"] == {"vision", "speech"}
    assert found["environment"] == {"staging", "production"}
    assert {"tier", "prod", "tier=prod"} <= found["tag"]


@pytest.mark.parametrize(
    ("number", "text", "severity"),
    [
        (5, None, "debug"),
        (8, "INFO", "debug"),
        (24, None, "fatal"),
        (None, "WARN", "warning"),
        (None, "CRITICAL", "fatal"),
        (None, None, None),
        (0, "error", "error"),
        (None, "loud", None),
    ],
)
def test_severities(number, text, severity):
    """The number counts, else the name; what says neither has none."""
    assert severity_of(number, text) == severity


def test_values_are_coded_and_back(site):
    """Whatever the values of rows, NULL among them, a mask is true where the rule says so."""
    found = Parts(site.lake, CONTRACTS["logs"], POLICIES.rules, (), {})
    found.columns = ("run", "severity_number")
    rows = any_rows("logs", 5, severity_number=[5, None, 9, 5, None])
    seen = []
    mask = found.mask(rows, lambda values: seen.append(values) or values == ("r1", None))
    assert mask.to_pylist() == [False, True, False, False, True]
    assert sorted(seen, key=str) == [("r1", 5), ("r1", 9), ("r1", None)]
    assert found.mask(rows.slice(0, 0), lambda _: True).to_pylist() == []


@pytest.mark.parametrize("table", ["logs", "retention_plans", "ingest_plans", "audit"])
def test_whoever_dies_on_the_way_is_followed(site, policies, monkeypatch, table):
    """Killed before any of the commits, the next call finishes: the same rows are gone, once, and the books add up."""
    found = policies(DEBUG)
    site.bring(logs(9, ["debug", "info", "error"], age=10), "logs")
    made = plan(site, TODAY, found)
    agree(site, made.name)
    with monkeypatch.context() as patched:
        die_before(patched, table)
        with pytest.raises(SystemExit):
            carry_out(site, made.name, TODAY, found)
    done, _ = carry_out(site, made.name, TODAY, found)
    assert done.state == "applied"
    assert sorted(row["severity_number"] for row in site.rows("logs")) == [9, 9, 9, 17, 17, 17]
    assert site.balances()["logs"].retired == 3
    assert removal_faults(site.lake) == []
    assert len(list(folder(site, 10).iterdir())) == 1


def test_a_forged_plan_takes_no_other_rows(site, policies, monkeypatch):
    """A found plan that leaves fewer rows than were approved to stay is refused, and nothing of it is carried out."""
    found = policies(DEBUG)
    site.bring(logs(9, ["debug", "info", "error"], age=10), "logs")
    made = plan(site, TODAY, found)
    agree(site, made.name)
    with monkeypatch.context() as patched:
        die_before(patched, "logs")
        with pytest.raises(SystemExit):
            carry_out(site, made.name, TODAY, found)
    (path,) = [one for one in (site.folder / "lake/plans").iterdir() if '"retention"' in one.read_text()]
    forged = json.loads(path.read_text())
    forged["add"] = [one for one in forged["add"] if one["table"] != "logs"]
    forged["account"]["logs"] = -9
    del forged["sha256"]
    path.write_text(json.dumps(forged))
    with pytest.raises(RefusedPlanError, match="other rows than were approved"):
        carry_out(site, made.name, TODAY, found)
    assert len(site.rows("logs")) == 9
