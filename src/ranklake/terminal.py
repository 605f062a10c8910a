"""What may reach a terminal: text, and nothing that makes the terminal do something; see `ranklake.printable`."""

import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO

from ranklake.printable import printable_lines


class _Guard:
    """A terminal's stream that shows control characters in place of sending them; newlines and tabs go through.

    What draws on purpose (rich, for the progress bar) asks for the stream behind by the name that it gave it itself.
    """

    def __init__(self, stream: TextIO) -> None:
        self.rich_proxied_file = stream

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - whatever a stream has
        return getattr(self.rich_proxied_file, name)

    def write(self, text: str) -> int:
        """Write text without its controls."""
        self.rich_proxied_file.write(printable_lines(text))
        return len(text)

    def writelines(self, lines: list[str]) -> None:
        """Write lines likewise."""
        for line in lines:
            self.write(line)


@contextmanager
def guarded() -> Iterator[None]:
    """Let nothing but text through to standard output and error where these are terminals."""
    before = sys.stdout, sys.stderr
    if sys.stdout is not None and sys.stdout.isatty():
        sys.stdout = _Guard(sys.stdout)
    if sys.stderr is not None and sys.stderr.isatty():
        sys.stderr = _Guard(sys.stderr)
    try:
        yield
    finally:
        sys.stdout, sys.stderr = before


def say_nothing() -> None:
    """Send standard output nowhere: its reader (head, less, tee) left, and nobody is there to tell."""
    with Path(os.devnull).open("wb") as nowhere:
        os.dup2(nowhere.fileno(), sys.stdout.fileno())


def width() -> int | None:
    """Return how many columns standard output has; None where it is no terminal, so that nothing is cut."""
    if os.environ.get("COLUMNS", "").isdecimal() or (sys.stdout is not None and sys.stdout.isatty()):
        return max(shutil.get_terminal_size().columns, 1)
    return None
