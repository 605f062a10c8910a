"""Restorations: what applied retention plans took or masked, and another program brought back by a table's old version.

A cancellation brings rows back in new files. So a file that is kept for the days of grace, and that a table has again,
is none of its: `RESTORE` of any Delta program does that, and asks nobody.
"""

from collections import Counter
from typing import TYPE_CHECKING

from ranklake.lake.delta.live_files import files
from ranklake.lake.delta.tables import delta_table
from ranklake.lake.governance.kept import kept

if TYPE_CHECKING:
    from ranklake.lake.storage.store import Lake


def restorations(lake: "Lake") -> tuple[str, ...]:
    """Return what tables have again though nobody cancelled the plan that took it, a clause for each plan and table.

    Tells of files that are still the table's; whoever writes their rows anew, such as a merge, leaves only the counts
    of `ranklake.lake.status.reconciliation` to tell. Raises `ranklake.lake.plans.plan.DamagedPlanError`, and what
    reading the register and the tables raises.
    """
    found = []
    live: dict[str, set[str]] = {}
    for one in kept(lake):
        rows: Counter[str] = Counter()
        for file in one.files:
            if file.table not in live:
                live[file.table] = _paths(lake, file.table)
            if file.path in live[file.table]:
                rows[file.table] += file.rows
        took = f"that {one.proposal.name} took or masked, and nobody cancelled it: another program restored the table"
        mend = "with it, restore the version before that, which 'ranklake doctor' names"
        found += [f"{table} has {count:,} rows again {took}; {mend}" for table, count in rows.items()]
    return tuple(found)


def _paths(lake: "Lake", table: str) -> set[str]:
    handle = delta_table(lake, table)
    return set() if handle is None else set(files(handle)["path"].to_pylist())
