"""What is done about files outside of live rows in which a subject is found, kind of place by kind of place.

    Delta's log, old checkpoints   bounds and words out; a checkpoint is made again
    plans of the lake              names out, sealed again where they were
    old versions of tables         deleted, exactly those
    hints, summaries               deleted: they are made again
    state of alerts                values out, so that what was sent is not sent again
    saved views                    values out
    archives                       written without the subject's rows; copies that came back from there are deleted
    shares                         as the lake's own tables, once what is gone was withdrawn
    the spool                      segments and packs deleted, and what remembers an import
    folders that were named        text and databases without the values; other files deleted
    versions kept by a bucket      deleted, last; what a lock of the bucket keeps is in the certificate, and until when

Each step can be made again: the next call goes on where one died.
"""

import io
import zipfile
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, Final

from ranklake.errors import RanklakeError
from ranklake.lake.ingest.deduplication import joined_slots
from ranklake.lake.ingest.index_summary import not_taken_in
from ranklake.lake.ingest.ingestion_index import SlotFile
from ranklake.lake.ingest.spool.packs import pack_name, pack_of
from ranklake.lake.plans.plan import SEAL, DamagedPlanError, Plan, last_finished, seal_plan
from ranklake.lake.store.files import delete, overwrite, remove_lone_markers, remove_version
from ranklake.lake.store.governance import REHYDRATED
from ranklake.lake.tables.commit import number_of
from ranklake.lake.tables.live_files import live_paths, plan_of
from ranklake.lake.tables.tables import delta_table, retry_listing
from ranklake.retention.archive.rehydrated import remove as remove_copies
from ranklake.retention.erasure.archived import erase_archived
from ranklake.retention.erasure.redaction import (
    SQLITE,
    redact_database,
    redacted_lines,
    redacted_text,
    replace_values,
)
from ranklake.retention.erasure.search import ARCHIVES, FOLDER, each_version
from ranklake.retention.erasure.search import PLACE as VERSIONS
from ranklake.retention.proposals.erasures import REGISTER, SEGMENT, Item
from ranklake.retention.shares.place import open_place
from ranklake.retention.shares.register import shares
from ranklake.segments.segment import NotASegmentError, SegmentName

if TYPE_CHECKING:
    from ranklake.lake.ingest.spool.packs import SpoolFile
    from ranklake.lake.ingest.spool.spool import Spool
    from ranklake.lake.store.lake import Lake
    from ranklake.lake.store.store import Store
    from ranklake.lake.store.tables import Tables
    from ranklake.retention.erasure.search import FileMatches
    from ranklake.retention.erasure.subject import Reach, Subject

DELETED, REDACTED, RENEWED, REWRITTEN = "deleted", "values taken out", "made anew", "written without the rows"
FORGOTTEN: Final = "forgotten"
_TEXTS: Final = frozenset({"alerts", "saved"})
_HINTS: Final = frozenset({"known", "rounds", "migrating", "attempts", "queries", "tallies"})
_CHECKPOINT: Final = ".checkpoint"
_WAL: Final = "-wal"
COPIES: Final = "artifacts"
"""Folder of the lake with copied artifacts (`ranklake.retention.copies`)."""


@dataclass(frozen=True, slots=True)
class PlaceResult:
    """What was done about files of one kind of place."""

    place: str
    action: str
    files: int

    def plain(self) -> dict[str, object]:
        """Return plain JSON values."""
        return {"place": self.place, "action": self.action, "files": self.files}


def erase_files(
    reach: "Reach",
    subject: "Subject",
    matches: "Iterable[FileMatches]",
    holds: Callable[[str, bytes], bool],
    proposal: str,
) -> list[PlaceResult]:
    """Take a subject out of files in which it was found, except for live rows and what stays.

    Parameters
    ----------
    matches
        As `ranklake.retention.erasure.search.each` yields it; what has nothing in it is passed over.
    holds
        Says whether a member of a pack, of a name and with bytes, is the subject's.
    proposal
        The erasure's name.

    Raises what the stores raise, and `sqlite3.Error`.
    """
    lake, spool = reach.lake, reach.spool
    roots = [lake.store, *(open_place(lake.store, share.uri) for share in shares(lake.store))]
    counts: Counter[tuple[str, str]] = Counter()
    renewed: dict[tuple[int, str], list[FileMatches]] = {}
    archived: list[FileMatches] = []
    for match in matches:
        if not match.counts or match.source.is_folder or match.source.version is not None:
            continue
        source = match.source
        top, _, rest = source.path.partition("/")
        if source.place == ARCHIVES:
            archived.append(match)
            continue
        if source.place.startswith(FOLDER):
            action = _in_folder(Path(source.uri), subject)
        elif spool is not None and source.uri.startswith(f"{spool.root}/"):
            action = _in_spool(spool, source.uri, subject, holds)
        else:
            at = next(at for at, root in enumerate(roots) if source.uri.startswith(f"{root.root}/"))
            if top == "tables" and "/_delta_log/" in f"/{rest}" and _CHECKPOINT in rest:
                renewed.setdefault((at, rest.partition("/")[0]), []).append(match)
                continue
            is_plan = roots[at] is lake.store and top == "plans"
            action = _plan(lake, source.path, subject) if is_plan else _in_store(roots[at], source.path, subject)
        if action:
            counts[source.place, action] += 1
    for (at, table), kept_files in renewed.items():
        _renew_checkpoint(roots[at], table, [one.source.path for one in kept_files])
        counts[kept_files[0].source.place, RENEWED] += len(kept_files)
    if archived:
        counts[ARCHIVES, REWRITTEN] += erase_archived(lake, subject, archived, proposal)
    return [PlaceResult(place, action, files) for (place, action), files in sorted(counts.items())]


def erase_versions(reach: "Reach", subject: "Subject") -> list[PlaceResult]:
    """Delete the versions that buckets keep and that hold something of a subject; what is locked stays, and is found.

    Comes last: what was deleted or overwritten before is such a version by then. Raises what the stores raise.
    """
    gone = 0
    touched: dict[str, Any] = {}
    for version in each_version(reach.lake, reach.spool, subject.sought):
        if (
            version.counts
            and version.source.version is not None
            and not remove_version(version.source.fs, version.source.version)
        ):
            touched[version.source.uri] = version.source.fs
            gone += 1
    for path, fs in touched.items():
        remove_lone_markers(fs, path)
    return [PlaceResult(VERSIONS, DELETED, gone)] if gone else []


def _in_store(store: "Store", path: str, subject: "Subject") -> str:
    """Take a subject out of a file of the lake, or of a share; return what was done, nothing where it stays."""
    top, _, rest = path.partition("/")
    if top == "queries" and path.endswith(".jsonl"):
        return _lines(store, path, subject)
    if top in _TEXTS:
        return _text_file(store, path, subject)
    if top in {*_HINTS, REHYDRATED}:  # which can be made again
        copies = top == REHYDRATED
        gone = remove_copies(store, rest.partition("/")[0]) if copies else delete(store, store.path(path))
        return DELETED if gone else ""
    if top != "tables":  # of a run, copies of artifacts that no other refers to went before
        is_copy = top == COPIES and subject.run is None
        return DELETED if is_copy and delete(store, store.path(path)) else ""
    table, _, below = rest.partition("/")
    if below.startswith("_delta_log/"):
        return _log(store, path, subject)
    return DELETED if _is_left_over(store, table, below) and delete(store, store.path(path)) else ""


def _text_file(store: "Store", path: str, subject: "Subject") -> str:
    """Take a subject out of a text; it goes where it cannot be kept without."""
    where = store.path(path)
    new = redacted_text(store.fs.cat_file(where), subject)
    if new is None:
        return DELETED if delete(store, where) else ""
    overwrite(store.fs, where, new, local=store.is_local)
    return REDACTED


def _is_left_over(store: "Store", table: str, path: str) -> bool:
    """Return whether a data file is neither live nor that of somebody who is at work."""
    handle, number = delta_table(store, table), plan_of(path)
    if handle is None or number is None or number > number_of(handle):
        return False
    return path not in live_paths(handle)


def _log(store: "Store", path: str, subject: "Subject") -> str:
    where = store.path(path)
    raw = store.fs.cat_file(where)
    try:
        new = redacted_lines(raw, subject)
    except ValueError:
        return ""
    if new == raw:
        return ""
    overwrite(store.fs, where, new, local=store.is_local)
    return REDACTED


def _lines(store: "Store", path: str, subject: "Subject") -> str:
    """Take lines that hold a value out of a file of lines: each is a query of somebody."""
    where = store.path(path)
    lines = store.fs.cat_file(where).splitlines(keepends=True)
    overwrite(store.fs, where, b"".join(line for line in lines if not subject.sought.count(line)), local=store.is_local)
    return REDACTED


def _plan(lake: "Lake", path: str, subject: "Subject") -> str:
    """Take a subject out of a finished plan: nothing carries it out again, and its counts stay."""
    where = lake.path(path)
    try:
        plan = Plan.from_json(lake.fs.cat_file(where), where)
    except DamagedPlanError:  # nobody can say what it would be without the values
        return ""
    if plan.number > last_finished(lake.tables):
        return ""
    seals = SEAL in plan.body
    body = replace_values({name: value for name, value in plan.body.items() if name != SEAL}, subject)
    made = replace(plan, body=body)
    if seals:
        made = seal_plan(made, lake.config.plans.key)
    overwrite(lake.fs, where, made.to_json(), local=lake.store.is_local)
    return REDACTED


def _renew_checkpoint(store: "Store", table: str, paths: Sequence[str]) -> None:
    """Write a checkpoint of the table as it is, and delete older ones that hold a value."""
    handle = delta_table(store, table)
    if handle is None:
        return
    retry_listing(handle.create_checkpoint)
    newest = f"{handle.version():020d}{_CHECKPOINT}"
    for path in paths:
        if not path.rpartition("/")[2].startswith(newest):
            delete(store, store.path(path))


def _in_spool(spool: "Spool", path: str, subject: "Subject", holds: Callable[[str, bytes], bool]) -> str:
    parts = path.removeprefix(spool.root).split("/")
    if "segments" in parts:
        return remove(spool, path, holds)
    if "imports" not in parts:
        return ""
    new = redacted_text(spool.fs.cat_file(path), subject)
    if new is None or subject.sought.count(parts[-1].encode()):
        spool.delete(path)
        return DELETED
    spool.delete(path)
    spool.put(path, new)
    return REDACTED


def _in_folder(path: Path, subject: "Subject") -> str:
    """Take a subject out of a file of a folder that was named; what cannot be kept without it goes."""
    if subject.sought.count(path.name.encode()):
        path.unlink(missing_ok=True)
        return DELETED
    main = path.with_name(path.name[: -len(_WAL)]) if path.name.endswith(_WAL) else path
    if main != path and main.is_file():
        redact_database(main, subject)  # which empties its log
        return REDACTED
    raw = path.read_bytes()
    if raw.startswith(SQLITE):
        redact_database(path, subject)
        return REDACTED
    new = redacted_text(raw, subject)
    if new is None:
        path.unlink(missing_ok=True)
        return DELETED
    overwrite(None, str(path), new, local=True)
    return REDACTED


class NotIngestedError(RanklakeError):
    """Segments of the subject wait in the spool: what is not in the lake yet cannot be counted. Nothing was changed."""


def refuse_waiting(store: "Store", spool: "Spool | None", paths: Collection[str]) -> None:
    """Raise `NotIngestedError` where some files of the spool are segments that no plan took in.

    Files in a fallback spool are not searched, so any of them counts. Raises also `LakeUnreachableError`.
    """
    if spool is not None and spool.fallback is not None and (files := len(spool.fallback.files())):
        message = f"{files:,} files wait in the fallback spool, and may be the subject's"
        raise NotIngestedError(message, hint="run 'ranklake ingest', then plan again")
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


def erased_again(tables: "Tables", items: "Iterable[SpoolFile]") -> "Iterator[SpoolFile]":
    """Yield the files of a spool that are copies of slot files of which an applied erasure took rows."""
    ranges: dict[tuple[str, str], list[tuple[int, int]]] = {}
    for item in (item for erasure in REGISTER.applied(tables) for item in erasure.of(SEGMENT)):
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
