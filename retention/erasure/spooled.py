"""Copies of a subject's rows in the spool: segments, members of packs, and records of imports."""

import io
import zipfile
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import suppress
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

from ranklake.errors import RanklakeError
from ranklake.lake.ingest.deduplication import joined_slots
from ranklake.lake.ingest.index_summary import not_taken_in
from ranklake.lake.ingest.ingestion_index import SlotFile
from ranklake.lake.ingest.spool.packs import pack_name, pack_of
from ranklake.retention.proposals.erasures import SEGMENT, Item, applied
from ranklake.segments.segment import NotASegmentError, SegmentName

if TYPE_CHECKING:
    from ranklake.lake.ingest.spool.spool import Spool
    from ranklake.lake.ingest.spool.spooled import Spooled
    from ranklake.lake.store.store import Store
    from ranklake.lake.store.tables import Tables


class NotIngestedError(RanklakeError):
    """Segments of the subject wait in the spool: what is not in the lake yet cannot be counted. Nothing was changed."""


def refuse_waiting(store: "Store", spool: "Spool | None", paths: Collection[str]) -> None:
    """Raise `NotIngestedError` where some files of the spool are segments that no plan took in."""
    if spool is None or not paths:
        return
    waiting = {pack_of(item.path) or item.path for some in not_taken_in(store, spool.listing()) for item in some}
    if waiting_files := len(waiting & set(paths)):
        message = f"{waiting_files:,} files of the subject in the spool are not ingested yet"
        raise NotIngestedError(message, hint="run 'ranklake ingest', then plan again")


def slot_files(spool: "Spool", paths: Collection[str], holds: Callable[[str, bytes], bool]) -> Iterator[SlotFile]:
    """Yield the slot files whose copies in the spool go.

    Parameters
    ----------
    paths
        Files of the spool in which the subject was found.
    holds
        Says whether a member of a pack, of a name and with bytes, is the subject's.
    """
    for path in paths:
        named = [path]
        if pack_name(path) is not None:
            named = [name for name, raw in _members(spool.fs.cat_file(path)) if holds(name, raw)]
        for copy in map(PurePosixPath, named):
            with suppress(NotASegmentError):
                name = SegmentName.parse(copy.name)
                yield copy.parent.name, name.incarnation, name.segment


def identity(path: str) -> tuple[str, str] | None:
    """Return the table and the digest of a segment, by its path; None if it is none."""
    file = PurePosixPath(path)
    try:
        return file.parent.name, SegmentName.parse(file.name).sha256
    except NotASegmentError:
        return None


def as_items(slots: Iterable[SlotFile]) -> list[Item]:
    """Return slot files as items, one for each process and table, their numbers as ranges."""
    numbers: dict[tuple[str, int], set[int]] = {}
    for table, incarnation, segment in slots:
        numbers.setdefault((table, incarnation), set()).add(segment)
    return [
        Item(SEGMENT, table, None, f"{incarnation:016x}~{joined_slots(map(str, segments))}")
        for (table, incarnation), segments in sorted(numbers.items())
    ]


def erased_again(tables: "Tables", items: "Iterable[Spooled]") -> "Iterator[Spooled]":
    """Yield the files of a spool that are copies of slot files of which an applied erasure took rows."""
    ranges: dict[tuple[str, str], list[tuple[int, int]]] = {}
    for item in (item for one in applied(tables) for item in one.of(SEGMENT)):
        incarnation, _, text = (item.about or "").partition("~")
        slots = [(int(low), int(high or low)) for low, _, high in (one.partition("..") for one in text.split())]
        ranges.setdefault((item.table or "", incarnation), []).extend(slots)
    for spooled in items if ranges else ():
        name = spooled.name
        if name is not None and any(
            low <= name.segment <= high for low, high in ranges.get((spooled.table, f"{name.incarnation:016x}"), ())
        ):
            yield spooled


def _members(raw: bytes) -> list[tuple[str, bytes]]:
    try:
        with zipfile.ZipFile(io.BytesIO(raw)) as archive:
            return [(info.filename, archive.read(info)) for info in archive.infolist()]
    except (zipfile.BadZipFile, OSError, ValueError):
        return []


def remove(spool: "Spool", path: str, holds: Callable[[str, bytes], bool]) -> str:
    """Delete a file of the spool; of a pack the other members become files of their own first. Return what was done.

    Killed in between, both are there, and are known by their digests.
    """
    if pack_name(path) is None:
        spool.delete(path)
        return "deleted"
    top = path.rpartition("/packs/")[0].rpartition("/")[0]  # …/segments/<date>/packs/<name>
    for name, raw in _members(spool.fs.cat_file(path)):
        if not holds(name, raw):
            spool.put(f"{top}/{name}", raw)
    spool.delete(path)
    return "deleted, other members put beside it"
