"""Makes untrusted text safe to print, on one line; formats counts, ranks and durations.

Values come from training processes, file names and other tools' logs. An escape sequence in them could clear earlier
output, move the cursor or set the clipboard; a newline could forge a line.
"""

import re
from collections.abc import Sequence
from typing import Final

# Control characters of ASCII and of Latin-1, ends of lines, halves of characters, and format characters (category Cf of
# Unicode): invisible ones, which reverse the direction of writing or make different words look the same. The two
# joiners, U+200C and U+200D, stay: words of some scripts and emoji are written with them.
_FORMAT: Final = (
    "\u00ad\u0600-\u0605\u061c\u06dd\u070f\u0890\u0891\u08e2\u180e\u200b\u200e\u200f\u202a-\u202e\u2060-\u206f\ufeff"
    "\ufff9-\ufffb\U000110bd\U000110cd\U00013430-\U0001343f\U0001bca0-\U0001bca3\U0001d173-\U0001d17a"
    "\U000e0000-\U000e007f"
)
_CONTROL: Final = f"\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff{_FORMAT}"
_UNSAFE: Final = re.compile(f"[{_CONTROL}]")
_UNSAFE_IN_A_LINE: Final = re.compile(f"[{_CONTROL}\n\t]")


def printable(text: str) -> str:
    r"""Return a text as one line with control characters as escapes, such as ``\x1b`` and ``\n``."""
    return _UNSAFE_IN_A_LINE.sub(lambda match: escape_characters(match[0]), text)


def printable_lines(text: str) -> str:
    """Return a text with control characters as escapes, except newlines and tabs."""
    return _UNSAFE.sub(lambda match: escape_characters(match[0]), text)


def printable_name(text: str) -> str:
    """Return a name that is safe in any terminal, table and plan: also escapes invisible and unusual characters."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(char if char.isprintable() else escape_characters(char) for char in text)


def escape_characters(text: str) -> str:
    """Return characters as their escapes in Python."""
    return text.encode("unicode_escape").decode("ascii")


def shorten(text: str, most: int) -> str:
    """Return a text, or its first `most` characters and an ellipsis if it is longer.

    >>> shorten("wide, no dropout", 6), shorten("wide", 6)
    ('wide, …', 'wide')
    """
    return text if len(text) <= most else f"{text[:most]}…"


def fit(text: str, most: int) -> str:
    """Return a text in at most `most` characters, the last of them an ellipsis if it is longer.

    >>> fit("wide, no dropout", 6), fit("wide", 6)
    ('wide,…', 'wide')
    """
    return text if len(text) <= most else f"{text[: most - 1]}…"


def counted(count: float, noun: str, plural: str = "") -> str:
    """Return a count with its noun.

    >>> counted(1, "row"), counted(2_000, "row"), counted(2, "process", "processes")
    ('1 row', '2,000 rows', '2 processes')
    """
    return f"{count:,.0f} {noun if count == 1 else plural or f'{noun}s'}"


_FEWEST_IN_A_ROW: Final = 3
_SHOWN_GROUPS: Final = 8


def ranks_text(ranks: Sequence[int], *, capital: bool = False) -> str:
    """Return ranks as text: ranges of three or more by first and last, and the total if some are left out.

    >>> ranks_text([0, 1, 2, 3, 7]), ranks_text([5], capital=True)
    ('ranks 0 to 3, 7', 'Rank 5')
    """
    groups: list[list[int]] = []
    for rank in ranks:
        if groups and rank == groups[-1][-1] + 1:
            groups[-1].append(rank)
        else:
            groups.append([rank])
    shown = [
        f"{group[0]} to {group[-1]}" if len(group) >= _FEWEST_IN_A_ROW else ", ".join(map(str, group))
        for group in groups[:_SHOWN_GROUPS]
    ]
    noun = "rank" if len(ranks) == 1 else "ranks"
    more = f", … ({len(ranks):,})" if len(groups) > _SHOWN_GROUPS else ""
    return f"{noun.capitalize() if capital else noun} {', '.join(shown)}{more}"


def duration(seconds: float, *, in_minutes: bool = False) -> str:
    """Return a duration as text: in seconds up to ten minutes (unless `in_minutes`), in days from two on.

    >>> duration(0.0123), duration(75), duration(7_300), duration(400_000)
    ('0.012 s', '75 s', '2.0 h', '4.6 days')
    >>> duration(59, in_minutes=True), duration(150, in_minutes=True)
    ('1 min', '2 min')
    """
    if seconds < 10 * 60 and not in_minutes:
        return f"{seconds:.2g} s" if seconds < 1 else f"{seconds:.3g} s"
    if seconds < 90 * 60:
        return f"{max(1, round(seconds / 60))} min"
    return f"{seconds / 3600:.1f} h" if seconds < 2 * 86_400 else f"{seconds / 86_400:.1f} days"
