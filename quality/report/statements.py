"""The SQL of the report's facts: each text stands alone, so that a reader can run it."""

from collections.abc import Collection, Mapping
from datetime import date
from typing import Final

from ranklake.insight.runs.asking import sql_text
from ranklake.lake.query.literal import literal
from ranklake.quality.incidents import statement as every_incident

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
