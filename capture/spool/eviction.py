"""Eviction: drops sealed segments to make room for newer ones, and counts each of their rows as a gap.

    ….sealed ─▶ ….dropped ─▶ the frame "dropped" in meta.frames ─▶ deleted

A kill between any two is harmless: whoever finds a ``.dropped`` file goes on from there. A segment that somebody has
tried to send may be in the store, whatever the store answered, and is never given up: `SealedFile.read_to_send` marks
it, and is told that there is no such file if it comes after the renaming.
"""

from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any, Final

from ranklake.capture.common.gaps import DROPPED_OLDEST
from ranklake.capture.spool.meta import dropped_frame, read_meta
from ranklake.capture.spool.stream_files import DROPPED, SEALED, SealedFile, sealed_files

Note = Callable[[dict[str, Any]], None]
Gone = Callable[[SealedFile], None]
_NEVER: Final = frozenset({"runs", "ranks", "steps", "events"})


def _tell_nobody(file: SealedFile) -> None:
    del file


def evict(folder: Path, tables: Collection[str], excess_bytes: int, note: Note, gone: Gone) -> None:
    """Give up the oldest segments of tables until so many bytes are free, or none is left.

    Raises `OSError`, in the middle of it; `finish` goes on. Whoever seals in this folder meanwhile would write totals
    that are out of date: the caller is its sealer.

    Parameters
    ----------
    gone
        Told of each segment that is no more.
    """
    assert not _NEVER.intersection(tables)
    known = read_meta(folder).sealed
    for file in sorted(sealed_files(folder), key=_sealed_ns):
        if excess_bytes <= 0:
            return
        if file.table not in tables or not file.rows or (file.table, file.segment) not in known:
            continue
        try:
            size = file.path.stat().st_size
            file.path.rename(file.path.with_suffix(DROPPED))
        except FileNotFoundError:  # uploaded just now
            continue
        excess_bytes -= size if finish(folder, note, gone) else 0


def _sealed_ns(file: SealedFile) -> int:
    """Return when a segment was sealed; 0 if it is gone."""
    try:
        return file.path.stat().st_mtime_ns
    except FileNotFoundError:
        return 0


def finish(folder: Path, note: Note, gone: Gone = _tell_nobody) -> int:
    """Note and delete what is on its way out, and return how much that was. Raises `OSError`; call it again then."""
    count = 0
    aside = sorted(path for path in folder.iterdir() if path.name.endswith(DROPPED))
    meta = read_meta(folder) if aside else None
    for path in aside:
        sealed = path.with_suffix(SEALED)
        file = SealedFile.of(sealed)
        if file is None or meta is None:
            continue
        if file.is_tried(path):
            path.rename(sealed)
            continue
        if (file.table, file.segment) not in meta.dropped:
            carried = meta.sealed.get((file.table, file.segment), {})
            note(dropped_frame(file.table, file.segment, file.rows, carried, DROPPED_OLDEST))
        path.unlink()
        gone(file)
        count += 1
    return count
