"""Printable: text from elsewhere as text that is only shown, on one line; counts with their nouns.

Values come from training processes, file names and other tools' logs. An escape sequence in one of them could clear
what was said before it, write elsewhere on the screen, set the clipboard; a newline could forge a line.
"""

import re
from typing import Final

# Control characters of ASCII and of Latin-1, what turns the direction of writing, and halves of characters.
_CONTROL: Final = "\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff"
_UNSAFE: Final = re.compile(f"[{_CONTROL}]")
_UNSAFE_IN_A_LINE: Final = re.compile(f"[{_CONTROL}\n\t]")


def printable(text: str) -> str:
    r"""Return a text as one line that a terminal only shows: controls as escapes, such as ``\x1b`` and ``\n``."""
    return _UNSAFE_IN_A_LINE.sub(lambda match: escaped(match[0]), text)


def printable_lines(text: str) -> str:
    """Return a text likewise, except for its newlines and tabs."""
    return _UNSAFE.sub(lambda match: escaped(match[0]), text)


def printable_name(text: str) -> str:
    """Return a name as one that any terminal, table and plan takes: also what is not to be seen, or odd, is escaped."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(one if one.isprintable() else escaped(one) for one in text)


def escaped(text: str) -> str:
    """Return characters as their escapes in Python."""
    return text.encode("unicode_escape").decode("ascii")


def counted(count: int, noun: str) -> str:
    """Return a count with its noun, such as ``1 row`` and ``2,000 rows``."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"
