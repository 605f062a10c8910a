"""The table of a view's runs: chosen columns, and differences from a baseline's settings."""

import csv
import io
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from ranklake.insight.runs.run_columns import RunColumns, value_text
from ranklake.printable import printable
from ranklake.ui.view import MOST_COLUMNS

DEFAULT: Final = ("status", "last_step", "last_loss", "mean_step_time_s", "tokens_per_s")
_MOST_DIFFERENCES: Final = 100


@dataclass(frozen=True, slots=True)
class RunTable:
    """Runs, one row each, as text; an empty cell is unknown.

    Attributes
    ----------
    columns, rows
        Names of columns; name and values of each run.
    baseline
        The run with which others are compared; empty for none.
    differences
        For each setting that differs from the baseline: its name, then the values of baseline and runs, each with a
        flag for a difference.
    more
        Number of omitted differences.
    """

    runs: tuple[str, ...]
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    baseline: str = ""
    differences: tuple[tuple[str, tuple[tuple[str, bool], ...]], ...] = ()
    more: int = 0

    def csv(self) -> bytes:
        """Return the rows as CSV."""
        out = io.StringIO()
        writer = csv.writer(out)
        writer.writerow(["run", *map(csv_cell, self.columns)])
        writer.writerows([csv_cell(cell) for cell in row] for row in self.rows)
        return out.getvalue().encode()

    def markdown(self) -> Iterable[str]:
        """Yield the table and the differences as Markdown."""
        yield markdown_table(["run", *self.columns], self.rows)
        if self.differences:
            yield f"Settings that are not those of {markdown_text(self.baseline)}:"
            rows = [[name, *(value for value, _ in values)] for name, values in self.differences]
            yield markdown_table(["setting", *self.runs], rows)


def run_table(columns: RunColumns, runs: Sequence[str], patterns: Sequence[str], baseline: str) -> RunTable:
    """Return the table of some runs; its columns match `patterns`, by default `DEFAULT` and differing settings."""
    names = columns.matching(patterns or (*DEFAULT, *columns.differing()), MOST_COLUMNS)
    # An unknown baseline, or one hidden from the role, is ignored.
    against = baseline if columns.values.get(baseline) else ""
    shown = tuple(dict.fromkeys((*filter(None, [against]), *runs)))
    rows = tuple((run, *(value_text(columns.value(run, name)) for name in names)) for run in shown)
    differing = []
    for name in columns.differing() if against else ():
        base = columns.value(against, name)
        values = [columns.value(run, name) for run in shown]
        differing.append((name, tuple((value_text(value), value != base) for value in values)))
    more = max(len(differing) - _MOST_DIFFERENCES, 0)
    return RunTable(shown, tuple(names), rows, against, tuple(differing[:_MOST_DIFFERENCES]), more)


def csv_cell(text: str) -> str:
    """Return a text that spreadsheets cannot run as a formula; numbers stay."""
    if text[:1] in "+-" and _is_number(text):
        return text
    return f"'{text}" if text[:1] in "=+-@\t\r" else text


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def markdown_table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table as Markdown, with markup in names escaped."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(map(markdown_text, line))} |" for line in lines)


def markdown_text(text: str) -> str:
    """Return a text as one line of Markdown, with markup escaped."""
    shown = "".join(f"\\{letter}" if letter in "\\|`*_[]" else letter for letter in printable(text))
    return shown.replace("<", "&lt;").replace(">", "&gt;")
