"""Tables of text with aligned columns."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from rich.cells import cell_len, set_cell_size


@dataclass(frozen=True, slots=True)
class TextColumn:
    """A column of a table.

    Attributes
    ----------
    title
        Its title.
    width
        Its least width in characters; it grows with its longest cell.
    is_right
        Whether its cells are aligned to the right, as numbers are.
    """

    title: str
    width: int = 0
    is_right: bool = False

    def filled(self, cell: str, width: int) -> str:
        """Pad a cell to a width."""
        return " " * (width - cell_len(cell)) + cell if self.is_right else set_cell_size(cell, width)


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
    """Return a table as lines without trailing spaces: head, rule if given, and one line per row.

    Parameters
    ----------
    rows
        Cells as text; a row may be shorter than the head.
    gap
        Text between columns.
    rule
        Text between the columns' dashes under the head; empty for no rule.
    """
    heads = [[column.title for column in columns]] if has_head else []
    cells = [*heads, *map(list, rows)]
    widths = [
        max([column.width, *(cell_len(row[place]) for row in cells if place < len(row))])
        for place, column in enumerate(columns)
    ]
    lines = [
        gap.join(column.filled(cell, width) for column, cell, width in zip(columns, row, widths, strict=False)).rstrip()
        for row in cells
    ]
    rules = [rule.join("-" * width for width in widths)] if rule else []
    return [*lines[: len(heads)], *rules, *lines[len(heads) :]]


def fitting(columns: Sequence[TextColumn], rows: Iterable[Sequence[str]], width: int | None) -> list[str]:
    """Return a table that fits a terminal if possible: columns at the right are left out, and counted.

    Parameters
    ----------
    columns
        Columns, the most important first. The first always stays; lines that are still too wide are cut.
    width
        Columns of the terminal; None for no limit.
    """
    cells = [list(row) for row in rows]
    for count in range(len(columns), 0, -1):
        lines = table_lines(columns[:count], [row[:count] for row in cells])
        if width is None or count == 1 or max(map(cell_len, lines)) <= width:
            break
    if width is not None:
        lines = [line if cell_len(line) <= width else f"{set_cell_size(line, width - 1)}…" for line in lines]
    left_out = len(columns) - count
    return [*lines, f"({left_out} more in a wider terminal)"] if left_out else lines
