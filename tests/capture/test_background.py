"""What a run finds out beside training."""

import threading

import pytest

from ranklake.capture.assets.hashing import Background
from ranklake.capture.common.settings import CaptureSettings
from ranklake.capture.provenance.environment import allowed_variables, place_facts


def test_a_job_that_raises_keeps_no_other_from_its_turn(warnings_told):
    """Its error is told, and the next job is done."""
    background, seen = Background(), []

    def fails(_):
        raise ValueError("on purpose")

    first, second = background.submit(fails), background.submit(seen.append)
    assert first.wait(10)
    assert second.wait(10)
    background.close()
    assert len(seen) == 1
    assert "ValueError: on purpose" in warnings_told.text


def test_without_a_thread_a_later_job_is_done_all_the_same(monkeypatch):
    """A job that can have no thread is refused; it does not stand in the way of those that can."""
    background, seen = Background(), []
    with monkeypatch.context() as context:

        def refuse(_):
            raise RuntimeError("can't start new thread")

        context.setattr(threading.Thread, "start", refuse)
        with pytest.raises(RuntimeError):
            background.submit(seen.append)
    assert background.submit(seen.append).wait(10)
    background.close()
    assert len(seen) == 1


def test_a_secret_is_not_cut_in_two():
    """One that begins before the longest that is recorded and ends behind it is replaced, not half recorded."""
    token = "hf_" + "Q7wZ2mKp9XvB4nTr8LcY3sDg6HfJ1aEu"
    variables = allowed_variables({"NCCL_DEBUG": "x" * 1000 + " " + token})
    facts = place_facts({"RANKLAKE_TEAM": "y" * 240 + " " + token}, CaptureSettings(), {})
    for said in (variables["NCCL_DEBUG"], facts["team"]):
        assert token[:8] not in said
    assert len(variables["NCCL_DEBUG"]) <= 1024
