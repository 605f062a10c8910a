"""Columns under keys of people that a migration renames, drops or computes with: none is stored in clear by it."""

import json
from datetime import timedelta

import pytest
from archiving import archived, policies_in
from changed_contracts import column
from governed import any_rows
from keyed import COLUMNS, config_of, erased, section
from retaining import TODAY, days_ago
from segments import put_segment
from subjects import ADA, GRACE

from ranklake.cli import run
from ranklake.insight.ask import ask
from ranklake.lake.ingest.maintenance.compaction import merge_small
from ranklake.lake.ingest.run import ingest
from ranklake.lake.ingest.spool.spool import Spool
from ranklake.lake.migrations.applying import apply as migrate
from ranklake.lake.migrations.applying import undo
from ranklake.lake.migrations.due import due
from ranklake.lake.migrations.steps.step import MigrationError
from ranklake.lake.plans.workers import InProcess
from ranklake.lake.query.sql import query
from ranklake.lake.store.lake_config import SubjectsSection
from ranklake.retention.archive.rehydration import approve, propose, rehydrate, select_archives, write_down
from ranklake.retention.proposals.lifecycle import approve as agree_to
from ranklake.retention.proposals.migrations import MIGRATIONS
from ranklake.retention.subjects.columns import SubjectColumnError
from ranklake.retention.subjects.keys import SubjectKeysError
from ranklake.retention.subjects.store import key_state

OF_BEFORE = 'SELECT unsealed("user") AS who, unsealed(command_line) AS line FROM runs ORDER BY run'
OF_TODAY = "SELECT unsealed(account) AS who, unsealed(command_line) AS line FROM runs ORDER BY run"


def renamed(old, new):
    """Return what renames a column of runs."""
    return lambda facts: column(facts, old).update(name=new)


def send(site, number, who, name="user", age=40):
    """Put a segment of a run of somebody into the spool, under the contract of the moment."""
    told = {name: [who], "command_line": [f"train --for {who}"]}
    rows = any_rows("runs", 1, run=f"exp-{number}", incarnation=number, start=days_ago(age), **told)
    return put_segment(site.spool, rows, "runs")


def take_in(site, **own):
    """Ingest what waits, as somebody whose configuration says what is given under keys."""
    lake = site.lake.configured(subjects=section(site.folder, **own)) if own else site.lake
    return ingest(lake, Spool(str(site.spool)), InProcess())


def clear_of(site, text, *, back=False):
    """Return who a query names, in clear."""
    return [row["who"] for row in ask(site.lake, text, rehydrated=back).rows.to_pylist()]


def in_clear(site, *folders):
    """Return files that name one of both in any byte, of the lake and of folders beside it."""
    raw = [who.encode() for who in (ADA, GRACE)]
    every = [path for name in ("lake", *folders) for path in (site.folder / name).rglob("*") if path.is_file()]
    return [path for path in every if any(one in path.read_bytes() for one in raw)]


@pytest.fixture
def site(sealing, changed):
    """Return a lake with two people's rows under keys, and the contracts of a release that calls a user an account."""
    changed.earlier()
    send(sealing, 1, ADA)
    send(sealing, 2, GRACE)
    take_in(sealing)
    send(sealing, 3, ADA)  # it waits until the lake is migrated
    changed.later()
    return sealing


@pytest.mark.slow
def test_sealing_follows_a_renamed_column(site, changed, tmp_path):
    """Old segments, new ones, merged files, what comes back from an archive, what is undone: never in clear."""
    changed.earlier()
    cold = policies_in(tmp_path, "cold: {where: {table: runs}, archive: {after_days: 30, to: TO}, reason: rarely read}")
    archived(site, cold)
    changed.later()
    changed.migrate("runs", renamed("user", "account"))
    migrate(site.lake, InProcess(), "Mia")
    take_in(site)  # by the configuration of before
    send(site, 4, GRACE, "account", age=10)
    take_in(site)
    send(site, 5, ADA, "account", age=10)
    take_in(site, columns=("runs.account", "runs.command_line by account"))
    assert clear_of(site, OF_TODAY) == [ADA, GRACE, ADA]
    assert merge_small(site.lake, InProcess(), thorough=True).files_before > 1
    some = select_archives(site.lake.tables, "runs", days_ago(90).date(), TODAY)
    made = write_down(site.lake, some, TODAY + timedelta(days=7), "Ann", "an incident")
    propose(site.lake, made, "Ann")
    approve(site.lake, made.name, "Ada Approver")
    rehydrate(site.lake, made.name, "Otto", cold)
    assert clear_of(site, OF_TODAY, back=True) == [ADA, GRACE, ADA, GRACE, ADA]
    assert in_clear(site, "archive") == []
    undo(site.lake, InProcess(), "Mia", "runs")
    changed.earlier()
    send(site, 6, GRACE, age=10)
    take_in(site, columns=("runs.account", "runs.command_line by account"))  # nobody thought of it
    rehydrate(site.lake, made.name, "Otto", cold)
    assert clear_of(site, OF_BEFORE, back=True) == [ADA, GRACE, ADA, GRACE, ADA, GRACE]
    assert in_clear(site, "archive") == []
    site.balances()
    done = erased(site, ADA)
    assert done.certificate.is_clean
    rehydrate(site.lake, made.name, "Otto", cold)
    assert clear_of(site, OF_BEFORE, back=True) == [None, GRACE, None, GRACE, None, GRACE]
    assert in_clear(site, "archive") == []
    assert key_state(site.lake).is_sound


@pytest.mark.slow
def test_the_plan_says_what_becomes_of_sealed_columns(site, changed, capsys, monkeypatch):
    """Renamed, it stays under its keys; one that keeps its name is not told of, and in clear there is none."""
    changed.migrate("runs", renamed("user", "account"))
    monkeypatch.setenv("RANKLAKE_CONFIG", config_of(site, site.folder))
    assert run(["migrate", "plan", "runs"]) == 0
    told = [line for line in capsys.readouterr().out.splitlines() if "under keys" in line]
    assert told == ["  runs.user is stored under keys of people, and stays under them as account"]
    assert run(["migrate", "plan", "runs", "--json"]) == 0
    (one,) = json.loads(capsys.readouterr().out)
    assert one["under_keys"] == [{"column": "user", "becomes": "account"}]
    clear = section(site.folder, columns=("runs.command_line by account",), clear=("runs.account",))
    (one,) = due(site.lake.configured(subjects=clear), "runs")
    assert one.sealed == {}


@pytest.mark.parametrize("by", [None, "account"], ids=["no section", "without the new name"])
@pytest.mark.slow
def test_a_configuration_without_the_new_name_stores_nothing_in_clear(site, changed, by):
    """Neither one that has no keys at all, nor one that names all but the column."""
    changed.migrate("runs", renamed("user", "account"))
    migrate(site.lake, InProcess(), "Mia")
    send(site, 4, GRACE, "account")
    if by is None:
        site.lake = site.lake.configured(subjects=SubjectsSection())
        with pytest.raises(SubjectKeysError, match="no keys are configured"):
            take_in(site)
    else:
        with pytest.raises(SubjectColumnError, match=r"runs.account was stored under keys, as runs.user, .* clear"):
            take_in(site, columns=(f"runs.command_line by {by}",))
    assert in_clear(site) == []
    assert len(site.rows("runs")) == 2
    take_in(site, columns=(f"runs.command_line by {by or 'user'}",), clear=("runs.account",))  # somebody says so
    assert sorted(row["account"] for row in site.rows("runs"))[:2] == [ADA, GRACE]


@pytest.mark.slow
def test_a_name_that_others_get_keeps_nobody_in_clear(site, changed):
    """Of two columns that swap names the one that was sealed is, whatever it is called."""

    def swapped(facts):
        one, other = column(facts, "user"), column(facts, "git_branch")
        one["name"], other["name"] = "git_branch", "user"

    steps = [
        {"rename": "user", "to": "between"},
        {"rename": "git_branch", "to": "user"},
        {"rename": "between", "to": "git_branch"},
    ]
    changed.migrate("runs", swapped, steps)
    migrate(site.lake, InProcess(), "Mia")
    with pytest.raises(SubjectColumnError, match=r"runs.git_branch was stored under keys, as runs.user"):
        take_in(site)
    only = ("runs.git_branch", "runs.command_line by git_branch")
    take_in(site, columns=only)  # the other was never sealed
    who = query(site.lake, "SELECT unsealed(git_branch) AS who FROM runs ORDER BY run")["who"].to_pylist()
    assert who == [ADA, GRACE, ADA]
    assert in_clear(site) == []


@pytest.mark.slow
def test_what_a_dropped_column_held_is_not_stored_again(site, changed):
    """Its values go, segments of before bring none, and undone it is sealed as it was."""

    def without(facts):
        facts["columns"] = [one for one in facts["columns"] if one["name"] != "user"]
        version = facts["version"] + 1
        facts.setdefault("retired", []).append(
            {"id": 21, "name": "user", "type": "string", "retired_in": version, "reason": "nobody needs it"}
        )

    changed.migrate("runs", without)
    (one,) = due(site.lake, "runs")
    assert one.sealed == {"user": None}
    agree_to(site.lake, MIGRATIONS, one.proposal, "Ada Approver", None)
    migrate(site.lake, InProcess(), "Mia")
    with pytest.raises(SubjectColumnError, match=r"runs.user is dropped.*take it out"):
        take_in(site)
    with pytest.raises(SubjectColumnError, match=r"runs.user is dropped.*take it out"):
        take_in(site, columns=("runs.command_line by user",))
    take_in(site, columns=("runs.command_line",))
    assert in_clear(site) == []


COMPUTED = {
    "split": [
        {"split": "user", "into": {"first": "split_part(user, '.', 1)", "last": "split_part(user, '.', 2)"}},
    ],
    "merge": [{"merge": ["user", "git_branch"], "into": "first", "by": "user || git_branch"}],
    "renamed, then split": [
        {"rename": "user", "to": "between"},
        {"split": "between", "into": {"first": "split_part(between, '.', 1)"}},
    ],
}


@pytest.mark.parametrize("kind", COMPUTED)
@pytest.mark.slow
def test_nothing_is_computed_of_what_is_sealed(site, changed, kind):
    """Refused when it is planned, and when it is applied: values would be made of what nobody can read."""
    steps = COMPUTED[kind]
    gone = steps[-1].get("merge", ["user"])
    come = steps[-1]["into"] if isinstance(steps[-1]["into"], dict) else [steps[-1]["into"]]

    def change(facts):
        like = dict(column(facts, "user"))
        old = [one for one in facts["columns"] if one["name"] in gone]
        facts["columns"] = [one for one in facts["columns"] if one["name"] not in gone]
        version = facts["version"] + 1
        dead = [{"id": one["id"], "name": one["name"], "type": "string", "retired_in": version} for one in old]
        facts.setdefault("retired", []).extend({**one, "reason": "others come"} for one in dead)
        facts["columns"] += [{**like, "id": 900 + at, "name": name, "since": version} for at, name in enumerate(come)]

    changed.migrate("runs", change, steps)
    hint = r"runs.user is stored under keys.* rename it, or drop it and add the others"
    with pytest.raises(MigrationError, match=hint):
        list(due(site.lake, "runs"))
    with pytest.raises(MigrationError, match=hint):
        migrate(site.lake, InProcess(), "Mia")
    assert len(query(site.lake, 'SELECT "user" FROM runs')) == 2


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"class": "operational"}, "tells of nobody"),
        ({"format": "json", "mask": "nullify"}, "is json"),
        ({"checks": [{"id": "user_known", "kind": "not_null"}]}, "has checks"),
    ],
    ids=["class", "format", "checks"],
)
@pytest.mark.slow
def test_a_column_that_could_not_be_sealed_any_more_is_refused(site, changed, change, why):
    """A migration to a contract under which its values would have to be in clear stops before it is planned."""

    def other(facts):
        column(facts, "user").update(change)
        if change.get("class") == "operational":
            column(facts, "user").pop("mask")
        column(facts, "job").update(name="job_name")

    changed.migrate("runs", other)
    with pytest.raises(MigrationError, match=f"runs.user is stored under keys of people, and afterwards .*{why}"):
        list(due(site.lake, "runs"))
    site.lake = site.lake.configured(subjects=section(site.folder, columns=COLUMNS[1:], clear=("runs.user",)))
    assert [one.migration.table for one in due(site.lake, "runs")] == ["runs"]


@pytest.mark.slow
def test_what_a_migration_made_is_not_computed_back_once_it_is_sealed(sealing, changed):
    """An undo that would make the old column of sealed values is refused; nothing is changed."""
    changed.earlier()
    sealing.lake = sealing.lake.configured(subjects=SubjectsSection())
    send(sealing, 1, ADA)
    take_in(sealing)
    changed.later()

    def change(facts):
        like = dict(column(facts, "user"))
        facts["columns"] = [one for one in facts["columns"] if one["name"] != "user"]
        version = facts["version"] + 1
        facts.setdefault("retired", []).append(
            {"id": 21, "name": "user", "type": "string", "retired_in": version, "reason": "others come"}
        )
        facts["columns"] += [
            {**like, "id": 900 + at, "name": name, "since": version} for at, name in enumerate(("first", "last"))
        ]

    into = {"first": "split_part(user, '.', 1)", "last": "split_part(user, '.', 2)"}
    changed.migrate("runs", change, [{"split": "user", "into": into, "back": "first || '.' || last"}])
    migrate(sealing.lake, InProcess(), "Mia")
    send(sealing, 2, "grace", "first")
    take_in(sealing, columns=("runs.first",))
    with pytest.raises(MigrationError, match=r"runs.first is stored under keys"):
        undo(sealing.lake, InProcess(), "Mia", "runs")
    assert len(sealing.rows("runs")) == 2
