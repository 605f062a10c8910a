"""What may reach a terminal: text, and nothing that makes the terminal do something.

Values come from training processes, file names and other tools' logs. An escape sequence in one of them could clear
what was said before it, write elsewhere on the screen, set the clipboard; a newline could forge a line.
"""

import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final, TextIO

# Control characters of ASCII and of Latin-1, what turns the direction of writing, and halves of characters.
_CONTROL: Final = "\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff"
_UNSAFE: Final = re.compile(f"[{_CONTROL}]")
_UNSAFE_IN_A_LINE: Final = re.compile(f"[{_CONTROL}\n\t]")


def printable(text: str) -> str:
    r"""Return a text as one line that a terminal only shows: controls as escapes, such as ``\x1b`` and ``\n``."""
    return _UNSAFE_IN_A_LINE.sub(_escaped, text)


def _escaped(found: re.Match[str]) -> str:
    return found[0].encode("unicode_escape").decode("ascii")


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
        self.rich_proxied_file.write(_UNSAFE.sub(_escaped, text))
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
