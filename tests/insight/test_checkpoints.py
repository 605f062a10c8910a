"""The last good checkpoint: verified, there, and saved before the first sign of trouble."""

import json
from datetime import timedelta

import pytest
from rollup_inputs import NOON, append

from ranklake.insight.runs.asking import asking
from ranklake.insight.runs.checkpoints import last_good_checkpoint
from ranklake.lake.audit.trail import record
from ranklake.lake.store.lake import Lake

MINUTE = timedelta(minutes=1)


def action(minutes, name, what="created", **more):
    """Return an action on a checkpoint of run r1, so many minutes after noon."""
    facts = {"name": name, "kind": "checkpoint", "action": what, "uri": f"/ckpt/{name}", "sha256": name[-1] * 64}
    return {**facts, "ts": NOON + minutes * MINUTE, "step": minutes, **more}


def hashed(lake, name, *, is_good, run="r1", sha256=None):
    """Note in the audit log that a checkpoint was hashed again."""
    details = {"run": run, "name": name, "recorded_sha256": sha256 or name[-1] * 64, "verified": is_good}
    record(lake, "ops", "artifact.verify", f"/ckpt/{name}", None, details)


@pytest.fixture
def lake(tmp_path):
    """Give a lake with four checkpoints of r1, the third deleted, and trouble at minute 35."""
    lake = Lake.create(str(tmp_path / "lake"))
    append(lake, "artifacts", [
        action(10, "step-1"), action(20, "step-2"), action(30, "step-3"), action(40, "step-4"),
        action(50, "step-3", "deleted"), action(25, "model-9", kind="model"), action(26, "step-8", run="r2"),
    ])  # fmt: skip
    return lake


def good(lake, minutes=35, run="r1"):
    """Return the last good checkpoint from before so many minutes after noon."""
    return last_good_checkpoint(asking(lake), run, None if minutes is None else NOON + minutes * MINUTE)


def test_nothing_is_good_that_nobody_verified(lake):
    """It says which is the newest, and how to verify it."""
    assert good(lake).name == ""
    assert good(lake).reason == (
        "none is verified; the newest is step-2 of step 20: ranklake verify-artifact step-2 --run r1"
    )
    assert good(lake, 5).reason == "no checkpoint was saved before 2026-03-01 12:05 UTC, or none is left"
    assert good(lake, run=None).reason == "it is of no run"


def test_a_damaged_one_is_never_what_to_verify_next(lake):
    """The one before it is; where each is damaged, none is left."""
    hashed(lake, "step-2", is_good=False)
    assert (good(lake).newest, good(lake).is_none) == ("step-1", False)
    assert "the newest is step-1 of step 10" in good(lake).reason
    hashed(lake, "step-1", is_good=False)
    assert (good(lake).newest, good(lake).is_none, good(lake).reason) == ("", True, "each that is left is damaged")


def test_the_newest_verified_before_the_trouble_is_good(lake):
    """Neither one that was deleted, nor one of after the trouble, of another run or of another kind."""
    for name, run in (("step-1", "r1"), ("step-3", "r1"), ("step-4", "r1"), ("model-9", "r1"), ("step-8", "r2")):
        hashed(lake, name, is_good=True, run=run)
    assert (good(lake).name, good(lake).step, good(lake).uri) == ("step-1", 10, "/ckpt/step-1")
    hashed(lake, "step-2", is_good=True)
    assert good(lake).name == "step-2"
    assert good(lake, None).name == "step-4"
    assert json.dumps(good(lake).plain(), default=str)


def test_the_last_look_counts(lake):
    """Good once and damaged now is not good; nor is what was good before it was written over."""
    hashed(lake, "step-1", is_good=True)
    hashed(lake, "step-2", is_good=True)
    hashed(lake, "step-2", is_good=False)
    assert good(lake).name == "step-1"
    append(lake, "artifacts", [action(11, "step-1", sha256="e" * 64, incarnation=9)])
    assert good(lake).name == ""
    hashed(lake, "step-1", is_good=True, sha256="e" * 64)
    assert (good(lake).name, good(lake).step) == ("step-1", 11)
    append(lake, "artifacts", [action(60, "step-1", sha256="f" * 64, incarnation=10)])  # holds the state of after it
    assert good(lake).name == ""


def test_a_load_that_found_what_was_recorded_verifies(lake):
    """And one that did not speaks against it, from then on; a load that nobody held against anything says nothing."""
    append(lake, "artifacts", [action(21, "step-2", "loaded", verified=None, incarnation=9)])
    assert good(lake).name == ""
    append(lake, "artifacts", [action(22, "step-2", "loaded", verified=True, incarnation=10)])
    assert good(lake).name == "step-2"
    append(lake, "artifacts", [action(60, "step-2", "verified", verified=False, incarnation=11)])
    assert good(lake).name == ""
