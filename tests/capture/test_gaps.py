"""Gaps: counts are exact whoever counts, and whenever."""

import signal

from ranklake.capture.common.gaps import Gaps


def test_what_a_signal_handler_counts_in_the_middle_of_counting_is_not_lost(monkeypatch):
    """A handler that runs anywhere within `count`, on a key that is new to it, costs nobody a count."""
    monkeypatch.setattr(Gaps, "tell", lambda *_: None)  # another test's log handler may take milliseconds a line
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
