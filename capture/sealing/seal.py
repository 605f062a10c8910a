"""Seal: convert slot and frame files to Parquet segments.

Steps in this order, so that a kill between two of them loses nothing:

    1. write Parquet to a temporary name, fsync        a later sealing overwrites it
    2. rename it to ….sealed                           a later sealing verifies it and continues with 3
    3. append the frame "sealed" to meta.frames        a later sealing continues with 4
    4. delete the slot file                            only now the segment may be uploaded

Sealing the same slots again gives the same bytes in any process, because a segment does not depend on the time of
sealing.
"""

import dataclasses
import hashlib
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ranklake.capture.common.gaps import LOGGER
from ranklake.capture.sealing.keys import SealingKeys
from ranklake.capture.sealing.rows import NO_ROWS, Rows
from ranklake.capture.sealing.segment_bytes import (
    _LAST,
    Origin,
    gaps_due,
    losses_in,
    name_of,
    read_footer,
    segment_bytes,
)
from ranklake.capture.sealing.tables import count_rows, read_rows
from ranklake.capture.spool.clock import Anchor, straighten
from ranklake.capture.spool.files import read_regular, write_whole
from ranklake.capture.spool.meta import Meta, aside_frame, read_meta, sealed_frame
from ranklake.capture.spool.stream import Stream
from ranklake.capture.spool.stream_files import DAMAGED_FOLDER, OpenFile, SealedFile, StreamName, sealed_files
from ranklake.segments.envelope import EncryptionError, decrypt


@dataclass(frozen=True, slots=True)
class SealedSegment:
    """A new segment.

    Attributes
    ----------
    gaps
        Missing rows that its footer counts.
    gaps_by_reason
        Those of the missing rows that sealing itself left out, by reason.
    """

    file: SealedFile
    gaps: int
    gaps_by_reason: dict[str, int] = dataclasses.field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Sealing(Origin):
    """The facts about a stream that sealing needs.

    Attributes
    ----------
    folder
        Folder of the stream.
    fallback
        Anchor for wall times if meta.frames has none; None if it is unknown, too.
    note
        Appends a frame to meta.frames; raises `OSError`.
    next_segment
        Returns a table's next segment number.
    keys
        Keys for encrypting and signing.
    encrypted, signed
        Whether the process that recorded the stream requires it.
    """

    folder: Path
    fallback: Anchor | None
    note: Callable[[dict[str, Any]], None]
    next_segment: Callable[[str], int]
    keys: SealingKeys
    encrypted: bool
    signed: bool = False


def sealing_of(stream: Stream, keys: SealingKeys) -> Sealing:
    """Return the facts for sealing a stream that this process writes."""
    return Sealing(
        name=stream.name,
        folder=stream.folder,
        world_size=stream.owner.world_size,
        boot_id=stream.owner.boot_id,
        fallback=stream.owner.anchor,
        note=stream.note,
        next_segment=stream.next_segment,
        keys=keys,
        encrypted=stream.owner.encrypted,
        signed=stream.owner.signed,
    )


def seal(
    job: Sealing, files: Sequence[OpenFile], *, final: bool, report: Callable[[SealedSegment], object] = lambda _: None
) -> None:
    """Seal closed files of a stream. Files without rows and gaps are deleted without a segment.

    Parameters
    ----------
    files
        Files to seal; with `final`, all files of the stream.
    final
        Whether the stream ends. Each table's last segment is then marked, tables with gaps and without rows get a
        segment without rows, and the last segment of ``events`` has the totals.
    report
        Called with each new segment, also before an error.

    Raises
    ------
    OSError
        An error of the disk, such as no space. Segments so far are complete; call again for the rest.
    EncryptionError
        A key cannot be read. Segments so far are complete; call again for the rest.
    """
    for sealed in _sealing(job, files, final=final):
        if sealed is not None:
            report(sealed)


def _sealing(job: Sealing, files: Sequence[OpenFile], *, final: bool) -> Iterator[SealedSegment | None]:
    meta = read_meta(job.folder)
    existing = {(file.table, file.segment): file for file in sealed_files(job.folder)}
    ordered = sorted(files, key=lambda file: (file.table, file.segment))
    last = {file.table: file for file in ordered} if final else {}
    for closing_table in (False, True):
        for file in ordered:
            if (file.table == _LAST) is closing_table:
                is_last = last.get(file.table) is file
                yield _finish(job, meta, file, existing) or _seal_or_put_aside(job, meta, file, final=is_last)
        if final and not closing_table:
            for table in meta.tables_with_pending():
                if table != _LAST:
                    yield _seal_without_rows(job, meta, table)
    if final and not meta.final:
        yield _seal_without_rows(job, meta, _LAST)


def _finish(
    job: Sealing, meta: Meta, file: OpenFile, existing: dict[tuple[str, int], SealedFile]
) -> SealedSegment | None:
    """Complete the sealing of a file whose segment a killed process has written; None without a valid segment."""
    if (file.table, file.segment) in meta.sealed:
        file.path.unlink()
        sealed_file = existing.get((file.table, file.segment))
        return SealedSegment(sealed_file, 0) if sealed_file else None
    sealed_file = existing.get((file.table, file.segment))
    if sealed_file is None:
        return None
    raw = read_regular(sealed_file.path)
    if hashlib.sha256(raw).hexdigest() != sealed_file.sha256:
        sealed_file.path.unlink()  # it is sealed again from its slots
        return None
    try:
        footer = read_footer(in_clear(job.keys, job.name, sealed_file, raw))
    except EncryptionError:
        sealed_file.path.unlink()  # it is sealed again, with the current key
        return None
    _note(job, meta, file.table, file.segment, footer.rows, footer.gaps, final=footer.final)
    file.path.unlink()
    return SealedSegment(sealed_file, sum(footer.gaps.values()))


def _seal_or_put_aside(job: Sealing, meta: Meta, file: OpenFile, *, final: bool) -> SealedSegment | None:
    """Seal a file. If that fails, count its rows and move it away, so that it does not block other files."""
    if (file.table, file.segment) in meta.aside:  # a process counted it, and was killed before it moved the file
        keep_damaged(job.folder, file.path)
        return None
    try:
        return _seal_file(job, meta, file, final=final)
    except (OSError, EncryptionError):
        raise
    except Exception as error:  # noqa: BLE001 - a bug, or an unforeseen kind of damage
        LOGGER.warning("ranklake: cannot seal %s: %s: %s", file.path, type(error).__name__, error)
        lost = count_rows(file.lane, read_regular(file.path))
        job.note(aside_frame(file.table, file.segment, lost))
        meta.add_aside(file.table, file.segment, lost)
        keep_damaged(job.folder, file.path)
        return None


def _seal_file(job: Sealing, meta: Meta, file: OpenFile, *, final: bool) -> SealedSegment | None:
    if (file.table, file.segment) in meta.sealed:  # completed by `_finish`
        return None
    raw = read_regular(file.path)
    straight = straighten(meta.anchors, meta.clock) or [job.fallback or _emergency_anchor(file, raw, meta)]
    rows = read_rows(file.lane, raw, meta, straight)
    gaps = gaps_due(meta, file.table, rows)
    closing = final and file.table == _LAST
    if not len(rows) and not gaps and not closing:
        file.path.unlink()
        return None
    sealed = _write(job, meta, file.table, file.segment, rows, straight, final=final)
    _note(job, meta, file.table, file.segment, len(rows), gaps, final=final)
    if rows.damaged:
        keep_damaged(job.folder, file.path)
    else:
        file.path.unlink()
    return SealedSegment(sealed, sum(gaps.values()), losses_in(rows))


def _seal_without_rows(job: Sealing, meta: Meta, table: str) -> SealedSegment:
    """Seal a segment without rows, for the gaps and totals in its footer."""
    gaps = meta.pending(table)
    segment = job.next_segment(table)
    sealed = _write(job, meta, table, segment, NO_ROWS, (), final=True)
    _note(job, meta, table, segment, 0, gaps, final=True)
    return SealedSegment(sealed, sum(gaps.values()))


def _note(job: Sealing, meta: Meta, table: str, segment: int, rows: int, gaps: dict[str, int], *, final: bool) -> None:
    job.note(sealed_frame(table, segment, rows, gaps, final=final))
    meta.add_sealed(table, segment, rows, gaps, final=final)


def _write(
    job: Sealing,
    meta: Meta,
    table: str,
    segment: int,
    rows: Rows,
    straight: Sequence[Anchor],
    *,
    final: bool,
) -> SealedFile:
    keys = job.keys.active(encrypted=job.encrypted, signed=job.signed)
    raw, footer = segment_bytes(job, meta, table, segment, rows, straight, final=final, keys=keys)
    digest = hashlib.sha256(raw).hexdigest()
    today = datetime.fromtimestamp(time.time(), UTC).date().isoformat()
    path = job.folder / SealedFile.local_name(table, segment, today, len(rows), digest, footer.key_id)
    write_whole(path, raw)
    sealed = SealedFile.of(path)
    assert sealed is not None
    return sealed


def in_clear(keys: SealingKeys, name: StreamName, file: SealedFile, raw: bytes) -> bytes:
    """Return the Parquet bytes of a stream's segment, decrypted if needed. Raises `EncryptionError`."""
    if not file.key_id:
        return raw
    return decrypt(keys.find(file.key_id), raw, name_of(name, file.segment, file.rows).bond(file.table))


def keep_damaged(folder: Path, path: Path) -> None:
    """Move a damaged file to <local>/damaged/, for a person to examine. Raises `OSError`."""
    name = StreamName.of(folder)
    place = folder.parent.parent.parent / DAMAGED_FOLDER
    place.mkdir(mode=0o700, exist_ok=True)
    prefix = f"{name.run[:100]}~a{name.attempt}~r{name.rank:05d}~{name.incarnation:016x}~" if name else ""
    path.rename(place / f"{prefix}{path.name}"[:250])


def _emergency_anchor(file: OpenFile, raw: bytes, meta: Meta) -> Anchor:
    """Return an anchor for a stream without anchors, as if the file's last event occurred at its last change."""
    rows = read_rows(file.lane, raw, meta, [(-(1 << 61), 0), (1 << 61, 1)])
    return (int(rows.mono_ns.max()) if len(rows) else 0), file.path.stat().st_mtime_ns
