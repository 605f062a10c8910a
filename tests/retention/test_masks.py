"""Values that are masked where they are stored, after so many days, by plan, approval and application."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from datetime import timedelta

import pytest
from governed import die_before
from people import NEW, OLD, PEOPLE, bring_runs, with_keys
from retaining import CONTRACTS, TODAY, agree, carry_out, days_ago, plan

from ranklake.lake.ingest.maintenance.compaction import merge_small
from ranklake.lake.ingest.replay.run import replay
from ranklake.lake.ingest.replay.selection import ReplayError
from ranklake.lake.ingest.spool.spool import Spool
from ranklake.lake.plans.plan import RefusedPlanError
from ranklake.lake.plans.workers import InProcess
from ranklake.lake.rollups.runner import run_rollups
from ranklake.lake.store.keys import key_ids, key_references, note_keys
from ranklake.masking.masks import Pseudonyms
from ranklake.retention.holds.holds import holds_of, rules_on, set_hold
from ranklake.retention.plans.explain import RowSelection, explain
from ranklake.retention.plans.plan import left_for_next
from ranklake.retention.plans.removals import removal_faults
from ranklake.retention.policies.cases import run_cases
from ranklake.retention.policies.policies import PolicyError, lint_policies
from ranklake.retention.proposals.kept import retired_dates, thinned_dates
from ranklake.retention.proposals.proposals import VoidProposalError

COLUMNS = ("user", "host", "git_branch", "git_patch", "command_line")


def masked(site, found, today=TODAY):
    """Plan, approve and apply what is due; return the items, none where nothing is."""
    made = plan(site, today, found)
    if made is None:
        return ()
    agree(site, made.name)
    carry_out(site, made.name, today, found)
    return made.items


def test_values_are_masked_and_rows_stay(keyed, policies):
    """Users become pseudonyms, patches NULL, command lines lose homes; all else is the same, and no original stays."""
    site, found = keyed, policies(PEOPLE)
    bring_runs(site, 20, age=40)
    bring_runs(site, 20, age=10, incarnation=8)
    before = site.rows("runs")
    keys = site.keys("runs")
    (item,) = masked(site, found)
    assert (item.table, item.partition_date, item.rows, item.rule) == ("runs", days_ago(40).date(), 0, "people")
    assert item.reason == "Masks command_line (redact), git_patch (nullify), host (hash), user (hash): enough"
    hashed = Pseudonyms.of(site.lake.config.masking.key)
    for old, new in zip(
        *(sorted(rows, key=lambda row: (row["incarnation"], row["slot"])) for rows in (before, site.rows("runs"))),
        strict=True,
    ):
        if old["incarnation"] == 8:
            assert new == old
            continue
        shown = {"user": hashed(old["user"]), "host": hashed(old["host"]), "git_patch": None}
        shown["command_line"] = f"train --out /home/[redacted]/out --n {old['world_size']}"
        assert new == {**old, **shown}
    assert site.keys("runs") == keys
    assert site.places_of("person-7-0-3") == site.places_of("/home/person-3/") == []
    assert site.balances()["runs"].retired == 0
    assert removal_faults(site.lake) == []


@pytest.mark.slow
def test_a_masked_date_is_not_due_again(keyed, policies, tmp_path):
    """Nothing is planned twice: nor after a merge, nor under a new key; rows that come late are due."""
    site, found = keyed, policies(PEOPLE)
    for segment in range(2):
        bring_runs(site, 5, age=40, segment=segment, rows_before=5 * segment)
    assert len(masked(site, found)) == 1
    assert plan(site, TODAY, found) is None
    bring_runs(site, 5, age=40, segment=2, rows_before=10)
    before = {row["user"] for row in site.rows("runs") if row["user"].startswith("p-")}
    (item,) = masked(site, found)
    assert (item.files, item.rows) == (2 + 1, 0)
    assert before < {row["user"] for row in site.rows("runs")}
    with_keys(site, tmp_path, NEW, OLD)
    assert merge_small(site.lake, InProcess(), thorough=True).files_before > 1
    assert plan(site, TODAY, found) is None
    bring_runs(site, 5, age=40, segment=3, rows_before=15, user=["ada"] * 5)
    masked(site, found)
    ring = Pseudonyms.of(site.lake.config.masking.key)
    assert {row["user"] for row in site.rows("runs") if row["segment"] == 3} == {ring("ada")}
    assert {row["user"] for row in site.rows("runs") if row["segment"] == 0} == {
        ring(f"person-7-0-{n}") for n in range(5)
    }


def test_a_plan_is_not_carried_out_with_half_of_a_rotated_keyring(keyed, policies, tmp_path):
    """Whoever rotates by replacing would give everybody a second pseudonym, in files, for good."""
    site, found = keyed, policies(PEOPLE)
    bring_runs(site, 3, age=40)
    note_keys(site.lake.store, dict(key_ids(key_references(site.lake.config))), TODAY)
    made = plan(site, TODAY, found)
    agree(site, made.name)
    with_keys(site, tmp_path, NEW)
    with pytest.raises(PolicyError, match="a key that was in the keyring is not any more"):
        carry_out(site, made.name, TODAY, found)
    with_keys(site, tmp_path, NEW, OLD)
    carry_out(site, made.name, TODAY, found)
    assert plan(site, TODAY, found) is None


def test_derived_tables_follow(keyed, policies):
    """What was computed of people is computed again of their pseudonyms, and nothing is lost by it."""
    site, found = keyed, policies(PEOPLE)
    bring_runs(site, 1, age=40, user=["ada-lovelace"])
    run_rollups(site.lake, names=["attempt_facts"])
    assert [row["user"] for row in site.rows("attempt_facts")] == ["ada-lovelace"]
    masked(site, found)
    run_rollups(site.lake, names=["attempt_facts"])
    hashed = Pseudonyms.of(site.lake.config.masking.key)
    assert [row["user"] for row in site.rows("attempt_facts")] == [hashed("ada-lovelace")]


def test_nothing_brings_originals_back(keyed, policies):
    """What is sent again stores nothing, and a replay of a masked date is refused; so it is of no other date."""
    site, found = keyed, policies(PEOPLE)
    bring_runs(site, 5, age=40)
    bring_runs(site, 5, age=10, incarnation=8)
    masked(site, found)
    day = days_ago(40).date()
    rows = site.rows("runs")
    bring_runs(site, 5, age=40)
    assert site.rows("runs") == rows
    assert (retired_dates(site.lake.tables), thinned_dates(site.lake.tables, "runs")) == ({}, {day})
    with pytest.raises(ReplayError, match="masked some rows"):
        replay(site.lake, Spool(str(site.spool)), InProcess(), "runs", (day, day))
    other = days_ago(10).date()
    replay(site.lake, Spool(str(site.spool)), InProcess(), "runs", (other, other))
    site.balances()


def test_a_legal_hold_keeps_values(keyed, policies):
    """Rows that a hold is about keep their values as long as it holds; the others of the date are masked."""
    site, found = keyed, policies(PEOPLE)
    bring_runs(site, 3, age=40, run="held")
    bring_runs(site, 3, age=40, run="free", incarnation=8)
    until = TODAY + timedelta(days=5)
    set_hold(site.lake, ["run=held"], "case 7", until, "Lena Legal")
    masked(site, found)
    users = {row["run"]: row["user"][:7] for row in site.rows("runs")}
    assert users["held"] == "person-"
    assert users["free"].startswith("p-")
    assert plan(site, TODAY, found) is None
    masked(site, found, until)
    assert all(row["user"].startswith("p-") for row in site.rows("runs"))


def test_a_hold_that_is_set_after_the_plan_voids_it(keyed, policies):
    """What was approved is looked at again when it is applied."""
    site, found = keyed, policies(PEOPLE)
    bring_runs(site, 3, age=40)
    made = plan(site, TODAY, found)
    agree(site, made.name)
    set_hold(site.lake, ["table=runs"], "case 7", TODAY + timedelta(days=5), "Lena Legal")
    with pytest.raises(VoidProposalError, match="is not due"):
        carry_out(site, made.name, TODAY, found)
    assert site.rows("runs")[0]["user"].startswith("person-")


def test_without_a_key_nothing_is_planned(site, policies):
    """A hash without a key would be undone by whoever tries all names: one line says what to configure."""
    bring_runs(site, 3, age=40)
    with pytest.raises(PolicyError, match=r"runs\.user is to be masked by a keyed hash, and there is no key"):
        plan(site, TODAY, policies("p: {where: {table: runs, column: user}, mask_after_days: 3, reason: why}"))
    redacts = policies("p: {where: {table: runs, column: command_line}, mask_after_days: 3, reason: why}")
    assert len(masked(site, redacts)) == 1


@pytest.mark.parametrize(
    ("where", "why"),
    [
        ("table: runs, column: world_size", "runs.world_size is operational"),
        ("table: runs, column: run", "runs.run is operational"),
        ("table: gpu_samples, column: host", "sorts them"),
        ("table: job_facts, column: user", "computed again"),
        ("table: audit, column: actor", "kept as books"),
    ],
)
def test_a_column_that_cannot_be_masked_is_found_by_lint(policies, where, why):
    """With file and line, and why."""
    place = policies(f"p: {{where: {{{where}}}, mask_after_days: 3, reason: why}}", check=False)
    found = [str(one) for one in lint_policies(CONTRACTS, place) if one.code == "RP013"]
    assert len(found) == 1
    assert why in found[0]
    assert "more.yaml:6" in found[0]


def test_explain_says_which_columns_are_masked_and_from_when(policies):
    """The rule that decides, and not before a legal minimum."""
    found = policies(PEOPLE, "law: {where: {table: runs}, minimum_days: 90, reason: law}")
    said = explain(None, CONTRACTS, found, RowSelection("runs", days_ago(40).date())).plain(TODAY)["masks"]
    assert {one["column"]: one["mask"] for one in said} == {
        "user": "hash",
        "host": "hash",
        "git_patch": "nullify",
        "command_line": "redact",
    }
    assert {one["due_from"] for one in said} == {str(days_ago(40).date() + timedelta(days=91))}


TESTS = """version: 1
tests:
  - {given: {table: runs, column: user, age_days: 31}, expect: masked, by: people}
  - {given: {table: runs, column: user, age_days: 30}, expect: kept, by: people}
  - {given: {table: runs, column: git_branch, age_days: 400}, expect: kept}
  - {given: {table: runs, column: user, age_days: 4000}, expect: deleted}
  - {given: {table: runs, column: user, age_days: 10}, expect: masked}
"""


def test_policy_tests_say_when_values_are_masked(policies, tmp_path):
    """Cases name a column, and expect its values kept, masked, or gone with their rows."""
    found, path = policies(PEOPLE), tmp_path / "tests.yaml"
    path.write_text(TESTS)
    results = run_cases([path], found, CONTRACTS)
    assert [one.passed for one in results] == [True, True, True, True, False]
    assert results[-1].line.endswith("expected masked, and it is kept by people")
    for given, message in (
        ("table: runs", "values are masked, not rows; add column"),
        ("table: runs, column: usr", "did you mean 'user'"),
        ("table: steps, column: loss", "'loss' of 'steps' is never masked; name a classified column"),
    ):
        path.write_text(f"version: 1\ntests:\n  - {{given: {{{given}, age_days: 3}}, expect: masked}}\n")
        with pytest.raises(PolicyError, match=message):
            run_cases([path], found, CONTRACTS)


def test_rows_that_are_deleted_are_not_masked_first(keyed, policies):
    """A date of which rows go is planned once: what stays of it is masked by the next plan."""
    site = keyed
    found = policies(PEOPLE, "short: {where: {table: runs, run: r1}, delete_after_days: 20, reason: asked}")
    bring_runs(site, 3, age=40)
    bring_runs(site, 3, age=40, run="r2", incarnation=8)
    assert left_for_next(site.lake, CONTRACTS, found, TODAY) == {"runs": [days_ago(40).date()]}
    (first,) = masked(site, found)
    assert (first.rows, first.is_mask) == (3, False)
    assert left_for_next(site.lake, CONTRACTS, found, TODAY) == {}
    (second,) = masked(site, found)
    assert (second.rows, second.is_mask) == (0, True)
    assert removal_faults(site.lake) == []
    assert site.balances()["runs"].retired == 3


@pytest.mark.parametrize("table", ["runs", "retention_plans", "ingest_plans", "audit"])
def test_whoever_dies_on_the_way_is_followed(keyed, policies, monkeypatch, table):
    """Killed before any of the commits, the next call finishes: values are masked once, no original stays."""
    site, found = keyed, policies(PEOPLE)
    bring_runs(site, 9, age=40)
    made = plan(site, TODAY, found)
    agree(site, made.name)
    with monkeypatch.context() as patched:
        die_before(patched, table)
        with pytest.raises(SystemExit):
            carry_out(site, made.name, TODAY, found)
    done, _ = carry_out(site, made.name, TODAY, found)
    assert done.state == "applied"
    assert len(site.rows("runs")) == 9
    assert site.places_of("person-7-0-3") == []
    assert removal_faults(site.lake) == []
    site.balances()


def test_a_forged_plan_masks_no_rows_away(keyed, policies, monkeypatch):
    """A found plan that says to mask, and would have fewer rows stay, is refused before anything of it is done."""
    site, found = keyed, policies(PEOPLE)
    bring_runs(site, 9, age=40)
    made = plan(site, TODAY, found)
    agree(site, made.name)
    with monkeypatch.context() as patched:
        die_before(patched, "runs")
        with pytest.raises(SystemExit):
            carry_out(site, made.name, TODAY, found)
    (path,) = [one for one in (site.folder / "lake/plans").iterdir() if '"retention"' in one.read_text()]
    genuine = json.loads(path.read_text())
    for forge in ({"masked": {}}, {"masked": {"runs": "all"}}):
        forged = {**genuine, "facts": {**genuine["facts"], **forge}}
        del forged["sha256"]
        path.write_text(json.dumps(forged))
        with pytest.raises(RefusedPlanError):
            carry_out(site, made.name, TODAY, found)
    forged = {**genuine, "add": [one for one in genuine["add"] if one["table"] != "runs"]}
    forged["account"] = {**forged["account"], "runs": -9}
    del forged["sha256"]
    path.write_text(json.dumps(forged))
    with pytest.raises(RefusedPlanError):
        carry_out(site, made.name, TODAY, found)
    assert len(site.rows("runs")) == 9


KEYS = ("run", "tag", "team", "environment", "metric", "severity", "table", "kind", "class")


def winner(rules, facts, column):
    """Return the days after which a column of rows is masked, by the stated order of rules; None for never."""
    said = [
        rule
        for rule in rules
        if "mask_after_days" in rule
        and column in rule["where"]["column"]
        and all(facts.get(key) == text for key, text in rule["where"].items() if key != "column")
    ]
    if not said:
        return None
    first = min(said, key=lambda one: ([key not in one["where"] for key in KEYS], -one["mask_after_days"]))
    law = [one["minimum_days"] for one in rules if "minimum_days" in one]
    return max([first["mask_after_days"], *law])


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(8))
def test_what_is_masked_is_what_the_rules_say_row_by_row(keyed, policies, seed):
    """Random rules, rows and a hold: each value is as a plain reading of the rules has it, each other one as before."""
    site, chance = keyed, random.Random(seed)
    runs = [
        {"run": f"r{n}", "team": chance.choice([None, "vision", "audio"]), "age": chance.randrange(1, 60)}
        for n in range(chance.randrange(2, 7))
    ]
    for place, run in enumerate(runs):
        told = {"team": [run["team"]] * 3, "git_branch": ["wip", None, "main"]}
        bring_runs(site, 3, age=run["age"], run=run["run"], incarnation=50 + place, **told)
    rules = []
    for _ in range(chance.randrange(2, 6)):
        where = {"column": chance.sample(COLUMNS, chance.randrange(2, 6)), "table": "runs"}
        where |= chance.choice([{}, {"team": "vision"}, {"team": "audio"}, {"run": chance.choice(runs)["run"]}])
        rules.append({"where": where, "mask_after_days": chance.randrange(1, 50)})
    if chance.random() < 0.4:
        rules.append({"where": {"table": "runs"}, "minimum_days": chance.randrange(1, 40)})
    lines = [f"x{n}: {json.dumps({**rule, 'reason': 'why'})}" for n, rule in enumerate(rules)]
    found = policies(*lines)
    held = chance.choice([None, chance.choice(runs)["run"]])
    if held:
        set_hold(site.lake, [f"run={held}"], "case", TODAY + timedelta(days=5), "Lena Legal")
    before = site.rows("runs")
    masked(site, found)
    assert plan(site, TODAY, found) is None
    hashed = Pseudonyms.of(site.lake.config.masking.key)
    age = {run["run"]: run["age"] for run in runs}
    shown = {"user": hashed, "host": hashed, "git_branch": hashed, "git_patch": lambda _: None}
    after = {(row["incarnation"], row["slot"]): row for row in site.rows("runs")}
    assert len(after) == len(before)
    for row in before:
        facts = {"table": "runs", "run": row["run"], "team": row["team"]}
        wanted = dict(row)
        for column in COLUMNS:
            days = winner(rules, facts, column)
            if row["run"] == held or days is None or age[row["run"]] <= days or row[column] is None:
                continue
            home = f"train --out /home/[redacted]/out --n {row['world_size']}"
            wanted[column] = shown[column](row[column]) if column in shown else home
        assert after[row["incarnation"], row["slot"]] == wanted
    site.balances()
    assert removal_faults(site.lake) == []
    assert rules_on(holds_of(site.lake, TODAY), TODAY) if held else True


CHILD = """
import sys
from datetime import date
from ranklake.lake.contracts.load import load_contracts
from ranklake.lake.store.lake import Lake
from ranklake.lake.store.lake_config import MaskingSection
from ranklake.retention.plans.apply import apply
from ranklake.retention.policies.policies import load_policies
from pathlib import Path
uri, keys, place, name, today = sys.argv[1:]
lake = Lake.open(uri).configured(masking=MaskingSection(keys))
contracts = load_contracts()
print("ready", flush=True)
apply(lake, name, "Otto Operator", contracts, load_policies(contracts, Path(place)), date.fromisoformat(today))
"""


@pytest.mark.slow
def test_killed_at_any_moment_it_converges(keyed, policies, tmp_path):
    """SIGKILL at random moments of the application: the next call, or the one after it, has all masked, once."""
    site, chance = keyed, random.Random(4)
    found = policies(PEOPLE)
    for segment in range(8):
        bring_runs(site, 40, age=60 - segment, segment=segment, rows_before=40 * segment)
    rows = len(site.rows("runs"))
    made = plan(site, TODAY, found)
    agree(site, made.name)
    place = str(tmp_path / "policies")
    arguments = [site.lake.uri, site.lake.config.masking.key, place, made.name, TODAY.isoformat()]
    for _ in range(10):
        child = subprocess.Popen([sys.executable, "-c", CHILD, *arguments], stdout=subprocess.PIPE, text=True)
        assert child.stdout.readline() == "ready\n"
        time.sleep(chance.random() * 0.5)  # where it is then is what differs
        os.kill(child.pid, signal.SIGKILL)
        child.communicate()
        assert len(site.rows("runs")) == rows
    done, _ = carry_out(site, made.name, TODAY, found)
    assert done.state == "applied"
    assert all(row["user"].startswith("p-") for row in site.rows("runs"))
    assert site.places_of("person-7-3-3") == []
    assert site.keys("runs").total() == rows
    assert removal_faults(site.lake) == []
    site.balances()
