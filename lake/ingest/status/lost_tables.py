"""Tables that were lost: whoever reads one would take it for a table that was never written, and count 0."""

import json
from collections import Counter
from typing import TYPE_CHECKING, Final

from ranklake.lake.contracts.load import contract
from ranklake.lake.plans.plan import LEDGER
from ranklake.lake.store.files import listed
from ranklake.lake.tables.read import read

if TYPE_CHECKING:
    from ranklake.lake.store.lake import Lake
    from ranklake.lake.store.store import Store

_TOGETHER: Final = frozenset({LEDGER, "segments"})
"""Every ingest writes both."""


def lost_tables(lake: "Lake") -> list[str]:
    """Return the tables without a log that something tells of, by name.

    That is rows by the ledger, files in the table's folder, or for the ledger and the table of segments one another.
    The first commit of a table, while it is under way, looks the same. Raises `LakeUnreachableError`.
    """
    rows = Counter[str]()
    for row in read(lake.tables, contract(LEDGER), ["tables"]).to_pylist():
        rows.update(json.loads(row["tables"] or "{}"))
    counted = {name for name, count in rows.items() if count > 0}
    folder = lake.store.path("tables")
    there = {path.rpartition("/")[2] for path in _names(lake.store, folder)}
    if there & _TOGETHER:
        counted |= _TOGETHER
    without = (name for name in counted | there if not _names(lake.store, f"{folder}/{name}/_delta_log"))
    return sorted(name for name in without if name in counted or listed(lake.store.fs, f"{folder}/{name}"))


def _names(store: "Store", folder: str) -> list[str]:
    try:
        return [str(path).rstrip("/") for path in store.fs.ls(folder, detail=False)]
    except FileNotFoundError:
        return []
