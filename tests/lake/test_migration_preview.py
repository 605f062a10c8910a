"""``ranklake migrate preview``: what would be different, found on a clone; the lake is as it was, byte for byte."""

import hashlib
import json
import time
from pathlib import Path

import pytest
import yaml
from bringing import bring
from segments import put_segment, step_rows

from ranklake.cli import run
from ranklake.lake.migrations import registry
from ranklake.lake.plans.plan import Plan
from ranklake.lake.preview.clone import BusyLakeError, clone
from ranklake.lake.rollups.runner import run_rollups
from ranklake.quality.check import run_checks


@pytest.fixture
def ask(lake, capfd, tmp_path):
    """Ask for a preview in a place of its own; return the exit code and what it printed, as JSON where it is."""

    def command(*words):
        code = run(["migrate", "preview", *words, "--lake", lake.uri, "--scratch", str(tmp_path / "scratch")])
        said = capfd.readouterr()
        assert list((tmp_path / "scratch").glob("*")) == []
        return code, json.loads(said.out) if "--json" in words else said.out + said.err

    return command


def contents(lake):
    """Return a digest of each file of a lake, and when it was changed."""
    paths = [path for path in sorted(Path(lake.root).rglob("*")) if path.is_file()]
    return {path: (hashlib.sha256(path.read_bytes()).hexdigest(), path.stat().st_ctime_ns) for path in paths}


def widen(facts):
    """Widen the loss, which rollups sum up."""
    next(one for one in facts["columns"] if one["name"] == "loss").update(type="float64")


def halve(facts):
    """Count tokens in pairs, which rollups that go on summing them do not know."""
    next(one for one in facts["columns"] if one["name"] == "tokens").update(unit="{pair}")


def prepared(lake, spool):
    """Have rows, checks and rollups in the lake."""
    put_segment(spool, step_rows(50))
    bring(lake, spool)
    run_checks(lake, ["steps"])
    run_rollups(lake, ["step_rollup"])


@pytest.mark.slow
def test_a_change_that_nobody_notices_changes_nothing(lake, spool, changed, ask):
    """Rollups come to the same and checks pass; no file of the lake is touched."""
    prepared(lake, spool)
    assert ask() == (0, "nothing is due: every table has the contract of this release\n")
    changed.migrate("steps", widen)
    before = contents(lake)
    code, found = ask("--json")
    assert contents(lake) == before
    (table,) = found["tables"]
    assert [one for one in found["rollups"] if one["error"]] == []
    assert found["checks"] == []
    assert (code, found["sound"]) == (0, True)
    assert (table["rows_before"], table["rows_after"], table["version_after"]) == (50, 50, 2)
    assert table["columns"] == ["loss: type float32 becomes float64"]
    rollup = next(one for one in found["rollups"] if one["name"] == "step_rollup")
    assert (rollup["rows_before"], rollup["rows_after"], rollup["columns"], rollup["stale"]) == (50, 50, {}, False)
    assert found["checked"] > 10
    code, said = ask("steps")
    assert "loss: type float32 becomes float64" in said
    assert "rollup step_rollup: 50 rows, the same" in said


@pytest.mark.slow
def test_figures_that_change_are_told(lake, spool, changed, ask):
    """A rollup that goes on summing numbers of another unit shows by how much."""
    prepared(lake, spool)
    path = changed.migrate("steps", halve)
    facts = yaml.safe_load(path.read_text())
    facts["steps"] = [{"convert": "tokens", "to": "tokens", "unit": "{pair}", "factor": 2}]
    path.write_text(yaml.safe_dump(facts))
    _, found = ask("--json")
    rollup = next(one for one in found["rollups"] if one["name"] == "step_rollup")
    assert rollup["columns"]["tokens"] == {"changed": 50, "before": 51200.0, "after": 102400.0}


@pytest.mark.slow
def test_a_rollup_and_a_check_that_would_break_are_named(lake, spool, changed, ask):
    """A column that a rollup's SQL names goes: the preview exits 1 and says which."""
    prepared(lake, spool)

    def change(facts):
        next(one for one in facts["columns"] if one["name"] == "tokens").update(name="tokens_seen")
        next(one for one in facts["columns"] if one["name"] == "loss").update(
            checks=[{"id": "loss_below_one", "kind": "between", "max": 1}]
        )

    changed.migrate("steps", change)
    code, said = ask()
    assert code == 1
    assert "rollup step_rollup fails:" in said
    assert "check steps.loss_below_one: unknown becomes failed on 1 date, 50 rows fail" in said
    assert "nothing was changed; what is above would fail" in said


@pytest.mark.slow
def test_a_drop_is_previewed_without_approval(lake, spool, changed, ask):
    """Nobody has approved it, and nothing of the lake is dropped."""
    prepared(lake, spool)

    def change(facts):
        gone = next(one for one in facts["columns"] if one["name"] == "grad_norm")
        facts["columns"].remove(gone)
        facts["retired"] = [{"id": gone["id"], "name": "grad_norm", "type": "float32", "retired_in": 2, "reason": "-"}]

    changed.migrate("steps", change)
    before = contents(lake)
    _, found = ask("--json")
    assert found["tables"][0]["columns"] == ["grad_norm goes"]
    assert contents(lake) == before


def test_a_lake_with_a_plan_under_way_is_not_cloned(lake, spool, tmp_path):
    """Between two plans a clone is of one moment; within one it would have half of it."""
    prepared(lake, spool)
    plan = Plan(
        2,
        "compaction",
        time.time_ns() // 1000,
        {"writer": "w", "add": [], "remove": {}, "purge": False, "kept": {}, "account": {}},
    )
    lake.put_if_absent(plan.name, plan.to_json())
    with pytest.raises(BusyLakeError, match="a plan is under way"):
        clone(lake, tmp_path, ["steps"])
    assert registry.load_migrations()
