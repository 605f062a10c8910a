"""Rows of a subject in files that retention plans keep to be cancelled: whether a hold is about them, and how they go.

kept file that holds a value ─▶ its other rows in a new file ─▶ the erasure's plan names both ─▶ from then on the new
one is kept; the old one goes like every old version
"""

from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING, Any

import pyarrow.compute as pc

from ranklake.lake.tables.parquet import append_files
from ranklake.lake.tables.table_schema import as_read
from ranklake.lake.tables.tables import latest
from ranklake.retention.erasure.rows import marks_in
from ranklake.retention.grace.cancel import rows_of
from ranklake.retention.parts import Parts, RunFacts
from ranklake.retention.proposals.kept import KeptFile, kept
from ranklake.retention.rules.order import Level

if TYPE_CHECKING:
    from ranklake.lake.store.store import Lake
    from ranklake.retention.erasure.subject import Subject
    from ranklake.retention.hold import Hold
    from ranklake.retention.traces.search import Searched


def kept_hits(lake: "Lake", found: "Collection[Searched]") -> Iterator[KeptFile]:
    """Yield the kept files in which a value was found."""
    there = {one.source.uri for one in found if one.counts and one.source.version is None}
    for one in kept(lake) if there else ():
        yield from (file for file in one.files if lake.path("tables", file.table, file.path) in there)


def held_in(lake: "Lake", subject: "Subject", file: KeptFile, hold: "Hold", facts: RunFacts) -> int:
    """Return how many rows of the subject in a kept file a hold is about."""
    contract = lake.contract(file.table)
    if not hold.covers(file.day) or not hold.rule.may_match(contract):
        return 0
    rows = rows_of(lake, as_read(latest(lake, file.table), contract), file)
    mine = rows.filter(marks_in(lake, subject, file.table, rows))
    parts = Parts(lake, contract, (), (hold.rule,), facts)
    if not parts.columns:
        return int(mine.num_rows) if parts.of_table().level is Level.HOLD else 0
    return int(pc.sum(parts.mask(mine, lambda values: parts.of(values).level is Level.HOLD)).as_py() or 0)


def replaced(
    lake: "Lake", subject: "Subject", files: "Collection[KeptFile]", number: int
) -> dict[str, list[dict[str, Any]]]:
    """Write kept files anew without the subject's rows, and return what the plan says of them, by table.

    Commits nothing. Raises `ranklake.lake.tables.integrity.DamagedFileError`.
    """
    told: dict[str, list[dict[str, Any]]] = {}
    for file in files:
        target = as_read(latest(lake, file.table), lake.contract(file.table))
        rows = rows_of(lake, target, file)
        rest = rows.filter(pc.invert(marks_in(lake, subject, file.table, rows)))
        new = [
            {"path": one.path, "size_bytes": one.size_bytes, "num_records": one.rows, "version": target.stamp}
            | {"date": one.partition.isoformat()}
            for one in (append_files(lake, target, rest, number) if rest.num_rows else ())
        ]
        told.setdefault(file.table, []).append({"path": file.path, "by": new})
    return told
