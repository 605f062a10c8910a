r"""Escapes: what bytes stand for that JSON, HTML, URLs, programs and mail write in place of letters, at any depth.

A value is also found where just some of its letters are written so, or all: ``ada%40example%2Eorg``, ``ada&#64;…``,
``ada\u0040…``, ``ada=40…``. Bytes that may be such an escape of a sought letter are few; only around these all
escapes are resolved.
"""

import re
from collections.abc import Callable, Collection, Iterator
from html.entities import html5
from typing import Final

import numpy as np
import numpy.typing as npt

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


def wanted(letters: Collection[int]) -> Wanted:
    """Return by two bytes, as one number, whether they are the digits of one of some letters, or of an escape."""
    table = np.zeros(2**16, np.bool_)
    for letter in {*letters, *_OPENERS}:
        table[int.from_bytes(b"%02x" % letter)] = True
    return table


def resolved(lower: bytes, digits: Wanted, reach: int, *, beyond_ascii: bool = False) -> Iterator[bytes]:
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


def unbroken(raw: bytes) -> bytes:
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
        plain = _ESCAPES.sub(_meant, lower).lower()
        if plain == lower:
            break
        lower = plain
    return lower


def _meant(match: re.Match[bytes]) -> bytes:
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
