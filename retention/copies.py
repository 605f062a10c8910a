"""Copies of artifacts in the lake, by content: which there are, who refers to them, and what goes with its last row.

    <lake>/artifacts/<sha256>        bytes of a file
    <lake>/artifacts/<sha256>.list   of an artifact that is a folder: its files with their digests, as sha256sum prints

A copy is governed by rows of the table ``artifacts``: it stays as long as one names its digest, in the lake, in its
days of grace, or in an archive. So retention, legal holds, erasure and the deletion of a run decide about it, too.
"""

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from ranklake.lake.store.files import delete, listed, remove_dead
from ranklake.lake.tables.read import read
from ranklake.lake.tables.table_schema import as_read
from ranklake.lake.tables.tables import latest
from ranklake.retention.archive.place import open_place, read_manifest
from ranklake.retention.archive.rehydration import current_rows
from ranklake.retention.erasure.archived import existing_archives
from ranklake.retention.plans.cancel import rows_of
from ranklake.retention.proposals.kept import kept_plans

if TYPE_CHECKING:
    from ranklake.lake.store.lake import Lake
    from ranklake.lake.store.store import Store

FOLDER: Final = "artifacts"
LISTING: Final = ".list"
TABLE: Final = "artifacts"
_COLUMNS: Final = ("sha256", "expected_sha256", "inputs")
_SCRATCH: Final = ".tmp"
_HEX: Final = re.compile(r"[0-9a-f]{64}")


def listed_files(store: "Store", sha256: str) -> tuple[dict[str, str] | None, int]:
    """Return a copied folder's digests by path, None where no such folder is copied; and the size of its listing."""
    try:
        raw = store.fs.cat_file(store.path(FOLDER, f"{sha256}{LISTING}"))
    except FileNotFoundError:
        return None, 0
    lines = raw.decode("utf-8", "surrogateescape").split("\n")[:-1]
    return {path: digest for digest, _, path in (line.partition("  ") for line in lines)}, len(raw)


def referenced_digests(lake: "Lake") -> set[str]:
    """Return the digests that rows of the table name: live ones, those in grace, and archived ones.

    Raises what reading an archive does where one is not at hand.
    """
    return {digest for rows in _rows(lake) for digest in _digests(rows)}


def sweep_copies(lake: "Lake", *, with_scratch: bool = False) -> int:
    """Delete copies that no row names any more; return how many files went. Killed half-way, the next call goes on.

    Parameters
    ----------
    with_scratch
        Whether half-written files go, too: then a copy that is being made fails, and has to be made again.

    Raises what the stores raise; where an archive cannot be read, nothing goes.
    """
    store = lake.store
    there = {file.path.rpartition("/")[2]: file.path for file in listed(store.fs, store.path(FOLDER))}
    if not there:
        return 0
    named = referenced_digests(lake)
    folders = [name.removesuffix(LISTING) for name in there if name.endswith(LISTING)]
    files = {digest for name in folders if name in named for digest in (listed_files(store, name)[0] or {}).values()}
    gone = [
        path
        for name, path in there.items()
        if (with_scratch if name.endswith(_SCRATCH) else name.removesuffix(LISTING) not in named | files)
    ]
    for path in gone:
        delete(store, path)
    remove_dead(store.fs, gone)
    return len(gone)


def _rows(lake: "Lake") -> Iterator[pa.Table]:
    known = lake.contracts()[TABLE]
    yield read(lake.tables, known, list(_COLUMNS))
    for kept_plan in kept_plans(lake.tables):
        for file in kept_plan.files:
            if file.table == TABLE:
                yield rows_of(lake.tables, as_read(latest(lake.tables, TABLE), known), file)
    for archive in existing_archives(lake.tables):
        if archive.table == TABLE:
            place = open_place(lake.store, archive.uri)
            manifest = read_manifest(place, archive.manifest_sha256)
            for row in manifest.table_files.to_pylist():
                yield current_rows(place, manifest, row, lake)


def _digests(rows: pa.Table) -> Iterator[str]:
    columns = {name: rows[name].unique().to_pylist() for name in _COLUMNS if name in rows.column_names}
    yield from filter(None, (*columns.get("sha256", ()), *columns.get("expected_sha256", ())))
    for text in filter(None, columns.get("inputs", ())):
        yield from _HEX.findall(text)
