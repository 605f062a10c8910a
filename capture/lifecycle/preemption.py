"""Preemption: record signals that announce the end, and then let them act as before.

A Python signal handler runs only when the main thread runs Python code. A rank that waits in a collective does not, but
SIGTERM must still end it. So a thread records the event. The interpreter's handler in C wakes it through a pipe
(`signal.set_wakeup_fd`). If there is no other handler for the signal, the thread closes the run and ends the process.
An earlier handler is called as before. A later handler replaces ours or calls it, and decides whether the process ends.

Signals are not touched in some cases: if the run is started outside the main thread, if a signal is ignored or handled
in C, and if other code (asyncio) uses the pipe.
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
"""Longest wait of a close for the thread, which may take time to run on a loaded machine."""
_MAIN_THREAD_WAIT_S: Final = 0.05
"""How long the thread waits for the main thread to report a signal first."""


def signals_named(names: str) -> list[signal.Signals]:
    """Return the signals of a setting, such as ``SIGTERM, SIGUSR1``. Raises `ValueError` for an unknown name."""
    signals = []
    for name in filter(None, (part.strip().upper() for part in names.split(","))):
        if name not in signal.Signals.__members__:
            raise ValueError(f"{name} is not a signal")
        signals.append(signal.Signals[name])
    return signals


class SignalClaim:
    """Decides whether the main thread or the listening thread reports a signal: the first one, never both.

    Notes
    -----
    The main thread calls from a signal handler, and another handler may interrupt it. So the lock is re-entrant, and
    the state is in lists, whose changes are atomic. The main thread may get several signals as one; the listening
    thread gets each.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._by_main: list[None] = []
        self._by_thread: list[None] = []
        self._notices: queue.SimpleQueue[None] = queue.SimpleQueue()

    def claim_for_main(self) -> bool:
        """Whether the main thread must report the signal; if so, it calls `release_thread` afterwards."""
        with self._lock:
            if self._by_thread:
                self._by_thread.pop()
                return False
            self._by_main.append(None)
            return True

    def release_thread(self) -> None:
        """Let the listening thread continue, after the main thread has reported."""
        self._notices.put(None)

    def claim_for_thread(self) -> bool:
        """Whether the listening thread must report the signal; if not, wait until the main thread has reported."""
        is_released = self._wait(_MAIN_THREAD_WAIT_S)
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
    """Handles the signals that announce the end of this process. Shared by all its runs."""

    def __init__(self) -> None:
        self._runs: weakref.WeakSet[Lifecycle] = weakref.WeakSet()
        self._before: dict[int, Any] = {}
        self._pipe: tuple[int, int] | None = None
        self._claims: dict[int, SignalClaim] = {}
        self._settled: queue.SimpleQueue[int] = queue.SimpleQueue()
        self._dying = False

    def watch(self, run: Lifecycle) -> None:
        """Record the signals of a run's settings in the run from now on. Raises `ValueError`, `OSError`."""
        new = [number for number in signals_named(run.settings.preemption_signals) if number not in self._before]
        self._runs.add(run)
        if not new or threading.current_thread() is not threading.main_thread():
            return
        handlers = {number: signal.getsignal(number) for number in new}
        replaced = {number: handler for number, handler in handlers.items() if handler not in {None, signal.SIG_IGN}}
        if not replaced or not self._open():
            return
        for number, handler in replaced.items():
            self._before[number] = handler
            self._claims.setdefault(number, SignalClaim())
            signal.signal(number, self._handle)

    def leave(self, run: Lifecycle) -> None:
        """Stop recording in a run. After the last run, restore the handlers, if called in the main thread."""
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
        """Restore the handlers in a forked child, which does not have the threads."""
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
        os.close(pipe[1])  # this ends the listening thread

    def _open(self) -> bool:
        """Set the wakeup descriptor and start the listening thread; False if other code has set a descriptor."""
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
            while numbers := pipe.read(64):
                for number in numbers:
                    if not number:
                        self._settled.put(number)
                    elif number in self._before:
                        self._process_signal(number)

    def _process_signal(self, number: int) -> None:
        """Record a signal, and end the process with it if ours is the only handler."""
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
        """Close the runs within their grace period, and end the process with the signal's default action."""
        self._dying = True
        runs = [run for run in list(self._runs) if run.enabled]
        grace_s = max((run.settings.preemption_grace_s for run in runs), default=0.0)
        threads = [threading.Thread(target=run.run.close, args=(grace_s,), daemon=True) for run in runs]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(grace_s + _SLACK_S)
        ctypes.CDLL(None).signal(
            number, 0
        )  # SIG_DFL; Python's function works only in the main thread, which may be in C
        os.kill(os.getpid(), number)

    def _handle(self, number: int, frame: FrameType | None) -> object:
        """Report a signal, and call the previous handler."""
        before, pipe, claim = self._before.get(number), self._pipe, self._claims[number]
        if claim.claim_for_main():
            with contextlib.suppress(Exception):
                self._report(number)
            claim.release_thread()
        if pipe is not None:
            current_fd = signal.set_wakeup_fd(pipe[1], warn_on_full_buffer=False)
            if current_fd != pipe[1]:  # other code has set its own descriptor meanwhile
                signal.set_wakeup_fd(current_fd)
                os.write(pipe[1], bytes([number]))
        return before(number, frame) if callable(before) else None


PREEMPTION: Final = Preemption()
os.register_at_fork(after_in_child=PREEMPTION.after_fork)
