"""Keys of rows that fail, for pages: of each failing check some, of the last partition, as far as reading is cheap."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from ranklake.quality.report.state import Sampled
from ranklake.quality.tables import chosen
from ranklake.quality.why.explain import Sources, failures
from ranklake.quality.why.explanation import Explanation

if TYPE_CHECKING:
    from datetime import date

    from ranklake.lake.store.store import Lake
    from ranklake.quality.report.state import CheckKey

MOST_CHECKS: Final = 30
MOST_ROWS: Final = 5_000_000
"""Rows of all partitions that are read for it; those of checks beyond are left to ``ranklake quality why``."""


def samples(lake: "Lake") -> "dict[CheckKey, Sampled]":
    """Return keys of failing rows by table, check and column, of the worst checks whose rows can be told.

    Each is of the last partition that fails it. Classified values are in none of them.
    """
    found: dict[CheckKey, Sampled] = {}
    left = MOST_ROWS
    sources: Sources | None = None
    for one, rows in _last(lake):
        if len(found) >= MOST_CHECKS:
            break
        if rows > left:
            continue
        sources = sources or Sources(lake, chosen(lake.contracts(), None))
        told = sources.samples(one)
        left -= rows
        if told:
            found[one.table, one.check_id, one.column] = Sampled(one.partition_date, told)
    return found


def _last(lake: "Lake") -> Iterator[tuple[Explanation, int]]:
    """Yield the failure of each check on its last partition, in the order of the worst, and the rows to read."""
    rows = failures(lake, tuple(chosen(lake.contracts(), None)))
    last: dict[CheckKey, date] = {}
    for row in rows:
        key = row["table"], row["check_id"], row["column"]
        if key not in last or last[key] < row["partition_date"]:
            last[key] = row["partition_date"]
    for row in rows:
        if last[row["table"], row["check_id"], row["column"]] == row["partition_date"]:
            plain = {name: value for name, value in row.items() if name != "rows_checked"}
            yield Explanation(**plain), row["rows_checked"] or 0
