"""Whether archives are what was written: their manifests, and every file by the digest of its bytes."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ranklake.lake.tables.integrity import sha256
from ranklake.retention.archive.manifest import ArchivedFile, Manifest, read_manifest
from ranklake.retention.archive.objects import AtHand, look
from ranklake.retention.archive.place import ArchiveError, open_place, refuse_other
from ranklake.retention.proposals.statements import owner

if TYPE_CHECKING:
    from ranklake.lake.store.store import Lake
    from ranklake.retention.archive.register import Archive


@dataclass(frozen=True, slots=True)
class Examined:
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
        one = self.archive
        head = {"archive": one.archive, "table": one.table, "partition_date": one.partition_date.isoformat()}
        return {**head, "files": self.files, "unread": self.unread, "faults": list(self.faults)}


def examine(lake: "Lake", some: "Iterable[Archive]") -> Iterator[Examined]:
    """Yield archives with what is wrong with them; every file that is at hand is read whole."""
    for one in some:
        try:
            place = open_place(lake, one.uri)
            refuse_other(lake, place)
            manifest = read_manifest(place, one.manifest_sha256)
        except ArchiveError as error:
            yield Examined(one, 0, (f"{error.where}: {error.what}",), 0)
            continue
        faults = [*_disagreements(lake, one, manifest)]
        sound = unread = 0
        for file in manifest.files:
            at_hand, why = look_at(place, manifest.table, file)
            faults += [f"{place.path('tables', manifest.table, file.path)}: {why}"] if why else []
            sound += not why and at_hand
            unread += not why and not at_hand
        yield Examined(one, sound, tuple(faults), unread)


def refuse_unsound(place: "Lake", manifest: Manifest) -> None:
    """Raise `ArchiveError` where a file of an archive is not what was written; those in cold storage go by size."""
    for file in manifest.files:
        _, why = look_at(place, manifest.table, file)
        if why:
            raise ArchiveError(why, where=place.path("tables", manifest.table, file.path))


def look_at(place: "Lake", table: str, file: ArchivedFile) -> tuple[bool, str]:
    """Return whether a file could be read, and what is wrong with it; empty if nothing is."""
    path = place.path("tables", table, file.path)
    try:
        found = look(place, path)
        if found.size_bytes != file.size_bytes:
            return True, f"{found.size_bytes:,} bytes where the manifest says {file.size_bytes:,}"
        if found.at_hand is not AtHand.YES:
            return False, ""
        with place.open_file(path, file.size_bytes) as source:
            return True, "" if sha256(source) == file.sha256 else "its bytes differ from the digest in the manifest"
    except FileNotFoundError:
        return True, "it is not there"


def _disagreements(lake: "Lake", one: "Archive", manifest: Manifest) -> Iterator[str]:
    said = (one.table, one.partition_date, one.rows, one.bytes, len(manifest.files))
    if manifest.lake != owner(lake):
        yield f"{manifest.name}: the manifest is of another lake"
    if said != (manifest.table, manifest.partition_date, manifest.rows, manifest.size_bytes, one.files):
        yield f"{manifest.name}: the manifest and the register do not agree"
