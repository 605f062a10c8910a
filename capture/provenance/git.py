"""Git: queries the user's git about a folder, at low priority, with a time limit, and reads its output as it comes."""

import contextlib
import os
import select
import signal
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

CHUNK_BYTES: Final = 1 << 16
LONGEST_LINE_BYTES: Final = 1 << 20
_OPTIONS: Final = (
    *("--no-pager", "-c", "core.fsmonitor=false", "-c", "core.safecrlf=false", "-c", "core.quotePath=true"),
    *("-c", "core.bigFileThreshold=16m"),  # what is larger is hashed, not held and compared line by line
)
_ASIDE: Final = ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_EXTERNAL_DIFF", "GIT_PREFIX", "GIT_TRACE")
_NICE: Final = 10
_COMPLAINT_BYTES: Final = 4096
_LOOK_EVERY_MS: Final = 200
_END_S: Final = 0.001

_REASONS: Final = (
    ("cannot change to", "the folder is gone"),
    ("not a git repository", "not in a git repository"),
    ("dubious ownership", "git refuses a repository of another owner (safe.directory)"),
    ("must be run in a work tree", "the repository has no working tree"),
    ("index file", "the repository's index is damaged"),
    ("bad object", "the repository is damaged"),
)


class GitError(Exception):
    """git did not answer; the text says why, and has nothing of the repository's content."""


class GitTooLongError(GitError):
    """git was stopped when its time was over."""


class Git:
    """Questions about one folder, one at a time.

    Parameters
    ----------
    folder
        Somewhere in a working tree.
    limit_s
        For each question; what takes longer is stopped.

    Notes
    -----
    git is spawned, not forked, and nobody waits for the end of its output alone: training may fork a worker at any
    moment, which then holds the writing end of the pipe for as long as it lives.
    """

    def __init__(self, folder: Path, limit_s: float) -> None:
        self.folder, self._limit_s = folder, limit_s
        self._is_over = False

    def stop(self) -> None:
        """Have the question under way stopped, from another thread; all further ones fail."""
        self._is_over = True

    def lines(self, *arguments: str, fine: tuple[int, ...] = (0,)) -> Iterator[str]:
        """Yield the lines of an answer; one beyond a megabyte is cut. Raises `GitError`."""
        rest = b""
        for chunk in self.chunks(*arguments, fine=fine):
            *whole, rest = (rest + chunk).split(b"\n")
            rest = rest[:LONGEST_LINE_BYTES]
            yield from (line.decode(errors="replace") for line in whole)
        if rest:
            yield rest.decode(errors="replace")

    def chunks(self, *arguments: str, fine: tuple[int, ...] = (0,)) -> Iterator[bytes]:
        """Yield what git writes. Raises `GitError` if it cannot be run, ends with another code, or takes too long."""
        with tempfile.TemporaryFile() as complaints:
            reader, writer = os.pipe()
            try:
                try:
                    process = _spawn(self.folder, arguments, writer, complaints.fileno())
                finally:
                    os.close(writer)
                try:
                    yield from self._output(process, reader, arguments[0])
                finally:
                    process.kill()
            finally:
                os.close(reader)
            if process.code not in fine:
                complaints.seek(0)
                complaint = complaints.read(_COMPLAINT_BYTES).decode(errors="replace")
                raise GitError(_reason(complaint, arguments[0], process.code))

    def _output(self, process: "_Process", reader: int, command: str) -> Iterator[bytes]:
        """Yield the output up to its end, or up to the end of the process."""
        deadline = time.monotonic() + self._limit_s
        poller = select.poll()
        poller.register(reader, select.POLLIN)
        while True:
            if self._is_over or time.monotonic() >= deadline:
                raise GitTooLongError(f"git {command} took more than {self._limit_s:g} s")
            has_ended = process.has_ended()  # before looking: what it wrote last is there by then
            if poller.poll(0 if has_ended else _LOOK_EVERY_MS):
                chunk = os.read(reader, CHUNK_BYTES)
                if not chunk:
                    break
                yield chunk
            elif has_ended:
                return
        while not process.has_ended() and time.monotonic() < deadline:  # it has closed its output
            time.sleep(_END_S)


class _Process:
    """A spawned process and its group."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self.code: int | None = None
        self._has_ended = False

    def has_ended(self) -> bool:
        """Say whether it has ended; from then on `code` is its exit code."""
        if not self._has_ended:
            try:
                pid, status = os.waitpid(self._pid, os.WNOHANG)
            except ChildProcessError:  # somebody in this process waits for any child
                self._has_ended, self.code = True, 0
            else:
                if pid:
                    self._has_ended, self.code = True, os.waitstatus_to_exitcode(status)
        return self._has_ended

    def kill(self) -> None:
        """End it, if it has not ended, with all that it has started."""
        if not self.has_ended():
            with contextlib.suppress(OSError):
                os.killpg(self._pid, signal.SIGKILL)
            with contextlib.suppress(ChildProcessError):
                os.waitpid(self._pid, 0)
            self._has_ended = True


def _spawn(folder: Path, arguments: tuple[str, ...], output: int, complaints: int) -> _Process:
    try:
        pid = os.posix_spawnp(
            "git",
            ["git", "-C", str(folder), *_OPTIONS, *arguments],
            _environment(os.environ),
            file_actions=[
                (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
                (os.POSIX_SPAWN_DUP2, output, 1),
                (os.POSIX_SPAWN_DUP2, complaints, 2),
            ],
            setpgroup=0,  # so that its children can be stopped with it
            setsigmask=[],
            setsigdef=[signal.SIGPIPE],
        )
    except FileNotFoundError as error:
        raise GitError("git is not installed") from error
    except OSError as error:
        raise GitError(f"git cannot be run: {error.strerror}") from error
    with contextlib.suppress(OSError):  # it must not take the cores that training needs
        os.setpriority(os.PRIO_PROCESS, pid, _NICE)
    return _Process(pid)


def _environment(environ: Mapping[str, str]) -> dict[str, str]:
    quiet = {"GIT_OPTIONAL_LOCKS": "0", "GIT_TERMINAL_PROMPT": "0", "LC_ALL": "C"}
    return {name: value for name, value in environ.items() if name not in _ASIDE} | quiet


def _reason(complaint: str, command: str, code: int | None) -> str:
    known = next((reason for sign, reason in _REASONS if sign in complaint), None)
    return known or f"git {command} failed with exit code {code}"
