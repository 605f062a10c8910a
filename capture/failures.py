"""Failures: exceptions that nobody handles are recorded in the runs that are open, then go where they went before."""

import contextlib
import sys
import threading
import weakref
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from ranklake.capture.run import Run


class Failures:
    """What this process hooks into ``sys.excepthook`` and ``threading.excepthook``; once, and for all its runs."""

    def __init__(self) -> None:
        self._runs: weakref.WeakSet[Run] = weakref.WeakSet()
        self._before: tuple[Any, Any] | None = None

    def watch(self, run: "Run") -> None:
        """Record in a run what nobody handles from now on."""
        self._runs.add(run)
        if self._before is None:
            self._before = sys.excepthook, threading.excepthook
            sys.excepthook, threading.excepthook = self._ended, self._thread_ended

    def _ended(self, kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        for run in list(self._runs):
            with contextlib.suppress(Exception):  # an error of ours must not take the place of the user's
                run.fail(error, exit_code=1)
        if self._before is not None:
            self._before[0](kind, error, trace)

    def _thread_ended(self, told: threading.ExceptHookArgs) -> None:
        """Record the end of a thread; the process goes on."""
        error, thread = told.exc_value, told.thread
        for run in list(self._runs):
            with contextlib.suppress(Exception):
                if error is not None and not isinstance(error, SystemExit):
                    run.fail(error, thread="" if thread is None else thread.name)
        if self._before is not None:
            self._before[1](told)


FAILURES: Final = Failures()
