"""``ranklake migrate`` as an operator types it: plan, approve, apply, verify, undo, new."""

import json
from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pytest
from bringing import bring
from segments import put_segment, step_rows

from ranklake.cli import run
from ranklake.lake.contracts.load import contract
from ranklake.lake.migrations.steps import columns as steps


@pytest.fixture
def ask(lake, capfd):
    """Run a subcommand on the lake; return its exit code, and what it printed, as JSON where it is."""

    def command(*words):
        code = run(["migrate", *words, "--lake", lake.uri])
        said = capfd.readouterr()
        return code, json.loads(said.out) if "--json" in words and code != 2 else said.out + said.err

    return command


def change(facts):
    """Rename a column, give another one another unit, drop a third."""
    by_name = {one["name"]: one for one in facts["columns"]}
    by_name["tokens"].update(name="tokens_seen")
    by_name["lr"].update(name="lr_ratio", unit="ratio")
    facts["columns"].remove(by_name["loss"])
    facts["checks"] = [one for one in facts["checks"] if "loss" not in one.get("columns", ())]
    facts["retired"] = [
        {"id": by_name["loss"]["id"], "name": "loss", "type": "float32", "retired_in": 2, "reason": "-"}
    ]


def test_an_operator_carries_a_migration_out_and_back(lake, spool, changed, ask):
    """What is due is told with what depends on it; a drop needs two people; verify compares; undo goes back."""
    put_segment(spool, step_rows(20))
    bring(lake, spool)
    assert ask("plan") == (0, "nothing is due: every table has the contract of this release\n")
    changed.migrate("steps", change, factor=0.5)
    code, (due,) = ask("plan", "--json")
    assert (code, due["rows"], due["drops"], due["metadata_only"]) == (0, 20, ["loss"], False)
    assert due["steps"] == [
        *("drop loss", "rename tokens to tokens_seen", "convert lr to lr_ratio in ratio (old value times 0.5)"),
    ]
    uses = {(one["kind"], one["name"]) for one in due["dependents"] if one["column"] == "tokens"}
    assert ("rollup", "step_rollup") in uses
    code, said = ask("plan", "steps")
    assert "values go: approve with ranklake migrate approve mg-" in said
    assert ask("apply", "--by", "Ada")[0] == 2
    assert ask("approve", due["proposal"], "--by", "Ada")[0] == 0
    code, said = ask("apply", "--by", "Ada")
    assert (code, "have another person apply it" in said) == (2, True)
    (done,) = ask("apply", "--by", "Otto", "--json")[1]
    assert done.pop("label").endswith("_steps_2"), "numbered after the migrations of this release"
    assert done == {"table": "steps", "version": 2, "is_of_added": False, "plan": 2, "rows": 20}
    code, proof = ask("verify", "steps", "--json")
    assert (code, proof["rows"], proof["faults"]) == (0, 20, [])
    assert ask("undo", "steps", "--by", "Otto", "--json")[1][0]["version"] == 1
    code, said = ask("undo", "steps")
    assert (code, "no migration of steps is there to undo" in said) == (2, True)


def test_verify_finds_what_is_not_as_it_should_be(lake, spool, changed, ask, monkeypatch):
    """Where rows have other values than the migration gives them, verify names the column and exits 1."""
    put_segment(spool, step_rows(20))
    bring(lake, spool)
    changed.migrate("steps", lambda facts: facts.update(columns=[seen(one) for one in facts["columns"]]))
    with monkeypatch.context() as patch:
        wrong = pa.array(range(20), pa.int64())
        patch.setattr(steps, "rename_column", lambda rows, old, new: rows.drop_columns([old]).append_column(new, wrong))
        assert ask("apply")[0] == 0
    code, said = ask("verify", "steps")
    assert (code, "column tokens_seen has other values than it should" in said) == (1, True)


def seen(one):
    """Return a column of a document, under its later name."""
    return {**one, "name": "tokens_seen"} if one["name"] == "tokens" else one


def test_a_plan_says_who_asks_for_a_column(lake, spool, changed, ask, capfd):
    """Consumers of the last 90 days are listed with their columns, owners, and until when they are answered."""
    put_segment(spool, step_rows(20))
    bring(lake, spool)
    for name, columns in (("board", "tokens, lr"), ("nightly", "loss"), ("other", "rank")):
        assert run(["sql", f"SELECT {columns} FROM steps", "--lake", lake.uri, "--consumer", name]) == 0
    capfd.readouterr()
    changed.migrate("steps", change, factor=0.5)
    (due,) = ask("plan", "--json")[1]
    found = {(one["name"], one["column"]): one for one in due["dependents"] if one["kind"] == "consumer"}
    year = (datetime.now(UTC) + timedelta(days=365)).date()
    fates = {key: one["fate"] for key, one in found.items()}
    assert fates == {
        ("board", "tokens"): f"answers until {year}",
        ("board", "lr"): f"answers until {year}",
        ("nightly", "loss"): "breaks",
    }
    assert all(one["owner"] for one in due["dependents"])
    one = found["board", "tokens"]
    assert (one["breaks"], one["until"], one["queries"]) == (False, str(year), 1)
    said = ask("plan")[1]
    assert f"consumer board (owner: {contract('steps').owner}) answers until {year}: it uses tokens, 1" in said


def test_a_table_without_a_new_version_has_nothing_to_draft(changed, ask, capfd):
    """`new` says what to do first."""
    assert run(["migrate", "new", "steps", "x"]) == 2
    assert "steps has no version after 1; run python -m ranklake.lake.contracts.freeze steps" in capfd.readouterr().err
