"""Exits: exceptions that end the process, and that no hook of the interpreter's reports.

`sys.exit` raises `SystemExit`, which ``sys.excepthook`` never sees, and which somebody may catch. torch.multiprocessing
swallows the `KeyboardInterrupt` of its processes. What is kept here is asked for when the interpreter exits.
"""

import contextlib
import signal
import sys
import threading
import weakref
from collections.abc import Callable
from types import FrameType
from typing import Any, Final

from ranklake.capture.lifecycle.lifecycle import Lifecycle
from ranklake.capture.provenance.names import spawner


class Exits:
    """The ways in which this process was asked to end; once, and for all its runs.

    Notes
    -----
    The wrapper of `sys.exit` leaves a mark on the exception. The interpreter frees that exception after it left all
    code of Python's, right before it exits; whoever catches it frees it earlier, with frames on the stack.
    """

    def __init__(self) -> None:
        self._runs: weakref.WeakSet[Lifecycle] = weakref.WeakSet()
        self._exit: Callable[..., Any] | None = None
        self._ending: SystemExit | None = None
        self._steps: weakref.WeakKeyDictionary[Lifecycle, int] = weakref.WeakKeyDictionary()

    def watch(self, run: Lifecycle) -> None:
        """Keep from now on what asks this process to end."""
        self._runs.add(run)
        if self._exit is None:
            self._exit = sys.exit
            sys.exit = self._call_exit  # type: ignore[assignment] # it raises by the one before, which mypy cannot know
        is_mains = threading.current_thread() is threading.main_thread()
        if is_mains and spawner() is not None and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            signal.signal(signal.SIGINT, self._on_interrupt)

    def leave(self, run: Lifecycle) -> None:
        """Stop watching for a run; after the last one, restore the originals unless other code wrapped ours."""
        self._runs.discard(run)
        if self._runs:
            return
        if sys.exit == self._call_exit and self._exit is not None:
            sys.exit, self._exit = self._exit, None
        is_mains = threading.current_thread() is threading.main_thread()
        if is_mains and signal.getsignal(signal.SIGINT) == self._on_interrupt:
            signal.signal(signal.SIGINT, signal.default_int_handler)

    def reason(self, run: Lifecycle) -> BaseException | None:
        """Return what ends the process, asked as it exits: Ctrl-C counts unless the run has begun a step since."""
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
    """Tells when the exception that bears it is freed because it ends the interpreter."""

    def __init__(self, leave: Callable[[SystemExit], None], error: SystemExit) -> None:
        self._leave, self._code, self._context = leave, error.code, error.__context__

    def __del__(self) -> None:
        if sys._getframe().f_back is None:  # noqa: SLF001 - no code of Python's is left to go back to
            ending = SystemExit(self._code)
            ending.__context__ = self._context
            self._leave(ending)


EXITS: Final = Exits()
