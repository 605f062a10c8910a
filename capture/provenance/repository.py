"""Repository: reads the commit of the training code, and the difference of the working tree from it.

git runs at low priority and for a limited time. A difference of any size is hashed as a stream; only the stored part is
held in memory.
"""

import contextlib
import hashlib
import os
import re
import select
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from ranklake.redaction.redact import redact, redact_names, redact_uri

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
    """A git command failed. The message has the reason, without content of the repository."""


class GitTooLongError(GitError):
    """A git command exceeded its time limit."""


class Git:
    """Runs git commands in one folder, one at a time.

    Parameters
    ----------
    folder
        A folder in a working tree.
    limit_s
        Time limit of each command.

    Notes
    -----
    git is spawned, not forked, and its end is detected by its exit, not only by the end of its output: training may
    fork a worker at any moment, which then keeps the pipe's writing end open.
    """

    def __init__(self, folder: Path, limit_s: float) -> None:
        self.folder, self._limit_s = folder, limit_s
        self._is_over = False

    def stop(self) -> None:
        """Stop the running command from another thread. All later commands fail."""
        self._is_over = True

    def lines(self, *arguments: str, fine: tuple[int, ...] = (0,)) -> Iterator[str]:
        """Run a command, and yield its output's lines, cut at 1 MiB. `fine`: accepted exit codes. Raises `GitError`."""
        rest = b""
        for chunk in self.chunks(*arguments, fine=fine):
            *whole, rest = (rest + chunk).split(b"\n")
            rest = rest[:LONGEST_LINE_BYTES]
            yield from (line.decode(errors="replace") for line in whole)
        if rest:
            yield rest.decode(errors="replace")

    def chunks(self, *arguments: str, fine: tuple[int, ...] = (0,)) -> Iterator[bytes]:
        """Run a command, and yield its output. Raises `GitError` if it fails or exceeds the time limit."""
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
        """Yield the output until it ends, or the process does."""
        deadline = time.monotonic() + self._limit_s
        poller = select.poll()
        poller.register(reader, select.POLLIN)
        while True:
            if self._is_over or time.monotonic() >= deadline:
                raise GitTooLongError(f"git {command} took more than {self._limit_s:g} s")
            has_ended = process.has_ended()  # check before polling, so that no last output is missed
            if poller.poll(0 if has_ended else _LOOK_EVERY_MS):
                chunk = os.read(reader, CHUNK_BYTES)
                if not chunk:
                    break
                yield chunk
            elif has_ended:
                return
        while not process.has_ended() and time.monotonic() < deadline:  # the output is closed
            time.sleep(_END_S)


class _Process:
    """A spawned process with a process group."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self.code: int | None = None
        self._has_ended = False

    def has_ended(self) -> bool:
        """Whether the process has ended; then `code` is its exit code."""
        if not self._has_ended:
            try:
                pid, status = os.waitpid(self._pid, os.WNOHANG)
            except ChildProcessError:  # other code of this process waited for any child
                self._has_ended, self.code = True, 0
            else:
                if pid:
                    self._has_ended, self.code = True, os.waitstatus_to_exitcode(status)
        return self._has_ended

    def kill(self) -> None:
        """Kill the process and its children, unless it has ended."""
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


COLUMNS: Final = (
    *("git_commit", "git_branch", "git_remote", "git_dirty", "git_diff_summary"),
    *("git_patch", "git_patch_sha256", "git_patch_bytes"),
)
MARGIN_BYTES: Final = 1 << 13
"""Bytes of a patch to redact beyond the stored part, so that a credential at its end is recognized."""
_DIFF: Final = (
    *("diff", "HEAD", "--shortstat", "--patch", "--full-index", "--no-color", "--no-ext-diff", "--no-textconv"),
    *("--submodule=diff", "--src-prefix=a/", "--dst-prefix=b/"),
)
_BEGIN: Final = re.compile(rb"^(?:diff --(?:git|cc|combined) |Submodule |\* Unmerged path )", re.MULTILINE)


@dataclass
class RepositoryFacts:
    """Columns of ``runs``, and the reasons why others are missing."""

    columns: dict[str, Any] = field(default_factory=dict)
    unavailable: dict[str, str] = field(default_factory=dict)


def repository_facts(git: Git, patch_bytes: int) -> RepositoryFacts:
    """Return the columns ``git_…`` of ``runs``.

    Parameters
    ----------
    patch_bytes
        Most bytes of the difference to store; 0 for none. Hash and size always cover the whole difference. Untracked
        files are not part of it, but counted in ``git_diff_summary``.
    """
    facts = RepositoryFacts()
    try:
        state = _state(git)
    except GitError as error:
        facts.unavailable = dict.fromkeys(COLUMNS, str(error))
        return facts
    facts.columns |= state.columns
    facts.unavailable |= state.unavailable
    with _note_missing(facts, ("git_remote",)):
        remote = _remote(git)
        if remote:
            facts.columns["git_remote"] = redact_uri(remote)
        else:
            facts.unavailable["git_remote"] = "the repository has no remote"
    if "git_commit" not in facts.columns:
        absent = ("git_diff_summary", "git_patch", "git_patch_sha256", "git_patch_bytes")
        facts.unavailable |= dict.fromkeys(absent, facts.unavailable["git_commit"])
    elif state.is_changed:
        with _note_missing(facts, ("git_diff_summary", "git_patch", "git_patch_sha256", "git_patch_bytes")):
            _difference(git, patch_bytes, facts)
    else:
        absent = (
            "git_patch",
            "git_patch_sha256",
            "git_patch_bytes",
            *(() if state.untracked else ("git_diff_summary",)),
        )
        facts.unavailable |= dict.fromkeys(absent, "nothing that git tracks is changed")
    untracked = state.untracked
    if untracked and "git_diff_summary" not in facts.unavailable:
        changed = facts.columns.get("git_diff_summary")
        ignored = f"{untracked} untracked"
        facts.columns["git_diff_summary"] = f"{changed}, {ignored}" if changed else ignored
    return facts


@dataclass
class _State(RepositoryFacts):
    is_changed: bool = False
    untracked: int = 0


def _state(git: Git) -> _State:
    """Return commit, branch and whether the tree differs, from ``git status``."""
    state = _State()
    try:
        lines = git.lines("status", "--porcelain=v2", "--branch", "--untracked-files=normal")
        heads_read = list(_heads(lines, state))
    except GitTooLongError:  # the tree may have very many untracked files
        state = _State()
        lines = git.lines("status", "--porcelain=v2", "--branch", "--untracked-files=no")
        heads_read = list(_heads(lines, state))
    heads = dict(heads_read)
    commit, branch = heads.get("branch.oid", ""), heads.get("branch.head", "")
    if commit in {"", "(initial)"}:
        state.unavailable["git_commit"] = "the repository has no commits"
    else:
        state.columns["git_commit"] = commit
    if branch in {"", "(detached)"}:
        state.unavailable["git_branch"] = "no branch is checked out"
    else:
        state.columns["git_branch"] = redact_names(branch)[:256]
    state.columns["git_dirty"] = state.is_changed or state.untracked > 0
    return state


def _heads(lines: Iterator[str], state: _State) -> Iterator[tuple[str, str]]:
    """Yield names and values of the header, and count changed and untracked files in `state`."""
    for line in lines:
        if line.startswith("# "):
            name, _, value = line[2:].partition(" ")
            yield name, value
        elif line.startswith("? "):
            state.untracked += 1
        elif line[:2] in {"1 ", "2 ", "u "}:
            state.is_changed = True


def _remote(git: Git) -> str:
    """Return the URL of ``origin``, or else of the first remote; empty without a remote."""
    urls: dict[str, str] = {}
    for line in git.lines("config", "--get-regexp", r"^remote\..*\.url$", fine=(0, 1)):
        name, _, url = line.partition(" ")
        urls.setdefault(name, url)
    return urls.get("remote.origin.url") or next(iter(urls.values()), "")


def _difference(git: Git, patch_bytes: int, facts: RepositoryFacts) -> None:
    """Read statistics and patch of the difference, and store the patch's beginning. Raises `GitError`."""
    digest, size, kept, head = hashlib.sha256(), 0, b"", b""
    is_patch = False
    try:
        for chunk in git.chunks(*_DIFF):
            part = chunk
            if not is_patch:
                head += chunk
                begin = _BEGIN.search(head)
                if begin is None and len(head) < LONGEST_LINE_BYTES:
                    continue
                is_patch, at = True, begin.start() if begin else 0
                head, part = head[:at], head[at:]
            digest.update(part)
            size += len(part)
            if len(kept) < patch_bytes + MARGIN_BYTES:
                kept += part[: patch_bytes + MARGIN_BYTES - len(kept)]
    finally:  # also if git was stopped
        summary = head.decode(errors="replace").strip().splitlines()[:1]
        if summary:
            facts.columns["git_diff_summary"] = redact_names(summary[0].strip())[:1024]
        if patch_bytes and kept:
            facts.columns["git_patch"] = _truncate_patch(kept, patch_bytes, size)
    if not patch_bytes:
        facts.unavailable["git_patch"] = "patch_bytes is 0"
    facts.columns |= {"git_patch_sha256": digest.hexdigest(), "git_patch_bytes": size}


def _truncate_patch(kept: bytes, patch_bytes: int, size: int) -> str:
    shown = str(redact(kept.decode(errors="replace")))
    if size <= patch_bytes:
        return shown
    return shown.encode()[:patch_bytes].decode(errors="ignore") + "\n[cut]"


@contextlib.contextmanager
def _note_missing(facts: RepositoryFacts, columns: tuple[str, ...]) -> Iterator[None]:
    """If the block raises `GitError`, record it as the reason why columns are missing."""
    try:
        yield
    except GitError as error:
        facts.unavailable |= {column: str(error) for column in columns if column not in facts.columns}


def code_folder() -> Path:
    """Return the folder of the running script; the working folder for installed scripts."""
    script = getattr(sys.modules.get("__main__"), "__file__", None)
    if script:
        folder = Path(script).resolve().parent
        prefix = Path(sys.prefix).resolve()
        if prefix not in (folder, *folder.parents) and folder.is_dir() and parent_folders(folder):
            return folder
    try:
        return Path.cwd()
    except OSError:  # it was deleted
        return Path(script or "/").parent


def parent_folders(folder: Path) -> list[Path]:
    """Return a folder and its parents up to the repository's root; only the folder without a repository."""
    folders = [folder, *folder.parents]
    end = next((index for index, path in enumerate(folders) if (path / ".git").exists()), 0)
    return folders[: end + 1]
