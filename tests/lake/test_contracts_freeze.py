"""Frozen snapshots: a contract cannot change under a version that stored data was written with."""

import subprocess
import sys
from dataclasses import replace

import pytest

from ranklake.lake.contracts import contract, load_contracts
from ranklake.lake.contracts.freeze import SNAPSHOTS, freeze, structure, thaw, undeclared, write

STEPS = contract("steps")


def changed(which, /, **changes):
    """Return steps with one column changed."""
    columns = tuple(replace(column, **changes) if column.name == which else column for column in STEPS.columns)
    return replace(STEPS, columns=columns)


@pytest.fixture
def frozen(tmp_path):
    """Return a folder with the snapshot of steps as it is now."""
    write({"steps": STEPS}, tmp_path)
    return tmp_path


def test_packaged_contracts_are_as_frozen():
    """No packaged contract has changed under its version, and all are frozen."""
    assert list(undeclared(load_contracts())) == []


def test_the_command_says_so():
    """`--check` ends with exit 0 and without a word when all is as frozen."""
    command = [sys.executable, "-m", "ranklake.lake.contracts.freeze", "--check"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.parametrize("name", sorted(load_contracts()))
def test_a_snapshot_holds_the_whole_structure(name):
    """What is thawed is the structure of what was frozen."""
    assert thaw(freeze(contract(name))) == structure(contract(name))


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"type": "float64"}, "loss type float32 became float64 (rewrite)"),
        ({"unit": "s"}, "loss unit 1 became s"),
        ({"name": "cost"}, "cost renamed from 'loss' (rewrite)"),
        ({"class_": "personal"}, "loss class operational became personal"),
        ({"required": True}, "loss became required (breaking)"),
        ({"mask": "hash"}, "loss mask None became hash"),
        ({"format": "json"}, "loss format None became json"),
    ],
)
def test_an_undeclared_change_is_told(frozen, changes, what):
    """A column that changed without a new version fails the check, which says what differs and what to do."""
    (problem,) = undeclared({"steps": changed("loss", **changes)}, frozen)
    assert problem.startswith(f"steps version 1: {what}")
    assert problem.endswith("raise `version:` to 2")


def test_adding_and_dropping_columns_is_told(frozen):
    """A column more, or a column less, under the same version fails too."""
    fewer = replace(STEPS, columns=STEPS.columns[:-1])
    assert "removed without a tombstone" in next(undeclared({"steps": fewer}, frozen))
    more = replace(STEPS, columns=(*STEPS.columns, replace(STEPS.column("lr"), id=99, name="lr2")))
    assert "lr2 added (safe)" in next(undeclared({"steps": more}, frozen))


def test_words_may_change_under_a_version(frozen):
    """Docs, owners, checks, retention and order of rows are not promised to stored data."""
    reworded = replace(changed("loss", doc="Other words.", checks=()), owner="another", retention="logs", checks=())
    assert list(undeclared({"steps": reworded}, frozen)) == []


def test_a_new_version_needs_its_own_snapshot_and_keeps_the_old(frozen):
    """Raising the version asks for a new snapshot; the old one stays, untouched, and must stay."""
    before = (frozen / "steps.v1.json").read_bytes()
    newer = replace(changed("loss", type="float64"), version=2)
    assert "version 2 has no snapshot" in next(undeclared({"steps": newer}, frozen))
    assert [path.name for path in write({"steps": newer}, frozen)] == ["steps.v2.json"]
    assert list(undeclared({"steps": newer}, frozen)) == []
    assert (frozen / "steps.v1.json").read_bytes() == before
    (frozen / "steps.v1.json").unlink()
    assert "version 1 has no snapshot" in next(undeclared({"steps": newer}, frozen))


def test_writing_never_replaces_a_snapshot_unasked(frozen):
    """A changed contract does not overwrite what is frozen, unless told that no lake has that version yet."""
    other = changed("loss", type="float64")
    assert write({"steps": other}, frozen) == []
    assert len(list(undeclared({"steps": other}, frozen))) == 1
    assert [path.name for path in write({"steps": other}, frozen, overwrite=True)] == ["steps.v1.json"]
    assert list(undeclared({"steps": other}, frozen)) == []


def test_snapshots_of_nothing_are_told(frozen):
    """A snapshot without its contract, or of a version from the future, is said."""
    assert "is a snapshot of no contract" in next(undeclared({}, frozen))
    write({"steps": replace(STEPS, version=3)}, frozen)
    assert any("steps.v3.json" in problem for problem in undeclared({"steps": STEPS}, frozen))


def test_snapshots_are_text_for_people():
    """One column a line, so that a review shows which column changed."""
    text = (SNAPSHOTS / "steps.v1.json").read_text(encoding="utf-8")
    assert sum('"id": ' in line for line in text.splitlines()) == len(STEPS.columns)


def test_a_planned_table_promises_nothing_yet(frozen):
    """Nothing writes it, so it has no snapshot and may change under its version; once it is active, it needs one."""
    planned = replace(contract("incidents"), columns=contract("incidents").columns[:-1])
    contracts = {"steps": contract("steps"), "incidents": planned}
    assert planned.status == "planned"
    assert list(undeclared(contracts, frozen)) == []
    assert write(contracts, frozen) == []
    active = {**contracts, "incidents": replace(planned, status="active")}
    assert "incidents version 1 has no snapshot" in next(undeclared(active, frozen))
