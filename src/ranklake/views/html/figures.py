"""Numbers of pages: each with its unit, definition and SQL."""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from typing import Any, Final, Self

from ranklake.insight.runs.asking import QueriedFacts, Row
from ranklake.lake.contracts.load import contract, table_names
from ranklake.views.words import UNKNOWN, hours_text, length_text, percent_text, size_text


@dataclass(frozen=True, slots=True)
class Source:
    """Source of numbers.

    Attributes
    ----------
    name
        Its id on the page.
    sql
        Query of the numbers; empty if they are not from SQL.
    note
        Further facts, such as the table version that was read.
    tables
        Tables that were read.
    """

    name: str
    sql: str
    note: str = ""
    tables: tuple[str, ...] = ()

    def lineage(self, column: str = "") -> list[str]:
        """Return commands that trace the rows of the SQL's run back to their bytes, for a few tables.

        Empty if the SQL is not about one run. `column` of the answer is included for tables that have it.
        """
        run = _RUN.search(self.sql)
        if run is None:
            return []
        known = [contract(name) for name in self.tables if name in table_names()]
        with_run = [each for each in known if "run" in each and each.kind != "system"][:_MOST_TABLES]
        return [
            f"ranklake lineage {each.name}{f'.{column}' if column in each else ''} --run {run[1]}" for each in with_run
        ]


_RUN: Final = re.compile(r"\brun (?:= |IN \()'([A-Za-z0-9._-]{1,128})'(?!,)")
_MOST_TABLES: Final = 3


def source_of(name: str, answered: QueriedFacts, note: str = "") -> Source:
    """Return the source of an answer, with the versions of the tables that were read."""
    text = " ".join(filter(None, (note, versions_text(answered.versions))))
    return Source(name, answered.sql, text, tuple(answered.versions))


def versions_text(versions: Mapping[str, int | None]) -> str:
    """Return the versions of tables in a sentence; empty for none."""
    read = [f"{table}, never written" if at is None else f"{table} at version {at:,}" for table, at in versions.items()]
    return f"Read: {'; '.join(read)}." if read else ""


@dataclass(frozen=True, slots=True)
class Figure:
    """One number.

    Attributes
    ----------
    value
        None if unknown, with a `reason`; else `reason` is a remark.
    column
        Its column in the only row of the source's SQL.
    state
        Its assessment: a state's name, or empty.
    text
        The value as text, if not the number itself.
    """

    label: str
    value: int | float | None
    unit: str
    definition: str
    source: Source
    column: str
    state: str = ""
    reason: str = ""
    text: str = ""


@dataclass(frozen=True, slots=True)
class Measure:
    """Declaration of a figure from a column of an answer with one row.

    Attributes
    ----------
    text
        Formats a value, if not the number itself.
    unknown
        Why a value may be unknown.
    state
        State of the figure if its value is neither 0 nor unknown.
    """

    column: str
    label: str
    unit: str
    definition: str
    text: Callable[[Any], str] | None = None
    unknown: str = ""
    state: str = ""

    def figure(self, row: Row, source: Source) -> Figure:
        """Return the figure of a row."""
        value = row.get(self.column)
        text = "" if value is None or self.text is None else self.text(value)
        reason, state = (self.unknown, "") if value is None else ("", self.state if value else "")
        return Figure(self.label, value, self.unit, self.definition, source, self.column, state, reason, text)


def figures(name: str, answer: QueriedFacts, measures: Iterable[Measure], note: str = "") -> Iterator[Figure]:
    """Yield the figures of an answer with one row; `name` is its id on the page."""
    source = source_of(name, answer, note)
    return (measure.figure(answer.first_row, source) for measure in measures)


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table of facts; class methods make common kinds.

    Attributes
    ----------
    name
        Column of the source's SQL; empty if not from SQL.
    text
        Formats a value, if not the number or text itself.
    """

    title: str
    definition: str
    name: str = ""
    unit: str = ""
    is_number: bool = False
    text: Callable[[Any], str] | None = None

    @classmethod
    def number(cls, title: str, definition: str, name: str, unit: str = "") -> Self:
        """Return a column of plain numbers."""
        return cls(title, definition, name, unit, is_number=True)

    @classmethod
    def ratio(cls, title: str, definition: str, name: str) -> Self:
        """Return a column of ratios, in percent."""
        return cls(title, definition, name, "ratio", is_number=True, text=percent_text)

    @classmethod
    def seconds(cls, title: str, definition: str, name: str) -> Self:
        """Return a column of durations."""
        return cls(title, definition, name, "s", is_number=True, text=length_text)

    @classmethod
    def nanoseconds(cls, title: str, definition: str, name: str) -> Self:
        """Return a column of durations in ns, shown in a suitable unit."""
        return cls(title, definition, name, "ns", is_number=True, text=lambda ns: length_text(ns / 1e9))

    @classmethod
    def hours(cls, title: str, definition: str, name: str) -> Self:
        """Return a column of device-hours."""
        return cls(title, definition, name, "h", is_number=True, text=hours_text)

    @classmethod
    def days(cls, title: str, definition: str, name: str) -> Self:
        """Return a column of whole days."""
        return cls(title, definition, name, "d", is_number=True, text=lambda days: f"{days:,} d")

    @classmethod
    def size(cls, title: str, definition: str, name: str) -> Self:
        """Return a column of bytes, shown in a suitable unit."""
        return cls(title, definition, name, "By", is_number=True, text=size_text)

    @classmethod
    def moment(cls, title: str, definition: str, name: str) -> Self:
        """Return a column of times or dates."""
        return cls(title, definition, name, text=time_text)


@dataclass(frozen=True, slots=True)
class FactTable:
    """A table of facts; ``key`` are the columns of its SQL that identify rows.

    Attributes
    ----------
    name, rows
        Its id on the page and the rows of its SQL, for tables in which every column is from SQL.
    links
        Pages, from the site's root, by the value of the first column.
    states
        States by the value of the second column, which is then shown as a state.
    empty
        Text without rows.
    notes
        Text below the value of the first column, by that value.
    marks
        Text in a cell beside its value, or instead of an unknown one, with the reason; by the value of the first column
        and the name of the cell's column.
    has_choice
        Whether rows, which are runs, can be selected for Explore and Compare, on a server's pages.
    """

    caption: str
    source: Source
    columns: Sequence[Column]
    key: Sequence[str]
    name: str = ""
    rows: Sequence[Mapping[str, Any]] = ()
    links: Mapping[str, str] = field(default_factory=dict)
    states: Mapping[str, str] = field(default_factory=dict)
    empty: str = ""
    notes: Mapping[Any, str] = field(default_factory=dict)
    marks: Mapping[tuple[Any, str], tuple[str, str]] = field(default_factory=dict)
    has_choice: bool = False


def answer_table(
    name: str,
    caption: str,
    answer: QueriedFacts,
    key: Sequence[str],
    columns: Sequence[Column],
    empty: str = "",
    note: str = "",
    has_choice: bool = False,
    **more: Mapping[Any, Any],
) -> FactTable:
    """Return an answer as a table; `empty` is its text if it has neither rows nor a reason.

    `note` is a sentence about its source; `more` are links, states, notes and marks of `FactTable`.
    """
    empty = f"Unknown: {answer.reason}." if answer.reason else empty
    source = source_of(name, answer, note)
    return FactTable(caption, source, columns, key, name, answer.rows, empty=empty, has_choice=has_choice, **more)


def number(value: float | None) -> str:
    """Return a number as text, with separators of thousands and at most four decimals."""
    if value is None:
        return UNKNOWN
    return f"{value:,}" if isinstance(value, int) else f"{value:,.4g}"


def time_text(value: datetime | date | None) -> str:
    """Return a time with its zone, or a date, as text; all dates are UTC."""
    if value is None:
        return UNKNOWN
    return f"{value.astimezone(UTC):%Y-%m-%d %H:%M} UTC" if isinstance(value, datetime) else value.isoformat()


def moment_text(value: datetime) -> str:
    """Return a time to the millisecond, with its zone."""
    return f"{value.astimezone(UTC):%Y-%m-%d %H:%M:%S.%f}"[:-3] + " UTC"
