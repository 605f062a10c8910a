"""The spellings of a value that is looked for: as it is, and as JSON, HTML, URLs, base64 and hex have it."""

import base64
import html
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from typing import Final
from unicodedata import normalize
from urllib.parse import quote, quote_plus

from ranklake.errors import RanklakeError
from ranklake.retention.erasure.escapes import NO_SHORT, ShortValues, Wanted, digit_table, resolve, strip_line_breaks
from ranklake.retention.subjects.keys import SEALED, normalized_name

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
    spelt = [f"{_lookbehind(one[0], within)}{re.escape(one)}{_lookahead(one[-1], within)}" for one in ordered]
    coded = [re.escape(one.decode()) for one in sorted(exact, key=len, reverse=True)]
    return re.compile("|".join((f"(?i:{'|'.join(spelt)})", *coded)) if spelt else "(?!)")


def _lookbehind(first: str, within: str) -> str:
    """Return what must stand before a spelling that begins so: no word, unless an escape ends there."""
    return f"(?:(?<![{within}])|{_ESCAPES})" if _is_of(within, first) else ""


def _lookahead(last: str, within: str) -> str:
    return f"(?![{within}])" if _is_of(within, last) else ""


def _is_of(within: str, letter: str) -> bool:
    return bool(within) and re.match(f"[{within}]", letter, re.IGNORECASE) is not None


def bounded_pattern(spelling: bytes, coding: str, within: str) -> re.Pattern[bytes]:
    """Return what matches a spelling as bytes, in lower case, where it counts."""
    front, back = _UNITS.get(coding, (b"", b""))
    first, last = (spelling[at : at + 1].decode("latin-1") for at in (len(front), len(spelling) - 1 - len(back)))
    unit = front + f"[{within.lower()}]".encode() + back
    before = b"(?<!" + unit + b")" if _is_of(within, first) else b""
    if before and not front + back:
        before = b"(?:" + before + b"|" + _ESCAPES.encode() + b")"
    behind = b"(?!" + unit + b")" if _is_of(within, last) else b""
    return re.compile(before + re.escape(spelling) + behind)


_LAST = 0x1FFFF
"""Beyond it no letter has a case."""
_NO_TEXT = "\ufffd"
_TEXTS = re.compile(rf"[^{_NO_TEXT}\x00-\x08\x0e-\x1f\x7f-\x9f]{{4,}}")


def fold(raw: bytes) -> bytes:
    """Return bytes with their UTF-8 folded as `folded` does. Bytes that are no UTF-8 join no words.

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


def equivalent_letters(text: str) -> Iterator[str]:
    """Yield the letters that may stand for those of a folded text, composed and decomposed ones among them."""
    wanted = {*text, *normalize("NFD", text)}
    yield from wanted
    yield from (letter for letter, parts in _folding().items() if wanted & parts)


@cache
def _folding() -> dict[str, frozenset[str]]:
    """Return by letter that folds to others the letters of what it folds to, composed and decomposed."""
    letters = {}
    for letter in map(chr, (*range(0xD800), *range(0xE000, _LAST))):
        other = normalized_name(letter)
        if other != letter:
            letters[letter] = frozenset({*other, *normalize("NFD", other)})
    return letters


SHORTEST: Final = 4
"""Characters of a value; a shorter one would be found everywhere."""
_MASK: Final = "<value>"
_CODINGS: Final = ("utf-16-le", "utf-16-be", "utf-32-le", "utf-32-be", "latin-1")
_BREAKS: Final = 64
"""Bytes of line breaks and indentation within base64 that is still found where a file is read in pieces."""
_PER_LETTER: Final = 8
"""Bytes of an escape of a letter at most, such as ``\\\\u0040``; longer ones are found within a piece alone."""
_CODED: Final = ("utf-8", "utf-16-le")
_MOST_PER_LETTER: Final = 3
"""By how much bytes of a value are more, at most, than those of the value folded: decomposed, or in capitals."""
_SEALED_MARK: Final = b"s-"
_SEALED_BYTES: Final = 2**16
"""Of a sealed text that is still found where a file is read in pieces."""


class NeedleError(RanklakeError):
    """A value that cannot be looked for."""


@dataclass(frozen=True)
class Needles:
    """What to look for.

    Attributes
    ----------
    texts
        Spellings in text: letters of either case are the same.
    folded, coded, exact
        Spellings as bytes: in UTF-8 as `fold` gives them, in other codings and hex in lower case, and those of base64,
        which tells cases apart.
    plain
        Those of `folded` that escapes stand for.
    text
        What matches a spelling in text where it counts.
    edges
        By spelling as bytes what matches it where it counts. One that is not there counts wherever it stands.
    opened
        What gives in clear a text that is sealed under a key of a person, or None; a value may be in there. None where
        no keys are at hand.
    short
        Values that are too short to be looked for as words, and where they count: as all that a column holds.
    """

    texts: tuple[str, ...]
    folded: tuple[bytes, ...]
    coded: tuple[bytes, ...]
    exact: tuple[bytes, ...]
    plain: tuple[bytes, ...]
    text: re.Pattern[str]
    edges: Mapping[bytes, re.Pattern[bytes]] = field(default_factory=dict)
    opened: Callable[[str], str | None] | None = None
    short: ShortValues = NO_SHORT

    @cached_property
    def longest(self) -> int:
        """Bytes that a spelling takes at most, escapes and lines that break it among them."""
        plain = _MOST_PER_LETTER * max(map(len, self.plain), default=0)
        coded = max((_MOST_PER_LETTER * len(one) for one in self.folded), default=0)
        coded = max(coded, max(map(len, self.coded + self.exact), default=0))
        sealed = 0 if self.opened is None else _SEALED_BYTES
        return max(_PER_LETTER * plain, coded + _BREAKS, self.short.longest, sealed)

    @cached_property
    def _digits(self) -> Wanted:
        letters = {letter for one in self.plain for letter in equivalent_letters(one.decode())}
        codes = {number for letter in letters for number in (*letter.encode(), ord(letter) & 255)}
        return digit_table(codes)

    def count(self, raw: bytes) -> int:
        """Return how often bytes hold a value; where one spelling holds another, the most frequent counts.

        What is sealed in them counts, too, where it can be opened.
        """
        return self._spelt_in(raw) + self._sealed_in(raw) + self.short.count(raw)

    def _sealed_in(self, raw: bytes) -> int:
        if self.opened is None or _SEALED_MARK not in raw:
            return 0
        clear = (self.opened(found[0].decode()) for found in SEALED.finditer(raw))
        return sum(self._spelt_in(text.encode("utf-8", "surrogatepass")) for text in clear if text is not None)

    def _spelt_in(self, raw: bytes) -> int:
        if not self.folded:
            return 0
        lower, folded, whole = raw.lower(), fold(raw), strip_line_breaks(raw)
        counts = [self._times(folded, one) for one in self.folded] + [self._times(lower, one) for one in self.coded]
        counts += [whole.count(one) for one in self.exact]
        near = map(
            fold, resolve(lower, self._digits, self.longest, beyond_ascii=not all(map(bytes.isascii, self.plain)))
        )
        return max(*counts, sum(max(self._times(some, one) for one in self.plain) for some in near))

    def _times(self, lower: bytes, spelling: bytes) -> int:
        count = lower.count(spelling)
        return len(self.edges[spelling].findall(lower)) if count and spelling in self.edges else count

    def replace(self, text: str, by: str) -> str:
        """Return a text with something in the place of each value, as far as it is spelt out."""
        return self.short.replace(self.text.sub(lambda _: by, text), by)

    def mask_name(self, name: str) -> str:
        """Return a name that can be shown: values in it are left out, in one pass over it, wherever they stand."""
        spelt = [f"(?i:{re.escape(text)})" for text in sorted(self.texts, key=len, reverse=True)]
        coded = [re.escape(one.decode()) for one in sorted(self.exact, key=len, reverse=True)]
        shown = re.sub("|".join((*spelt, *coded)), _MASK, name) if spelt else name
        rest = shown.replace(_MASK, "\0")  # which may hold a value itself
        return _MASK if self._spelt_in(rest.encode(errors="replace")) else shown


def needles(values: Iterable[str], within: str = "", columns: Iterable[str] = ()) -> Needles:
    """Return the spellings of some values.

    Parameters
    ----------
    within
        Characters of words, such as `WORDS`: a value that one of them stands beside is
        part of a longer word, and does not count. By default it counts wherever it stands.

    columns
        Of tables: where a shorter value counts that is all they hold; else it is refused.

    Raises `NeedleError` if there are none, or one is too short, or no text.
    """
    given = [value.strip() for value in values if value.strip()]
    if not given:
        raise NeedleError("no value to look for", hint="give values as arguments, or one a line on standard input: -")
    least = LEAST if within == WORDS else SHORTEST
    few = [value for value in given if len(value) < least]
    short = ShortValues.of(few, columns) if few else NO_SHORT
    if few and not short.columns:
        if within == NAMES:
            flaw = f"the name of the run has fewer than {least} characters, which other data holds by chance"
            raise NeedleError(flaw, hint="it cannot be erased everywhere; retention removes its rows in time")
        hint = f"give at least {least} characters, such as the whole address"
        if within == WORDS:
            hint += (
                "; of a shorter account name the columns that hold just that, with --column user; or erase the runs, "
            )
            hint += "each with 'ranklake erase plan --run RUN'"
            hint += """: ranklake sql "SELECT run FROM runs WHERE \\"user\\" = 'ACCOUNT'" lists them"""
        raise NeedleError("a value is so short that it would be found everywhere", hint=hint)
    if any("\ud800" <= one <= "\udfff" for value in given for one in value):
        raise NeedleError("a value is no text in UTF-8", hint="write it in UTF-8")
    given = [value for value in given if len(value) >= least]
    forms = [normalize(form, value) for value in given for form in ("NFC", "NFD")]
    spelt = dict.fromkeys(one for value in forms for one in _spellings_of(value))
    folded = dict.fromkeys(fold(one.encode()) for one in spelt)
    coded: dict[bytes, str] = {}
    for spelling in dict.fromkeys(case for value in spelt for case in cases(value)):
        for coding in _CODINGS:
            coded |= {raw.lower(): coding for raw in _encodings(spelling, coding) if raw.lower() not in coded}
    coded = {raw: coding for raw, coding in coded.items() if raw not in folded}
    cased = dict.fromkeys(one for value in forms for one in cases(value))
    hexed = dict.fromkeys(raw.hex().encode() for one in cased for coding in _CODED for raw in _encodings(one, coding))
    based = dict.fromkeys(one for value in cased for coding in _CODED for one in _base64(value.encode(coding)))
    texts = dict.fromkeys(one.lower() for one in spelt)
    plain = dict.fromkeys(fold(value.encode()) for value in given)
    exact = tuple(one for one in based if not within or len(one) >= LEAST)
    codings = coded | dict.fromkeys(folded, "utf-8")
    edges = {one: bounded_pattern(one, coding, within) for one, coding in codings.items()} if within else {}
    pattern = in_text(tuple(texts), exact, within)
    return Needles(tuple(texts), tuple(folded), (*coded, *hexed), exact, tuple(plain), pattern, edges, short=short)


def _encodings(text: str, coding: str) -> Iterator[bytes]:
    """Yield a text in a coding that has all of its letters: without some of them it would be another text."""
    try:
        yield text.encode(coding)
    except UnicodeEncodeError:
        return


def _spellings_of(value: str) -> Iterator[str]:
    """Yield a value as texts have it; what is in JSON, or in a URL, may be so again."""
    yield value
    inner = value
    for _ in range(2):
        for ascii_only in (True, False):
            escaped = json.dumps(inner, ensure_ascii=ascii_only)[1:-1]
            yield escaped
            yield escaped.replace("/", "\\/")
        inner = json.dumps(inner)[1:-1]
    yield html.escape(value)
    yield html.escape(value).replace("&#x27;", "&#39;").replace("&quot;", "&#34;")
    yield html.escape(value).replace("&#x27;", "&apos;")
    yield value.encode("ascii", "xmlcharrefreplace").decode()
    for safe in ("", "/", "@", "/@"):
        once = quote(value, safe=safe)
        yield once
        yield quote(once, safe="")
    yield quote_plus(value)


def _base64(raw: bytes) -> Iterator[bytes]:
    """Yield what base64 of bytes around them has of them for sure, wherever they begin."""
    for before in range(3):
        coded = base64.b64encode(b"\0" * before + raw).rstrip(b"=")
        first = -(-before * 8 // 6)
        sure = coded[first : (before + len(raw)) * 8 // 6]
        if len(sure) >= SHORTEST:
            yield sure
            yield sure.translate(bytes.maketrans(b"+/", b"-_"))
