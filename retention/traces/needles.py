"""The spellings of a value that is looked for: as it is, and as JSON, HTML, URLs and base64 have it."""

import base64
import html
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final
from urllib.parse import quote, quote_plus

from ranklake.errors import RanklakeError

SHORTEST: Final = 4
"""Characters of a value; a shorter one would be found everywhere."""
_MASK: Final = "<value>"


class NeedleError(RanklakeError):
    """A value that cannot be looked for."""


@dataclass(frozen=True, slots=True)
class Needles:
    """What to look for.

    Attributes
    ----------
    texts
        Spellings in text, in lower case: letters of either case are the same.
    folded, exact
        Spellings as bytes: in lower case, and those of base64, which tells cases apart.
    """

    texts: tuple[str, ...]
    folded: tuple[bytes, ...]
    exact: tuple[bytes, ...]

    @property
    def longest(self) -> int:
        """Bytes of the longest spelling."""
        return max(map(len, (*self.folded, *self.exact)))

    def count(self, raw: bytes) -> int:
        """Return how often bytes hold a value; where one spelling holds another, the most frequent counts."""
        lower = raw.lower()
        told = [lower.count(one) for one in self.folded] + [raw.count(one) for one in self.exact]
        return max(told)

    def masked(self, name: str) -> str:
        """Return a name that can be shown: values in it are left out."""
        for one in sorted(self.texts, key=len, reverse=True):
            while (at := name.lower().find(one)) >= 0:
                name = name[:at] + _MASK + name[at + len(one) :]
        return name


def needles(values: Iterable[str]) -> Needles:
    """Return the spellings of some values. Raises `NeedleError` if there are none, or one is too short."""
    given = [value.strip() for value in values if value.strip()]
    if not given:
        raise NeedleError("no value to look for", mend="give values as arguments, or one a line on standard input: -")
    if any(len(value) < SHORTEST for value in given):
        mend = f"give at least {SHORTEST} characters"
        raise NeedleError("a value is so short that it would be found everywhere", mend=mend)
    texts = dict.fromkeys(spelling.lower() for value in given for spelling in _spelt(value))
    cases = [spelling for value in given for one in _spelt(value) for spelling in (one, one.lower(), one.upper())]
    # bytes know the case of ASCII's letters alone
    plain = dict.fromkeys(one.encode(coding).lower() for one in cases for coding in ("utf-8", "utf-16-le"))
    coded = dict.fromkeys(one for value in given for one in _base64(value.encode()))
    return Needles(tuple(texts), tuple(plain), tuple(coded))


def _spelt(value: str) -> Iterator[str]:
    """Yield a value as texts have it; what is in JSON may be in JSON again."""
    yield value
    inner = value
    for _ in range(2):
        for ascii_only in (True, False):
            yield json.dumps(inner, ensure_ascii=ascii_only)[1:-1]
        inner = json.dumps(inner)[1:-1]
    yield html.escape(value)
    yield quote(value, safe="")
    yield quote(value)
    yield quote_plus(value)


def _base64(raw: bytes) -> Iterator[bytes]:
    """Yield what base64 of bytes around them has of them for sure, wherever they begin."""
    for before in range(3):
        coded = base64.b64encode(b"\0" * before + raw).rstrip(b"=")
        first = -(-before * 8 // 6)
        sure = coded[first : (before + len(raw)) * 8 // 6]
        if len(sure) > SHORTEST:
            yield sure
            yield sure.translate(bytes.maketrans(b"+/", b"-_"))
