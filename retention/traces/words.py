"""Words: where a value counts that is looked for as a word, and not as a part of a longer one."""

import re
from collections.abc import Mapping, Sequence
from typing import Final

WORDS: Final = "0-9A-Za-z"
"""Characters of words, as in a class of a regular expression."""
NAMES: Final = "0-9A-Za-z._-"
"""Likewise of names of runs."""
LEAST: Final = 6
"""Characters of a value that is looked for as a word, and of what base64 has of it: rows that hold it may go for it."""
_ESCAPES: Final = r"(?<=\\[nrtbfv])|(?<=\\u[0-9A-Fa-f]{4})|(?<=%[0-9A-Fa-f]{2})"
"""Of JSON and URLs: a letter that stands before a value may be the end of one."""
_UNITS: Final[Mapping[str, tuple[bytes, bytes]]] = {
    "utf-16-le": (b"", b"\x00"),
    "utf-16-be": (b"\x00", b""),
    "utf-32-le": (b"", b"\x00\x00\x00"),
    "utf-32-be": (b"\x00\x00\x00", b""),
}
"""Bytes before and behind that of an ASCII letter."""


def in_text(texts: Sequence[str], exact: Sequence[bytes], within: str) -> re.Pattern[str]:
    """Return what matches a spelling in text where it counts; `within` are characters of words, empty for anywhere."""
    ordered = sorted(texts, key=len, reverse=True)
    spelt = [f"{_before(one[0], within)}{re.escape(one)}{_behind(one[-1], within)}" for one in ordered]
    coded = [re.escape(one.decode()) for one in sorted(exact, key=len, reverse=True)]
    return re.compile("|".join((f"(?i:{'|'.join(spelt)})", *coded)) if spelt else "(?!)")


def _before(first: str, within: str) -> str:
    """Return what must stand before a spelling that begins so: no word, unless an escape ends there."""
    return f"(?:(?<![{within}])|{_ESCAPES})" if _is_of(within, first) else ""


def _behind(last: str, within: str) -> str:
    return f"(?![{within}])" if _is_of(within, last) else ""


def _is_of(within: str, letter: str) -> bool:
    return bool(within) and re.match(f"[{within}]", letter, re.IGNORECASE) is not None


def edged(one: bytes, coding: str, within: str) -> re.Pattern[bytes]:
    """Return what matches a spelling as bytes, in lower case, where it counts."""
    front, back = _UNITS.get(coding, (b"", b""))
    first, last = (one[at : at + 1].decode("latin-1") for at in (len(front), len(one) - 1 - len(back)))
    unit = front + f"[{within.lower()}]".encode() + back
    before = b"(?<!" + unit + b")" if _is_of(within, first) else b""
    if before and not front + back:
        before = b"(?:" + before + b"|" + _ESCAPES.encode() + b")"
    behind = b"(?!" + unit + b")" if _is_of(within, last) else b""
    return re.compile(before + re.escape(one) + behind)
