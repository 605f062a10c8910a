"""Follower: training whose steps nobody ends, as with an optimizer that is none of torch's, takes no more memory."""

import json
import sys
import threading

import pytest
import torch
from recorded import attributes, rows
from torch.optim.optimizer import _global_optimizer_post_hooks

from ranklake import capture
from ranklake.capture.assets.merkle_digest import merkle_digest
from ranklake.capture.frameworks import follower as followers
from ranklake.capture.frameworks import torch as hooks
from ranklake.capture.frameworks.follower import MOST_MICRO, Follower
from ranklake.capture.frameworks.torch import HOOKS


def test_a_step_that_never_ends_keeps_no_loss_for_ever(place):
    """Thousands of backward passes leave as many losses and phases behind as a thousand, and count as no loss."""
    run = place.start()
    followed = Follower(run)
    followers.FOLLOWED[:] = [followed]
    weight = torch.ones(1, requires_grad=True)
    try:
        for _ in range(2 * MOST_MICRO):
            HOOKS.backward(torch.autograd.backward, weight.sum())
    finally:
        followers.FOLLOWED.clear()
    assert len(followed.losses) == MOST_MICRO
    assert len(followed._phases) <= MOST_MICRO + 1
    followed.end_step()
    run.close()
    assert run.gaps() == {}


def test_hyperparameters_are_the_runs_unless_it_has_others(place, monkeypatch):
    """Those of a framework are the run's where it begins with them; beside what was given they are an event."""
    monkeypatch.setattr(followers, "start", place.start)
    for given in ({}, {"config": {"mine": 1}}):
        followed = Follower(settings=given)
        followed.lead(followed, {"rate": 0.1})
        followed.run.close()
    assert sorted(row["config"] for row in rows(place.spool, "runs")) == ['{"mine":1}', '{"rate":0.1}']
    told = [attributes(row) for row in rows(place.spool, "events") if row["event"] == "config"]
    assert told == [{"config": {"rate": 0.1}}]


def test_hyperparameters_that_come_later_are_those_of_a_run_that_waits_for_them(place):
    """As autolog's do: its row stays open for them, redacted as ever; what comes after is an event."""
    run = place.start()
    run.recording.await_config()
    assert not run.recording.recorder.settle(0, last=False)
    followed = Follower(run)
    followed.lead(followed, {"rate": 0.1, "hub_token": "0123456789abcdef9a6656c90bd5482a90a29b9f"})
    followed.configure({"rate": 0.2})
    run.log({"said/0123456789abcdef9a6656c90bd5482a90a29b9f": 1.0})
    run.close()
    (row,) = rows(place.spool, "runs")
    assert json.loads(row["config"]) == {"rate": 0.1, "hub_token": "[redacted]"}
    assert row["config_sha256"]
    told = [attributes(row) for row in rows(place.spool, "events") if row["event"] == "config"]
    assert told == [{"config": {"rate": 0.2}}]
    assert "9a6656c9" not in str(rows(place.spool, "scalars"))


def test_hyperparameters_that_come_too_late_are_an_event(place):
    """A row that is final is not written again; it waits for so long, and no longer than the run lasts."""
    run = place.start()
    run.recording.await_config()
    assert run.recording.recorder.settle(10, last=True)
    followed = Follower(run)
    followed.lead(followed, {"rate": 0.1})
    run.close()
    assert [row["config"] for row in rows(place.spool, "runs")] == [None]
    assert [attributes(row) for row in rows(place.spool, "events") if row["event"] == "config"] == [
        {"config": {"rate": 0.1}}
    ]


def test_a_frameworks_checkpoint_is_told_without_credentials(place):
    """Its place may be a URL with a user, and signed."""
    with place.start() as run:
        Follower(run).checkpoint("s3://me:hunter2@bucket/step-1.ckpt?token=hunter2", 1, 0.5)
    (row,) = rows(place.spool, "artifacts")
    assert (row["name"], row["uri"]) == ("step-1.ckpt?token=[redacted]", "s3://bucket/step-1.ckpt?token=[redacted]")


def test_a_fit_that_raises_in_a_step_is_one_failure_of_its_run(place):
    """Told by the framework, by the run's block that it leaves, and by the interpreter, with the step that it ended."""
    with pytest.raises(KeyError), place.start() as run:  # noqa: PT012 - both ends of the block are told
        followed = Follower(run)
        followed.begin_step()
        error = KeyError("a batch is missing")
        followed.fail(error)
        raise error
    told = [row for row in rows(place.spool, "events") if row["event"] in {"failure", "step_failed"}]
    assert [(row["event"], row["step"]) for row in told] == [("step_failed", 0), ("failure", 0)]
    (end,) = (row for row in rows(place.spool, "events") if row["event"] == "rank_end")
    assert attributes(end)["reason"] == "KeyError"


def test_a_folder_that_other_ranks_may_write_still_is_hashed_after_the_next_step(place, tmp_path):
    """Their part comes after this rank has told of its own; the time is that of this rank's."""
    run = place.start(rank=0, world_size=2)
    followed, folder = Follower(run), tmp_path / "state"
    folder.mkdir()
    (folder / "rank-0").write_bytes(b"0")
    followed.begin_step()
    followed.checkpoint(folder, 0, 0.5)
    run.event("between")
    (folder / "rank-1").write_bytes(b"1")
    followed.end_step()
    run.close()
    (row,) = rows(place.spool, "artifacts")
    assert (row["sha256"], row["file_count"]) == (merkle_digest(folder).sha256, 2)
    (between,) = (event for event in rows(place.spool, "events") if event["event"] == "between")
    assert row["ts"] <= between["ts"]


def replaced():
    """Return what `install` replaces, as it is now."""
    return [getattr(place, name) for place, name, _ in hooks._WRAPPED]


def train(steps):
    """Train in plain torch; return the module."""
    net = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for _ in range(steps):
        net(torch.ones(1, 2)).sum().backward()
        optimizer.step()
    return net


def test_all_is_as_before_when_the_run_has_ended(place):
    """Functions, hooks of torch's kinds and of modules, the import system, exceptions."""
    before, finders = replaced(), list(sys.meta_path)
    excepthooks = sys.excepthook, threading.excepthook
    run = capture.autolog(place.start())
    assert replaced() != before
    net = train(2)
    assert net._forward_hooks
    run.close()
    assert replaced() == before
    assert sys.meta_path == finders
    assert (sys.excepthook, threading.excepthook) == excepthooks
    assert not net._forward_hooks
    assert not net._forward_pre_hooks
    assert not _global_optimizer_post_hooks
    assert [row["step"] for row in rows(place.spool, "steps")] == [0, 1]


def test_what_somebody_wrapped_on_top_stays_and_is_not_hooked_twice(place, monkeypatch):
    """Theirs is not undone, ours beneath passes on; the next run has each step once."""
    calls, told = [], []
    first = capture.autolog(place.start())
    ours, excepthook = torch.autograd.backward, sys.excepthook

    def theirs(*args, **kwargs):
        calls.append(1)
        return ours(*args, **kwargs)

    monkeypatch.setattr(torch.autograd, "backward", theirs)
    monkeypatch.setattr(sys, "excepthook", lambda *error: (told.append(error), excepthook(*error)))
    train(1)
    first.close()
    assert torch.autograd.backward is theirs
    train(1)
    second = capture.autolog(place.start(run="second"))
    assert torch.autograd.backward is theirs
    train(2)
    sys.excepthook(ValueError, ValueError("nobody handles it"), None)
    second.close()
    assert len(calls) == 4
    assert len(told) == 1
    assert [row["run"] for row in rows(place.spool, "steps")] == ["run", "second", "second"]
    assert all(row["loss"] is not None for row in rows(place.spool, "steps"))
    assert [row["run"] for row in rows(place.spool, "events") if row["event"] == "failure"] == ["second"]
