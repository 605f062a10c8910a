"""Eviction: delete sealed segments to free disk space for newer ones, and count their rows as gaps.

    ….sealed ─▶ ….dropped ─▶ the frame "dropped" in meta.frames ─▶ deleted

A kill between two steps loses nothing: a later call continues with the ``.dropped`` files. If an upload of a segment
was tried, the store may have it, whatever it answered. Such a segment is never evicted. `SealedFile.read_to_send` marks
it, and fails with a missing file if the segment was renamed first.
"""

from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any, Final

from ranklake.capture.common.gaps import DROPPED_OLDEST
from ranklake.capture.spool.meta import dropped_frame, read_meta
from ranklake.capture.spool.stream_files import DROPPED, SEALED, SealedFile, sealed_files

Note = Callable[[dict[str, Any]], None]
OnDelete = Callable[[SealedFile], None]
_NEVER: Final = frozenset({"runs", "ranks", "steps", "events"})


def _do_nothing(file: SealedFile) -> None:
    del file


def evict(folder: Path, tables: Collection[str], excess_bytes: int, note: Note, on_delete: OnDelete) -> None:
    """Delete the oldest segments of tables until `excess_bytes` are freed or none is left.

    Only the sealer of the folder may call it: another sealer would write outdated totals. Raises `OSError` in between;
    `finish` completes the work.

    Parameters
    ----------
    note
        Appends a frame to meta.frames.
    on_delete
        Called with each deleted segment.
    """
    assert not _NEVER.intersection(tables)
    sealed_segments = read_meta(folder).sealed
    for file in sorted(sealed_files(folder), key=_sealed_ns):
        if excess_bytes <= 0:
            return
        if file.table not in tables or not file.rows or (file.table, file.segment) not in sealed_segments:
            continue
        try:
            size = file.path.stat().st_size
            file.path.rename(file.path.with_suffix(DROPPED))
        except FileNotFoundError:  # uploaded just now
            continue
        excess_bytes -= size if finish(folder, note, on_delete) else 0


def _sealed_ns(file: SealedFile) -> int:
    """Return when a segment was sealed; 0 if the file is missing."""
    try:
        return file.path.stat().st_mtime_ns
    except FileNotFoundError:
        return 0


def finish(folder: Path, note: Note, on_delete: OnDelete = _do_nothing) -> int:
    """Count and delete the ``.dropped`` segments; return their number. After an `OSError`, call it again."""
    count = 0
    dropped_paths = sorted(path for path in folder.iterdir() if path.name.endswith(DROPPED))
    meta = read_meta(folder) if dropped_paths else None
    for path in dropped_paths:
        sealed = path.with_suffix(SEALED)
        file = SealedFile.of(sealed)
        if file is None or meta is None:
            continue
        if file.is_tried(path):
            path.rename(sealed)
            continue
        if (file.table, file.segment) not in meta.dropped:
            footer_gaps = meta.sealed.get((file.table, file.segment), {})
            note(dropped_frame(file.table, file.segment, file.rows, footer_gaps, DROPPED_OLDEST))
        path.unlink()
        on_delete(file)
        count += 1
    return count
