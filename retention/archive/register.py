"""The register of archives: their places and state, as rows of the table ``archives``.

A row that a plan adds counts when the plan is finished. An erasure that rewrites an archive gives it a new manifest.
"""

from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from datetime import date, datetime
from typing import TYPE_CHECKING, Any, Final

from ranklake.lake.contracts.load import contract
from ranklake.lake.plans.plan import append_own, last_finished
from ranklake.lake.tables.read import read
from ranklake.retention.archive.place import ArchiveError, Manifest, look_at, open_place, read_manifest, refuse_other
from ranklake.retention.proposals.identities import owner
from ranklake.retention.proposals.registers import with_time
from ranklake.retention.proposals.retention_plans import cancelled_plans

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ranklake.lake.store.store import Store
    from ranklake.lake.store.tables import Tables

TABLE: Final = "archives"
ARCHIVED, REWRITTEN, REMOVED = "archived", "rewritten", "removed"
_COLUMNS: Final = (
    *("archive", "table", "partition_date", "contract_version", "uri", "storage_class", "rows", "bytes", "files"),
    *("manifest_sha256", "needs_approval", "proposal", "plan"),
)


@dataclass(frozen=True, slots=True)
class Archive:
    """An archive: archived rows of one partition.

    Attributes
    ----------
    archive
        Its name.
    table, partition_date
        The partition that its rows were in.
    contract_version
        Contract version of its files.
    uri, storage_class
        Its place and storage class.
    rows, bytes, files, manifest_sha256
        Its current content.
    needs_approval
        Whether bringing its rows back needs an approved proposal.
    proposal, plan
        The retention plan, and the lake's plan, that made it.
    archived, removed
        When it was made and removed; `removed` is None if it exists.
    """

    archive: str
    table: str
    partition_date: date
    contract_version: int
    uri: str
    storage_class: str | None
    rows: int
    bytes: int
    files: int
    manifest_sha256: str
    needs_approval: bool
    proposal: str
    plan: int | None
    archived: datetime | None = None
    removed: datetime | None = None

    def row(self, kind: str) -> dict[str, Any]:
        """Return its row of the register for a kind of row, without its time."""
        return {**{name: getattr(self, name) for name in _COLUMNS}, "row_kind": kind}

    def plain(self) -> dict[str, Any]:
        """Return plain JSON values."""
        times = {name: None if (when := getattr(self, name)) is None else when.isoformat() for name in _TIMES}
        return {**asdict(self), "partition_date": self.partition_date.isoformat(), **times}


_TIMES: Final = ("archived", "removed")


def archive_name(manifest_sha256: str) -> str:
    """Return the name of the archive with this first manifest."""
    return f"ar-{manifest_sha256[:16]}"


def archives(tables: "Tables", table: str | None = None, day: date | None = None) -> list[Archive]:
    """Return the existing archives of a lake, optionally of a table and date; sorted by table, date and time."""
    selected = [archive for archive in every_archive(tables).values() if archive.removed is None]
    selected = [item for item in selected if table in {None, item.table} and day in {None, item.partition_date}]
    return sorted(
        selected, key=lambda archive: (archive.table, archive.partition_date, str(archive.archived), archive.archive)
    )


def archive_places(tables: "Tables") -> list["Store"]:
    """Return every place that has or had archives of a lake."""
    uris = read(tables, contract(TABLE), ["uri"])["uri"].unique().to_pylist()
    return [open_place(tables.store, uri) for uri in sorted(uris)]


def every_archive(tables: "Tables") -> dict[str, Archive]:
    """Return all archives by name, including removed ones."""
    rows = valid_rows(tables)
    finished = last_finished(tables) if rows else 0
    by_name: dict[str, Archive] = {}
    for row in sorted(rows, key=lambda row: (row["row_kind"] != ARCHIVED, row["ts"])):
        if row["plan"] is not None and row["plan"] > finished:
            continue
        if row["row_kind"] == ARCHIVED:
            by_name[row["archive"]] = Archive(**{name: row[name] for name in _COLUMNS}, archived=row["ts"])
        elif row["archive"] not in by_name:
            continue
        elif row["row_kind"] == REWRITTEN:
            content = {name: row[name] for name in ("rows", "bytes", "files", "manifest_sha256")}
            by_name[row["archive"]] = replace(by_name[row["archive"]], **content)
        else:
            by_name[row["archive"]] = replace(by_name[row["archive"]], removed=row["ts"])
    return by_name


def valid_rows(tables: "Tables") -> list[dict[str, Any]]:
    """Return the rows of the register, without those of cancelled plans."""
    rows = read(tables, contract(TABLE)).to_pylist()
    cancelled = cancelled_plans(tables) if rows else set()
    return [row for row in rows if row["plan"] not in cancelled]


def made_by(tables: "Tables", number: int | None) -> set[str]:
    """Return the names of the archives that a plan of the lake made, including removed ones."""
    rows = read(tables, contract(TABLE), ["archive", "row_kind", "plan"]).to_pylist()
    return {row["archive"] for row in rows if row["row_kind"] == ARCHIVED and row["plan"] == number}


def write_rewritten(tables: "Tables", archive: Archive, new: "Manifest", proposal: str) -> None:
    """Record the new manifest of a rewritten archive in the register, once."""
    rewritten = replace(archive, rows=new.rows, bytes=new.size_bytes, files=len(new.files), manifest_sha256=new.sha256)
    row = {**rewritten.row(REWRITTEN), "plan": None, "proposal": proposal}

    def compose(_: object) -> "Iterable[dict[str, Any]]":
        current = every_archive(tables).get(archive.archive)
        return [] if current is None or current.manifest_sha256 == new.sha256 else with_time([row])

    append_own(tables, TABLE, lambda handle: list(compose(handle)))


@dataclass(frozen=True, slots=True)
class ArchiveExamination:
    """Result of examining an archive.

    Attributes
    ----------
    archive
        The archive.
    files
        Number of files that were read and are intact.
    faults
        Faults, one clause for each file with its path.
    unread
        Number of files in cold storage, of which only the size was checked.
    """

    archive: "Archive"
    files: int
    faults: tuple[str, ...]
    unread: int

    def plain(self) -> dict[str, Any]:
        """Return plain JSON values."""
        archive = self.archive
        head = {
            "archive": archive.archive,
            "table": archive.table,
            "partition_date": archive.partition_date.isoformat(),
        }
        return {**head, "files": self.files, "unread": self.unread, "faults": list(self.faults)}


def examine(store: "Store", checked_archives: "Iterable[Archive]") -> Iterator[ArchiveExamination]:
    """Yield the examination of each archive. Reads every file that is not in cold storage completely."""
    for archive in checked_archives:
        try:
            place = open_place(store, archive.uri)
            refuse_other(store, place)
            manifest = read_manifest(place, archive.manifest_sha256)
        except ArchiveError as error:
            yield ArchiveExamination(archive, 0, (f"{error.where}: {error.what}",), 0)
            continue
        faults = [*_disagreements(store, archive, manifest)]
        intact = unread = 0
        for file in manifest.files:
            is_read, fault = look_at(place, manifest.table, file)
            faults += [f"{place.path('tables', manifest.table, file.path)}: {fault}"] if fault else []
            intact += not fault and is_read
            unread += not fault and not is_read
        yield ArchiveExamination(archive, intact, tuple(faults), unread)


def _disagreements(store: "Store", archive: "Archive", manifest: Manifest) -> Iterator[str]:
    registered = (archive.table, archive.partition_date, archive.rows, archive.bytes, len(manifest.files))
    if manifest.lake != owner(store):
        yield f"{manifest.name}: the manifest is of another lake"
    if registered != (manifest.table, manifest.partition_date, manifest.rows, manifest.size_bytes, archive.files):
        yield f"{manifest.name}: the manifest and the register do not agree"
