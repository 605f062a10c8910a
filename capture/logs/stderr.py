"""Standard output and error: record lines of NCCL, C++ and the interpreter as rows of ``logs``.

With the setting ``stderr = "all"``, a process between the rank and its standard error (`tee`) forwards every byte
unchanged. It also sends the bytes back to a thread here, which makes rows of them. ``stdout`` does the same for
standard output, where NCCL writes by default. With ``faults``, the default, descriptor 2 is not changed, and only the
text of Python's fault handler is recorded (`ranklake.capture.logs.faults`).
"""

import contextlib
import ctypes
import fcntl
import os
import re
import secrets
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from ranklake.capture.logs.loglines import LogLines, shape_of
from ranklake.capture.logs.nccl_lines import nccl_line

STDOUT: Final = 1
STDERR: Final = 2
_STREAMS: Final = {STDOUT: "stdout", STDERR: "stderr"}
NCCL: Final = "nccl"
_CLOSE_TIMEOUT_S: Final = 2.0
_PIPE_BYTES: Final = 1 << 20


class OutputTap:
    """Reads standard output or error for one run. If its creation raises `OSError`, nothing is changed.

    Parameters
    ----------
    lines
        Log lines of the run.
    faults
        File for the text from ``Fatal Python error`` on.
    descriptor
        `STDOUT` or `STDERR`.
    only
        Value of ``stream``: only its lines become rows; empty for all lines.
    """

    def __init__(self, lines: LogLines, faults: Path, descriptor: int = STDERR, only: str = "") -> None:
        self._rows, self._pid, self._descriptor = OutputRows(lines, _STREAMS[descriptor], only), os.getpid(), descriptor
        self._nonce = f"\0ranklake {secrets.token_hex(8)}\0\n".encode()
        self._is_read, self._restore_lock = threading.Event(), threading.RLock()
        _flush()
        before = os.dup(descriptor)
        reader, writer = os.pipe()
        back_reader, back_writer = os.pipe()
        with contextlib.suppress(OSError):  # space for output while the reading thread cannot run
            fcntl.fcntl(back_writer, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
        try:
            command = [sys.executable, "-I", "-S", str(Path(__file__).with_name("tee.py")), str(back_writer)]
            self._helper = subprocess.Popen(
                [*command, str(faults), self._nonce.decode().strip("\0\n")],
                stdin=reader,
                stdout=before,
                stderr=subprocess.DEVNULL,
                pass_fds=(back_writer,),
                start_new_session=True,
            )
            os.dup2(writer, descriptor)
        except BaseException:
            os.close(back_reader)
            os.close(before)
            raise
        finally:
            for fd in (reader, writer, back_writer):
                os.close(fd)
        self._before, self._back = before, back_reader
        self._thread = threading.Thread(target=self._read, name=f"ranklake-{_STREAMS[descriptor]}", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Restore the descriptor, and record the output so far."""
        if os.getpid() != self._pid or self._before < 0:
            return
        _flush()
        with contextlib.suppress(OSError):
            os.write(self._descriptor, self._nonce)
        self._restore()
        self._is_read.wait(_CLOSE_TIMEOUT_S)
        self._thread.join(_CLOSE_TIMEOUT_S)
        with contextlib.suppress(subprocess.TimeoutExpired):  # children that write to the descriptor keep it running
            self._helper.wait(0.2)

    def _restore(self) -> None:
        """Restore the original descriptor. A second call does nothing."""
        with self._restore_lock:
            before, self._before = self._before, -1
            if before >= 0:
                os.dup2(before, self._descriptor)
                os.close(before)

    def _read(self) -> None:
        rows, nonce, kept = self._rows, self._nonce, b""
        with os.fdopen(self._back, "rb", buffering=0) as pipe:
            while raw := pipe.read(65536):
                raw = kept + raw
                at = raw.find(nonce)
                if at >= 0:
                    rows.feed(raw[:at])
                    break
                # The last bytes may be the beginning of the nonce.
                cut = max(0, raw.rfind(b"\0")) if b"\0" in raw[-len(nonce) :] else len(raw)
                kept, raw = raw[cut:], raw[:cut]
                rows.feed(raw)
        self._restore()  # after a kill of the helper, writes to its pipe would raise, or kill a child
        rows.end()
        self._is_read.set()


class OutputRows:
    """Makes rows of ``logs`` from output.

    Parameters
    ----------
    stream
        Value of ``stream`` for lines without a more specific one.
    only
        Value of ``stream``: only its lines become rows; empty for all lines.
    """

    def __init__(self, lines: LogLines, stream: str, only: str = "") -> None:
        self._lines, self._stream, self._only = lines, stream, only
        self._grouping = Grouping()

    def feed(self, raw: bytes) -> None:
        """Add bytes, and record the complete lines."""
        self._record(self._grouping.feed(raw))

    def end(self) -> None:
        """Record the incomplete rest at the end."""
        self._record(self._grouping.end())

    def _record(self, rows: "Iterator[dict[str, Any]]") -> None:
        for columns in rows:
            if columns["stream"] == _STREAMS[STDERR]:
                columns["stream"] = self._stream
            if self._only and columns["stream"] != self._only:
                continue
            columns["template"] = shape_of(columns["message"][:1024])
            if self._lines.admits(columns, (columns["stream"], columns["template"])):
                line = nccl_line(columns["message"]) if columns["stream"] == NCCL else None
                self._lines.put(columns, line.fields if line else None)


def _flush() -> None:
    for file in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):  # it may be replaced by any object
            file.flush()
    with contextlib.suppress(Exception):  # flush C's buffers, such as NCCL's lines, before the end
        libc = ctypes.CDLL(None)
        libc.fflush(ctypes.c_void_p.in_dll(libc, "stdout"))


_LONGEST: Final = 1 << 16
_LONGEST_KEY: Final = 200
"""Most lines of a private key; one of RSA with 8192 bits has a hundred."""
_LETTERS: Final = {"D": 5, "V": 5, "I": 9, "W": 13, "E": 17, "F": 21}
_NAMES: Final = {5: "DEBUG", 9: "INFO", 13: "WARNING", 17: "ERROR", 21: "FATAL"}
_GLOG: Final = re.compile(  # glog's and c10's: [W1122 01:02:03.456 file.cpp:12] …, possibly after [rank0]:
    r"^(?:\[rank\d+\]:\s*)?\[?(?P<letter>[DVIWEF])\d{4,8}\s\d\d:\d\d:\d\d\S*\s+(?:\d+\s+)?(?P<file>[\w./+-]+):(?P<line>\d+)\]"
)
_PYTHON: Final = re.compile(
    r"^(?:\S+?:\d+: (?P<category>\w*Warning): )|^(?P<level>DEBUG|INFO|WARNING|ERROR|CRITICAL)\b"
)
_TRACEBACK: Final = "Traceback (most recent call last):"
_KEY_BEGINS, _KEY_ENDS = "PRIVATE KEY", re.compile(r"-----END [A-Z0-9 ]*PRIVATE KEY(?: BLOCK)?-----")
_RANK: Final = re.compile(r"^\[rank\d+\]:\s?")
_ENDS: Final = re.compile(r"^(?P<kind>[A-Za-z_][\w.]*)(?:: (?P<message>.*))?$")


def columns_of(line: str) -> dict[str, Any]:
    """Return columns with a line's severity, stream and source, from its format."""
    columns: dict[str, Any] = {"message": line, "stream": "stderr", "severity_number": 9}
    if (glog := _GLOG.match(line)) is not None:
        columns["severity_number"] = _LETTERS[glog["letter"]]
        columns["source_file"], columns["source_line"] = glog["file"], int(glog["line"])
    elif (nccl := nccl_line(line)) is not None:
        return nccl.columns(line)
    elif line.startswith("Fatal Python error"):
        columns["stream"], columns["severity_number"] = "faulthandler", 21
    elif (python := _PYTHON.match(line)) is not None:
        named = {"DEBUG": 5, "WARNING": 13, "ERROR": 17, "CRITICAL": 21}
        columns["severity_number"] = 13 if python["category"] else named.get(python["level"], 9)
    if "NCCL" in line and glog is not None and "ProcessGroupNCCL" in line:
        columns["stream"] = "nccl"
    columns["severity_text"] = _NAMES[columns["severity_number"]]
    return columns


class Grouping:
    """Splits bytes into rows: one per line, and one per traceback or private key."""

    def __init__(self) -> None:
        self._rest = b""
        self._trace: list[str] = []
        self._key: list[str] = []

    def feed(self, raw: bytes) -> Iterator[dict[str, Any]]:
        """Add bytes and yield complete rows. States of progress bars, which end in a carriage return, are left out."""
        *complete, self._rest = (self._rest + raw).split(b"\n")
        if len(self._rest) > _LONGEST:
            complete, self._rest = [*complete, self._rest], b""
        for piece in complete:
            line = piece.rstrip(b"\r").rpartition(b"\r")[2].decode("utf-8", "replace")
            yield from self._line(line)

    def end(self) -> Iterator[dict[str, Any]]:
        """Yield the incomplete rest at the end."""
        rest, self._rest = self._rest.decode("utf-8", "replace"), b""
        if rest:
            yield from self._line(rest)
        if self._key:
            line, self._key = "\n".join(self._key), []
            yield columns_of(line)
        yield from self._flush_traceback()

    def _line(self, line: str) -> Iterator[dict[str, Any]]:
        if self._key or ("-----BEGIN " in line and _KEY_BEGINS in line):  # kept together, so that redaction finds it
            self._key.append(line)
            if _KEY_ENDS.search(line) or len(self._key) >= _LONGEST_KEY:
                line, self._key = "\n".join(self._key), []
                yield from self._flush_traceback()
                yield columns_of(line)
            return
        bare = _RANK.sub("", line)
        if bare.startswith(_TRACEBACK):
            yield from self._flush_traceback()
            self._trace = [bare]
        elif self._trace and (not bare.strip() or bare.startswith(" ")) and len(self._trace) < 2000:  # noqa: PLR2004
            self._trace.append(bare)
        elif self._trace and (error_line := _ENDS.match(bare)) is not None:
            trace, self._trace = "\n".join([*self._trace, bare]), []
            yield {
                "severity_text": "ERROR",
                "severity_number": 17,
                "stream": "stderr",
                "message": bare,
                "exception_type": error_line["kind"],
                "exception_message": error_line["message"],
                "exception_stacktrace": trace,
            }
        elif line.strip():
            yield from self._flush_traceback()
            yield columns_of(line)

    def _flush_traceback(self) -> Iterator[dict[str, Any]]:
        """Yield the lines of an incomplete traceback as separate rows."""
        trace, self._trace = self._trace, []
        for line in trace:
            if line.strip():
                yield columns_of(line)
