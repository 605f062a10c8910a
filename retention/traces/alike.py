"""Which texts are the same value: Unicode's case folding and its composed form (NFC) tell, for letters and bytes."""

import re
from collections.abc import Iterator
from functools import cache
from unicodedata import normalize

from ranklake.retention.subjects.whose import folded

_LAST = 0x1FFFF
"""Beyond it no letter has a case."""
_NO_TEXT = "\ufffd"
_TEXTS = re.compile(rf"[^{_NO_TEXT}\x00-\x08\x0e-\x1f\x7f-\x9f]{{4,}}")


def fold(raw: bytes) -> bytes:
    """Return bytes with their UTF-8 folded as `ranklake.retention.subjects.whose.folded` does.

    Bytes that are no UTF-8 stay as they are, and join no words.

    >>> fold("Zoë ÅNGSTRÖM".encode()).decode()
    'zoë ångström'
    """
    if raw.isascii():
        return raw.lower()
    text = raw.decode("utf-8", "replace")
    if _NO_TEXT in text:  # of what is no text, such as packed bytes, stretches that could be some alone: a tenth of it
        text = _NO_TEXT.join(_TEXTS.findall(text))
    return normalize("NFC", normalize("NFD", text).casefold()).encode()


def cases(text: str) -> tuple[str, ...]:
    """Return a text as people write names: as it is, in small letters, in capitals, with capitals in front."""
    return tuple(dict.fromkeys((text, text.lower(), text.upper(), text.title())))


def alike(text: str) -> Iterator[str]:
    """Yield the letters that may stand for those of a folded text, composed and decomposed ones among them."""
    wanted = {*text, *normalize("NFD", text)}
    yield from wanted
    yield from (letter for letter, parts in _folding().items() if wanted & parts)


@cache
def _folding() -> dict[str, frozenset[str]]:
    """Return by letter that folds to others the letters of what it folds to, composed and decomposed."""
    found = {}
    for letter in map(chr, (*range(0xD800), *range(0xE000, _LAST))):
        other = folded(letter)
        if other != letter:
            found[letter] = frozenset({*other, *normalize("NFD", other)})
    return found
