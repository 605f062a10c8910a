r"""Escapes: what bytes stand for that JSON, HTML, URLs, programs and mail write in place of letters, at any depth.

A value is also found where just some of its letters are written so, or all: ``ada%40example%2Eorg``, ``ada&#64;…``,
``ada\u0040…``, ``ada=40…``. Bytes that may be such an escape of a sought letter are few; only around these all
escapes are resolved.

Values that are too short to be looked for as words count where they are all that a column of a table holds, or JSON
under a key that is called like the column. Not in text, such as logs: there a short word may be anything.
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
"""By byte, whether it may stand right before the two digits of an escape: ``%40``, ``=40``, ``x40``, ``u0040``."""

Wanted = npt.NDArray[np.bool_]


def digit_table(letters: Collection[int]) -> Wanted:
    """Return by two bytes, as one number, whether they are the digits of one of some letters, or of an escape."""
    table = np.zeros(2**16, np.bool_)
    for letter in {*letters, *_OPENERS}:
        table[int.from_bytes(b"%02x" % letter)] = True
    return table


def resolve(lower: bytes, digits: Wanted, reach: int, *, beyond_ascii: bool = False) -> Iterator[bytes]:
    r"""Yield what bytes in lower case, near escapes of sought letters, stand for; `reach` bytes before and behind.

    Where letters beyond ASCII are sought, every ``\u`` of JSON may begin one.
    """
    begin = end = 0
    for place in _places(lower, digits, beyond_ascii=beyond_ascii):
        if place - reach > end:
            if end:
                yield _meaning(lower[begin:end])
            begin = max(0, place - reach)
        end = place + reach
    if end:
        yield _meaning(lower[begin:end])


def strip_line_breaks(raw: bytes) -> bytes:
    """Return bytes without what breaks lines, or indents them, in JSON, too: base64 comes in lines."""
    if b"\\" in raw:
        raw = raw.replace(b"\\n", b"").replace(b"\\r", b"")
    return raw.translate(None, b"\r\n\t \\")


def _places(lower: bytes, digits: Wanted, *, beyond_ascii: bool) -> list[int]:
    """Return where two digits of an escape may stand, or a character reference may begin, in order."""
    codes = np.frombuffer(lower, np.uint8)
    pairs = (codes[1:-1].astype(np.uint16) << 8) | codes[2:]
    positions = np.flatnonzero(digits[pairs] & _BEFORE_DIGITS[codes[:-2]]).tolist()
    escapes = [at for at in positions if codes[at] != ord("0") or lower[at - 2 : at] == b"u0"]
    references = np.flatnonzero((codes[:-1] == ord("&")) & (codes[1:] == ord("#"))).tolist()
    units = (codes[:-1] == ord("\\")) & (codes[1:] == ord("u")) if beyond_ascii else ()
    return sorted({*escapes, *references, *np.flatnonzero(units).tolist()})


def _meaning(lower: bytes) -> bytes:
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
    known = html5.get(f"{name.decode()};")
    return None if known is None else known.encode()


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
"""Backslashes more, before each letter that is escaped, where JSON is in JSON in JSON."""
_ROOM: Final = 64
"""Bytes of quotes, escapes and blanks between a key and its value in JSON."""


@dataclass(frozen=True)
class ShortValues:
    """Short values, folded, and names of the columns in which they count."""

    values: frozenset[str] = frozenset()
    columns: frozenset[str] = frozenset()
    spelt: frozenset[str] = field(default=frozenset(), repr=False)

    @classmethod
    def of(cls, values: Iterable[str], columns: Iterable[str]) -> Self:
        """Return values as they count in columns."""
        given = list(values)
        forms = {form for one in given for form in (one, one.lower(), one.upper(), normalized_name(one))}
        spelt = frozenset(
            json.dumps(one, ensure_ascii=ascii_only)[1:-1] for one in forms for ascii_only in (True, False)
        )
        return cls(frozenset(map(normalized_name, given)), frozenset(columns), spelt)

    def is_all_of(self, column: str, text: object) -> bool:
        """Return whether a text is all that a column holds of one."""
        return column in self.columns and isinstance(text, str) and normalized_name(text) in self.values

    def rows(self, column: str, values: pa.Array) -> pa.Array:
        """Return which values of a column of text are one; no NULL."""
        kind = values.type
        if pa.types.is_dictionary(kind):
            return pc.fill_null(self.rows(column, values.dictionary).take(values.indices), fill_value=False)
        if column not in self.columns or not (pa.types.is_string(kind) or pa.types.is_large_string(kind)):
            return pa.repeat(pa.scalar(value=False), len(values))
        return pa.array([self.is_all_of(column, text) for text in values.to_pylist()], pa.bool_())

    @cached_property
    def longest(self) -> int:
        """Bytes that one takes in JSON at most, with its key."""
        sizes = (max((len(one.encode()) for one in some), default=0) for some in (self.columns, self.spelt))
        return sum(sizes) + _ROOM if self.columns else 0

    @cached_property
    def _in_json(self) -> re.Pattern[str]:
        """A key and its value, how often ever the quotes are escaped."""
        keys = "|".join(map(re.escape, sorted(self.columns)))
        return re.compile(rf'(\\*"(?:{keys})\\*"\s*:\s*\\*"\s*)([^"]{{1,{self._longest}}}?)(\s*\\*")', re.IGNORECASE)

    @cached_property
    def _longest(self) -> int:
        return max((len(one) for one in self.spelt), default=0) + _MOST_BACKSLASHES * max(
            map(len, self.values), default=0
        )

    def _is_value(self, match: re.Match[str]) -> bool:
        return normalized_name(_ESCAPE.sub(lambda escape: chr(int(escape[1], 16)), match[2])) in self.values

    def count(self, raw: bytes) -> int:
        """Return how often bytes, as JSON, hold one."""
        if not self.columns:
            return 0
        return sum(map(self._is_value, self._in_json.finditer(raw.decode("utf-8", "replace"))))

    def replace(self, text: str, by: str) -> str:
        """Return JSON with something in the place of each."""

        def other(match: re.Match[str]) -> str:
            return f"{match[1]}{by}{match[3]}" if self._is_value(match) else match[0]

        return self._in_json.sub(other, text) if self.columns else text


NO_SHORT: Final = ShortValues()
