"""References: locations of secrets, which settings contain instead of the secrets themselves.

    file:/etc/ranklake/keys           text of the file
    env:NAME                          value of the variable
    command:/path/to/helper argument  output of the helper; no shell, at most `COMMAND_S` seconds

References are resolved where the secret is used. Resolved values are never part of a configuration, plan, task,
parameter or message. Messages of this module contain no text that was read, no arguments or output of a helper, and no
part of an invalid reference.
"""

import contextlib
import hashlib
import os
import selectors
import shlex
import signal
import stat
import subprocess
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from ranklake.errors import RanklakeError

COMMAND_S: Final = 10.0
KEPT_S: Final = 300.0
"""Seconds for which `resolve_references` caches values: tables are opened often, and a helper is a process."""
KINDS: Final = ("file", "env", "command")
FORMS: Final = "file:/path, env:NAME or command:/path/to/helper"
_MOST_BYTES: Final = 1 << 16


class SecretError(RanklakeError):
    """A reference that cannot be resolved. The message does not contain text that was read."""


def is_reference(text: str) -> bool:
    """Whether a text has the form of a reference."""
    kind, _, rest = text.strip().partition(":")
    return kind in _READERS and bool(rest)


def display_text(text: str) -> str:
    """Return a reference for display: without the arguments of a helper."""
    kind, _, rest = text.strip().partition(":")
    return f"command:{_words(rest)[0]}" if kind == "command" and _words(rest) else text.strip()


def read_reference(source: str, noun: str = "secret", command: str = "command") -> tuple[str, str]:
    """Read a reference; return its text, and a displayable description of its source.

    Parameters
    ----------
    noun, command
        Names of the text and of its helper, for messages.

    Raises
    ------
    SecretError
        The reference is invalid, or the text cannot be read.
    """
    kind, _, rest = source.strip().partition(":")
    if kind not in _READERS or not rest:
        raise SecretError(f"the reference to the {noun} is not valid", hint=f"write {FORMS}")
    where, raw = _READERS[kind](rest, noun, command)
    if len(raw) > _MOST_BYTES:
        raise SecretError(f"the {noun} has more than {_MOST_BYTES:,} bytes", where=where)
    try:
        return raw.decode(), where
    except UnicodeDecodeError:
        raise SecretError(f"the {noun} is not text", where=where) from None


def resolve_references(values: Mapping[str, str]) -> dict[str, str]:
    """Return named values with references resolved, at most `KEPT_S` seconds ago.

    Raises `SecretError`, with the value's name.
    """
    return {name: _resolve(name, text) if is_reference(text) else text for name, text in values.items()}


def known_secrets(values: Mapping[str, str]) -> list[str]:
    """Return the secrets that `resolve_references` read for such values in this process, to hide them in messages."""
    with _lock:
        return [_cache[text][1] for text in values.values() if text in _cache]


def forget() -> None:
    """Clear the cache of `resolve_references`; earlier values are still redacted in messages until the next read."""
    with _lock:
        _cache.update({source: (float("-inf"), text) for source, (_, text) in _cache.items()})


def fingerprint(values: Mapping[str, str]) -> str:
    """Return a digest of the results of `resolve_references`, by which a client detects changed credentials."""
    return hashlib.sha256(repr(sorted(resolve_references(values).items())).encode()).hexdigest()


_lock: Final = threading.Lock()
_cache: Final[dict[str, tuple[float, str]]] = {}


def _resolve(name: str, source: str) -> str:
    with _lock:
        read_s, text = _cache.get(source, (0.0, ""))
    if text and time.monotonic() - read_s < KEPT_S:
        return text
    try:
        text = read_reference(source, f"value of {name}", f"command for {name}")[0].strip()
    except SecretError as error:
        raise SecretError(error.what, where=error.where, hint=error.hint or f"mend {name}: {FORMS}") from None
    if not text:
        raise SecretError(f"the value of {name} is empty", where=display_text(source), hint="write it there")
    with _lock:
        _cache[source] = time.monotonic(), text
    return text


def _from_file(path: str, noun: str, command: str) -> tuple[str, bytes]:
    del command
    try:
        fd = os.open(Path(path).expanduser(), os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)  # do not wait for a FIFO
        try:
            if not stat.S_ISREG(os.fstat(fd).st_mode):
                raise SecretError(f"the {noun} cannot be read (not a regular file)", where=path)
            with open(fd, "rb", closefd=False) as file:
                return path, file.read(_MOST_BYTES + 1)
        finally:
            os.close(fd)
    except (OSError, RuntimeError, ValueError) as error:  # also an unknown home, or a name with a NUL
        reason = getattr(error, "strerror", None) or type(error).__name__
        raise SecretError(f"the {noun} cannot be read ({reason})", where=path) from None


def _from_environment(name: str, noun: str, command: str) -> tuple[str, bytes]:
    del command
    text = os.environ.get(name, "")
    if not text:
        raise SecretError(f"the variable that should hold the {noun} is not set", where=f"${name}")
    return f"${name}", text.encode("utf-8", "surrogateescape")


def _from_command(line: str, noun: str, command: str) -> tuple[str, bytes]:
    del noun
    words = _words(line)
    if not words:
        raise SecretError(f"the {command} is not valid", hint=f"write {FORMS}")
    try:
        helper = subprocess.Popen(
            words,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,  # a helper's errors may quote its arguments
            start_new_session=True,
        )
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or type(error).__name__
        raise SecretError(f"the {command} cannot be run ({reason})", where=words[0]) from None
    with helper:
        try:
            until = time.monotonic() + COMMAND_S
            raw = _output(helper, until)
            is_too_long = raw is not None and len(raw) > _MOST_BYTES
            status = 0 if is_too_long else None if raw is None else helper.wait(max(0.0, until - time.monotonic()))
        except subprocess.TimeoutExpired:
            status = None
        finally:
            # its child processes may keep its output open, or continue to print
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(helper.pid, signal.SIGKILL)
    if raw is None or status is None:
        raise SecretError(f"the {command} took longer than {COMMAND_S:g} s", where=words[0])
    if status:
        raise SecretError(f"the {command} ended with status {status}", where=words[0])
    return words[0], raw


def _output(helper: "subprocess.Popen[bytes]", until: float) -> bytes | None:
    """Return the output of a process, up to one byte more than a secret may have; None after the time limit."""
    assert helper.stdout is not None
    raw = b""
    with selectors.DefaultSelector() as ready:
        ready.register(helper.stdout, selectors.EVENT_READ)
        while len(raw) <= _MOST_BYTES:
            if not ready.select(max(0.0, until - time.monotonic())):
                return None
            chunk = os.read(helper.stdout.fileno(), _MOST_BYTES + 1 - len(raw))
            if not chunk:
                return raw
            raw += chunk
    return raw


def _words(line: str) -> list[str]:
    try:
        return shlex.split(line)
    except ValueError:
        return []


_READERS: Final = dict(zip(KINDS, (_from_file, _from_environment, _from_command), strict=True))
