"""Output to terminals: text without control sequences; see `ranklake.printable`."""

import os
import shutil
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO

from rich.cells import cell_len

from ranklake.printable import printable, printable_lines


class _Guard:
    """A terminal's stream that escapes control characters, except newlines and tabs.

    Code that draws on purpose (rich, for the progress bar) uses the underlying stream.
    """

    def __init__(self, stream: TextIO) -> None:
        self.rich_proxied_file = stream

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - any attribute of a stream
        return getattr(self.rich_proxied_file, name)

    def write(self, text: str) -> int:
        """Write text with control characters escaped."""
        self.rich_proxied_file.write(printable_lines(text))
        return len(text)

    def writelines(self, lines: list[str]) -> None:
        """Write lines with control characters escaped."""
        for line in lines:
            self.write(line)


@contextmanager
def guarded() -> Iterator[None]:
    """Escape control characters on standard output and error, if these are terminals."""
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
    """Discard standard output: its reader (head, less, tee) has closed it."""
    with Path(os.devnull).open("wb") as nowhere:
        os.dup2(nowhere.fileno(), sys.stdout.fileno())


def width() -> int | None:
    """Return the columns of standard output; None if it is not a terminal, so that nothing is cut."""
    if os.environ.get("COLUMNS", "").isdecimal() or (sys.stdout is not None and sys.stdout.isatty()):
        return max(shutil.get_terminal_size().columns, 1)
    return None


class Screen:
    """Shows lines, and replaces them by later ones if the stream is a terminal; else appends.

    Attributes
    ----------
    is_terminal
        Whether lines can be replaced: not in a file, nor on a dumb terminal.
    width
        Columns; None if the stream is not a terminal.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream: TextIO = getattr(stream, "rich_proxied_file", stream)  # to send what moves the cursor
        self.is_terminal = (
            stream.isatty() and os.environ.get("TERM") != "dumb"
        )  # a dumb terminal cannot move the cursor
        self._shown = 0

    @property
    def width(self) -> int | None:
        """Present columns of the terminal."""
        return width()

    def show(self, lines: Sequence[str]) -> None:
        """Replace the lines shown before; at most as many as the terminal has rows. Line breaks are escaped."""
        text = [printable(line) for line in lines]
        if not self.is_terminal:
            self._stream.write("".join(f"{line}\n" for line in text))
            self._stream.flush()
            return
        size = shutil.get_terminal_size()
        text = [_fit_line(line, size.columns - 1) for line in text[: max(size.lines - 1, 1)]]
        up = f"\x1b[{self._shown}A" if self._shown else ""
        self._stream.write(f"{up}\r" + "".join(f"{line}\x1b[K\n" for line in text) + "\x1b[J")
        self._stream.flush()
        self._shown = len(text)


def _fit_line(line: str, columns: int) -> str:
    """Cut a line to a number of columns: a wrapped line would move the others."""
    end = min(len(line), columns)
    while cell_len(line[:end]) > columns:
        end -= 1
    return line[:end]
