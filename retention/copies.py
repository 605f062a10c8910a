"""Copies of artifacts in the lake, by content, and their deletion when no row refers to them any more.

    <lake>/artifacts/<sha256>        bytes of a file
    <lake>/artifacts/<sha256>.list   for an artifact that is a folder: its files with digests, as sha256sum prints them

A copy is kept as long as a row of the table ``artifacts`` has its digest, in the lake, in days of grace, or in an
archive. So retention, legal holds, erasure and the deletion of a run also apply to copies.
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
    """Return a copied folder's digests by path, and the bytes of its listing; (None, 0) if the folder is not copied."""
    try:
        raw = store.fs.cat_file(store.path(FOLDER, f"{sha256}{LISTING}"))
    except FileNotFoundError:
        return None, 0
    lines = raw.decode("utf-8", "surrogateescape").split("\n")[:-1]
    return {path: digest for digest, _, path in (line.partition("  ") for line in lines)}, len(raw)


def referenced_digests(lake: "Lake") -> set[str]:
    """Return the digests in rows of the table, including rows in days of grace and in archives.

    Raises the errors of reading an archive, such as one in cold storage.
    """
    return {digest for rows in _rows(lake) for digest in _digests(rows)}


def sweep_copies(lake: "Lake", *, with_scratch: bool = False) -> int:
    """Delete copies that no row refers to; return the number of deleted files. After a crash the next call continues.

    Parameters
    ----------
    with_scratch
        Whether to delete temporary files, too. A copy in progress then fails and has to be repeated.

    Raises the errors of the stores. Deletes nothing if an archive cannot be read.
    """
    store = lake.store
    paths = {file.path.rpartition("/")[2]: file.path for file in listed(store.fs, store.path(FOLDER))}
    if not paths:
        return 0
    referenced = referenced_digests(lake)
    folders = [name for name in map(_listing_digest, paths) if name in referenced]
    referenced |= {digest for name in folders for digest in (listed_files(store, name)[0] or {}).values()}
    unused = [
        path
        for name, path in paths.items()
        if (with_scratch if name.endswith(_SCRATCH) else name.removesuffix(LISTING) not in referenced)
    ]
    for path in unused:
        delete(store, path)
    remove_dead(store.fs, unused)
    return len(unused)


def _listing_digest(name: str) -> str:
    """Return the digest of a folder from the name of its listing; empty for other files."""
    return name.removesuffix(LISTING) if name.endswith(LISTING) else ""


def _rows(lake: "Lake") -> Iterator[pa.Table]:
    contract = lake.contracts()[TABLE]
    yield read(lake.tables, contract, list(_COLUMNS))
    for kept_plan in kept_plans(lake.tables):
        for file in kept_plan.files:
            if file.table == TABLE:
                yield rows_of(lake.tables, as_read(latest(lake.tables, TABLE), contract), file)
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
