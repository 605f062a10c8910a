"""Lifecycle: records that a run is alive, fails and ends."""

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from ranklake.capture.common.run_like import RunLike
from ranklake.capture.common.settings import CaptureSettings
from ranklake.capture.common.values import text
from ranklake.capture.lanes.sink import Sink
from ranklake.capture.steps.events import Events
from ranklake.capture.steps.failed import is_news, noted_step
from ranklake.capture.steps.progress import Progress

if TYPE_CHECKING:
    from ranklake.capture.provenance.launcher import Launch


class Lifecycle:
    """What one run says of its life, and what is to be done in the course of it.

    Attributes
    ----------
    settings
        How the run behaves.
    ending
        What ``rank_end`` will say besides: the exit code, where it is known.
    drains
        Called by `flush` and `close` with seconds: each has what is in memory written.
    finishers
        Called by `close` with half of the seconds that it may take: each has done what would be lost else.
    closers
        Called by `close` after them, the last first.
    each_second
        Called by the sealer's thread.
    on_reassigned
        Called when this process turns out to be another rank, or of another run.
    on_failure
        Called with an exception, and the name of the thread that it ended, when its event was recorded.
    hurry
        Has everything sealed and sent without waiting for it; None where nobody does that.
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
        """Whether anything is recorded."""
        return self._sink.enabled

    def fail(self, error: BaseException, *, exit_code: int | None = None, thread: str | None = None) -> None:
        """Record that an exception ended the run, or one of its threads; of Ctrl-C, that it was interrupted.

        A `SystemExit` that was raised while another exception was handled, as torch.multiprocessing does, is told as
        that one.

        Parameters
        ----------
        exit_code
            Status that the process ends with, if that is known.
        thread
            Name of the thread that it ended; None for the main one.
        """
        if not self.enabled:
            return
        code = _asked_for(error, exit_code)
        if code == 0:
            return
        if isinstance(error, SystemExit) and isinstance(error.__context__, Exception):
            error = error.__context__
        name = type(error).__name__
        said = "" if isinstance(error, SystemExit) and isinstance(error.code, int) else text(error, 4096)
        facts = {"exit_code": code, "thread": thread}
        facts = {key: value for key, value in facts.items() if value is not None}
        if thread is None:
            self.ending |= {"reason": name, **facts}
        if not is_news(error, self):
            return
        message = f"{name}: {said}" if said else name
        event, severity = ("interruption", "warning") if isinstance(error, KeyboardInterrupt) else ("failure", "error")
        self._events.add(event, message=message, severity=severity, step=noted_step(error), exception=name, **facts)
        for call in () if isinstance(error, KeyboardInterrupt | SystemExit) else self.on_failure:
            call(error, thread)

    def drain(self, timeout_s: float) -> None:
        """Have written what sources hold in memory."""
        for one in self.drains:
            one(timeout_s)

    def wind_up(self, timeout_s: float) -> None:
        """Have written what sources hold in memory, and end their threads."""
        for drain in self.drains:
            self._safely(partial(drain, min(1.0, timeout_s)))
        for finish in self.finishers:
            self._safely(partial(finish, timeout_s / 2))
        for close in reversed(self.closers):
            self._safely(close)

    def _safely(self, ends: Callable[[], object]) -> None:
        """Have one source end; what it raises must not keep the others, and the run's own end, from being recorded."""
        try:
            ends()
        except Exception as error:  # noqa: BLE001 - telemetry never raises into training
            self._sink.trouble("ending a source", error)

    def look(self) -> None:
        """Let sources do what is due each second."""
        for one in self.each_second:
            one()

    def preempted(self, name: str, *, dies: bool) -> None:
        """Record that a signal announced the end, and bring away what is recorded so far.

        Parameters
        ----------
        dies
            Whether the process dies of it now.
        """
        if not self.enabled:
            return
        message, step = f"{name} was received", self._progress.latest_step()
        self._events.add("preemption", severity="warning", message=message, step=step, signal=name, dies=dies)
        if dies:
            self.ending["signal"] = name
        elif self.hurry is not None:
            self.hurry()


def _asked_for(error: BaseException, otherwise: int | None) -> int | None:
    """Return the status that ``sys.exit`` asked for, where it was called."""
    if not isinstance(error, SystemExit):
        return otherwise
    return 0 if error.code is None else error.code if isinstance(error.code, int) else 1
