"""Tables of text: the one way in which commands line up columns."""

import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass


def columns_of(text: str) -> int:
    """Return how many columns of a terminal a text takes: letters of East Asia take two, marks upon a letter none."""
    if text.isascii():
        return len(text)
    return sum(
        0 if unicodedata.combining(one) else 2 if unicodedata.east_asian_width(one) in {"W", "F"} else 1 for one in text
    )


@dataclass(frozen=True, slots=True)
class TextColumn:
    """A column of a table.

    Attributes
    ----------
    title
        Its head.
    width
        Characters that it takes at least; it grows with its longest cell.
    is_right
        Whether its cells stand at its right end, as numbers do.
    """

    title: str
    width: int = 0
    is_right: bool = False


def numbers(titles: Iterable[str], width: int = 0) -> list[TextColumn]:
    """Return columns of numbers."""
    return [TextColumn(title, width, is_right=True) for title in titles]


def table_lines(
    columns: Sequence[TextColumn],
    rows: Iterable[Sequence[str]],
    *,
    gap: str = "  ",
    rule: str = "",
    has_head: bool = True,
) -> list[str]:
    """Return a table as lines without spaces at their ends: the head, a rule if there is one, and a line a row.

    Parameters
    ----------
    rows
        Cells as text; a row may be shorter than the head.
    gap
        What stands between columns.
    rule
        What stands between the columns' dashes under the head; empty for no rule.
    """
    shown = [list(row) for row in rows]
    heads = [[one.title for one in columns]] if has_head else []
    widths = [
        max([one.width, *(columns_of(row[place]) for row in (*heads, *shown) if place < len(row))])
        for place, one in enumerate(columns)
    ]
    rules = [rule.join("-" * width for width in widths)] if rule else []
    lines = [
        gap.join(
            _filled(cell, width, is_right=one.is_right) for cell, width, one in zip(row, widths, columns, strict=False)
        ).rstrip()
        for row in (*heads, *shown)
    ]
    return [*lines[: len(heads)], *rules, *lines[len(heads) :]]


def fitting(columns: Sequence[TextColumn], rows: Iterable[Sequence[str]], width: int | None) -> list[str]:
    """Return a table no wider than a terminal where that can be: columns at its right end are left out, and counted.

    Parameters
    ----------
    columns
        Those that matter most first. The first stays whatever its width; lines that are too wide all the same are cut.
    width
        Characters of a line; None where nothing is too wide.
    """
    cells = [list(row) for row in rows]
    for count in range(len(columns), 0, -1):
        lines = table_lines(columns[:count], [row[:count] for row in cells])
        if width is None or count == 1 or max(map(columns_of, lines)) <= width:
            break
    if width is not None:
        lines = [_cut(line, width) for line in lines]
    left_out = len(columns) - count
    return [*lines, f"({left_out} more in a wider terminal)"] if left_out else lines


def _filled(cell: str, width: int, *, is_right: bool) -> str:
    spaces = " " * max(width - columns_of(cell), 0)
    return f"{spaces}{cell}" if is_right else f"{cell}{spaces}"


def _cut(line: str, width: int) -> str:
    if columns_of(line) <= width:
        return line
    while columns_of(line) >= width:
        line = line[:-1]
    return f"{line}…"
