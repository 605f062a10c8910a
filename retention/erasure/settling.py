"""Rows of a subject that a rollup committed while an erasure was on its way.

    rollup reads ─▶ erasure looks where the subject is ─▶ rollup commits ─▶ the erasure's plan, which has none of it

The plan ends with a fence on every derived table (`ranklake.lake.tables.commit.fence`): what was computed before it is
not committed any more. So whatever of the subject is in derived tables behind the fence came before it, and goes here.
"""

from typing import TYPE_CHECKING

from ranklake.lake.store.removal import delete
from ranklake.lake.tables.commit import LostRaceError, number_of, swap
from ranklake.lake.tables.live_files import live_paths
from ranklake.lake.tables.tables import delta_table
from ranklake.retention.erasure.rows import Going, going, rewritten

if TYPE_CHECKING:
    from ranklake.lake.store.store import Lake
    from ranklake.retention.erasure.subject import Subject


def settle(lake: "Lake", subject: "Subject") -> None:
    """Take the subject's rows out of derived tables, after the plan of its erasure; again changes nothing.

    Raises what the stores raise. Whoever dies on the way leaves what the next call finds.
    """
    for contract in lake.contracts().values():
        while contract.kind == "derived" and (found := list(going(lake, subject, contract))):
            for one in found:
                _take(lake, subject, one)


def _take(lake: "Lake", subject: "Subject", one: Going) -> None:
    """Replace the files of a date that hold rows of the subject; leave it to the next look where a rollup did."""
    table = one.item.table or ""
    handle = delta_table(lake, table)
    gone = one.files["path"].to_pylist()
    if handle is None or not live_paths(handle).issuperset(gone):
        return
    number = number_of(handle) + 1
    new = rewritten(lake, subject, one, number)
    try:
        swap(handle, number, add=new, remove=one.files)
    except LostRaceError:
        gone = [file.path for file in new]
    for path in gone:
        delete(lake, lake.path("tables", table, path))
