"""Failures: records unhandled exceptions in the open runs, then passes them on to the previous handler."""

import contextlib
import sys
import threading
import weakref
from types import TracebackType
from typing import Any, Final

from ranklake.capture.lifecycle.lifecycle import Lifecycle


class Failures:
    """What this process hooks into ``sys.excepthook`` and ``threading.excepthook``; once, and for all its runs."""

    def __init__(self) -> None:
        self._runs: weakref.WeakSet[Lifecycle] = weakref.WeakSet()
        self._before: dict[str, Any] = {}

    def watch(self, run: Lifecycle) -> None:
        """Record in a run what nobody handles from now on."""
        self._runs.add(run)
        for place, ours in self._places():
            if place.__name__ not in self._before:
                self._before[place.__name__] = place.excepthook
                place.excepthook = ours

    def leave(self, run: Lifecycle) -> None:
        """Record in a run no more; after the last one the hooks are what they were, unless somebody wrapped ours."""
        self._runs.discard(run)
        for place, ours in () if self._runs else self._places():
            if place.excepthook == ours:
                place.excepthook = self._before.pop(place.__name__)

    def _places(self) -> tuple[tuple[Any, Any], ...]:
        return (sys, self._ended), (threading, self._thread_ended)

    def _ended(self, kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        for run in list(self._runs):
            with contextlib.suppress(Exception):  # an error of ours must not take the place of the user's
                run.fail(error, exit_code=1)
        self._before.get("sys", sys.__excepthook__)(kind, error, trace)

    def _thread_ended(self, told: threading.ExceptHookArgs) -> None:
        """Record the end of a thread; the process goes on."""
        error, thread = told.exc_value, told.thread
        for run in list(self._runs):
            with contextlib.suppress(Exception):
                if error is not None and not isinstance(error, SystemExit):
                    run.fail(error, thread="" if thread is None else thread.name)
        self._before.get("threading", threading.__excepthook__)(told)


FAILURES: Final = Failures()
