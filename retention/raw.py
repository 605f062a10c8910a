"""Raw bytes in ``quarantine/``: segments that could not be read, kept as long as the class of their table says."""

from collections.abc import Iterator, Mapping
from datetime import date
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from ranklake.lake.ingest.spool.gate import may_be_read_yet
from ranklake.lake.query.sql import session
from ranklake.lake.store.listing import listed
from ranklake.lake.tables.tables import delta_table

if TYPE_CHECKING:
    from ranklake.lake.store.store import Lake

OF_NOBODY: Final = "quarantine"
"""Class of bytes that belong to no table that is known."""
_ASIDE: Final = 'SELECT sha256, "table", unreadable, date FROM segments WHERE unreadable IS NOT NULL'


def raw_bytes(lake: "Lake") -> Iterator[tuple[str, date, pa.Table]]:
    """Yield what lies in quarantine, by table and by date of the plan that put it there.

    Each with its files: columns path (a digest), size_bytes and date. Bytes that came more than once are as young as
    the last time.
    """
    there = {one.path.rpartition("/")[2]: one.size_bytes for one in listed(lake.fs, lake.path("quarantine"))}
    if not there or delta_table(lake, "segments") is None:
        return
    last: dict[str, Mapping[str, Any]] = {}
    context = session(lake, ["segments"], heavy=True)  # what it answers is empty once it is let go
    for row in context.sql(_ASIDE).to_arrow_table().to_pylist():
        sha256 = row["sha256"]
        if sha256 in there and not may_be_read_yet(row["unreadable"]):
            last[sha256] = max(last.get(sha256, row), row, key=lambda one: one["date"])
    parts: dict[tuple[str, date], list[str]] = {}
    for sha256, row in sorted(last.items()):
        parts.setdefault((row["table"], row["date"]), []).append(sha256)
    for (table, day), some in sorted(parts.items()):
        facts = {"path": some, "size_bytes": [there[sha256] for sha256 in some], "date": [day] * len(some)}
        yield table, day, pa.table(facts)
