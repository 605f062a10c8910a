"""Search patterns for values: all spellings of a value as plain text and in JSON, HTML, URLs, base64 and hex."""

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
"""Characters of words, for a character class of a regular expression."""
NAMES: Final = "0-9A-Za-z._-"
"""Characters of names of runs, for a character class of a regular expression."""
SHORTEST_WORD: Final = 6
"""Least length of a value that is searched as a word, and of its base64 spelling.

A shorter one would match other rows, which would be erased, too.
"""
_ESCAPES: Final = r"(?<=\\[nrtbfv])|(?<=\\u[0-9A-Fa-f]{4})|(?<=%[0-9A-Fa-f]{2})"
"""Escapes of JSON and URLs. A letter before a value may be the end of an escape instead of a word."""
_UNITS: Final[Mapping[str, tuple[bytes, bytes]]] = {
    "utf-16-le": (b"", b"\x00"),
    "utf-16-be": (b"\x00", b""),
    "utf-32-le": (b"", b"\x00\x00\x00"),
    "utf-32-be": (b"\x00\x00\x00", b""),
}
"""Zero bytes before and after the byte of an ASCII letter, by encoding."""


def in_text(texts: Sequence[str], exact: Sequence[bytes], word_letters: str) -> re.Pattern[str]:
    """Return a pattern that matches any spelling in text as a whole word.

    `word_letters` are the characters of words; empty to match everywhere. Spellings in `exact` match everywhere.
    """
    ordered = sorted(texts, key=len, reverse=True)
    words = [
        f"{_lookbehind(text[0], word_letters)}{re.escape(text)}{_lookahead(text[-1], word_letters)}" for text in ordered
    ]
    codes = [re.escape(spelling.decode()) for spelling in sorted(exact, key=len, reverse=True)]
    return re.compile("|".join((f"(?i:{'|'.join(words)})", *codes)) if words else "(?!)")


def _lookbehind(first: str, word_letters: str) -> str:
    """Return the condition before a spelling: no letter of a word precedes it, or one that ends an escape."""
    return f"(?:(?<![{word_letters}])|{_ESCAPES})" if _is_word_letter(first, word_letters) else ""


def _lookahead(last: str, word_letters: str) -> str:
    return f"(?![{word_letters}])" if _is_word_letter(last, word_letters) else ""


def _is_word_letter(letter: str, word_letters: str) -> bool:
    return bool(word_letters) and re.match(f"[{word_letters}]", letter, re.IGNORECASE) is not None


def bounded_pattern(spelling: bytes, coding: str, word_letters: str) -> re.Pattern[bytes]:
    """Return a pattern that matches a spelling in lower-case bytes as a whole word, in an encoding."""
    front, back = _UNITS.get(coding, (b"", b""))
    ends = (len(front), len(spelling) - 1 - len(back))
    first, last = (spelling[index : index + 1].decode("latin-1") for index in ends)
    unit = front + f"[{word_letters.lower()}]".encode() + back
    before = b"(?<!" + unit + b")" if _is_word_letter(first, word_letters) else b""
    if before and not front + back:
        before = b"(?:" + before + b"|" + _ESCAPES.encode() + b")"
    after = b"(?!" + unit + b")" if _is_word_letter(last, word_letters) else b""
    return re.compile(before + re.escape(spelling) + after)


_LAST = 0x1FFFF
"""Code points above it have no case."""
_NO_TEXT = "\ufffd"
_TEXTS = re.compile(rf"[^{_NO_TEXT}\x00-\x08\x0e-\x1f\x7f-\x9f]{{4,}}")


def fold(raw: bytes) -> bytes:
    """Return UTF-8 bytes with case folded, in NFC. Invalid bytes separate words.

    >>> fold("Zoë ÅNGSTRÖM".encode()).decode()
    'zoë ångström'
    """
    if raw.isascii():
        return raw.lower()
    text = raw.decode("utf-8", "replace")
    if _NO_TEXT in text:  # of binary data, fold only the stretches that may be text: about a tenth of it
        text = _NO_TEXT.join(_TEXTS.findall(text))
    return normalize("NFC", normalize("NFD", text).casefold()).encode()


def cases(text: str) -> tuple[str, ...]:
    """Return a text as given, in lower case, in upper case, and with capital first letters."""
    return tuple(dict.fromkeys((text, text.lower(), text.upper(), text.title())))


def equivalent_letters(text: str) -> Iterator[str]:
    """Yield all letters that fold to letters of a folded text, including composed and decomposed letters."""
    letters = {*text, *normalize("NFD", text)}
    yield from letters
    yield from (letter for letter, parts in _folding().items() if letters & parts)


@cache
def _folding() -> dict[str, frozenset[str]]:
    """Return, for each letter that changes when folded, the letters of the result, composed and decomposed."""
    letters = {}
    for letter in map(chr, (*range(0xD800), *range(0xE000, _LAST))):
        other = normalized_name(letter)
        if other != letter:
            letters[letter] = frozenset({*other, *normalize("NFD", other)})
    return letters


SHORTEST: Final = 4
"""Least length of a value; a shorter one would match everywhere."""
_MASK: Final = "<value>"
_CODINGS: Final = ("utf-16-le", "utf-16-be", "utf-32-le", "utf-32-be", "latin-1")
_BREAKS: Final = 64
"""Most bytes of line breaks and indentation within base64. Pieces of a file that are searched overlap by as much."""
_PER_LETTER: Final = 8
"""Most bytes of an escape of a letter, such as ``\\\\u0040``, that is found across two pieces of a file."""
_CODED: Final = ("utf-8", "utf-16-le")
_MOST_PER_LETTER: Final = 3
"""Largest ratio of the bytes of a value to those of the folded value: decomposed, or in capitals."""
_SEALED_MARK: Final = b"s-"
_SEALED_BYTES: Final = 2**16
"""Most bytes of a sealed text that is found across two pieces of a file."""


class NeedleError(RanklakeError):
    """A value cannot be searched for."""


@dataclass(frozen=True)
class Needles:
    """Search patterns for some values.

    Attributes
    ----------
    texts
        Spellings in text, for a search that ignores case.
    folded, coded, exact
        Spellings as bytes. `folded`: UTF-8 after `fold`. `coded`: other encodings and hex, in lower case. `exact`:
        base64, whose case counts.
    plain
        The folded values themselves, for texts whose escapes are resolved.
    text
        Pattern that matches a spelling in text as a whole word.
    edges
        Pattern by spelling in bytes that matches it as a whole word. A spelling without a pattern matches everywhere.
    unseal
        Returns the clear text of a text that is sealed under a key of a person, or None. None without keys.
    short
        Values that are too short to search for as words; they match only as the whole content of a column.
    """

    texts: tuple[str, ...]
    folded: tuple[bytes, ...]
    coded: tuple[bytes, ...]
    exact: tuple[bytes, ...]
    plain: tuple[bytes, ...]
    text: re.Pattern[str]
    edges: Mapping[bytes, re.Pattern[bytes]] = field(default_factory=dict)
    unseal: Callable[[str], str | None] | None = None
    short: ShortValues = NO_SHORT

    @cached_property
    def longest(self) -> int:
        """Most bytes of a spelling, including escapes and line breaks."""
        plain = _MOST_PER_LETTER * max(map(len, self.plain), default=0)
        coded = max((_MOST_PER_LETTER * len(spelling) for spelling in self.folded), default=0)
        coded = max(coded, max(map(len, self.coded + self.exact), default=0))
        sealed = 0 if self.unseal is None else _SEALED_BYTES
        return max(_PER_LETTER * plain, coded + _BREAKS, self.short.longest, sealed)

    @cached_property
    def _escape_digits(self) -> Wanted:
        letters = {letter for value in self.plain for letter in equivalent_letters(value.decode())}
        codes = {number for letter in letters for number in (*letter.encode(), ord(letter) & 255)}
        return digit_table(codes)

    def count(self, raw: bytes) -> int:
        """Return how often bytes contain a value, also in sealed texts that can be opened.

        A place may match several spellings, so the result is the count of the most frequent spelling.
        """
        return self._count_clear(raw) + self._count_sealed(raw) + self.short.count(raw)

    def _count_sealed(self, raw: bytes) -> int:
        if self.unseal is None or _SEALED_MARK not in raw:
            return 0
        texts = (self.unseal(match[0].decode()) for match in SEALED.finditer(raw))
        return sum(self._count_clear(text.encode("utf-8", "surrogatepass")) for text in texts if text is not None)

    def _count_clear(self, raw: bytes) -> int:
        if not self.folded:
            return 0
        lower, folded, joined = raw.lower(), fold(raw), strip_line_breaks(raw)
        counts = [self._count_spelling(folded, spelling) for spelling in self.folded]
        counts += [self._count_spelling(lower, spelling) for spelling in self.coded]
        counts += [joined.count(spelling) for spelling in self.exact]
        beyond_ascii = not all(map(bytes.isascii, self.plain))
        resolved = map(fold, resolve(lower, self._escape_digits, self.longest, beyond_ascii=beyond_ascii))
        escaped = sum(max(self._count_spelling(part, value) for value in self.plain) for part in resolved)
        return max(*counts, escaped)

    def _count_spelling(self, lower: bytes, spelling: bytes) -> int:
        count = lower.count(spelling)
        return len(self.edges[spelling].findall(lower)) if count and spelling in self.edges else count

    def replace(self, text: str, by: str) -> str:
        """Return a text with each value replaced. Spellings that are not in `texts` or `exact` may remain."""
        return self.short.replace(self.text.sub(lambda _: by, text), by)

    def mask_name(self, name: str) -> str:
        """Return a name for display, with the values in it masked."""
        words = [f"(?i:{re.escape(text)})" for text in sorted(self.texts, key=len, reverse=True)]
        codes = [re.escape(spelling.decode()) for spelling in sorted(self.exact, key=len, reverse=True)]
        masked = re.sub("|".join((*words, *codes)), _MASK, name) if words else name
        rest = masked.replace(_MASK, "\0")  # the mask itself may match a value
        return _MASK if self._count_clear(rest.encode(errors="replace")) else masked


def make_needles(values: Iterable[str], word_letters: str = "", columns: Iterable[str] = ()) -> Needles:
    """Return search patterns for values.

    Parameters
    ----------
    word_letters
        Characters of words, such as `WORDS`. A value next to one of them is part of a longer word and does not match.
        By default a value matches everywhere.
    columns
        Columns of tables in which a shorter value matches as the whole content. Without them it is refused.

    Raises `NeedleError` if there are no values, or if a value is too short or is no text.
    """
    given = [value.strip() for value in values if value.strip()]
    if not given:
        raise NeedleError("no value to look for", hint="give values as arguments, or one a line on standard input: -")
    least = SHORTEST_WORD if word_letters == WORDS else SHORTEST
    short_values = [value for value in given if len(value) < least]
    short = ShortValues.of(short_values, columns) if short_values else NO_SHORT
    if short_values and not short.columns:
        if word_letters == NAMES:
            flaw = f"the name of the run has fewer than {least} characters, which other data holds by chance"
            raise NeedleError(flaw, hint="it cannot be erased everywhere; retention removes its rows in time")
        hint = f"give at least {least} characters, such as the whole address"
        if word_letters == WORDS:
            hint += (
                ". To erase a shorter account name, name the columns that contain nothing else, such as --column user; "
            )
            hint += "or erase its runs one by one with 'ranklake erase plan --run RUN'"
            hint += """, after ranklake sql "SELECT run FROM runs WHERE \\"user\\" = 'ACCOUNT'\""""
        raise NeedleError("a value is so short that it would be found everywhere", hint=hint)
    if any("\ud800" <= letter <= "\udfff" for value in given for letter in value):
        raise NeedleError("a value is no text in UTF-8", hint="write it in UTF-8")
    given = [value for value in given if len(value) >= least]
    forms = [normalize(form, value) for value in given for form in ("NFC", "NFD")]
    spellings = dict.fromkeys(spelling for value in forms for spelling in _spellings_of(value))
    folded = dict.fromkeys(fold(spelling.encode()) for spelling in spellings)
    coded: dict[bytes, str] = {}
    for spelling in dict.fromkeys(case for value in spellings for case in cases(value)):
        for coding in _CODINGS:
            coded |= {raw.lower(): coding for raw in _encodings(spelling, coding) if raw.lower() not in coded}
    coded = {raw: coding for raw, coding in coded.items() if raw not in folded}
    cased = dict.fromkeys(case for value in forms for case in cases(value))
    encodings = [(value, coding) for value in cased for coding in _CODED]
    hexed = dict.fromkeys(raw.hex().encode() for value, coding in encodings for raw in _encodings(value, coding))
    based = dict.fromkeys(part for value, coding in encodings for part in _base64(value.encode(coding)))
    texts = dict.fromkeys(spelling.lower() for spelling in spellings)
    plain = dict.fromkeys(fold(value.encode()) for value in given)
    exact = tuple(part for part in based if not word_letters or len(part) >= SHORTEST_WORD)
    codings = coded | dict.fromkeys(folded, "utf-8")
    edges = {raw: bounded_pattern(raw, coding, word_letters) for raw, coding in codings.items()} if word_letters else {}
    pattern = in_text(tuple(texts), exact, word_letters)
    return Needles(tuple(texts), tuple(folded), (*coded, *hexed), exact, tuple(plain), pattern, edges, short=short)


def _encodings(text: str, coding: str) -> Iterator[bytes]:
    """Yield a text in an encoding; nothing if the encoding lacks one of its letters."""
    try:
        yield text.encode(coding)
    except UnicodeEncodeError:
        return


def _spellings_of(value: str) -> Iterator[str]:
    """Yield a value as it appears in plain text, JSON, HTML, XML and URLs, also with JSON or URL escapes twice."""
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
    """Yield the part of bytes' base64 that does not depend on the bytes around them, for each of three offsets."""
    for offset in range(3):
        coded = base64.b64encode(b"\0" * offset + raw).rstrip(b"=")
        first = -(-offset * 8 // 6)
        part = coded[first : (offset + len(raw)) * 8 // 6]
        if len(part) >= SHORTEST:
            yield part
            yield part.translate(bytes.maketrans(b"+/", b"-_"))
