"""Restorations: what applied retention plans took or masked, and another program brought back by a table's old version.

A cancellation brings rows back in new files. So a file that is kept for the days of grace, and that a table has again,
is none of its: `RESTORE` of any Delta program does that, and asks nobody.
"""

from collections import Counter
from collections.abc import Callable
from functools import cache, partial
from typing import TYPE_CHECKING, Final

from ranklake.lake.tables.live_files import live_paths
from ranklake.lake.tables.tables import delta_table
from ranklake.retention.proposals.kept import Kept, kept

if TYPE_CHECKING:
    from ranklake.lake.store.store import Lake

MEND: Final = "with it, restore the version before that, which 'ranklake doctor' names"


def restored(lake: "Lake", one: Kept) -> Counter[str]:
    """Return how many rows of what a plan took are in their tables again, by table. Raises what reading them raises."""
    return _rows_again(one, cache(partial(_live, lake)))


def restorations(lake: "Lake") -> tuple[str, ...]:
    """Return what tables have again though nobody cancelled the plan that took it, a clause for each plan and table.

    Tells of files that are still the table's; whoever writes their rows anew, such as a merge, leaves only the counts
    of `ranklake.lake.ingest.status.reconciliation` to tell. Raises `ranklake.lake.plans.plan.DamagedPlanError`, and
    what reading the register and the tables raises.
    """
    live = cache(partial(_live, lake))
    found = []
    for one in kept(lake):
        took = f"that {one.proposal.name} took or masked, and nobody cancelled it: another program restored the table"
        found += [f"{table} has {rows:,} rows again {took}; {MEND}" for table, rows in _rows_again(one, live).items()]
    return tuple(found)


def _rows_again(one: Kept, live: Callable[[str], set[str]]) -> Counter[str]:
    rows: Counter[str] = Counter()
    for file in one.files:
        if file.path in live(file.table):
            rows[file.table] += file.rows
    return rows


def _live(lake: "Lake", table: str) -> set[str]:
    handle = delta_table(lake, table)
    return set() if handle is None else live_paths(handle)
