"""Standard error: output of NCCL, C++ and the interpreter, as rows of ``logs``.

With the setting ``stderr = "all"`` a process between the rank and its standard error (`tee`) passes on every byte
unchanged, and hands it back to a thread here, which makes rows of it. With ``faults``, the default, descriptor 2 is
left as it is, and only the text of Python's fault handler is kept (see `ranklake.capture.logs.faults`).
"""

import contextlib
import fcntl
import os
import secrets
import subprocess
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Final

from ranklake.capture.logs.loglines import LogLines, shape_of
from ranklake.capture.logs.stderrlines import Grouping

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

_STDERR: Final = 2
_DONE_S: Final = 2.0
_ROOM_BYTES: Final = 1 << 20


class StderrTap:
    """What reads standard error for one run. Making it raises `OSError`, and changes nothing then.

    Parameters
    ----------
    lines
        Of the run.
    faults
        File for what comes after ``Fatal Python error``.
    """

    def __init__(self, lines: LogLines, faults: Path) -> None:
        self._lines, self._pid = lines, os.getpid()
        self._nonce = f"\0ranklake {secrets.token_hex(8)}\0\n".encode()
        self._told, self._giving = threading.Event(), threading.RLock()
        _flush()
        before = os.dup(_STDERR)
        reader, writer = os.pipe()
        back_reader, back_writer = os.pipe()
        with contextlib.suppress(OSError):  # room for what is said while no other thread runs
            fcntl.fcntl(back_writer, fcntl.F_SETPIPE_SZ, _ROOM_BYTES)
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
            os.dup2(writer, _STDERR)
        except BaseException:
            os.close(back_reader)
            os.close(before)
            raise
        finally:
            for fd in (reader, writer, back_writer):
                os.close(fd)
        self._before, self._back = before, back_reader
        self._thread = threading.Thread(target=self._read, name="ranklake-stderr", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Give standard error back, and record what was written to it so far."""
        if os.getpid() != self._pid or self._before < 0:
            return
        _flush()
        with contextlib.suppress(OSError):
            os.write(_STDERR, self._nonce)
        self._give_back()
        self._told.wait(_DONE_S)
        self._thread.join(_DONE_S)
        with contextlib.suppress(subprocess.TimeoutExpired):  # children that write there keep it busy
            self._helper.wait(0.2)

    def _give_back(self) -> None:
        """Lead descriptor 2 to where it led before; once."""
        with self._giving:
            before, self._before = self._before, -1
            if before >= 0:
                os.dup2(before, _STDERR)
                os.close(before)

    def _read(self) -> None:
        grouping, nonce, kept = Grouping(), self._nonce, b""
        with os.fdopen(self._back, "rb", buffering=0) as pipe:
            while raw := pipe.read(65536):
                raw = kept + raw
                at = raw.find(nonce)
                if at >= 0:
                    self._record(grouping.feed(raw[:at]))
                    break
                # The end may be the beginning of the nonce.
                cut = max(0, raw.rfind(b"\0")) if b"\0" in raw[-len(nonce) :] else len(raw)
                kept, raw = raw[cut:], raw[:cut]
                self._record(grouping.feed(raw))
        self._give_back()  # if the helper was killed: writing into its pipe would raise, or kill a child, from now on
        self._record(grouping.end())
        self._told.set()

    def _record(self, found: "Iterator[dict[str, Any]]") -> None:
        for columns in found:
            columns["template"] = shape_of(columns["message"][:1024])
            if self._lines.wants(columns, (columns["stream"], columns["template"])):
                self._lines.put(columns)


def _flush() -> None:
    with contextlib.suppress(Exception):  # whatever stands for it
        sys.stderr.flush()
