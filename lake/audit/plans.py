"""Plans in the audit trail: each has a row, written by the round that carried it out, or by the next.

    ingest_plans after the last plan that the trail has ─▶ those of kinds that write no row of their own ─▶ one commit

Retention, erasures, releases, migrations and what else a person answers for write rows of their own, which name the
plan; so does whoever disowns a segment.
"""

import json
from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

import pyarrow.compute as pc

from ranklake.lake.audit.trail import TABLE, Entry, record_since
from ranklake.lake.contracts.load import contract
from ranklake.lake.plans.kinds import COMPACTION, INGEST, QUARANTINE, REPLAY
from ranklake.lake.plans.plan import LEDGER, last_finished, read_plan
from ranklake.lake.tables.commit import transaction_number
from ranklake.lake.tables.read import read
from ranklake.lake.tables.tables import latest

if TYPE_CHECKING:
    from ranklake.lake.plans.plan import Plan
    from ranklake.lake.store.lake import Lake

ACTION: Final = "plan."
"""Before the kind of a plan: ``plan.ingest``."""
PLANS: Final = "plans"
"""Application under which the trail's log keeps the last plan that it has."""
_KINDS: Final = frozenset(kind.name for kind in (INGEST, COMPACTION, REPLAY, QUARANTINE))
_DISOWNED: Final = "disowned"
"""Fact of a plan that has a row of who disowned its rows."""
_COUNTS: Final = ("segments", "rows_recorded", "rows_stored", "rows_rejected", "rows_duplicate")
_MOST: Final = 1_000
"""Plans of before there was such a row that have one each; beyond, one row has their counts."""


def note_plans(lake: "Lake", by: str, details: Mapping[str, Any] | None = None) -> list[int]:
    """Write the rows of finished plans that have none; return their numbers in the chain.

    Parameters
    ----------
    by
        Who runs the round.
    details
        What each row says besides, such as that nobody signed.

    Looks at two logs where there is nothing to write. Raises as `ranklake.lake.audit.trail.record_all`.
    """
    handle = latest(lake.tables, TABLE)
    last = 0 if handle is None else transaction_number(handle, PLANS) or 0
    finished = last_finished(lake.tables)
    return [] if finished <= last else record_since(lake, PLANS, lambda since: _entries(lake, by, since, details or {}))


def _entries(lake: "Lake", by: str, since: int, more: Mapping[str, Any]) -> tuple[list[Entry], int]:
    columns = ["plan", "kind", "tables", "writer", *_COUNTS]
    rows = read(lake.tables, contract(LEDGER), columns).filter(pc.field("plan") > since).sort_by("plan").to_pylist()
    earlier, recent = rows[:-_MOST], rows[-_MOST:]
    entries = []
    if earlier:
        kinds = dict(sorted(Counter(row["kind"] for row in earlier).items()))
        subject = f"plans {earlier[0]['plan']} to {earlier[-1]['plan']}"
        entries.append(Entry(by, f"{ACTION}earlier", subject, None, {"plans": kinds, **more}))
    for row in recent:
        if row["kind"] not in _KINDS:
            continue
        counts = {name: row[name] for name in _COUNTS if row[name]}
        facts = {"change_of_rows": json.loads(row["tables"] or "{}"), **counts, "writer": row["writer"], **more}
        if row["kind"] != INGEST.name:
            plan = read_plan(lake.store, row["plan"])
            if plan is not None and _DISOWNED in plan.body.get("facts", {}):
                continue
            facts |= {} if plan is None else _before_and_after(plan)
        entries.append(Entry(by, f"{ACTION}{row['kind']}", f"plan {row['plan']}", None, facts))
    return entries, rows[-1]["plan"] if rows else since


def _before_and_after(plan: "Plan") -> dict[str, Any]:
    """Return the files and rows of what a plan replaced, by table, before and after."""
    before: dict[str, list[int]] = {}
    after: dict[str, list[int]] = {}
    for table, files in plan.body["remove"].items():
        before[table] = [len(files), sum(file["num_records"] for file in files)]
    for file in plan.body["add"]:
        count, rows = after.get(file["table"], [0, 0])
        after[file["table"]] = [count + 1, rows + file["rows"]]
    names = sorted({*before, *after})
    return {
        side: {name: dict(zip(("files", "rows"), counts.get(name, [0, 0]), strict=True)) for name in names}
        for side, counts in (("before", before), ("after", after))
    }
