"""Gap notes: write counted gaps to the stream, and report them as events."""

import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ranklake.capture.common.gaps import (
    DELIBERATE,
    DROPPED_OLDEST,
    FOUND_WHEN_SEALING,
    SPOOL_VANISHED,
    Gaps,
    RefusedError,
)
from ranklake.capture.common.values import json_text
from ranklake.capture.lanes.lane import RETRY_NS
from ranklake.capture.spool.meta import sum_up
from ranklake.capture.spool.stream_files import SealedFile

if TYPE_CHECKING:
    from ranklake.capture.spool.stream import Stream


class GapNotes:
    """Writes gaps to the stream, from where they get into footers, and reports new gaps.

    Parameters
    ----------
    gaps
        The counts.
    stream
        Returns the stream to write to; raises `RefusedError` if there is none.
    record
        Records an event; its arguments are the monotonic time and the columns.
    """

    def __init__(
        self, gaps: Gaps, stream: "Callable[[], Stream]", record: Callable[[int, dict[str, Any]], object]
    ) -> None:
        self._gaps, self._stream, self._record = gaps, stream, record
        self._unreported: Counter[tuple[str, str]] = Counter()
        self._mutex = threading.RLock()
        self._retry_ns = 0

    def flush(self) -> None:
        """Write counted gaps to the stream. If that fails, the counts stay in memory."""
        counts = self._gaps.drain()
        if not counts:
            return
        try:
            self._stream().note_gaps(counts)
        except (OSError, RefusedError):
            self._gaps.restore(counts)
            self._retry_ns = time.monotonic_ns() + RETRY_NS
        else:
            with self._mutex:
                self._unreported.update(counts)

    def count_sealing_losses(self, table: str, counts: dict[str, int]) -> None:
        """Count rows that sealing left out and has counted in a footer, by reason."""
        for reason, rows in counts.items():
            self._gaps.count(table, reason, rows, is_written_down=True)
        with self._mutex:
            self._unreported.update({(table, reason): rows for reason, rows in counts.items()})

    def count_evicted(self, table: str, rows: int) -> None:
        """Count rows of evicted segments, which the stream has recorded already."""
        self._gaps.count(table, DROPPED_OLDEST, rows, is_written_down=True)
        with self._mutex:
            self._unreported[table, DROPPED_OLDEST] += rows

    def record_events(self) -> None:
        """Record new gaps as events, one per table and reason, except rows that were sampled out."""
        with self._mutex:
            new, self._unreported = self._unreported, Counter()
        for (table, reason), rows in sorted(new.items()):
            if reason in DELIBERATE:
                continue
            row = {
                "event": "gap",
                "severity": "warning",
                "message": f"{rows} rows of {table} were not recorded: {reason}",
                "attributes": json_text({"table": table, "reason": reason, "rows": rows}),
            }
            self._record(time.monotonic_ns(), row)

    def restore_unsent(self, stream: "Stream") -> None:
        """Move the gaps of a deleted stream that no uploaded footer counts to the next stream."""
        try:
            meta = sum_up(stream.frames())
        except OSError as error:
            self._gaps.warn("gaps lost", f"gaps counted before {stream.folder} vanished are in no segment: {error}")
            return
        counts = meta.gaps - meta.taken
        waiting = [file for name in list(stream.waiting) if (file := SealedFile.of(stream.folder / name))]
        for file in waiting:
            for reason, rows in meta.sealed.get((file.table, file.segment), {}).items():
                # Reasons of sealing are never written to frames, so count these rows under another reason.
                counts[file.table, SPOOL_VANISHED if reason in FOUND_WHEN_SEALING else reason] += rows
        self._gaps.restore(counts)

    def after_fork(self) -> None:
        """In a forked child, drop gaps that the parent reports, and write each new gap immediately."""
        self._unreported, self._mutex = Counter(), threading.RLock()
        self._gaps.on_count = self._flush_unless_refused

    def _flush_unless_refused(self) -> None:
        if time.monotonic_ns() >= self._retry_ns:
            self.flush()
