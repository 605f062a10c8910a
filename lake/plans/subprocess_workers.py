"""Runs each task in a process of its own, one at a time, so that a fatal task kills only that process.

The process is told to work by `subprocess`, not by `multiprocessing`, which would run the caller's main module again.
"""

import os
import pickle
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final, cast

from ranklake.lake.plans.workers import LostTaskError, OneByOne, Result, Task, WorkersError

_SERVE: Final = "import sys; from ranklake.lake.plans.subprocess_workers import serve; serve(int(sys.argv[1]))"
_READY: Final = b"R"


class InSubprocess(OneByOne):
    """Carries each task out in a process that may die."""

    def carry_out(self, work: Callable[[Task], Result], task: Task) -> Result:
        """Return the result of a task.

        Raises what the task does, `LostTaskError` where its process died or had no memory left, and `WorkersError`
        where none can be started.
        """
        died, answer = _run(work, task)
        if died or isinstance(answer, MemoryError):
            raise LostTaskError("the process of a task died", hint="look at its memory and run it again")
        if isinstance(answer, BaseException):
            raise answer
        return cast("Result", answer)


def _run(work: Callable[[Task], Result], task: Task) -> tuple[bool, Any]:
    """Return whether the process died at the task, and else what it returned or raised."""
    reading, writing = os.pipe()
    path = os.pathsep.join(entry or os.curdir for entry in sys.path)
    with os.fdopen(reading, "rb") as answers:
        try:
            child = subprocess.Popen(
                [sys.executable, "-c", _SERVE, str(writing)],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                pass_fds=[writing],
                env={**os.environ, "PYTHONPATH": path},
            )
        finally:
            os.close(writing)
        with child:
            try:
                with suppress(BrokenPipeError):
                    cast("Any", child.stdin).write(pickle.dumps((work, task)))
                    cast("Any", child.stdin).close()
                answer = answers.read()
            except BaseException:
                child.kill()
                raise
        if not answer.startswith(_READY):
            raise WorkersError(
                "a process for a task cannot be started", hint="look at this machine's memory and limits"
            )
        try:
            return False, pickle.loads(answer[len(_READY) :])  # noqa: S301 - our own child's answer
        except (EOFError, pickle.UnpicklingError):
            return True, None


def serve(descriptor: int) -> None:
    """Do what is asked for on standard input, and answer on a descriptor: `_READY`, then the result or the error."""
    with os.fdopen(descriptor, "wb", buffering=0) as answers:
        work, task = pickle.load(sys.stdin.buffer)  # noqa: S301 - of the process that started this one
        answers.write(_READY)
        try:
            answer = work(task)
        except Exception as error:  # noqa: BLE001 - whatever it is, it is told to whoever asked
            answer = error
        raw = memoryview(pickle.dumps(answer))
        while raw:
            raw = raw[answers.write(raw) :]
