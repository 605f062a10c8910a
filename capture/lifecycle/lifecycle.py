"""Lifecycle: how a run says that it lives, fails and ends."""

from collections.abc import Callable, Mapping
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final

from ranklake.capture.common.gaps import Gaps
from ranklake.capture.common.layouts import ABSENT
from ranklake.capture.common.settings import Settings
from ranklake.capture.common.values import text
from ranklake.capture.metrics.metrics import Metrics
from ranklake.capture.provenance.launcher import Launch
from ranklake.capture.steps.failed import is_news, noted_step

if TYPE_CHECKING:
    import itertools
    from contextlib import AbstractContextManager

    from ranklake.capture.recording.keeper import Keeper
    from ranklake.capture.recording.recorder import Recorder

_COUNT: Final = len("count(")


class Lifecycle(Metrics):
    """The part of a run that knows how far it is and how it ends.

    Attributes
    ----------
    ending
        What ``rank_end`` will say besides: the exit code, where it is known.
    drains
        Called by `flush` and `close` with seconds: each has what is in memory written.
    closers
        Called by `close` after them, the last first.
    each_second
        Called by the sealer's thread.
    """

    span_ids: "itertools.count[int]"
    ending: dict[str, Any]
    drains: list[Callable[[float], None]]
    each_second: list[Callable[[], None]]
    closers: list[Callable[[], None]]
    launch: Launch
    _keeper: "Keeper | None"

    @property
    def settings(self) -> Settings:
        """How it behaves."""
        recorder: Recorder | None = self._recorder
        return Settings() if recorder is None else recorder.settings

    @property
    def gap_counts(self) -> Gaps:
        """What could not be recorded, and what the user is told of it."""
        return self._gaps

    def begun(self) -> int:
        """Return how many steps and phases have begun in this process. Costs them nothing: it is read off a counter."""
        return int(repr(self.span_ids)[_COUNT:-1]) - 1

    def latest_step(self) -> int | None:
        """Return the number of the step that began last; None before the first."""
        return None if self._latest == ABSENT else self._latest

    def fail(self, error: BaseException, *, exit_code: int | None = None, thread: str | None = None) -> None:
        """Record that an exception ended the run, or one of its threads.

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
        name = type(error).__name__
        said = "" if isinstance(error, SystemExit) and isinstance(error.code, int) else text(error, 4096)
        facts = {"exit_code": code, "thread": thread}
        facts = {key: value for key, value in facts.items() if value is not None}
        if thread is None:
            self.ending |= {"reason": name, **facts}
        if not is_news(error, self):
            return
        message = f"{name}: {said}" if said else name
        self.event("failure", message=message, severity="error", step=noted_step(error), exception=name, **facts)

    def drain(self, timeout_s: float) -> None:
        """Have written what sources hold in memory."""
        for one in self.drains:
            one(timeout_s)

    def wind_up(self, timeout_s: float) -> None:
        """Have written what sources hold in memory, and end their threads."""
        for drain in self.drains:
            self._safely(partial(drain, timeout_s))
        for close in reversed(self.closers):
            self._safely(close)

    def _safely(self, ends: Callable[[], object]) -> None:
        """Have one source end; what it raises must not keep the others, and the run's own end, from being recorded."""
        try:
            ends()
        except Exception as error:  # noqa: BLE001 - telemetry never raises into training
            self.trouble("ending a source", error)

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
        message, step = f"{name} was received", self.latest_step()
        self.event("preemption", severity="warning", message=message, step=step, signal=name, dies=dies)
        if dies:
            self.ending["signal"] = name
        elif self._keeper is not None:
            self._keeper.hurry()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None and not isinstance(error, GeneratorExit):
            self.fail(error)
        self.close()

    if TYPE_CHECKING:

        @property
        def name(self) -> str: ...  # noqa: D102 - `Run` has these

        @property
        def enabled(self) -> bool: ...  # noqa: D102

        def event(self, name: object = "", *excess: object, **attributes: object) -> None: ...  # noqa: D102

        def record(self, table: str, columns: Mapping[str, Any], at_ns: int | None = None) -> bool: ...  # noqa: D102

        def recording(self, table: str) -> AbstractContextManager[None]: ...  # noqa: D102

        def close(self, timeout_s: float = 10.0) -> None: ...  # noqa: D102


def _asked_for(error: BaseException, otherwise: int | None) -> int | None:
    """Return the status that ``sys.exit`` asked for, where it was called."""
    if not isinstance(error, SystemExit):
        return otherwise
    return 0 if error.code is None else error.code if isinstance(error.code, int) else 1
