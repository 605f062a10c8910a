"""Deletes from the places of archives what no archive holds: those that ended, and strays of applications that died."""

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
    """What a sweep of archives deleted: files and bytes of them."""

    files: int = 0
    size_bytes: int = 0


def sweep_archives(tables: "Tables") -> ArchiveSweepResult:
    """Delete files that no archive holds; killed half-way, the next sweep goes on.

    A copy that an application is making right now stays: its original is in the lake until the register has the
    archive. So the register is read last.

    Raises `ranklake.retention.archive.place.ArchiveError` where a manifest cannot be read: then nothing is known for
    sure.
    """
    files = size_bytes = 0
    for place in archive_places(tables):
        refuse_other(tables.store, place)
        there = {
            path: one.size_bytes
            for one in listed(place.fs, place.root)
            if (path := one.path.removeprefix(f"{place.root}/")).startswith((f"{_TABLES}/", f"{FOLDER}/"))
        }
        finished = last_finished(tables)
        loose = {
            path for path in there if path.startswith(f"{_TABLES}/") and not _may_be_made(tables.store, path, finished)
        }
        known, wanted = _manifests_and_files(tables, place)
        loose |= (known | _cancelled_files(tables, place, there)) & there.keys()
        for path in sorted(loose - wanted):
            files += delete(place, place.path(path))
            size_bytes += there[path]
        remove_dead(place.fs, map(place.path, loose - wanted))
    forget_ended(tables)
    return ArchiveSweepResult(files, size_bytes)


def forget_ended(tables: "Tables", *, dry_run: bool = False) -> list[str]:
    """Delete copies that came back from archives of which one ended since; return by what they came back.

    Rows that no rule keeps are not seen beside their table until the day for which somebody asked for them.
    """
    back = rehydrated_archives(tables.store)
    there = {(archive.table, archive.partition_date.isoformat()) for archive in archives(tables)} if back else set()
    over = [
        one.name
        for one in back
        if any((table, str(row["date"])) not in there for table, some in one.files.items() for row in some)
    ]
    for name in [] if dry_run else over:
        remove(tables.store, name)
    return over


def _may_be_made(store: "Store", path: str, finished: int) -> bool:
    """Return whether a data file may be that of an application that is under way."""
    number = plan_of(path.split("/", 2)[2])
    return number is None or number > finished or bool(store.fs.exists(store.path(path)))


def _cancelled_files(tables: "Tables", place: "Store", there: Collection[str]) -> set[str]:
    """Return the files of archives whose plan was cancelled: their originals are in the lake until upkeep."""
    plans = cancelled_plans(tables)
    rows = read(tables, contract(TABLE), ["uri", "row_kind", "plan", "manifest_sha256"]).to_pylist() if plans else []
    paths: set[str] = set()
    for row in rows:
        mine = row["plan"] in plans and row["row_kind"] == ARCHIVED and row["uri"].rstrip("/") == place.uri
        if mine and name_of(row["manifest_sha256"]) in there:
            manifest = read_manifest(place, row["manifest_sha256"])
            paths |= {f"{_TABLES}/{manifest.table}/{file.path}" for file in manifest.files}
    return paths


def _manifests_and_files(tables: "Tables", place: "Store") -> tuple[set[str], set[str]]:
    """Return the manifests that the register knows of a place, and the files of archives that did not end.

    Those of an unfinished plan are among the latter, and those that ended by a plan that can be cancelled yet.
    """
    rows, valid = read(tables, contract(TABLE)).to_pylist(), valid_rows(tables)
    pending = {kept_plan.plan.number for kept_plan in kept_plans(tables)}
    ended = {
        row["archive"]
        for row in valid
        if row["row_kind"] == REMOVED and (row["plan"] or 0) <= last_finished(tables) and row["plan"] not in pending
    }
    every = {row["manifest_sha256"] for row in rows if row["uri"].rstrip("/") == place.uri}
    mine = sorted(
        (row for row in valid if row["uri"].rstrip("/") == place.uri and row["row_kind"] != REMOVED),
        key=lambda row: row["ts"],
    )
    newest = {row["archive"]: row["manifest_sha256"] for row in mine}
    wanted: set[str] = set()
    for sha256 in (sha256 for name, sha256 in newest.items() if name not in ended):
        manifest = read_manifest(place, sha256)
        wanted |= {manifest.name, *(f"{_TABLES}/{manifest.table}/{file.path}" for file in manifest.files)}
    return {name_of(one) for one in every}, wanted
