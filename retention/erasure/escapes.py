r"""Resolves escapes of JSON, HTML, URLs, source code and mail, also nested ones, and searches for short values.

A value is also found if some or all of its letters are escaped: ``ada%40example%2Eorg``, ``ada&#64;…``,
``ada\u0040…``, ``ada=40…``. Few bytes can be an escape of one of its letters. Escapes are resolved only around these.

Values that are too short to search for as words match only as the whole content of a table's column, or of a JSON key
with the name of the column. They never match in other text, such as logs.
"""

import json
import re
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from html.entities import html5
from typing import Final, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from ranklake.retention.subjects.keys import normalized_name

_DEEPEST: Final = 6
_LAST: Final = 0x10FFFF
_SURROGATES: Final = range(0xD800, 0xE000)
_ESCAPES: Final = re.compile(
    rb"%(?P<url>[0-9a-f]{2})"
    rb"|\\+u(?P<json>[0-9a-f]{4})"
    rb"|\\+x(?P<program>[0-9a-f]{2})"
    rb"|&#(?P<decimal>[0-9]{1,7});"
    rb"|&#x(?P<hexadecimal>[0-9a-f]{1,6});"
    rb"|&(?P<word>[a-z]{2,24});"
    rb"|=(?P<mail>[0-9a-f]{2}|\r?\n)"
    rb"|\\+(?P<quoted>[\"'/])"
)
_OPENERS: Final = b"%=&\\"
_BEFORE_DIGITS: Final = np.isin(np.arange(256), np.frombuffer(b"%=x0", np.uint8))
"""For each byte, whether it can precede the two digits of an escape: ``%40``, ``=40``, ``x40``, ``u0040``."""

Wanted = npt.NDArray[np.bool_]


def digit_table(letters: Collection[int]) -> Wanted:
    """Return a table, indexed by two bytes as a number, of which bytes are the hex digits of one of the letters.

    The characters that begin an escape are included, since they may be escaped themselves.
    """
    table = np.zeros(2**16, np.bool_)
    for letter in {*letters, *_OPENERS}:
        table[int.from_bytes(b"%02x" % letter)] = True
    return table


def resolve(lower: bytes, digits: Wanted, reach: int, *, beyond_ascii: bool = False) -> Iterator[bytes]:
    r"""Yield the stretches of lower-case bytes around escapes, with all escapes resolved.

    Parameters
    ----------
    digits
        Result of `digit_table` for the letters of the values.
    reach
        Number of bytes before and after an escape.
    beyond_ascii
        Whether values have letters beyond ASCII, so that every ``\u`` of JSON counts.
    """
    begin = end = 0
    for index in _escape_indices(lower, digits, beyond_ascii=beyond_ascii):
        if index - reach > end:
            if end:
                yield _resolve_escapes(lower[begin:end])
            begin = max(0, index - reach)
        end = index + reach
    if end:
        yield _resolve_escapes(lower[begin:end])


def strip_line_breaks(raw: bytes) -> bytes:
    """Return bytes without line breaks and indentation, also as JSON escapes: base64 is often split into lines."""
    if b"\\" in raw:
        raw = raw.replace(b"\\n", b"").replace(b"\\r", b"")
    return raw.translate(None, b"\r\n\t \\")


def _escape_indices(lower: bytes, digits: Wanted, *, beyond_ascii: bool) -> list[int]:
    """Return the sorted indices at which an escape of one of the letters, or a character reference, may be."""
    codes = np.frombuffer(lower, np.uint8)
    pairs = (codes[1:-1].astype(np.uint16) << 8) | codes[2:]
    positions = np.flatnonzero(digits[pairs] & _BEFORE_DIGITS[codes[:-2]]).tolist()
    escapes = [index for index in positions if codes[index] != ord("0") or lower[index - 2 : index] == b"u0"]
    references = np.flatnonzero((codes[:-1] == ord("&")) & (codes[1:] == ord("#"))).tolist()
    units = (codes[:-1] == ord("\\")) & (codes[1:] == ord("u")) if beyond_ascii else ()
    return sorted({*escapes, *references, *np.flatnonzero(units).tolist()})


def _resolve_escapes(lower: bytes) -> bytes:
    """Return bytes with escapes resolved, up to `_DEEPEST` levels."""
    for _ in range(_DEEPEST):
        plain = _ESCAPES.sub(_unescape, lower).lower()
        if plain == lower:
            break
        lower = plain
    return lower


def _unescape(match: re.Match[bytes]) -> bytes:
    kind = str(match.lastgroup)
    return match[0] if (plain := _KINDS[kind](match[kind])) is None else plain


def _character(code: int) -> bytes | None:
    return None if code > _LAST or code in _SURROGATES else chr(code).encode()


def _byte(digits: bytes) -> bytes:
    return bytes((int(digits, 16),))


def _named(name: bytes) -> bytes | None:
    text = html5.get(f"{name.decode()};")
    return None if text is None else text.encode()


_KINDS: Final[dict[str, Callable[[bytes], bytes | None]]] = {
    "url": _byte,
    "program": _byte,
    "json": lambda digits: _character(int(digits, 16)),
    "decimal": lambda digits: _character(int(digits)),
    "hexadecimal": lambda digits: _character(int(digits, 16)),
    "word": _named,
    "mail": lambda digits: b"" if digits.endswith(b"\n") else _byte(digits),
    "quoted": lambda letter: letter,
}


_ESCAPE: Final = re.compile(r"\\+u([0-9a-fA-F]{4})")
_MOST_BACKSLASHES: Final = 4
"""Additional backslashes before each escaped letter in three levels of JSON."""
_ROOM: Final = 64
"""Most bytes of quotes, escapes and blanks between a key and its value in JSON."""


@dataclass(frozen=True)
class ShortValues:
    """Short values, folded, the columns in which they match, and their spellings in JSON."""

    values: frozenset[str] = frozenset()
    columns: frozenset[str] = frozenset()
    spelt: frozenset[str] = field(default=frozenset(), repr=False)

    @classmethod
    def of(cls, values: Iterable[str], columns: Iterable[str]) -> Self:
        """Return the patterns for short values in columns."""
        texts = list(values)
        forms = {form for text in texts for form in (text, text.lower(), text.upper(), normalized_name(text))}
        spelt = frozenset(
            json.dumps(form, ensure_ascii=ascii_only)[1:-1] for form in forms for ascii_only in (True, False)
        )
        return cls(frozenset(map(normalized_name, texts)), frozenset(columns), spelt)

    def is_all_of(self, column: str, text: object) -> bool:
        """Return whether a text in a column equals one of the values."""
        return column in self.columns and isinstance(text, str) and normalized_name(text) in self.values

    def rows(self, column: str, values: pa.Array) -> pa.Array:
        """Return a Boolean for each text of a column: whether it equals one of the values. False for NULL."""
        kind = values.type
        if pa.types.is_dictionary(kind):
            return pc.fill_null(self.rows(column, values.dictionary).take(values.indices), fill_value=False)
        if column not in self.columns or not (pa.types.is_string(kind) or pa.types.is_large_string(kind)):
            return pa.repeat(pa.scalar(value=False), len(values))
        return pa.array([self.is_all_of(column, text) for text in values.to_pylist()], pa.bool_())

    @cached_property
    def longest(self) -> int:
        """Most bytes of a key and a value in JSON."""
        sizes = (max((len(text.encode()) for text in texts), default=0) for texts in (self.columns, self.spelt))
        return sum(sizes) + _ROOM if self.columns else 0

    @cached_property
    def _in_json(self) -> re.Pattern[str]:
        """Pattern of a key and its value in JSON, with any number of escapes before the quotes."""
        keys = "|".join(map(re.escape, sorted(self.columns)))
        return re.compile(rf'(\\*"(?:{keys})\\*"\s*:\s*\\*"\s*)([^"]{{1,{self._longest}}}?)(\s*\\*")', re.IGNORECASE)

    @cached_property
    def _longest(self) -> int:
        spelling = max(map(len, self.spelt), default=0)
        return spelling + _MOST_BACKSLASHES * max(map(len, self.values), default=0)

    def _is_value(self, match: re.Match[str]) -> bool:
        return normalized_name(_ESCAPE.sub(lambda escape: chr(int(escape[1], 16)), match[2])) in self.values

    def count(self, raw: bytes) -> int:
        """Return how often JSON bytes contain one of the values under one of the keys."""
        if not self.columns:
            return 0
        return sum(map(self._is_value, self._in_json.finditer(raw.decode("utf-8", "replace"))))

    def replace(self, text: str, by: str) -> str:
        """Return JSON with each of the values replaced."""

        def replacement(match: re.Match[str]) -> str:
            return f"{match[1]}{by}{match[3]}" if self._is_value(match) else match[0]

        return self._in_json.sub(replacement, text) if self.columns else text


NO_SHORT: Final = ShortValues()
