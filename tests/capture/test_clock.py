"""Clocks: order is kept whatever the wall clock does, and sealing again gives the same times."""

import json
import os
import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from recorded import rows, segments

from ranklake.capture.recover import recover
from ranklake.capture.spool.clock import bracket, read_anchor, read_clock, straighten, wall_ns
from ranklake.capture.spool.owner import boot_id
from ranklake.segments.segment import ClockReading, SegmentFooter

S = 10**9
NOW = 1_795_174_364 * S
WALLS = st.integers(NOW, NOW + 2000 * S) | st.integers(0, 2000 * S)
ANCHORS = st.lists(st.tuples(st.integers(0, 1000 * S), WALLS), min_size=1, max_size=8)
TIMES = st.lists(st.integers(-10 * S, 1100 * S), min_size=1, max_size=20)


def test_an_anchor_is_both_clocks_at_once():
    """An anchor lies between readings taken before and after it."""
    before = time.monotonic_ns(), time.time_ns()
    mono, wall = read_anchor()
    assert before[0] <= mono <= time.monotonic_ns()
    assert before[1] <= wall <= time.time_ns()


def test_time_is_interpolated_between_anchors_and_goes_on_beyond_them():
    """Half-way between two anchors is half-way between their wall times; outside, a second is a second."""
    straight = [(100 * S, 1000 * S), (110 * S, 1020 * S)]
    walls = wall_ns(np.array([95 * S, 100 * S, 105 * S, 110 * S, 111 * S]), straight)
    assert walls.tolist() == [995 * S, 1000 * S, 1010 * S, 1020 * S, 1021 * S]


def test_nanoseconds_survive():
    """Times of today's size keep their nanoseconds."""
    straight = [(12345, 1_795_174_364_780_748_344), (12345 + 10 * S, 1_795_174_374_780_748_344)]
    assert wall_ns(np.array([12346, 12347 + S]), straight).tolist() == [
        1_795_174_364_780_748_345,
        1_795_174_365_780_748_346,
    ]


@given(ANCHORS, TIMES)
def test_no_event_moves_before_an_earlier_one(anchors, times):
    """Later on the monotonic clock is never earlier on the wall, also when the wall clock was set back."""
    mono = np.array(sorted(times), np.int64)
    assert (np.diff(wall_ns(mono, straighten(anchors))) >= 0).all()


@given(ANCHORS, ANCHORS, TIMES)
def test_later_anchors_change_nothing(early, late, times):
    """A segment's times depend on the anchors around its rows: sealing it again, with more known, gives the same."""
    end = max(mono for mono, _ in early)
    inside = np.array([min(time, end) for time in times], np.int64)
    more = early + [(mono + end + 1, wall) for mono, wall in late]
    few = straighten(early)
    many = straighten(more)
    assert (wall_ns(inside, few) == wall_ns(inside, many)).all()
    first, last = int(inside.min()), int(inside.max())
    assert bracket(few, first, last) == bracket(many, first, last)


@given(ANCHORS, TIMES)
def test_the_bracket_is_all_that_times_are_made_of(anchors, times):
    """The anchors that a footer names give the same times as all of them."""
    mono = np.array(times, np.int64)
    straight = straighten(anchors)
    within = bracket(straight, int(mono.min()), int(mono.max()))
    assert (wall_ns(mono, within) == wall_ns(mono, straight)).all()


def test_a_small_correction_backwards_is_paid_back_at_half_speed():
    """After a correction of half a second, time runs on at half speed until the wall clock has caught up."""
    straight = straighten([(0, 100 * S), (10 * S, 106 * S), (20 * S, 116 * S)])
    assert straight == [(0, 100 * S), (10 * S, 106 * S), (20 * S, 116 * S)]
    straight = straighten([(0, NOW), (S // 2, NOW), (S, NOW + S)])
    assert straight == [(0, NOW), (S // 2, NOW + S // 4), (S, NOW + S)]


@pytest.mark.parametrize("step_s", [-86_400, -3_600, -5, 5, 3_600, 86_400])
def test_a_clock_that_was_set_is_not_followed(step_s):
    """Times go on as the monotonic clock measures them, after each of several steps, and slews count all the same."""
    anchors = [(0, NOW), (10 * S, NOW + 10 * S), (18 * S, NOW + (18 + step_s) * S), (28 * S, NOW + (28 + step_s) * S)]
    assert straighten(anchors) == [(0, NOW), (10 * S, NOW + 10 * S), (18 * S, NOW + 18 * S), (28 * S, NOW + 28 * S)]
    again = [*anchors, (38 * S, NOW + (38 + 2 * step_s) * S), (138 * S, NOW + (141 + 2 * step_s) * S)]
    assert straighten(again)[-2:] == [(38 * S, NOW + 38 * S), (138 * S, NOW + 141 * S)]


def test_a_machine_that_slept_did_not_set_its_clock():
    """The monotonic clock stands still while a machine is suspended: those hours passed."""
    anchors = [(0, NOW), (10 * S, NOW + 3_610 * S)]
    readings = {0: ClockReading(0, suspended_ns=5 * S), 10 * S: ClockReading(10 * S, suspended_ns=3_605 * S)}
    assert straighten(anchors, readings) == anchors
    assert straighten(anchors) == [(0, NOW), (10 * S, NOW + 10 * S)]


def test_a_clock_that_was_never_set_is_followed_where_it_is():
    """A node that begins in 1970 gets its time soon: rows from before 2000 would all be refused."""
    anchors = [(0, 100 * S), (10 * S, NOW + 10 * S), (20 * S, NOW + 20 * S)]
    assert straighten(anchors) == anchors


@pytest.mark.parametrize("step_s", [-3600.0, 3600.0], ids=["back", "ahead"])
def test_a_run_lasts_as_long_as_it_did_whatever_the_wall_clock_does(place, monkeypatch, step_s):
    """An hour's step leaves no gap in the rows of a run, and an event tells it."""
    clock = Clock()
    monkeypatch.setattr("ranklake.capture.spool.clock.time", clock)
    begun = time.monotonic()
    record(place.start(seal_every_s=0.05), clock, [{"step_s": step_s}]).close()
    took_s = time.monotonic() - begun
    times = [row["ts"] for table in ("scalars", "events", "runs") for row in rows(place.spool, table)]
    assert (max(times) - min(times)).total_seconds() <= took_s
    (event,) = (row for row in rows(place.spool, "events") if row["event"] == "clock_step")
    assert json.loads(event["attributes"])["step_s"] == pytest.approx(step_s, abs=0.5)


class Clock:
    """A wall clock that somebody sets or slews while it runs; it stands in for the module `time`."""

    def __init__(self):
        self.monotonic_ns = time.monotonic_ns
        self.changes = []
        self.begin = time.monotonic_ns()

    def time_ns(self):
        """Return the wall time as it is told after all changes so far."""
        now = time.monotonic_ns()
        wall = time.time_ns()
        for moment, step_ns, slew in self.changes:
            wall += step_ns + round((now - moment) * slew)
        return wall

    def change(self, *, step_s=0.0, slew=0.0):
        """Set the clock forward by a step, and let it run faster by a share."""
        self.changes.append((time.monotonic_ns(), round(step_s * S), slew))


@pytest.mark.parametrize(
    "changes",
    [
        [{"step_s": -3600.0}],
        [{"step_s": 3600.0}],
        [{"slew": -0.3}],
        [{"slew": 0.3}],
        [{"step_s": 5.0}, {"step_s": -10.0}, {"slew": -0.2}, {"step_s": -0.05}],
    ],
    ids=["back", "forward", "slower", "faster", "all at once"],
)
@pytest.mark.parametrize("closed", [True, False], ids=["closed", "recovered"])
def test_no_row_of_a_run_moves_before_an_earlier_one(place, monkeypatch, changes, closed):
    """Whatever happens to the wall clock in the middle of a real run, its rows stay in the order they were recorded in.

    Many segments, sealed on both sides of each change, by the run itself and by recovery.
    """
    clock = Clock()
    monkeypatch.setattr("ranklake.capture.spool.clock.time", clock)
    monkeypatch.setattr("ranklake.capture.recording.threads.ANCHOR_EVERY_S", 0.02)
    if closed:
        record(place.start(seal_every_s=0.05), clock, changes).close()
    else:
        child = os.fork()
        if not child:
            try:
                record(place.start(seal_every_s=0.05), clock, changes)
            finally:
                os._exit(0)
        os.waitpid(child, 0)
        assert recover(place.local, place.spool).streams == 1
    found = [row for segment in segments(place.spool, "scalars") for row in segment.rows.to_pylist()]
    found.sort(key=lambda row: row["step"])
    assert len(segments(place.spool, "scalars")) > 1
    assert [row["step"] for row in found] == list(range(100 * (len(changes) + 1)))
    times = [row["ts"] for row in found]
    assert times == sorted(times)


def record(run, clock, changes):
    """Record a hundred rows before each change of the clock and after the last; return the run."""
    handle = run.scalar("x")
    for number, change in enumerate([*changes, {}]):
        for step in range(100 * number, 100 * (number + 1)):
            handle.add(float(step), step)
            time.sleep(0.001)
        clock.change(**change)
    return run


def test_segments_say_how_far_the_clock_can_be_trusted(place):
    """Each footer holds what the kernel said at its anchors, and which boot's monotonic clock it is."""
    with place.start() as run:
        run.log(x=1.0)
    (segment,) = segments(place.spool, "scalars")
    footer = segment.footer
    readings = footer.clock_readings()
    assert len(readings) == 2
    anchors = [mono for mono, _ in footer.anchors]
    assert [reading.mono_ns for reading in readings] == [anchors[0], anchors[-1]]
    assert footer.boot_id == boot_id()
    for reading in readings:
        assert reading.suspended_ns is None or reading.suspended_ns >= 0
        assert reading.synchronised in {0, 1, None}
        assert (reading.max_error_ns is None) == (reading.offset_ns is None)


def test_footers_of_earlier_writers_are_read():
    """One that says nothing of the clock is a footer all the same."""
    footer = SegmentFooter("steps", 1, "run", 0, 0, 1, 7, 0, 10)
    old = {key: value for key, value in json.loads(footer.to_json()).items() if key not in {"clock", "boot_id"}}
    assert SegmentFooter.from_json(json.dumps(old).encode()) == footer
    assert footer.clock_readings() == []


def test_a_kernel_that_does_not_say(monkeypatch):
    """Where the call is forbidden, the reading has no NTP state, and nothing fails."""
    monkeypatch.setattr("ranklake.capture.spool.clock._adjtimex", lambda _: -1)
    reading = read_clock(5)
    assert (reading.mono_ns, reading.offset_ns, reading.synchronised) == (5, None, None)
    monkeypatch.setattr("ranklake.capture.spool.clock._adjtimex", None)
    assert read_clock(5).max_error_ns is None
