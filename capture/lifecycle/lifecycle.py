"""Lifecycle: record heartbeats, failures and the end of a run, also for exceptions that no hook reports."""

import contextlib
import signal
import sys
import threading
import time
import weakref
from collections.abc import Callable
from functools import partial
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Any, Final

from ranklake.capture.common.run_like import RunLike
from ranklake.capture.common.settings import CaptureSettings
from ranklake.capture.common.values import text
from ranklake.capture.lanes.sink import Sink
from ranklake.capture.provenance.names import spawner
from ranklake.capture.steps.events import Events, claim_failure, noted_step
from ranklake.capture.steps.progress import Progress

if TYPE_CHECKING:
    from ranklake.capture.provenance.launcher import Launch


class Lifecycle:
    """Records failures and the end of one run, and calls the run's parts at their times.

    Attributes
    ----------
    settings
        Options of capture.
    ending
        Attributes for the event ``rank_end``, such as the exit code.
    drains
        Called by `flush` and `close` with a timeout in seconds; each writes its rows in memory.
    finishers
        Called by `close` with half of its timeout; each finishes pending work.
    closers
        Called by `close` after the finishers, in reverse order.
    each_second
        Called by the sealer's thread each second.
    on_reassigned
        Called when this process is assigned to another rank or run.
    on_failure
        Called with an exception and the name of its thread, after the event was recorded.
    hurry
        Seals and uploads all rows soon, without waiting; None if no thread does so.
    """

    def __init__(self, run: RunLike, settings: CaptureSettings, sink: Sink, events: Events, progress: Progress) -> None:
        self.run, self.settings = run, settings
        self._sink, self._events, self._progress = sink, events, progress
        self.ending: dict[str, Any] = {}
        self.drains: list[Callable[[float], object]] = []
        self.finishers: list[Callable[[float], object]] = []
        self.closers: list[Callable[[], object]] = []
        self.each_second: list[Callable[[], object]] = []
        self.on_reassigned: list[Callable[[Launch], object]] = []
        self.on_failure: list[Callable[[BaseException, str | None], object]] = []
        self.hurry: Callable[[], object] | None = None

    @property
    def enabled(self) -> bool:
        """Whether rows are recorded now."""
        return self._sink.enabled

    @property
    def at(self) -> int:
        """Number of the current step."""
        return self._progress.at

    def fail(self, error: BaseException, *, exit_code: int | None = None, thread: str | None = None) -> None:
        """Record an exception that ended the run or one of its threads. Ctrl-C is recorded as an interruption.

        For a `SystemExit` that was raised while another exception was handled, as in torch.multiprocessing, the other
        exception is recorded.

        Parameters
        ----------
        exit_code
            Exit code of the process, if known.
        thread
            Name of the thread that the exception ended; None for the main thread.
        """
        if not self.enabled:
            return
        code = _exit_code_of(error, exit_code)
        if code == 0:
            return
        if isinstance(error, SystemExit) and isinstance(error.__context__, Exception):
            error = error.__context__
        name = type(error).__name__
        detail = "" if isinstance(error, SystemExit) and isinstance(error.code, int) else text(error, 4096)
        facts = {"exit_code": code, "thread": thread}
        facts = {key: value for key, value in facts.items() if value is not None}
        if thread is None:
            self.ending |= {"reason": name, **facts}
        if not claim_failure(error, self):
            return
        message = f"{name}: {detail}" if detail else name
        event, severity = ("interruption", "warning") if isinstance(error, KeyboardInterrupt) else ("failure", "error")
        self._events.add(event, message=message, severity=severity, step=noted_step(error), exception=name, **facts)
        for call in () if isinstance(error, KeyboardInterrupt | SystemExit) else self.on_failure:
            call(error, thread)

    def drain(self, timeout_s: float) -> None:
        """Write the rows that parts of the run have in memory."""
        for drain in self.drains:
            drain(timeout_s)

    def wind_up(self, timeout_s: float) -> None:
        """Write rows in memory, finish pending work, and stop the threads of the run's parts."""
        for drain in self.drains:
            self._call_guarded(partial(drain, min(1.0, timeout_s)))
        for finish in self.finishers:
            self._call_guarded(partial(finish, timeout_s / 2))
        for close in reversed(self.closers):
            self._call_guarded(close)

    def _call_guarded(self, end: Callable[[], object]) -> None:
        """Call a function that ends a part; log its errors, so that other parts and the run's end are recorded."""
        with self._sink.guarded("ending a part of the run"):
            end()

    def look(self) -> None:
        """Call the functions that are due each second."""
        for task in self.each_second:
            task()

    def preempted(self, name: str, *, dies: bool) -> None:
        """Record that a signal announced the end, and upload the rows so far.

        Parameters
        ----------
        dies
            Whether the signal ends the process now.
        """
        if not self.enabled:
            return
        message, step = f"{name} was received", self._progress.latest_step()
        self._events.add("preemption", severity="warning", message=message, step=step, signal=name, dies=dies)
        if dies:
            self.ending["signal"] = name
        elif self.hurry is not None:
            self.hurry()


def _exit_code_of(error: BaseException, default: int | None) -> int | None:
    """Return the exit code of a `SystemExit`, or `default` for other exceptions."""
    if not isinstance(error, SystemExit):
        return default
    return 0 if error.code is None else error.code if isinstance(error.code, int) else 1


class Failures:
    """Hooks of this process in ``sys.excepthook`` and ``threading.excepthook``, shared by all its runs."""

    def __init__(self) -> None:
        self._runs: weakref.WeakSet[Lifecycle] = weakref.WeakSet()
        self._before: dict[str, Any] = {}

    def watch(self, run: Lifecycle) -> None:
        """Record unhandled exceptions in a run from now on."""
        self._runs.add(run)
        for module, hook in self._hooks():
            if module.__name__ not in self._before:
                self._before[module.__name__] = module.excepthook
                module.excepthook = hook

    def leave(self, run: Lifecycle) -> None:
        """Stop recording in a run. After the last run, restore the hooks, unless other code has replaced ours."""
        self._runs.discard(run)
        for module, hook in () if self._runs else self._hooks():
            if module.excepthook == hook:
                module.excepthook = self._before.pop(module.__name__)

    def _hooks(self) -> tuple[tuple[Any, Any], ...]:
        return (sys, self._record_end), (threading, self._thread_ended)

    def _record_end(self, kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        for run in list(self._runs):
            with contextlib.suppress(Exception):  # an error here must not hide the user's exception
                run.fail(error, exit_code=1)
        self._before.get("sys", sys.__excepthook__)(kind, error, trace)

    def _thread_ended(self, args: threading.ExceptHookArgs) -> None:
        """Record an exception that ended a thread; the process continues."""
        error, thread = args.exc_value, args.thread
        for run in list(self._runs):
            with contextlib.suppress(Exception):
                if error is not None and not isinstance(error, SystemExit):
                    run.fail(error, thread="" if thread is None else thread.name)
        self._before.get("threading", threading.__excepthook__)(args)


FAILURES: Final = Failures()


MOST_SKIPPED: Final = 9


def interval_s(settings: CaptureSettings, world_size: int) -> float:
    """Return the longest time in s between two signs of life of a rank; 0 without heartbeats.

    A rank that makes steps gives a sign of life only when its steps are sealed.
    """
    every_s = settings.heartbeat_every_s
    return max(every_s, settings.seal_slots_every_s(world_size)) if every_s else 0.0


class Heartbeat:
    """Writes the heartbeats of one run, and reports hangs. The sealer's thread calls `look` each second.

    Parameters
    ----------
    on_hang
        Called once with a message when no step or phase begins for ``hang_s``.
    """

    def __init__(
        self,
        run: RunLike,
        settings: CaptureSettings,
        events: Events,
        progress: Progress,
        on_hang: Callable[[str], object],
    ) -> None:
        self._run, self._settings, self._events, self._progress = run, settings, events, progress
        self._on_hang, self._is_hung = on_hang, False
        self._every_s = settings.heartbeat_every_s
        self._begun = progress.begun()
        self._moved_s = time.monotonic()
        self._due_s = self._moved_s + self._every_s
        self._beat_at, self._skipped = self._begun, 0

    def look(self) -> None:
        """Write a heartbeat if it is due, and report a hang."""
        now, begun = time.monotonic(), self._progress.begun()
        if begun != self._begun:
            if self._is_hung:
                self._events.add("hang_end", still_s=round(now - self._moved_s, 3))
            self._begun, self._moved_s, self._is_hung = begun, now, False
        elif begun and not self._is_hung and 0 < self._settings.hang_s <= now - self._moved_s:
            self._is_hung = True
            message = f"no step or phase began for {now - self._moved_s:.0f} s"
            still = {"still_s": round(now - self._moved_s, 3)}
            self._events.add("hang", severity="error", message=message, step=self._progress.latest_step(), **still)
            self._on_hang(message)
        if not self._every_s or now < self._due_s:
            return
        self._due_s = now + self._every_s
        moves, self._beat_at = begun != self._beat_at, begun
        if moves and self._skipped < MOST_SKIPPED:
            self._skipped += 1
            return
        self._skipped = 0
        self._events.add("heartbeat", step=self._progress.latest_step(), **self._facts(now))

    def _facts(self, now: float) -> dict[str, Any]:
        """Return a heartbeat's attributes: interval, ranks of the run, spans begun, and seconds since the last one."""
        return {
            "interval_s": interval_s(self._settings, self._run.world_size),
            "world_size": self._run.world_size,
            "begun": self._begun,
            "still_s": round(now - self._moved_s, 3),
        }


class Exits:
    """Records why this process ends: `sys.exit` or Ctrl-C. Shared by all its runs.

    Notes
    -----
    The wrapper of `sys.exit` attaches a mark to the exception. If the exception ends the interpreter, it is freed after
    all Python code has returned. If it is caught, it is freed earlier, while Python frames are on the stack.
    """

    def __init__(self) -> None:
        self._runs: weakref.WeakSet[Lifecycle] = weakref.WeakSet()
        self._exit: Callable[..., Any] | None = None
        self._ending: SystemExit | None = None
        self._steps: weakref.WeakKeyDictionary[Lifecycle, int] = weakref.WeakKeyDictionary()

    def watch(self, run: Lifecycle) -> None:
        """Record the reason of the end for a run from now on."""
        self._runs.add(run)
        if self._exit is None:
            self._exit = sys.exit
            sys.exit = self._call_exit  # type: ignore[assignment] # it raises in the original, which mypy cannot see
        is_main_thread = threading.current_thread() is threading.main_thread()
        if is_main_thread and spawner() is not None and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            signal.signal(signal.SIGINT, self._on_interrupt)

    def leave(self, run: Lifecycle) -> None:
        """Stop for a run. After the last run, restore the originals, unless other code has replaced ours."""
        self._runs.discard(run)
        if self._runs:
            return
        if sys.exit == self._call_exit and self._exit is not None:
            sys.exit, self._exit = self._exit, None
        is_main_thread = threading.current_thread() is threading.main_thread()
        if is_main_thread and signal.getsignal(signal.SIGINT) == self._on_interrupt:
            signal.signal(signal.SIGINT, signal.default_int_handler)

    def reason(self, run: Lifecycle) -> BaseException | None:
        """Return the exception that ends the process; called at exit. Ctrl-C counts if no step has begun since."""
        if self._ending is None and self._steps.get(run) == run.at:
            return KeyboardInterrupt()
        return self._ending

    def _call_exit(self, status: Any = None, /) -> None:  # noqa: ANN401 - as sys.exit
        assert self._exit is not None
        try:
            self._exit(status)
        except SystemExit as error:
            if threading.current_thread() is threading.main_thread():
                with contextlib.suppress(Exception):
                    error.__dict__["__ranklake__"] = _Mark(self._leave, error)
            raise

    def _leave(self, ending: SystemExit) -> None:
        self._ending = ending

    def _on_interrupt(self, number: int, frame: FrameType | None) -> None:
        for run in list(self._runs):
            self._steps[run] = run.at
        signal.default_int_handler(number, frame)


class _Mark:
    """Attached to an exception; reports if the exception is freed because it ends the interpreter."""

    def __init__(self, leave: Callable[[SystemExit], None], error: SystemExit) -> None:
        self._leave, self._code, self._context = leave, error.code, error.__context__

    def __del__(self) -> None:
        if sys._getframe().f_back is None:  # noqa: SLF001 - no Python code is running
            ending = SystemExit(self._code)
            ending.__context__ = self._context
            self._leave(ending)


EXITS: Final = Exits()
