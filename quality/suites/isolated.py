"""A process of its own that runs users' suites: a time limit each, killed with all its threads when that is over.

Nothing that it does reaches this process but lines of JSON, which are not believed beyond their form.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from threading import Event, Timer
from types import TracebackType
from typing import Any, Final, Self

import pyarrow as pa

from ranklake.lake.store.scratch import scratch
from ranklake.printable import printable

START_S: Final = 180.0
"""For its start: the import of Great Expectations, and whatever users' files do when they are run."""
_ANSWER_BYTES: Final = 64 * 2**20
_TEXT: Final = 300
_PASSED_ON: Final = ("PATH", "LANG", "LC_ALL", "TZ")


@dataclass(frozen=True, slots=True)
class Answer:
    """Result of one expectation.

    Attributes
    ----------
    success
        The verdict; None if there is none.
    checked, failed
        Rows judged and rows that failed, where it is about rows.
    observed
        A number that was observed, of operational columns.
    error
        Why there is no verdict.
    ended
        Whether the process did not survive the question.
    """

    success: bool | None
    checked: int | None = None
    failed: int | None = None
    observed: float | None = None
    error: str = ""
    ended: bool = False


class _GoneError(Exception):
    """The process did not answer."""


class SuiteProcess:
    """The process, as a context. It starts with the first question, and again after one that it did not survive.

    Parameters
    ----------
    python
        Users' Python files, which it runs when it starts.
    limit_s
        How long it may take for one question.
    """

    def __init__(self, python: Sequence[str], limit_s: float, start_s: float = START_S) -> None:
        self._python, self._limit_s, self._start_s = tuple(python), limit_s, start_s
        self._process: subprocess.Popen[bytes] | None = None
        self._scratch = contextlib.ExitStack()
        self._rows = b""
        self._has_rows = False
        self._refused = ""
        self.files: Mapping[str, str] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end()

    def take(self, rows: pa.Table) -> None:
        """Take the rows that the next questions are about. They stay in memory, here and there."""
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, rows.schema) as stream:
            stream.write_table(rows)
        self._rows, self._has_rows = sink.getvalue().to_pybytes(), False

    def suites(self) -> tuple[list[Any], str]:
        """Return the suites that the Python files define, as JSON values, and why there are none where it failed."""
        try:
            suites = self._ask({"suites": True}).get("suites")
        except _GoneError as gone:
            return [], str(gone)
        return (suites, "") if isinstance(suites, list) else ([], "no answer")

    def judge(self, kind: str, kwargs: Mapping[str, Any], *, classified: bool) -> Answer:
        """Judge the rows by one expectation; nothing that it does raises."""
        try:
            self._start()
            if not self._has_rows:
                self._send({"rows": len(self._rows)}, self._rows)
                self._has_rows = True
            reply = self._ask({"type": kind, "kwargs": dict(kwargs), "classified": classified})
        except _GoneError as gone:
            return Answer(None, error=str(gone), ended=True)
        return _answer(reply)

    def _ask(self, request: Mapping[str, Any]) -> dict[str, Any]:
        self._start()
        return self._exchange(request, self._limit_s)

    def _start(self) -> None:
        """Start it unless it runs. Raises `_GoneError`; after a start that failed it is not tried again."""
        if self._process is not None:
            return
        if self._refused:
            raise _GoneError(self._refused)
        try:
            self._process = self._spawn()
        except OSError as error:
            self._refused = f"users' suites could not be started ({type(error).__name__})"
            raise _GoneError(self._refused) from None
        try:
            reply = self._exchange(None, self._start_s)
        except _GoneError as gone:
            self._refused = f"users' suites could not be started: {gone}"
            raise _GoneError(self._refused) from None
        files = reply.get("files")
        self.files = (
            {str(name): printable(str(error))[:_TEXT] for name, error in files.items()}
            if isinstance(files, dict)
            else {}
        )

    def _spawn(self) -> "subprocess.Popen[bytes]":
        """Start it in a folder of its own. Raises `OSError`, as where no memory, process or space is left."""
        place = str(self._scratch.enter_context(scratch("suites")))
        environment = {name: os.environ[name] for name in _PASSED_ON if name in os.environ}
        environment |= {"HOME": place, "TMPDIR": place, "GX_ANALYTICS_ENABLED": "false"}
        return subprocess.Popen(
            [sys.executable, "-I", "-B", "-m", "ranklake.quality.suites.child", *self._python],
            cwd=place,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    def _send(self, request: Mapping[str, Any], rows: bytes = b"") -> None:
        assert self._process is not None, "not started"
        assert self._process.stdin is not None, "started with a pipe"
        over = Event()
        timer = Timer(max(self._limit_s, self._start_s), self._kill, [self._process, over])
        timer.daemon = True
        timer.start()
        try:
            self._process.stdin.write(json.dumps(request).encode() + b"\n" + rows)
            self._process.stdin.flush()
        except OSError:
            self._end()
            raise _GoneError("its process ended") from None
        finally:
            timer.cancel()

    def _exchange(self, request: Mapping[str, Any] | None, limit_s: float) -> dict[str, Any]:
        """Send a request, if there is one, and return the answer. Raises `_GoneError`: then the process is gone."""
        process = self._process
        assert process is not None, "not started"
        assert process.stdout is not None, "started with a pipe"
        if request is not None:
            self._send(request)
        over = Event()
        timer = Timer(limit_s, self._kill, [process, over])
        timer.daemon = True
        timer.start()
        try:
            line = process.stdout.readline(_ANSWER_BYTES)
        finally:
            timer.cancel()
        try:
            reply = json.loads(line) if line else None
        except ValueError:
            reply = None
        if over.is_set() or not isinstance(reply, dict):
            self._end()
            raise _GoneError(f"killed after {limit_s:g} s" if over.is_set() else "its process ended")
        return reply

    @staticmethod
    def _kill(process: "subprocess.Popen[bytes]", over: Event) -> None:
        over.set()
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)

    def _end(self) -> None:
        """End the process and remove its folder, if they are there."""
        process, self._process, self._has_rows = self._process, None, False
        if process is not None:
            self._kill(process, Event())
            process.wait()
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    with contextlib.suppress(OSError):  # what is still to be written has no reader
                        pipe.close()
        self._scratch.close()


def _answer(reply: Mapping[str, Any]) -> Answer:
    success, error = reply.get("success"), reply.get("error")
    if not isinstance(success, bool):
        return Answer(None, error=printable(error)[:_TEXT] if isinstance(error, str) and error else "no verdict")
    checked, failed = (_count(reply.get(name)) for name in ("checked", "failed"))
    observed = reply.get("observed")
    is_number = isinstance(observed, int | float) and not isinstance(observed, bool)
    return Answer(success, checked, failed, float(observed) if is_number else None)  # type: ignore[arg-type]


def _count(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None
