"""Clocks: order is kept whatever the wall clock does, and sealing again gives the same times."""

import time

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from ranklake.capture.clock import bracket, read_anchor, straighten, wall_ns

S = 10**9
ANCHORS = st.lists(st.tuples(st.integers(0, 1000 * S), st.integers(0, 2000 * S)), min_size=1, max_size=8)
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


def test_a_clock_set_back_is_paid_back_at_half_speed():
    """After a step back of 4 s, time runs on at half speed until the wall clock has caught up."""
    straight = straighten([(0, 100 * S), (10 * S, 106 * S), (20 * S, 116 * S)])
    assert straight == [(0, 100 * S), (10 * S, 106 * S), (20 * S, 116 * S)]
    straight = straighten([(0, 100 * S), (10 * S, 96 * S), (20 * S, 106 * S), (30 * S, 116 * S)])
    assert straight == [(0, 100 * S), (10 * S, 105 * S), (20 * S, 110 * S), (30 * S, 116 * S)]
