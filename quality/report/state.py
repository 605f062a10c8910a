"""The state of quality as frozen facts, each with SQL that a reader can run on its own."""

import hashlib
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from datetime import date, datetime
from typing import Any, Final, NamedTuple

import pyarrow as pa

from ranklake.insight.runs.asking import QueriedFacts, sql_text
from ranklake.lake.contracts.model import ALARMS
from ranklake.lake.query.literal import literal
from ranklake.quality.results import statement as every_incident

_HERE: Final = "ranklake.quality.report"
_ALL: Final = "TRUE"
MOST_INCIDENTS: Final = 300
"""Maximum number of incidents on a page."""


def totals(where: str, *, by_table: bool = False) -> str:
    """Return the SQL of the counts of all results that satisfy `where`: one row, or one per table."""
    named = {
        "table": '"table",' if by_table else "",
        "grouping": 'GROUP BY "table" ORDER BY "table"' if by_table else "",
    }
    return on_results(where, sql_text(_HERE, "totals").format(**named))


def checks(where: str) -> str:
    """Return the SQL of one row per check."""
    return on_results(where, sql_text(_HERE, "checks"))


def partitions(where: str) -> str:
    """Return the SQL of one row per partition that was checked."""
    return on_results(where, sql_text(_HERE, "partitions"))


def history(where: str) -> str:
    """Return the SQL of one row per check and partition."""
    return on_results(where, sql_text(_HERE, "history"))


def incidents(where: str) -> str:
    """Return the SQL of the incidents that a page lists."""
    return f"{every_incident(where)}LIMIT {MOST_INCIDENTS}\n"


def incident_counts(where: str) -> str:
    """Return the SQL of the number of incidents: one row."""
    return sql_text(_HERE, "incident_counts").format(rows=every_incident(where))


def held_counts(where: str) -> str:
    """Return the SQL of the number of held partitions and of their failing rows: one row."""
    return sql_text(_HERE, "held_counts").format(rows=held_partitions_sql(where))


def held_partitions_sql(where: str) -> str:
    """Return the SQL of one row per partition that is held back from rollups."""
    return on_results(where, sql_text(_HERE, "held"))


def trend(where: str) -> str:
    """Return the SQL of one row per partition date."""
    return on_results(where, sql_text(_HERE, "trend"))


def still_there(gone: Mapping[str, Collection[date]], tables: Collection[str]) -> str:
    """Return the condition that excludes deleted partitions and tables.

    Parameters
    ----------
    gone
        Dates of results that the table no longer has.
    tables
        Tables that were deleted.
    """
    left_out = [f'"table" = {literal(name)}' for name in sorted(tables)]
    for name, dates in sorted(gone.items()):
        if dates and name not in tables:
            days = ", ".join(f"DATE '{day}'" for day in sorted(dates))
            left_out.append(f'("table" = {literal(name)} AND partition_date IN ({days}))')
    return f"NOT ({' OR '.join(left_out)})" if left_out else _ALL


def of_table(table: str, gone: Collection[date]) -> str:
    """Return the condition for the results of one table, without deleted partitions."""
    days = ", ".join(f"DATE '{day}'" for day in sorted(gone))
    return f'"table" = {literal(table)}' + (f" AND partition_date NOT IN ({days})" if days else "")


def on_results(where: str, text: str) -> str:
    """Return a query over ``results``: the last check of each partition, from the rows that satisfy `where`."""
    return sql_text(_HERE, "results").replace("{where}", where) + text


FAILING, ERRORED, WARNING, UNCHECKED, QUARANTINED, PASSED, SKIPPED = STATES = (
    "failing",
    "errored",
    "warning",
    "unchecked",
    "quarantined",
    "passed",
    "skipped",
)
"""States of a table, check or partition, worst first."""


def state_of(result: str, severity: str) -> str:
    """Return the state for a status of SQL's ``results``."""
    if result == "failed":
        return FAILING if severity in ALARMS else WARNING
    return result


def worst_state(states: "tuple[str, ...] | list[str]") -> str:
    """Return the worst state; skipped if there is none."""
    return min(states, key=STATES.index, default=SKIPPED)


class Point(NamedTuple):
    """Result of one check on one partition; counts are None if unknown."""

    day: date
    state: str
    rows_checked: int | None
    rows_failed: int | None


class History:
    """One check on all partitions, by date: an iterable of `Point`.

    A report has 100,000 points, of which a refresh writes few. Therefore the points stay Arrow columns until they are
    read, and `repr` is a digest of the columns.

    Parameters
    ----------
    severity
        Severity of the check.
    rows
        Columns ``partition_date``, ``state`` of SQL's ``results``, ``rows_checked`` and ``rows_failed``.
    """

    __slots__ = ("_rows", "_severity")

    def __init__(self, severity: str, rows: pa.RecordBatch) -> None:
        self._severity, self._rows = severity, rows

    def __len__(self) -> int:
        return int(self._rows.num_rows)

    def __iter__(self) -> Iterator[Point]:
        for day, state, checked, failed in zip(*(column.to_pylist() for column in self._rows.columns), strict=True):
            yield Point(day, state_of(state, self._severity), checked, failed)

    def __repr__(self) -> str:
        return f"History({self._severity!r}, {hashlib.sha256(self._rows.serialize()).hexdigest()})"


CheckKey = tuple[str, str, str | None]
"""Table, id and column of a check."""


@dataclass(frozen=True, slots=True)
class FailingKeys:
    """Keys of a few rows that fail a check, on the last partition where it fails; without classified values."""

    day: date
    rows: tuple[Mapping[str, Any], ...]


@dataclass(frozen=True, slots=True)
class CheckState:
    """One check of a table over all of its partitions.

    Attributes
    ----------
    promise
        The expectation in words; None for a check that the contract no longer has.
    partitions, partitions_failed, partitions_errored, partitions_quarantined, partitions_skipped
        Number of partitions on which it ran, in total and by result.
    rows_checked, rows_failed, rows_quarantined
        Sums over partitions; None if nothing was checked.
    message, observed
        Texts of the latest partition that did not pass; without classified values.
    next_step
        Advice, and a command; empty if there is nothing to do.
    history
        Results by partition date.
    """

    table: str
    check_id: str
    column: str | None
    severity: str
    state: str
    promise: str | None
    partitions: int
    partitions_failed: int
    partitions_errored: int
    partitions_quarantined: int
    partitions_skipped: int
    rows_checked: int | None
    rows_failed: int | None
    rows_quarantined: int | None
    first_unsound: date | None
    last_unsound: date | None
    message: str | None
    observed: str | None
    next_step: tuple[str, str]
    history: History
    sampled: FailingKeys | None = None


@dataclass(frozen=True, slots=True)
class PartitionState:
    """One partition of a table.

    Attributes
    ----------
    reason
        Why its state is unknown; None where it is known.
    """

    day: date
    state: str
    reason: str | None
    checks: int
    checks_failing: int
    checks_warning: int
    checks_errored: int
    rows_checked: int | None
    rows_failed: int
    rows_quarantined: int
    table_version: int | None
    checked_at: datetime | None


@dataclass(frozen=True, slots=True)
class Totals:
    """Counts of a table, or of all tables, from ``totals.sql``; and the number of partitions with unknown state."""

    checks_failing: int
    checks_warning: int
    checks_errored: int
    checks: int
    partitions_unsound: int
    partitions: int
    rows_failed: int
    rows_quarantined: int
    checked_at: datetime | None
    partitions_unchecked: int


@dataclass(frozen=True, slots=True)
class Sources:
    """The SQL of a page's facts."""

    totals: str
    checks: str
    partitions: str


@dataclass(frozen=True, slots=True)
class TableState:
    """State of one table. ``made_from`` and ``used_by`` name its inputs and the tables computed from it."""

    table: str
    kind: str
    owner: str
    summary: str
    state: str
    reason: str | None
    totals: Totals
    checks: tuple[CheckState, ...]
    partitions: tuple[PartitionState, ...]
    made_from: tuple[str, ...]
    used_by: tuple[str, ...]
    sources: Sources


@dataclass(frozen=True, slots=True)
class QualityOverview:
    """Quality of the whole lake.

    Attributes
    ----------
    trend
        Passed checks, by partition date.
    incidents
        Open ones first, then by severity and date; at most `MOST_INCIDENTS`.
    incident_counts
        Number of all incidents: one row.
    held
        Partitions that checks exclude from rollups.
    held_counts
        Number of held partitions and of their failing rows: one row.
    """

    trend: QueriedFacts
    incidents: QueriedFacts
    incident_counts: QueriedFacts
    held: QueriedFacts
    held_counts: QueriedFacts


@dataclass(frozen=True, slots=True)
class QualityState:
    """State of quality of the whole lake, tables worst first.

    Attributes
    ----------
    lake
        Last part of the lake's URI.
    version
        Version of the table ``quality_results`` that was read; None if nothing was ever checked.
    by_table
        SQL of the totals of each table.
    overview
        Trend, incidents and holds.
    """

    lake: str
    version: int | None
    state: str
    totals: Totals
    tables: tuple[TableState, ...]
    sources: Sources
    by_table: str
    overview: QualityOverview
