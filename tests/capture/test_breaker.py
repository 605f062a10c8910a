"""The breaker: patience that grows, and one probe at a time."""

import pytest

from ranklake.capture.recording.breaker import FAILURES_TO_OPEN, LONGEST_WAIT_S, Breaker


class Clock:
    """A clock that tests set."""

    now = 100.0

    def __call__(self):
        """Return the time that was set."""
        return self.now


@pytest.fixture
def clock():
    """Give a clock of the test's own."""
    return Clock()


def test_waits_double_up_to_a_minute(clock):
    """With the dice always high, the waits are 1, 2, 4, … and never more than 60 s."""
    breaker = Breaker(clock, lambda: 1.0)
    waits = []
    for _ in range(9):
        breaker.failed()
        waits.append(breaker.left_s())
        clock.now += waits[-1]
        assert breaker.wait_s() == 0
    assert waits == [1, 2, 4, 8, 16, 32, 60, 60, 60]


def test_jitter_is_full_while_closed(clock):
    """Before the breaker opens, the wait may be anything from nothing on."""
    breaker = Breaker(clock, lambda: 0.0)
    for _ in range(FAILURES_TO_OPEN - 1):
        breaker.failed()
        assert breaker.wait_s() == 0


def test_an_open_breaker_lets_one_probe_through(clock):
    """After five failures it waits at least half its time, then one caller may try; the others wait for how it goes."""
    breaker = Breaker(clock, lambda: 0.0)
    for _ in range(FAILURES_TO_OPEN):
        breaker.failed()
    assert (breaker.state, breaker.left_s()) == ("open", 8)
    clock.now += 8
    assert breaker.wait_s() == 0
    assert breaker.state == "half-open"
    assert breaker.wait_s() > 0
    breaker.failed()
    assert breaker.state == "open"
    clock.now += LONGEST_WAIT_S
    assert breaker.wait_s() == 0
    breaker.succeeded()
    assert (breaker.state, breaker.wait_s(), breaker.wait_s()) == ("closed", 0, 0)


def test_throttling_opens_at_once(clock):
    """A store that asks for less traffic gets less, after a single answer."""
    breaker = Breaker(clock, lambda: 0.0)
    breaker.failed(throttled=True)
    assert breaker.state == "open"
    assert breaker.left_s() >= LONGEST_WAIT_S / 8


def test_a_store_is_away_since_the_first_failure_in_a_row():
    """However often it fails meanwhile; a success ends that; another process goes on from the same moment."""
    now = [100.0]
    breaker = Breaker(lambda: now[0], lambda: 0.5)
    assert breaker.snapshot().away_s == 0
    for _ in range(4):
        breaker.failed()
        now[0] += 10.0
    assert breaker.snapshot().away_s == 40
    assert breaker.snapshot().later(5.0).away_s == 45
    assert Breaker.from_state(breaker.snapshot()).snapshot().away_s == pytest.approx(40, abs=5)
    breaker.succeeded()
    assert (breaker.snapshot().away_s, breaker.snapshot().later(5.0).away_s) == (0, 0)
    breaker.failed()
    now[0] += 1.0
    assert breaker.snapshot().away_s == 1
