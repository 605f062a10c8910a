"""Tables that were lost: whoever reads one would take it for a table that was never written, and count 0."""

import json
from collections import Counter
from datetime import UTC, datetime, timedelta
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
FIRST_COMMIT: Final = timedelta(minutes=10)
"""For how long files without a log are those of a first commit that is under way."""


def lost_tables(lake: "Lake") -> list[str]:
    """Return the tables without a log that something tells of, by name.

    That is rows by the ledger, files in the table's folder, or for the ledger and the table of segments one another.
    The first commit of a table, while it is under way, looks like the last two, so that files tell of a loss once one
    is older than `FIRST_COMMIT`. Raises `LakeUnreachableError`.
    """
    rows = Counter[str]()
    for row in read(lake.tables, contract(LEDGER), ["tables"]).to_pylist():
        rows.update(json.loads(row["tables"] or "{}"))
    counted = {name for name, count in rows.items() if count > 0}
    folder = lake.store.path("tables")
    there = {path.rpartition("/")[2] for path in _names(lake.store, folder)}
    without = (name for name in counted | there | _TOGETHER if not _names(lake.store, f"{folder}/{name}/_delta_log"))
    return sorted(name for name in without if name in counted or _has_old_files(lake.store, name))


def _has_old_files(store: "Store", table: str) -> bool:
    """Whether a file of a table, or of one that is written with it, is older than a first commit may take."""
    since = datetime.now(UTC) - FIRST_COMMIT
    tables = _TOGETHER if table in _TOGETHER else {table}
    files = (file for name in tables for file in listed(store.fs, store.path("tables", name)))
    return any(file.modified is None or file.modified < since for file in files)


def _names(store: "Store", folder: str) -> list[str]:
    try:
        return [str(path).rstrip("/") for path in store.fs.ls(folder, detail=False)]
    except FileNotFoundError:
        return []
