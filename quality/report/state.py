"""The state of quality as frozen facts, and the SQL of each, which stands alone so that a reader can run it."""

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
"""On a page."""


def totals(where: str, *, by_table: bool = False) -> str:
    """Return the SQL of the counts of everything that `where` keeps: one row, or one per table."""
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
    """Return the SQL of how many incidents there are: one row."""
    return sql_text(_HERE, "incident_counts").format(rows=every_incident(where))


def held_counts(where: str) -> str:
    """Return the SQL of how many partitions are held back, and how many rows of them fail: one row."""
    return sql_text(_HERE, "held_counts").format(rows=held_partitions_sql(where))


def held_partitions_sql(where: str) -> str:
    """Return the SQL of one row per partition that is held back from rollups."""
    return on_results(where, sql_text(_HERE, "held"))


def trend(where: str) -> str:
    """Return the SQL of one row per partition date."""
    return on_results(where, sql_text(_HERE, "trend"))


def still_there(gone: Mapping[str, Collection[date]], tables: Collection[str]) -> str:
    """Return the condition that leaves out partitions that no longer exist, and tables without any of theirs.

    Parameters
    ----------
    gone
        Dates that results speak of and the table no longer has.
    tables
        Tables that are gone as a whole.
    """
    left_out = [f'"table" = {literal(name)}' for name in sorted(tables)]
    for name, dates in sorted(gone.items()):
        if dates and name not in tables:
            days = ", ".join(f"DATE '{day}'" for day in sorted(dates))
            left_out.append(f'("table" = {literal(name)} AND partition_date IN ({days}))')
    return f"NOT ({' OR '.join(left_out)})" if left_out else _ALL


def of_table(table: str, gone: Collection[date]) -> str:
    """Return the condition for one table, without partitions that no longer exist."""
    days = ", ".join(f"DATE '{day}'" for day in sorted(gone))
    return f'"table" = {literal(table)}' + (f" AND partition_date NOT IN ({days})" if days else "")


def on_results(where: str, text: str) -> str:
    """Return a query over ``results``: what the last check of each partition found, of the rows that `where` keeps."""
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
    """Return the state that a result of SQL's ``results`` amounts to."""
    if result == "failed":
        return FAILING if severity in ALARMS else WARNING
    return result


def worst_state(states: "tuple[str, ...] | list[str]") -> str:
    """Return the worst of some states; skipped if there is none."""
    return min(states, key=STATES.index, default=SKIPPED)


class Point(NamedTuple):
    """One check on one partition: its state, and rows checked and failed; None where they are unknown."""

    day: date
    state: str
    rows_checked: int | None
    rows_failed: int | None


class History:
    """One check on all partitions, by date: an iterable of `Point`.

    There are 100,000 points in a report, of which a refresh writes few. So they stay the columns that the query gave
    until somebody asks, and `repr` is a digest of those.

    Parameters
    ----------
    severity
        Of the check.
    rows
        Columns ``partition_date``, ``state`` as SQL's ``results`` has it, ``rows_checked`` and ``rows_failed``.
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
    """Keys of some rows that fail a check, on the last partition that does; no value of a classified column."""

    day: date
    rows: tuple[Mapping[str, Any], ...]


@dataclass(frozen=True, slots=True)
class CheckState:
    """One check of a table over all of its partitions.

    Attributes
    ----------
    promise
        What it expects, in words; None for a check that the contract no longer has.
    partitions, partitions_failed, partitions_errored, partitions_quarantined, partitions_skipped
        Numbers of partitions on which it ran, and came out so.
    rows_checked, rows_failed, rows_quarantined
        Summed over partitions; None where nothing was judged.
    message, observed
        Of the latest partition that did not pass; never a value of a classified column.
    next_step
        What to do about it, and a command for it; empty where nothing is to be done.
    history
        By partition date.
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
    """Counts of a table, or of all: what ``totals.sql`` gives, and partitions of unknown state by the Delta logs."""

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
    """The SQL that gives a page's facts."""

    totals: str
    checks: str
    partitions: str


@dataclass(frozen=True, slots=True)
class TableState:
    """One table. ``made_from`` and ``used_by`` name the tables before and after it; `reason` is why it is unknown."""

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
    """What stands of quality as a whole.

    Attributes
    ----------
    trend
        Checks that passed, by partition date.
    incidents
        Open ones first, then the worst and the latest; some hundreds at most.
    incident_counts
        How many there are of all: one row.
    held
        Partitions that checks hold back from rollups.
    held_counts
        How many, and how many rows of them fail: one row.
    """

    trend: QueriedFacts
    incidents: QueriedFacts
    incident_counts: QueriedFacts
    held: QueriedFacts
    held_counts: QueriedFacts


@dataclass(frozen=True, slots=True)
class QualityState:
    """The whole lake, tables worst first.

    Attributes
    ----------
    lake
        Last part of its location.
    version
        Of the table ``quality_results`` that was read; None where nothing was ever checked.
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
