"""Wake: a signal handler may set it while the thread that it interrupts does; with an Event that never returns."""

import subprocess
import sys
import threading

from ranklake.capture.recording.threads import Wake

INTERRUPTED = """
import signal
from ranklake.capture.recording.threads import Wake

wake, handled = Wake(), []

def handle(number, frame):
    handled.append(number)
    wake.set()

signal.signal(signal.SIGALRM, handle)
signal.setitimer(signal.ITIMER_REAL, 0.001, 0.001)
while len(handled) < 1000:
    wake.set()
    wake.wait(0.0)
signal.setitimer(signal.ITIMER_REAL, 0)
print("done")
"""


SUBMITTED = """
import signal
from ranklake.capture.assets.hashing import Background

background, handled = Background(), []

def handle(number, frame):
    handled.append(number)
    background.submit(lambda over: None)

signal.signal(signal.SIGALRM, handle)
signal.setitimer(signal.ITIMER_REAL, 0.001, 0.001)
while len(handled) < 300:
    background.submit(lambda over: None)
signal.setitimer(signal.ITIMER_REAL, 0)
background.drain(60)
print("done")
"""


def test_a_checkpoint_may_be_written_in_a_handler():
    """What is left to the background by a handler is, wherever the main thread is with its own."""
    done = subprocess.run([sys.executable, "-c", SUBMITTED], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "done\n"


def test_it_may_be_set_within_itself():
    """A thousand times by a handler, at any point of the main thread's own call."""
    done = subprocess.run([sys.executable, "-c", INTERRUPTED], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "done\n"


def test_wakings_before_the_sleep_count_as_one():
    """None is lost, and there is no second round for each."""
    wake = Wake()
    for _ in range(3):
        wake.set()
    wake.wait(3600.0)
    slept = threading.Thread(target=wake.wait, args=(3600.0,), daemon=True)
    slept.start()
    slept.join(0.05)
    assert slept.is_alive()
    wake.set()
    slept.join(60)
    assert not slept.is_alive()
