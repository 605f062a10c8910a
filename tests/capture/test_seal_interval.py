"""How long rows wait to be sealed: a minute, in large runs longer for those in slots, so that segments stay few."""

import json
import time

import pytest
from recorded import rows, segments

from ranklake.capture.common.settings import CaptureSettings


@pytest.mark.parametrize(
    ("settings", "world_size", "wait_s"),
    [
        ({}, 0, 60),
        ({}, 1, 60),
        ({}, 1024, 60),
        ({}, 2048, 120),
        ({}, 10_000, 300),
        ({"seal_every_s": 600.0}, 10_000, 600),
        ({"seal_at_most_s": 60.0}, 10_000, 60),
        ({"seal_at_most_s": 1.0}, 10_000, 60),
        ({"seal_every_s": 10.0}, 10_240, 100),
    ],
)
def test_slots_wait_in_proportion_to_the_world(settings, world_size, wait_s):
    """From 1,024 ranks on, up to the longest wait; what was asked for is never undercut."""
    assert CaptureSettings(**settings).seal_slots_every_s(world_size) == wait_s


def _until(done):
    """Wait for threads of the recorder to have done something."""
    deadline = time.monotonic() + 30
    while not done():
        assert time.monotonic() < deadline, "nothing came"
        time.sleep(0.02)


def test_a_large_run_seals_events_at_once_and_slots_seldom(place):
    """Steps wait; events, flushes and the end do not."""
    run = place.start(rank=0, world_size=1_000_000, seal_every_s=0.05, seal_at_most_s=3600)

    def steps():
        return [row["step"] for row in rows(place.spool, "steps")]

    with run.step(1):
        pass
    run.event("user.seen")
    _until(lambda: any(row["event"] == "user.seen" for row in rows(place.spool, "events")))
    assert steps() == []
    assert run.flush(30)
    assert steps() == [1]
    with run.step(2):
        pass
    run.close()
    assert steps() == [1, 2]
    assert len([one for one in segments(place.spool) if one.table == "steps"]) == 2
    (start,) = (row for row in rows(place.spool, "events") if row["event"] == "rank_start")
    assert json.loads(start["attributes"])["interval_s"] == 60  # the longer of that and of the heartbeats'
