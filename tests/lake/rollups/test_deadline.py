"""A deadline: what takes too long is interrupted within its call, and nothing is outside of it."""

import subprocess
import sys
import time

import pytest

from ranklake.lake.rollups.deadline import Deadline, TimeLimitError


def _spend(seconds):
    """Work for so much CPU time."""
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass
    return seconds


def test_what_ends_in_time_is_returned_and_what_it_raises_raised():
    """And the next call has the whole limit again."""
    with Deadline(0.5) as deadline:
        for _ in range(4):
            assert deadline.call(lambda: _spend(0.2)) == 0.2
        with pytest.raises(ZeroDivisionError):
            deadline.call(lambda: 1 / 0)
        with pytest.raises(TimeLimitError):
            deadline.call(lambda: _spend(60))
        assert deadline.call(lambda: "on") == "on"


def test_a_wait_takes_no_cpu_time():
    """On a machine that is busy with others' work, code takes long by the clock."""
    with Deadline(0.05) as deadline:
        assert deadline.call(lambda: time.sleep(0.4)) is None


def test_nothing_arrives_outside_of_a_call():
    """Calls that end about when their time does: each returns or raises, and what stands between is never hit."""
    with Deadline(0.002) as deadline:
        ends = []
        for number in range(100):
            try:
                ends.append(deadline.call(lambda number=number: _spend(0.0015 + number % 10 * 0.0002)) > 0)
            except TimeLimitError:
                ends.append(False)
            _spend(0.0005)
    assert len(ends) == 100
    assert not all(ends)


_TRACED = """
import sys
from ranklake.lake.rollups.deadline import Deadline, TimeLimitError

def forever():
    while True:
        pass

with Deadline(0.01) as deadline:
    for _ in range(3):
        try:
            deadline.call(forever)
        except TimeLimitError:
            pass
    deadline.call(int)

sys.settrace(lambda *_: None)
(lambda: None)()
sys.settrace(None)
print("traced")
"""


def test_an_interrupted_process_can_be_traced():
    """CPython 3.11 hangs in a traced call once an exception for a thread was taken back; none is."""
    done = subprocess.run([sys.executable, "-c", _TRACED], capture_output=True, text=True, timeout=20, check=True)
    assert done.stdout == "traced\n"
