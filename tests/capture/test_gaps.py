"""Gaps: counts are exact whoever counts, and whenever."""

import signal
from collections import Counter

import pytest

from ranklake.capture.common.gaps import Gaps


def test_what_a_signal_handler_counts_in_the_middle_of_counting_is_not_lost(monkeypatch):
    """A handler that runs anywhere within `count`, on a key that is new to it, costs nobody a count."""
    monkeypatch.setattr(Gaps, "log_warning", lambda *_: None)  # another test's log handler may take milliseconds a line
    gaps = Gaps()
    handled, busy, reason = 0, False, ""

    def count_too(*_):
        nonlocal handled, busy
        if not busy:
            busy = True
            gaps.count("scalars", reason)
            handled += 1
            busy = False

    before = signal.signal(signal.SIGALRM, count_too)
    signal.setitimer(signal.ITIMER_REAL, 5e-5, 5e-5)
    try:
        for number in range(20_000):
            reason = f"reason {number}"
            gaps.count("scalars", reason)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert handled
    assert sum(gaps.totals().values()) == gaps.drain().total() == 20_000 + handled


class Interrupting(str):
    """A reason in whose hash, each time that it is asked for, something else is done once."""

    __slots__ = ("asked", "doing")

    def __hash__(self):
        if self.doing is not None:
            doing, self.doing = self.doing, None
            doing()
        self.asked += 1
        return super().__hash__()


@pytest.mark.parametrize("at", range(1, 9))
@pytest.mark.parametrize("drains", [False, True])
def test_what_is_counted_in_the_middle_of_adding_is_not_lost(at, drains):
    """Whatever runs between the reading of a number and its writing, a collector's callback, say, costs no count."""
    gaps, drained, reason = Gaps(), Counter(), Interrupting("reason")
    reason.doing, reason.asked = None, 0

    def meanwhile():
        if reason.asked < at:
            reason.doing = meanwhile
            return
        gaps.count("scalars", "reason")
        if drains:
            drained.update(gaps.drain())

    gaps.count("scalars", "reason", 5)
    reason.doing = meanwhile
    gaps.count("scalars", reason, 7)
    reason.doing = None
    drained.update(gaps.drain())
    assert drained.total() == sum(gaps.totals().values()) in {12, 13}
