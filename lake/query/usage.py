"""Which consumers use which columns, summed up from the query log."""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from datetime import date, datetime
from typing import TYPE_CHECKING, Any

from ranklake.lake.query.usage_log import noted

if TYPE_CHECKING:
    from ranklake.lake.query.usage_record import Asked
    from ranklake.lake.store.store import Lake


@dataclass(frozen=True, slots=True)
class Use:
    """How often a consumer used a column.

    Attributes
    ----------
    table, column
        Which, as it was called; no column where only rows were counted.
    now
        What a former name stood for; empty where it was the column's own name.
    consumer
        Who.
    queries
        How many.
    last
        When last, UTC.
    """

    table: str
    column: str
    now: str
    consumer: str
    queries: int
    last: datetime

    def plain(self) -> dict[str, Any]:
        """Return plain JSON values."""
        return {**asdict(self), "now": self.now or None, "column": self.column or None, "last": self.last.isoformat()}


def uses(lake: "Lake", since: date, table: str = "", column: str = "") -> list[Use]:
    """Return the uses since a date, of all tables or one, of all its columns or one: former names first."""
    found: defaultdict[tuple[str, str, str, str], list[datetime]] = defaultdict(list)
    for asked in noted(lake, since):
        for key in _used(asked):
            if key[0] == (table or key[0]) and key[1] == (column or key[1]):
                found[*key, asked.consumer].append(asked.at)
    every = [Use(*key, len(times), max(times)) for key, times in found.items()]
    return sorted(every, key=lambda one: (not one.now, one.table, one.column, -one.queries, one.consumer))


def _used(asked: "Asked") -> Iterator[tuple[str, str, str]]:
    for table, names in asked.former.items():
        yield from ((table, name, now) for name, now in names.items())
    for table, columns in asked.columns.items():
        yield from ((table, name, "") for name in columns or ("",))
