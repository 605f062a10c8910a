"""Doubts: failed checks of what numbers are made of, told with whatever shows such numbers.

A check of severity critical or error that rows of a partition fail speaks against every number that is made of them:
those of the table, and those of all tables that are derived from it.
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
    """A check that rows fail.

    Attributes
    ----------
    is_direct
        Whether its table itself is read, and not one that is derived from it.
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
        """What fails, such as ``steps.tokens fails tokens_not_negative (error) for 30 rows on 2026-03-01``."""
        name = f"{self.table}.{self.column}" if self.column else self.table
        rows = "" if not self.rows else f" for {self.rows:,} row{'' if self.rows == 1 else 's'}"
        dates = "" if self.first_date is None else f" on {self.first_date}"
        dates += f" to {self.last_date}" if self.last_date != self.first_date else ""
        return f"{name} fails {self.check_id} ({self.severity}){rows}{dates}"


def sources(tables: Iterable[str]) -> set[str]:
    """Return tables and all that they are derived from."""
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
    """Return the failed checks of what numbers are made of; nothing where a role does not see results of checks.

    Parameters
    ----------
    tables
        That are read.
    used
        Which columns of them, by table; checks of other columns say nothing of the numbers. By default all.
    since, until
        Dates that are read; by default all.
    """
    if not tables:
        return ()
    dates = [f"partition_date >= DATE '{since}'"] if since else []
    dates += [f"partition_date <= DATE '{until}'"] if until else []
    answered = ask(sql_text(_HERE, "doubts").format(dates=" AND ".join(dates) or "TRUE"))
    names = sources(tables)  # not named in the query: what a query names, a role must be able to see
    every = (
        FailingCheck(
            row["table"], row["column"], row["check_id"], row["severity"], row["first_date"], row["last_date"],
            row["rows_failed"], row["table"] in tables,
        )
        for row in answered.rows
        if row["table"] in names
    )  # fmt: skip
    kept = [doubt for doubt in every if used is None or not doubt.is_direct or _affects(doubt, used)]
    causes: dict[tuple[str | None, str], FailingCheck] = {}  # what fails again in what is derived is no other failure
    for doubt in sorted(kept, key=lambda doubt: doubt.table in _INPUTS):
        causes.setdefault((doubt.column, doubt.check_id), doubt)
    return tuple(sorted(causes.values(), key=lambda doubt: not doubt.is_direct))


def _affects(doubt: FailingCheck, used: Mapping[str, Collection[str]]) -> bool:
    """Whether a check is of columns that are used; one of whole rows always is."""
    columns = set((doubt.column or "").split(","))
    return doubt.column is None or not columns.isdisjoint(used.get(doubt.table, ()))


def doubt_lines(known: Sequence[FailingCheck]) -> list[str]:
    """Return what speaks against numbers as lines, at most `MOST_SHOWN` and how many more; none for none."""
    if not known:
        return []
    lines = [f"in doubt: {doubt.text}" for doubt in known[:MOST_SHOWN]]
    lines += [f"in doubt: {len(known) - MOST_SHOWN:,} more checks fail"] if len(known) > MOST_SHOWN else []
    return [*lines, f"numbers made of such rows are not to be relied on; ranklake quality why {known[0].table}"]
