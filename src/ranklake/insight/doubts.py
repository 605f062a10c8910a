"""Doubts: failed checks of the rows that numbers were computed from, shown with these numbers.

A failed check of severity critical or error casts doubt on all numbers of the table's partition, and of tables derived
from it.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from typing import Final

from ranklake.insight.runs.asking import Ask, sql_text
from ranklake.lake.rollups.registry import ROLLUPS

_HERE: Final = "ranklake.insight"
MOST_SHOWN: Final = 3
_INPUTS: Final = {rollup.name: rollup.tables for rollup in ROLLUPS}


@dataclass(frozen=True, slots=True)
class FailingCheck:
    """A failed check.

    Attributes
    ----------
    is_direct
        Whether its table itself is read, not only one derived from it.
    """

    table: str
    column: str | None
    check_id: str
    severity: str
    first_date: date | None
    last_date: date | None
    rows: int | None
    is_direct: bool

    @property
    def text(self) -> str:
        """The failure, such as ``steps.tokens fails tokens_not_negative (error) for 30 rows on 2026-03-01``."""
        name = f"{self.table}.{self.column}" if self.column else self.table
        rows = "" if not self.rows else f" for {self.rows:,} row{'' if self.rows == 1 else 's'}"
        dates = "" if self.first_date is None else f" on {self.first_date}"
        dates += f" to {self.last_date}" if self.last_date != self.first_date else ""
        return f"{name} fails {self.check_id} ({self.severity}){rows}{dates}"


def sources(tables: Iterable[str]) -> set[str]:
    """Return tables and all tables that they are derived from."""
    pending, known = list(tables), set[str]()
    while pending:
        table = pending.pop()
        if table not in known:
            known.add(table)
            pending += _INPUTS.get(table, ())
    return known


def doubts(
    ask: Ask,
    tables: Collection[str],
    used: Mapping[str, Collection[str]] | None = None,
    since: date | None = None,
    until: date | None = None,
) -> tuple[FailingCheck, ...]:
    """Return the failed checks of the inputs of numbers; none if a role does not see results of checks.

    Parameters
    ----------
    tables
        Tables that are read.
    used
        Columns that are read, by table; checks of other columns are ignored. By default all.
    since, until
        Dates that are read; by default all.
    """
    if not tables:
        return ()
    dates = [f"partition_date >= DATE '{since}'"] if since else []
    dates += [f"partition_date <= DATE '{until}'"] if until else []
    answered = ask(sql_text(_HERE, "doubts").format(dates=" AND ".join(dates) or "TRUE"))
    names = sources(tables)  # checked here, not in the query: a role must see all columns in its query
    every = (
        FailingCheck(
            row["table"], row["column"], row["check_id"], row["severity"], row["first_date"], row["last_date"],
            row["rows_failed"], row["table"] in tables,
        )
        for row in answered.rows
        if row["table"] in names
    )  # fmt: skip
    kept = [doubt for doubt in every if used is None or not doubt.is_direct or _affects(doubt, used)]
    causes: dict[tuple[str | None, str], FailingCheck] = {}  # repeated in derived tables
    for doubt in sorted(kept, key=lambda doubt: doubt.table in _INPUTS):
        causes.setdefault((doubt.column, doubt.check_id), doubt)
    return tuple(sorted(causes.values(), key=lambda doubt: not doubt.is_direct))


def _affects(doubt: FailingCheck, used: Mapping[str, Collection[str]]) -> bool:
    """Whether a check covers used columns; a check of whole rows always does."""
    columns = set((doubt.column or "").split(","))
    return doubt.column is None or not columns.isdisjoint(used.get(doubt.table, ()))


def doubt_lines(known: Sequence[FailingCheck]) -> list[str]:
    """Return doubts as lines, at most `MOST_SHOWN`, and the number of others."""
    if not known:
        return []
    lines = [f"in doubt: {doubt.text}" for doubt in known[:MOST_SHOWN]]
    lines += [f"in doubt: {len(known) - MOST_SHOWN:,} more checks fail"] if len(known) > MOST_SHOWN else []
    return [*lines, f"numbers made of such rows are not to be relied on; ranklake quality why {known[0].table}"]
