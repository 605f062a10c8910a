"""A rank that waits, trains or fails, as its first argument says; a line on standard output says that it is at it."""

import ctypes
import os
import signal
import sys
import threading
import time

from ranklake import capture

HOW, SPOOL, LOCAL = sys.argv[1:4]


def train(run, steps=3):
    """Record a few steps."""
    for number in range(steps):
        with run.step(number), run.phase("forward"):
            run.log(loss=1.0)


def ready():
    """Tell the test."""
    print("ready", flush=True)


def handled(number, frame):
    """Stand for a user's own handler."""
    del frame
    print("handled", signal.Signals(number).name, flush=True)
    handled.seen = True


handled.seen = False

if HOW == "before":
    signal.signal(signal.SIGTERM, handled)
run = capture.start("job", run="run", spool=SPOOL, local_dir=LOCAL)
train(run)
if HOW == "stuck":
    ready()
    while True:  # in C, which a signal interrupts without Python's handler being run, as a collective's wait is
        ctypes.CDLL(None).sleep(60)
elif HOW in {"before", "after"}:
    if HOW == "after":
        signal.signal(signal.SIGTERM, handled)
    ready()
    while not handled.seen:
        time.sleep(0.01)
    train(run)
elif HOW == "forked":
    child = os.fork()
    if not child:
        assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
        ready()
        time.sleep(60)
        os._exit(3)
    _, status = os.waitpid(child, 0)
    print(os.WTERMSIG(status), flush=True)
elif HOW == "raises":
    raise ValueError("no such token: hf_abcdefghijklmnopqrstuvwxyz")
elif HOW == "exits":
    with run:
        sys.exit(7)
elif HOW == "exits outside":

    def leave():
        try:
            int("a bad batch")
        except ValueError:
            sys.exit(3)

    leave()
elif HOW == "exit caught":
    try:
        sys.exit(3)
    except SystemExit:
        train(run)
elif HOW == "thread":

    def fail():
        raise KeyError("in a thread")

    thread = threading.Thread(target=fail, name="loader")
    thread.start()
    thread.join()
elif HOW == "hangs":
    ready()
    while True:
        time.sleep(60)
elif HOW == "trains":
    ready()
    while True:
        with run.step():
            time.sleep(0.01)
