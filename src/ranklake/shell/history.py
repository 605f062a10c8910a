"""What was typed, kept for the next time: in a private file, one for each role, without what a role might hide.

A statement that names a column of another class than operational is kept with ``'…'`` in place of its texts: what
somebody looked for in names of users or messages is nobody's business who sits here next. Credentials are redacted.
"""

import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Final
from urllib.parse import quote

from prompt_toolkit.history import FileHistory, History, InMemoryHistory

from ranklake.redaction.redact import redact

_TEXTS: Final = re.compile(r"'(?:[^']|'')*(?:'|\Z)")
_WORD: Final = re.compile(r"\w+")
_MOST_BYTES: Final = 512 * 1024


class PrivateHistory(FileHistory):
    """A history in a file that its owner alone may read.

    Parameters
    ----------
    path
        The file; made with its folder where it is not there. Raises `OSError`.
    guarded
        Names of columns, in lower case: of statements that name one, texts are not kept.
    """

    def __init__(self, path: Path, guarded: frozenset[str]) -> None:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
        with os.fdopen(os.open(path, flags, 0o600), "r+b") as file:
            os.fchmod(file.fileno(), 0o600)
            _shorten(path, file.read())
        self._guarded = guarded
        super().__init__(str(path))

    def store_string(self, string: str) -> None:
        """Keep a statement, without what it must not tell."""
        super().store_string(self.private_text(string))

    def private_text(self, text: str) -> str:
        """Return what is kept of a statement."""
        if self._guarded & {word.lower() for word in _WORD.findall(_TEXTS.sub("", text))}:
            text = _TEXTS.sub("'…'", text)
        return str(redact(text))


def _shorten(path: Path, data: bytes) -> None:
    """Drop the older half of a history that has grown large: whole entries, which begin with a line ``# time``."""
    if len(data) <= _MOST_BYTES:
        return
    cut = data.find(b"\n\n#", len(data) // 2)
    scratch = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    with os.fdopen(os.open(scratch, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600), "wb") as file:
        file.write(data[cut + 1 :] if cut >= 0 else b"")
    scratch.replace(path)


def history_file(role: str | None) -> Path:
    """Return where the history of a role is: below ``XDG_STATE_HOME``, or ``~/.local/state``."""
    base = Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state")
    name = "sql-history" if role is None else f"sql-history-{quote(role, safe='')}"
    return base / "ranklake" / name


def history(role: str | None, guarded: Iterable[str]) -> tuple[History, str]:
    """Return the history of a role, and why it is of this session alone, if it is."""
    try:
        return PrivateHistory(history_file(role), frozenset(guarded)), ""
    except (OSError, RuntimeError) as error:  # no home is a RuntimeError
        why = error.strerror if isinstance(error, OSError) else "no home folder"
        return InMemoryHistory(), f"the history is not kept: {why}"
