"""Deletes files at places of archives that no archive contains: those of ended archives and of crashed applications."""

from collections.abc import Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from ranklake.lake.contracts.load import contract
from ranklake.lake.plans.plan import last_finished
from ranklake.lake.store.files import delete, listed, remove_dead
from ranklake.lake.tables.live_files import plan_of
from ranklake.lake.tables.read import read
from ranklake.retention.archive.place import FOLDER, name_of, read_manifest, refuse_other
from ranklake.retention.archive.register import ARCHIVED, REMOVED, TABLE, archive_places, archives, valid_rows
from ranklake.retention.archive.rehydrated import rehydrated_archives, remove
from ranklake.retention.proposals.kept import kept_plans
from ranklake.retention.proposals.retention_plans import cancelled_plans

if TYPE_CHECKING:
    from ranklake.lake.store.store import Store
    from ranklake.lake.store.tables import Tables

_TABLES: Final = "tables"


@dataclass(frozen=True, slots=True)
class ArchiveSweepResult:
    """Number and bytes of the files that a sweep of archives deleted."""

    files: int = 0
    size_bytes: int = 0


def sweep_archives(tables: "Tables") -> ArchiveSweepResult:
    """Delete files that no archive contains. After a crash the next sweep continues.

    A copy that an application is writing is kept, since its original is in the lake until the register has the archive.
    For this reason the register is read last. Raises `ranklake.retention.archive.place.ArchiveError` if a manifest
    cannot be read.
    """
    files = size_bytes = 0
    for place in archive_places(tables):
        refuse_other(tables.store, place)
        sizes = {
            path: file.size_bytes
            for file in listed(place.fs, place.root)
            if (path := file.path.removeprefix(f"{place.root}/")).startswith((f"{_TABLES}/", f"{FOLDER}/"))
        }
        finished = last_finished(tables)
        data_files = [path for path in sizes if path.startswith(f"{_TABLES}/")]
        candidates = {path for path in data_files if not _may_be_in_progress(tables.store, path, finished)}
        manifests, needed = _manifests_and_files(tables, place)
        candidates |= (manifests | _cancelled_files(tables, place, sizes)) & sizes.keys()
        unused = sorted(candidates - needed)
        for path in unused:
            files += delete(place, place.path(path))
            size_bytes += sizes[path]
        remove_dead(place.fs, map(place.path, unused))
    delete_ended_copies(tables)
    return ArchiveSweepResult(files, size_bytes)


def delete_ended_copies(tables: "Tables", *, dry_run: bool = False) -> list[str]:
    """Delete the rehydrated copies of archives that ended; return the names of their rehydrations.

    So rows that no rule keeps any more do not stay visible until the end of the rehydration.
    """
    copies = rehydrated_archives(tables.store)
    existing = {(item.table, item.partition_date.isoformat()) for item in archives(tables)} if copies else set()
    ended = [
        copy.name
        for copy in copies
        if any((table, str(file["date"])) not in existing for table, files in copy.files.items() for file in files)
    ]
    for name in [] if dry_run else ended:
        remove(tables.store, name)
    return ended


def _may_be_in_progress(store: "Store", path: str, finished: int) -> bool:
    """Return whether a data file may be a copy by an application that is still running."""
    number = plan_of(path.split("/", 2)[2])
    return number is None or number > finished or bool(store.fs.exists(store.path(path)))


def _cancelled_files(tables: "Tables", place: "Store", existing: Collection[str]) -> set[str]:
    """Return the files of archives whose plan was cancelled. Their originals are in the lake until the next upkeep."""
    plans = cancelled_plans(tables)
    rows = read(tables, contract(TABLE), ["uri", "row_kind", "plan", "manifest_sha256"]).to_pylist() if plans else []
    paths: set[str] = set()
    for row in rows:
        is_cancelled = row["plan"] in plans and row["row_kind"] == ARCHIVED and row["uri"].rstrip("/") == place.uri
        if is_cancelled and name_of(row["manifest_sha256"]) in existing:
            manifest = read_manifest(place, row["manifest_sha256"])
            paths |= {f"{_TABLES}/{manifest.table}/{file.path}" for file in manifest.files}
    return paths


def _manifests_and_files(tables: "Tables", place: "Store") -> tuple[set[str], set[str]]:
    """Return the paths of all registered manifests of a place, and the paths that existing archives need.

    The latter include archives of an unfinished plan, and archives that a plan ended which can still be cancelled.
    """
    rows, valid = read(tables, contract(TABLE)).to_pylist(), valid_rows(tables)
    pending = {kept_plan.plan.number for kept_plan in kept_plans(tables)}
    ended = {
        row["archive"]
        for row in valid
        if row["row_kind"] == REMOVED and (row["plan"] or 0) <= last_finished(tables) and row["plan"] not in pending
    }
    registered = {row["manifest_sha256"] for row in rows if row["uri"].rstrip("/") == place.uri}
    of_place = sorted(
        (row for row in valid if row["uri"].rstrip("/") == place.uri and row["row_kind"] != REMOVED),
        key=lambda row: row["ts"],
    )
    newest = {row["archive"]: row["manifest_sha256"] for row in of_place}
    needed: set[str] = set()
    for sha256 in (sha256 for name, sha256 in newest.items() if name not in ended):
        manifest = read_manifest(place, sha256)
        needed |= {manifest.name, *(f"{_TABLES}/{manifest.table}/{file.path}" for file in manifest.files)}
    return {name_of(sha256) for sha256 in registered}, needed
