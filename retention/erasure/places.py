"""Removes a subject from all files other than live rows, by kind of place.

    Delta log, old checkpoints     bounds and values removed; the checkpoint is written again
    plans of the lake              names removed; a sealed plan is sealed again
    old versions of tables         files with matches deleted
    hints, summaries               deleted, since they can be computed again
    state of alerts                values removed, so that no alert is sent twice
    saved views                    values removed
    archives                       written without the subject's rows; rehydrated copies are deleted
    shares                         as the lake's own tables, after removed rows were withdrawn
    the spool                      segments and packs deleted, and records of imports
    local folders                  values removed from text and databases; other files deleted
    versions kept by a bucket      deleted last; the certificate lists versions under a lock, with the lock's end

Each step can be repeated, so the next call continues after a crash.
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
from ranklake.retention.erasure.search import ARCHIVES, FOLDER, search_versions
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
    """What was done with the files of one kind of place."""

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
    has_subject: Callable[[str, bytes], bool],
    proposal: str,
) -> list[PlaceResult]:
    """Remove a subject from files other than live rows, except from files that stay by rule.

    Parameters
    ----------
    matches
        Results of `ranklake.retention.erasure.search.search_files`; files without matches are skipped.
    has_subject
        Takes name and bytes of a pack's member; returns whether it has data of the subject.
    proposal
        The erasure's name.

    Raises the errors of the stores, and `sqlite3.Error`.
    """
    lake, spool = reach.lake, reach.spool
    roots = [lake.store, *(open_place(lake.store, share.uri) for share in shares(lake.store))]
    counts: Counter[tuple[str, str]] = Counter()
    checkpoints: dict[tuple[int, str], list[FileMatches]] = {}
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
            action = _in_spool(spool, source.uri, subject, has_subject)
        else:
            index, root = next((n, root) for n, root in enumerate(roots) if source.uri.startswith(f"{root.root}/"))
            if top == "tables" and "/_delta_log/" in f"/{rest}" and _CHECKPOINT in rest:
                checkpoints.setdefault((index, rest.partition("/")[0]), []).append(match)
                continue
            is_plan = root is lake.store and top == "plans"
            action = _plan(lake, source.path, subject) if is_plan else _in_store(root, source.path, subject)
        if action:
            counts[source.place, action] += 1
    for (index, table), files in checkpoints.items():
        _renew_checkpoint(roots[index], table, [file.source.path for file in files])
        counts[files[0].source.place, RENEWED] += len(files)
    if archived:
        counts[ARCHIVES, REWRITTEN] += erase_archived(lake, subject, archived, proposal)
    return [PlaceResult(place, action, count) for (place, action), count in sorted(counts.items())]


def erase_versions(reach: "Reach", subject: "Subject") -> list[PlaceResult]:
    """Delete old object versions with matches. Locked versions stay, and the final search finds them.

    Must come last, since files that were deleted or overwritten before become old versions. Raises the errors of the
    stores.
    """
    deleted = 0
    touched: dict[str, Any] = {}
    for version in search_versions(reach.lake, reach.spool, subject.needles):
        if (
            version.counts
            and version.source.version is not None
            and not remove_version(version.source.fs, version.source.version)
        ):
            touched[version.source.uri] = version.source.fs
            deleted += 1
    for path, fs in touched.items():
        remove_lone_markers(fs, path)
    return [PlaceResult(VERSIONS, DELETED, deleted)] if deleted else []


def _in_store(store: "Store", path: str, subject: "Subject") -> str:
    """Remove a subject from a file of the lake or of a share; return the action, empty if the file stays."""
    top, _, rest = path.partition("/")
    if top == "queries" and path.endswith(".jsonl"):
        return _lines(store, path, subject)
    if top in _TEXTS:
        return _text_file(store, path, subject)
    if top in {*_HINTS, REHYDRATED}:
        is_copy = top == REHYDRATED
        is_deleted = remove_copies(store, rest.partition("/")[0]) if is_copy else delete(store, store.path(path))
        return DELETED if is_deleted else ""
    if top != "tables":  # for a run, `sweep_copies` deletes artifact copies without a reference
        is_copy = top == COPIES and subject.run is None
        return DELETED if is_copy and delete(store, store.path(path)) else ""
    table, _, below = rest.partition("/")
    if below.startswith("_delta_log/"):
        return _log(store, path, subject)
    return DELETED if _is_unused(store, table, below) and delete(store, store.path(path)) else ""


def _text_file(store: "Store", path: str, subject: "Subject") -> str:
    """Remove a subject from a text file; delete the file if a value cannot be removed."""
    where = store.path(path)
    new = redacted_text(store.fs.cat_file(where), subject)
    if new is None:
        return DELETED if delete(store, where) else ""
    overwrite(store.fs, where, new, local=store.is_local)
    return REDACTED


def _is_unused(store: "Store", table: str, path: str) -> bool:
    """Return whether a data file is neither live nor part of an unfinished commit."""
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
    """Remove the lines with a value from the log of queries."""
    where = store.path(path)
    lines = store.fs.cat_file(where).splitlines(keepends=True)
    overwrite(
        store.fs, where, b"".join(line for line in lines if not subject.needles.count(line)), local=store.is_local
    )
    return REDACTED


def _plan(lake: "Lake", path: str, subject: "Subject") -> str:
    """Remove a subject from a finished plan, which is never carried out again. Its counts stay."""
    where = lake.path(path)
    try:
        plan = Plan.from_json(lake.fs.cat_file(where), where)
    except DamagedPlanError:  # it cannot be parsed, so values cannot be replaced
        return ""
    if plan.number > last_finished(lake.tables):
        return ""
    is_sealed = SEAL in plan.body
    body = replace_values({name: value for name, value in plan.body.items() if name != SEAL}, subject)
    new_plan = replace(plan, body=body)
    if is_sealed:
        new_plan = seal_plan(new_plan, lake.config.plans.key)
    overwrite(lake.fs, where, new_plan.to_json(), local=lake.store.is_local)
    return REDACTED


def _renew_checkpoint(store: "Store", table: str, paths: Sequence[str]) -> None:
    """Write a new checkpoint of a table, and delete the older checkpoints in `paths`."""
    handle = delta_table(store, table)
    if handle is None:
        return
    retry_listing(handle.create_checkpoint)
    newest = f"{handle.version():020d}{_CHECKPOINT}"
    for path in paths:
        if not path.rpartition("/")[2].startswith(newest):
            delete(store, store.path(path))


def _in_spool(spool: "Spool", path: str, subject: "Subject", has_subject: Callable[[str, bytes], bool]) -> str:
    parts = path.removeprefix(spool.root).split("/")
    if "segments" in parts:
        return remove(spool, path, has_subject)
    if "imports" not in parts:
        return ""
    new = redacted_text(spool.fs.cat_file(path), subject)
    if new is None or subject.needles.count(parts[-1].encode()):
        spool.delete(path)
        return DELETED
    spool.delete(path)
    spool.put(path, new)
    return REDACTED


def _in_folder(path: Path, subject: "Subject") -> str:
    """Remove a subject from a file of a local folder; delete the file if a value cannot be removed."""
    if subject.needles.count(path.name.encode()):
        path.unlink(missing_ok=True)
        return DELETED
    main = path.with_name(path.name[: -len(_WAL)]) if path.name.endswith(_WAL) else path
    if main != path and main.is_file():
        redact_database(main, subject)  # also empties the write-ahead log
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
    """Segments of the subject in the spool are not ingested yet, so their rows are unknown. Nothing was changed."""


def refuse_waiting(store: "Store", spool: "Spool | None", paths: Collection[str]) -> None:
    """Raise `NotIngestedError` if any of the files are segments that are not ingested.

    Files in a fallback spool are not searched, so any file there counts. Also raises `LakeUnreachableError`.
    """
    if spool is not None and spool.fallback is not None and (files := len(spool.fallback.files())):
        message = f"{files:,} files wait in the fallback spool, and may be the subject's"
        raise NotIngestedError(message, hint="run 'ranklake ingest', then plan again")
    if spool is None or not paths:
        return
    waiting = {pack_of(item.path) or item.path for items in not_taken_in(store, spool.listing()) for item in items}
    if count := len(waiting & set(paths)):
        message = f"{count:,} files of the subject in the spool are not ingested yet"
        raise NotIngestedError(message, hint="run 'ranklake ingest', then plan again")


def slot_files(spool: "Spool", paths: Collection[str], has_subject: Callable[[str, bytes], bool]) -> Iterator[SlotFile]:
    """Yield the slot files whose copies in the spool are deleted.

    Parameters
    ----------
    paths
        Files of the spool with matches.
    has_subject
        Takes name and bytes of a pack's member; returns whether it has data of the subject.
    """
    for path in paths:
        segments = [path]
        if pack_name(path) is not None:
            segments = [name for name, raw in _members(spool.fs.cat_file(path)) if has_subject(name, raw)]
        for copy in map(PurePosixPath, segments):
            with suppress(NotASegmentError):
                name = SegmentName.parse(copy.name)
                yield copy.parent.name, name.incarnation, name.segment


def identity(path: str) -> tuple[str, str] | None:
    """Return table and digest of a segment from its path; None for other files."""
    file = PurePosixPath(path)
    try:
        return file.parent.name, SegmentName.parse(file.name).sha256
    except NotASegmentError:
        return None


def as_items(slots: Iterable[SlotFile]) -> list[Item]:
    """Return slot files as items, one for each process and table, with their numbers as ranges."""
    numbers: dict[tuple[str, int], set[int]] = {}
    for table, incarnation, segment in slots:
        numbers.setdefault((table, incarnation), set()).add(segment)
    return [
        Item(SEGMENT, table, None, f"{incarnation:016x}~{joined_slots(map(str, segments))}")
        for (table, incarnation), segments in sorted(numbers.items())
    ]


def erased_again(tables: "Tables", items: "Iterable[SpoolFile]") -> "Iterator[SpoolFile]":
    """Yield the segments of a spool that are copies of slot files from which an applied erasure removed rows."""
    ranges: dict[tuple[str, str], list[tuple[int, int]]] = {}
    for item in (item for erasure in REGISTER.applied(tables) for item in erasure.of(SEGMENT)):
        incarnation, _, text = (item.about or "").partition("~")
        slots = [(int(low), int(high or low)) for low, _, high in (part.partition("..") for part in text.split())]
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


def remove(spool: "Spool", path: str, has_subject: Callable[[str, bytes], bool]) -> str:
    """Delete a file of the spool and return the action. The other members of a pack become single files first.

    After a crash both the pack and the files may exist; ingest recognizes equal segments by their digests.
    """
    if pack_name(path) is None:
        spool.delete(path)
        return "deleted"
    top = path.rpartition("/packs/")[0].rpartition("/")[0]  # …/segments/<date>/packs/<name>
    for name, raw in _members(spool.fs.cat_file(path)):
        if not has_subject(name, raw):
            spool.put(f"{top}/{name}", raw)
    spool.delete(path)
    return "deleted, other members put beside it"
