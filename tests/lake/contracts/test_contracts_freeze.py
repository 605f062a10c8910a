"""Snapshots: what a version of a contract promised to stored data."""

import json
from dataclasses import replace

import pytest
from click.testing import CliRunner

from ranklake.lake.contracts import contract, freeze, load_contracts
from ranklake.lake.contracts.freeze import contract_digest, structure, thaw

STEPS = contract("steps")


@pytest.mark.parametrize("name", sorted(load_contracts()))
def test_a_snapshot_holds_the_whole_structure(name):
    """What is thawed is the structure of what was frozen; a review sees one column a line."""
    text = freeze.freeze(contract(name))
    assert thaw(text) == structure(contract(name))
    assert text.count('"id": ') == len(contract(name).columns)


def test_words_may_change_under_a_version():
    """Docs, owners, checks, retention and order of rows are not promised to stored data; types and units are."""
    reworded = replace(STEPS, owner="another", retention="logs", checks=(), sort=("step",))
    assert contract_digest(reworded) == contract_digest(STEPS)
    retyped = tuple(replace(one, type="float64") if one.name == "loss" else one for one in STEPS.columns)
    assert contract_digest(replace(STEPS, columns=retyped)) != contract_digest(STEPS)


def test_packaged_contracts_are_of_the_first_version():
    """No release has been made: there is no earlier version that a lake could have been written under."""
    assert {one.version for one in load_contracts().values()} == {1}


def test_the_command_keeps_what_a_version_was(tmp_path, monkeypatch):
    """A release calls it before it raises a version; the migration then knows what it leads from."""
    monkeypatch.setattr(freeze, "SNAPSHOTS", tmp_path / "snapshots")
    kept = CliRunner().invoke(freeze.main, ["steps"])
    assert (kept.exit_code, kept.output) == (0, "kept steps.v1.json\n")
    assert json.loads((tmp_path / "snapshots" / "steps.v1.json").read_text())["version"] == 1
