"""The register of archives: which there are, where, and what became of them, as rows of ``archives``.

A row that a plan brings counts when that plan is finished. What an erasure rewrote has another manifest from then on.
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
_SAID: Final = (
    *("archive", "table", "partition_date", "contract_version", "uri", "storage_class", "rows", "bytes", "files"),
    *("manifest_sha256", "needs_approval", "proposal", "plan"),
)


@dataclass(frozen=True, slots=True)
class Archive:
    """An archived range: rows of one partition.

    Attributes
    ----------
    archive
        Its name.
    table, partition_date
        Where its rows were.
    contract_version
        What its files were written under.
    uri, storage_class
        Where it is.
    rows, bytes, files, manifest_sha256
        What it holds now.
    needs_approval
        Whether its rows come back only by a proposal that was approved.
    proposal, plan
        What archived it.
    archived, removed
        When; None if it is still there.
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
        """Return its row, without a time."""
        return {**{name: getattr(self, name) for name in _SAID}, "row_kind": kind}

    def plain(self) -> dict[str, Any]:
        """Return plain JSON values."""
        times = {name: None if (when := getattr(self, name)) is None else when.isoformat() for name in _TIMES}
        return {**asdict(self), "partition_date": self.partition_date.isoformat(), **times}


_TIMES: Final = ("archived", "removed")


def archive_name(manifest_sha256: str) -> str:
    """Return the name of the archive with this first manifest."""
    return f"ar-{manifest_sha256[:16]}"


def archives(tables: "Tables", table: str | None = None, day: date | None = None) -> list[Archive]:
    """Return the archives of a lake that were not removed, by table, date and time."""
    selected = [archive for archive in every_archive(tables).values() if archive.removed is None]
    selected = [one for one in selected if table in {None, one.table} and day in {None, one.partition_date}]
    return sorted(
        selected, key=lambda archive: (archive.table, archive.partition_date, str(archive.archived), archive.archive)
    )


def archive_places(tables: "Tables") -> list["Store"]:
    """Return every place that archives of a lake are in, or were."""
    uris = read(tables, contract(TABLE), ["uri"])["uri"].unique().to_pylist()
    return [open_place(tables.store, uri) for uri in sorted(uris)]


def every_archive(tables: "Tables") -> dict[str, Archive]:
    """Return every archive by name, those that were removed among them."""
    rows = valid_rows(tables)
    finished = last_finished(tables) if rows else 0
    by_name: dict[str, Archive] = {}
    for row in sorted(rows, key=lambda row: (row["row_kind"] != ARCHIVED, row["ts"])):
        if row["plan"] is not None and row["plan"] > finished:
            continue
        if row["row_kind"] == ARCHIVED:
            by_name[row["archive"]] = Archive(**{name: row[name] for name in _SAID}, archived=row["ts"])
        elif row["archive"] not in by_name:
            continue
        elif row["row_kind"] == REWRITTEN:
            now = {name: row[name] for name in ("rows", "bytes", "files", "manifest_sha256")}
            by_name[row["archive"]] = replace(by_name[row["archive"]], **now)
        else:
            by_name[row["archive"]] = replace(by_name[row["archive"]], removed=row["ts"])
    return by_name


def valid_rows(tables: "Tables") -> list[dict[str, Any]]:
    """Return the rows of the register except those of plans that were cancelled."""
    rows = read(tables, contract(TABLE)).to_pylist()
    cancelled = cancelled_plans(tables) if rows else set()
    return [row for row in rows if row["plan"] not in cancelled]


def made_by(tables: "Tables", number: int | None) -> set[str]:
    """Return the names of the archives that a plan of the lake made, whether they are there or not."""
    rows = read(tables, contract(TABLE), ["archive", "row_kind", "plan"]).to_pylist()
    return {row["archive"] for row in rows if row["row_kind"] == ARCHIVED and row["plan"] == number}


def write_rewritten(tables: "Tables", archive: Archive, now: "Manifest", proposal: str) -> None:
    """Write down that an archive has another manifest; once."""
    made = replace(archive, rows=now.rows, bytes=now.size_bytes, files=len(now.files), manifest_sha256=now.sha256)
    row = {**made.row(REWRITTEN), "plan": None, "proposal": proposal}

    def compose(_: object) -> "Iterable[dict[str, Any]]":
        known = every_archive(tables).get(archive.archive)
        return [] if known is None or known.manifest_sha256 == now.sha256 else with_time([row])

    append_own(tables, TABLE, lambda handle: list(compose(handle)))


@dataclass(frozen=True, slots=True)
class ArchiveExamination:
    """An archive that was looked at.

    Attributes
    ----------
    archive
        Which.
    files
        How many of its files were read and are sound.
    faults
        What is wrong, a file each, with its path.
    unread
        Files that lie in cold storage: only their sizes are known to be right.
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
    """Yield archives with what is wrong with them; every file that is at hand is read whole."""
    for archive in checked_archives:
        try:
            place = open_place(store, archive.uri)
            refuse_other(store, place)
            manifest = read_manifest(place, archive.manifest_sha256)
        except ArchiveError as error:
            yield ArchiveExamination(archive, 0, (f"{error.where}: {error.what}",), 0)
            continue
        faults = [*_disagreements(store, archive, manifest)]
        sound = unread = 0
        for file in manifest.files:
            at_hand, why = look_at(place, manifest.table, file)
            faults += [f"{place.path('tables', manifest.table, file.path)}: {why}"] if why else []
            sound += not why and at_hand
            unread += not why and not at_hand
        yield ArchiveExamination(archive, sound, tuple(faults), unread)


def _disagreements(store: "Store", archive: "Archive", manifest: Manifest) -> Iterator[str]:
    registered = (archive.table, archive.partition_date, archive.rows, archive.bytes, len(manifest.files))
    if manifest.lake != owner(store):
        yield f"{manifest.name}: the manifest is of another lake"
    if registered != (manifest.table, manifest.partition_date, manifest.rows, manifest.size_bytes, archive.files):
        yield f"{manifest.name}: the manifest and the register do not agree"
