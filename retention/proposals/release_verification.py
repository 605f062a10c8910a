"""Verifies that a found plan of kind ``release`` frees exactly what was approved."""

import json
from collections import Counter, defaultdict
from collections.abc import Sequence
from datetime import date
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from ranklake.errors import RanklakeError
from ranklake.lake.contracts.arrow import arrow_schema
from ranklake.lake.contracts.row_text import row_values
from ranklake.lake.plans.verification import (
    is_committed_in,
    named_files,
    refusal,
    verify_application,
    verify_files,
)
from ranklake.lake.tables.read import read_some
from ranklake.lake.tables.row_keys import RECORDED_KEY, keys_sha256
from ranklake.retention.proposals.evidence import require
from ranklake.retention.proposals.releases import RELEASES, TABLE, Release

if TYPE_CHECKING:
    from ranklake.lake.plans.plan import Plan
    from ranklake.lake.store.store import Lake

REJECTS: Final = "rejects"
Where = tuple[str, date, str]
"""Of rows in `REJECTS`: the table they were meant for, the date on which they were taken out, and the reason."""


def verify_release(lake: "Lake", plan: "Plan") -> None:
    """Look whether the rows that go back are those that somebody approved, by their keys, with the values they had."""
    verify_files(lake, plan)
    name = plan.body["facts"]["release"]
    try:
        approved = RELEASES.find(lake, name)
        require(lake, RELEASES, approved, begun=True)
    except RanklakeError as error:
        raise refusal(lake, plan, f"the plan would release rows without approval: {name}: {error.what}") from error
    if approved.approved is None or not _is_as_approved(lake, plan, approved):
        raise refusal(lake, plan, f"the plan would release other rows than were approved: {name}")
    verify_application(lake, plan, TABLE, "release", name)


def _is_as_approved(lake: "Lake", plan: "Plan", approved: Release) -> bool:
    agreed = {(item.table, item.partition_date, item.about): item for item in approved.of("rows")}
    told = {table for table in plan.body["account"] if table != REJECTS}
    if told != {table for table, _, _ in agreed}:
        return False
    texts = _taken_out(lake, plan)
    if texts is None or set(texts) != set(agreed):
        return False
    freed: dict[str, Counter[str]] = defaultdict(Counter)
    for where, some in texts.items():
        rows = _rows(lake, where[0], some)
        if rows is None or (rows.num_rows, keys_sha256(rows)) != (agreed[where].rows, agreed[where].content_sha256):
            return False
        freed[where[0]] += _counted(rows)
    waiting = [table for table in told if not is_committed_in(lake, table, plan.number)]
    return all(_brought(lake, plan, table) == freed[table] for table in waiting)


def _taken_out(lake: "Lake", plan: "Plan") -> dict[Where, list[str]] | None:
    """Return the rows that leave `REJECTS`, as text; None where one comes there.

    Also when that was committed already: the files lie there until upkeep, which finishes plans first.
    """
    known = lake.contract(REJECTS)
    gone: Counter[tuple[Any, ...]] = Counter()
    removed, added = plan.body["remove"].get(REJECTS, []), [row for row in plan.body["add"] if row["table"] == REJECTS]
    names = [column.name for column in known.columns]
    for some, sign in ((removed, 1), (added, -1)):
        for _, rows in read_some(lake, known, named_files(some)):
            for row in zip(*(rows[name].to_pylist() for name in names), strict=True):
                gone[row] += sign
    if min(gone.values(), default=0) < 0:
        return None
    found: dict[Where, list[str]] = defaultdict(list)
    for row in gone.elements():
        told = dict(zip(names, row, strict=True))
        found[told["table"], told["date"], told["reason"]].append(told["row"])
    return found


def _rows(lake: "Lake", table: str, texts: Sequence[str]) -> pa.Table | None:
    """Return rows of a table from their texts; None where one is none of it, or the table has no such keys."""
    known = lake.contracts().get(table)
    values = [] if known is None else [row_values(known, text) for text in texts]
    if known is None or None in values or not {*RECORDED_KEY} <= {column.name for column in known.columns}:
        return None
    return pa.Table.from_pylist(values, schema=arrow_schema(known))


def _brought(lake: "Lake", plan: "Plan", table: str) -> Counter[str]:
    files = named_files([row for row in plan.body["add"] if row["table"] == table])
    counts = (_counted(rows) for _, rows in read_some(lake, lake.contract(table), files))
    return sum(counts, Counter[str]())


def _counted(rows: pa.Table) -> Counter[str]:
    return Counter(json.dumps(row, default=str, sort_keys=True) for row in rows.to_pylist())
