"""References: where a secret is, in place of the secret. The one way in which any setting names one.

    file:/etc/ranklake/keys           the file's text
    env:NAME                          the variable's
    command:/path/to/helper argument  what the helper prints; no shell, at most `COMMAND_S` seconds

They are followed where the secret is used, and what they give is in no configuration, plan, task, parameter or message.
No message of this module holds anything that was read, a helper's arguments or complaints, or a word of a reference
that is not understood.
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
"""How long `resolve_references` goes by what it read: a table is opened often, and a helper is a process."""
KINDS: Final = ("file", "env", "command")
FORMS: Final = "file:/path, env:NAME or command:/path/to/helper"
_MOST_BYTES: Final = 1 << 16


class SecretError(RanklakeError):
    """A reference that gives nothing. What was read, if anything, is not in the message."""


def is_reference(text: str) -> bool:
    """Whether a text has the form of a reference."""
    kind, _, rest = text.strip().partition(":")
    return kind in _READERS and bool(rest)


def display_text(text: str) -> str:
    """Return a reference as it may be shown: without the arguments of a helper."""
    kind, _, rest = text.strip().partition(":")
    return f"command:{_words(rest)[0]}" if kind == "command" and _words(rest) else text.strip()


def read_reference(source: str, noun: str = "secret", command: str = "command") -> tuple[str, str]:
    """Return the text that a reference gives now, and what may be said of where it is.

    Parameters
    ----------
    noun, command
        What messages call the text, and a helper that prints it.

    Raises
    ------
    SecretError
        It is not understood, or there is nothing to be read.
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
    """Return named values with what references among them give, read at most `KEPT_S` seconds ago.

    Raises `SecretError`, with the value's name.
    """
    return {name: _resolve(name, text) if is_reference(text) else text for name, text in values.items()}


def known_secrets(values: Mapping[str, str]) -> list[str]:
    """Return what `resolve_references` read for such values in this process, so that no message shows it."""
    with _lock:
        return [_kept[text][1] for text in values.values() if text in _kept]


def forget() -> None:
    """Have `resolve_references` read all again; what was read stays hidden in messages until then."""
    with _lock:
        _kept.update({source: (float("-inf"), text) for source, (_, text) in _kept.items()})


def fingerprint(values: Mapping[str, str]) -> str:
    """Digest of what `resolve_references` gives: by it a client knows whether it was made with other credentials."""
    return hashlib.sha256(repr(sorted(resolve_references(values).items())).encode()).hexdigest()


_lock: Final = threading.Lock()
_kept: Final[dict[str, tuple[float, str]]] = {}


def _resolve(name: str, source: str) -> str:
    with _lock:
        when, text = _kept.get(source, (0.0, ""))
    if text and time.monotonic() - when < KEPT_S:
        return text
    try:
        text = read_reference(source, f"value of {name}", f"command for {name}")[0].strip()
    except SecretError as error:
        raise SecretError(error.what, where=error.where, hint=error.hint or f"mend {name}: {FORMS}") from None
    if not text:
        raise SecretError(f"the value of {name} is empty", where=display_text(source), hint="write it there")
    with _lock:
        _kept[source] = time.monotonic(), text
    return text


def _from_file(path: str, noun: str, command: str) -> tuple[str, bytes]:
    del command
    try:
        fd = os.open(Path(path).expanduser(), os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)  # a FIFO is not waited for
        try:
            if not stat.S_ISREG(os.fstat(fd).st_mode):
                raise SecretError(f"the {noun} cannot be read (not a regular file)", where=path)
            with open(fd, "rb", closefd=False) as file:
                return path, file.read(_MOST_BYTES + 1)
        finally:
            os.close(fd)
    except (OSError, RuntimeError, ValueError) as error:  # also a home that is not known, a name with a NUL
        why = getattr(error, "strerror", None) or type(error).__name__
        raise SecretError(f"the {noun} cannot be read ({why})", where=path) from None


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
            stderr=subprocess.DEVNULL,  # a helper's complaints may quote what it was given
            start_new_session=True,
        )
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or type(error).__name__
        raise SecretError(f"the {command} cannot be run ({why})", where=words[0]) from None
    with helper:
        try:
            until = time.monotonic() + COMMAND_S
            raw = _output(helper, until)
            enough = raw is not None and len(raw) > _MOST_BYTES
            status = 0 if enough else None if raw is None else helper.wait(max(0.0, until - time.monotonic()))
        except subprocess.TimeoutExpired:
            status = None
        finally:
            # whatever it has started may hold its output open, or go on printing
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(helper.pid, signal.SIGKILL)
    if raw is None or status is None:
        raise SecretError(f"the {command} took longer than {COMMAND_S:g} s", where=words[0])
    if status:
        raise SecretError(f"the {command} ended with status {status}", where=words[0])
    return words[0], raw


def _output(helper: "subprocess.Popen[bytes]", until: float) -> bytes | None:
    """Return what a process prints, a byte more at most than a secret may have; None where it takes too long."""
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
