"""Preemption: records signals that announce the end, then lets them act as before.

A handler of Python's runs in the main thread when that is in Python's code. A rank that waits in a collective is not,
and by default dies of SIGTERM all the same; it must go on to do so. Hence a thread, woken by the interpreter's own
handler in C through a pipe (`signal.set_wakeup_fd`), records the event, and, where nobody else handles the signal,
closes the run and lets the process die of it. A handler that was there before is called as before; one that is set
later replaces this one or calls it, and then decides itself whether the process dies. Where none of this can be had,
signals are left alone: outside of the main thread, where they are ignored or handled in C, and where the pipe is
somebody else's (asyncio's).
"""

import contextlib
import ctypes
import os
import queue
import signal
import threading
import weakref
from types import FrameType
from typing import Any, Final

from ranklake.capture.lifecycle.lifecycle import Lifecycle

_SLACK_S: Final = 0.5
_WAIT_S: Final = 1.0
"""How long a close waits for the thread, at most: on a loaded machine it takes a while to get its turn."""
_MAIN_S: Final = 0.05
"""How long the thread leaves it to the main thread to report a signal, which may end the run right after."""


def signals_named(names: str) -> list[signal.Signals]:
    """Return the signals of a setting, such as ``SIGTERM, SIGUSR1``. Raises `ValueError` for a name that is none."""
    signals = []
    for name in filter(None, (part.strip().upper() for part in names.split(","))):
        if name not in signal.Signals.__members__:
            raise ValueError(f"{name} is not a signal")
        signals.append(signal.Signals[name])
    return signals


class SignalClaim:
    """Who reports a signal: the main thread or the one that listens, whoever comes first, and never both.

    Notes
    -----
    The main thread comes from a handler, and may interrupt itself here by another one: hence a lock that it may take
    twice, and lists, whose changes are whole. Several signals may come to it as one; the thread hears of each.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._by_main: list[None] = []
        self._by_thread: list[None] = []
        self._notices: queue.SimpleQueue[None] = queue.SimpleQueue()

    def claim_for_main(self) -> bool:
        """Whether the main thread reports the signal; if so, it calls `release_thread` afterwards."""
        with self._lock:
            if self._by_thread:
                self._by_thread.pop()
                return False
            self._by_main.append(None)
            return True

    def release_thread(self) -> None:
        """Let the listening thread go on, once the main thread has reported."""
        self._notices.put(None)

    def claim_for_thread(self) -> bool:
        """Whether the listening thread reports it, as the main thread did not; else wait until that has."""
        is_released = self._wait(_MAIN_S)
        with self._lock:
            if not self._by_main:
                self._by_thread.append(None)
                return True
            self._by_main.pop()
        if not is_released:
            self._wait(_WAIT_S)
        return False

    def _wait(self, timeout_s: float) -> bool:
        with contextlib.suppress(queue.Empty):
            self._notices.get(timeout=timeout_s)
            return True
        return False


class Preemption:
    """The signals of this process that announce its end; one for all its runs."""

    def __init__(self) -> None:
        self._runs: weakref.WeakSet[Lifecycle] = weakref.WeakSet()
        self._before: dict[int, Any] = {}
        self._pipe: tuple[int, int] | None = None
        self._claims: dict[int, SignalClaim] = {}
        self._settled: queue.SimpleQueue[int] = queue.SimpleQueue()
        self._dying = False

    def watch(self, run: Lifecycle) -> None:
        """Record signals in a run from now on, as its settings say. Raises `ValueError`, `OSError`."""
        wanted = [number for number in signals_named(run.settings.preemption_signals) if number not in self._before]
        self._runs.add(run)
        if not wanted or threading.current_thread() is not threading.main_thread():
            return
        handlers = {number: signal.getsignal(number) for number in wanted}
        chosen = {number: handler for number, handler in handlers.items() if handler not in {None, signal.SIG_IGN}}
        if not chosen or not self._open():
            return
        for number, handler in chosen.items():
            self._before[number] = handler
            self._claims.setdefault(number, SignalClaim())
            signal.signal(number, self._handle)

    def leave(self, run: Lifecycle) -> None:
        """Record signals in a run no more; after the last one they are what they were, if the main thread says so."""
        self._runs.discard(run)
        if not self._runs and threading.current_thread() is threading.main_thread():
            self._restore()

    def settle(self, timeout_s: float) -> None:
        """Wait until the signals received so far are reported."""
        if self._pipe is not None and not self._dying and threading.current_thread() is threading.main_thread():
            with contextlib.suppress(queue.Empty, OSError):
                os.write(self._pipe[1], b"\0")
                self._settled.get(timeout=min(timeout_s, _WAIT_S))

    def after_fork(self) -> None:
        """In a forked child, which has none of the threads: signals are what they were."""
        self._runs = weakref.WeakSet()
        self._claims, self._settled = {number: SignalClaim() for number in self._claims}, queue.SimpleQueue()
        self._restore()

    def _restore(self) -> None:
        pipe, self._pipe = self._pipe, None
        if pipe is None:
            return
        wakeup_fd = signal.set_wakeup_fd(-1)
        if wakeup_fd not in {-1, pipe[1]}:
            signal.set_wakeup_fd(wakeup_fd)
        before, self._before = self._before, {}
        for number, handler in before.items():
            if signal.getsignal(number) == self._handle:
                signal.signal(number, handler)
        os.close(pipe[1])  # in the process that listens, its thread ends with this

    def _open(self) -> bool:
        """Begin to hear of signals (`signal.set_wakeup_fd`); False if other code does already."""
        if self._pipe is not None:
            return True
        reader, writer = os.pipe()
        os.set_blocking(writer, False)
        before = signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
        if before != -1:
            signal.set_wakeup_fd(before)
            os.close(reader)
            os.close(writer)
            return False
        self._pipe = reader, writer
        threading.Thread(target=self._listen, args=(reader,), name="ranklake-signals", daemon=True).start()
        return True

    def _listen(self, reader: int) -> None:
        with open(reader, "rb", buffering=0) as pipe:
            while heard := pipe.read(64):
                for number in heard:
                    if not number:
                        self._settled.put(number)
                    elif number in self._before:
                        self._take(number)

    def _take(self, number: int) -> None:
        """Record a signal, and end the process with it if there is no handler but ours."""
        dies = self._is_fatal(number)
        if self._claims[number].claim_for_thread():
            self._report(number)
        if dies:
            self._die(number)

    def _is_fatal(self, number: int) -> bool:
        return self._before.get(number) == signal.SIG_DFL and signal.getsignal(number) == self._handle

    def _report(self, number: int) -> None:
        name, dies = signal.Signals(number).name, self._is_fatal(number)
        for run in list(self._runs):
            run.preempted(name, dies=dies)

    def _die(self, number: int) -> None:
        """Close the runs, for as long as they may take, and do what the signal does by default."""
        self._dying = True
        runs = [run for run in list(self._runs) if run.enabled]
        grace_s = max((run.settings.preemption_grace_s for run in runs), default=0.0)
        ends = [threading.Thread(target=run.run.close, args=(grace_s,), daemon=True) for run in runs]
        for end in ends:
            end.start()
        for end in ends:
            end.join(grace_s + _SLACK_S)
        ctypes.CDLL(None).signal(number, 0)  # SIG_DFL; Python's own call is for the main thread, which may be in C
        os.kill(os.getpid(), number)

    def _handle(self, number: int, frame: FrameType | None) -> object:
        """Stand for the handler that was there before."""
        before, pipe, claim = self._before.get(number), self._pipe, self._claims[number]
        if claim.claim_for_main():
            with contextlib.suppress(Exception):
                self._report(number)
            claim.release_thread()
        if pipe is not None:
            heard_by = signal.set_wakeup_fd(pipe[1], warn_on_full_buffer=False)
            if heard_by != pipe[1]:  # somebody else hears of signals now
                signal.set_wakeup_fd(heard_by)
                os.write(pipe[1], bytes([number]))
        return before(number, frame) if callable(before) else None


PREEMPTION: Final = Preemption()
os.register_at_fork(after_in_child=PREEMPTION.after_fork)
