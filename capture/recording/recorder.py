"""Recorder: the lanes, names and gaps of one process, and the stream that they are written to.

`Run` writes to the recorder, and the sealer seals its files. A process has one stream at a time. A forked child opens a
new stream at its first write, and so does a process whose folder was deleted.
"""

import contextlib
import os
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any, Final

from ranklake.capture.common.gaps import (
    AFTER_CLOSE,
    BACKPRESSURE,
    SPOOL_VANISHED,
    Gaps,
    Misuses,
    RefusedError,
)
from ranklake.capture.common.settings import CaptureSettings
from ranklake.capture.common.values import json_text
from ranklake.capture.lanes.masks import row_masks
from ranklake.capture.lanes.policies import NO_NAMES, STEPS, Policies, own_contracts, registry_of
from ranklake.capture.lanes.records import refusal
from ranklake.capture.lanes.series import Series
from ranklake.capture.provenance.launcher import Launch, find_traceparent
from ranklake.capture.recording.budget import Budget
from ranklake.capture.recording.gap_notes import GapNotes
from ranklake.capture.recording.lanes import Lanes
from ranklake.capture.sealing.keys import SealingKeys
from ranklake.capture.spool.files import sync_file
from ranklake.capture.spool.meta import ENDED
from ranklake.capture.spool.stream import Stream, new_incarnation
from ranklake.capture.spool.stream_files import OpenFile


class UnsealedFiles:
    """Closed files that are not sealed yet, each with its number of rows. Any thread may add files."""

    def __init__(self) -> None:
        self._files: dict[OpenFile, int] = {}
        self._mutex = threading.RLock()

    def __len__(self) -> int:
        return len(self._files)

    def add(self, rows_by_path: dict[Path, int]) -> None:
        """Add closed files with their numbers of rows."""
        with self._mutex:  # `Recorder.close` and the sealer may call it at the same time
            for path, rows in rows_by_path.items():
                file = OpenFile.of(path)
                assert file is not None
                self._files[file] = rows

    def existing(self) -> list[OpenFile]:
        """Return the files that still exist."""
        with self._mutex:
            return [file for file in self._files if file.path.exists()]

    def remove_sealed(self) -> None:
        """Remove files that were sealed and deleted from the list."""
        with self._mutex:
            self._files = {file: rows for file, rows in self._files.items() if file.path.exists()}

    def leave(self, folder: Path) -> None:
        """Remove the files in a folder from the list, because another process seals them."""
        with self._mutex:
            self._files = {file: rows for file, rows in self._files.items() if file.path.parent != folder}

    def clear(self) -> Counter[str]:
        """Clear the list, and return the number of rows in its files by table."""
        with self._mutex:
            files, self._files = self._files, {}
        lost: Counter[str] = Counter()
        for file, rows in files.items():
            lost[file.table] += rows
        return lost

    def after_fork(self) -> None:
        """Clear the list in a forked child, because the parent seals the files."""
        self._files, self._mutex = {}, threading.RLock()


_RETIRE_TRIES: Final = 1000
_SETTLE_TIMEOUT_S: Final = 2.0


class Recorder:
    """Records the rows of one process.

    Parameters
    ----------
    root
        Local spool.
    launch
        Run, attempt and rank of this process.
    spool
        URI of the segments' destination.
    settings
        Options of capture.
    file_bytes
        Sizes of slot files by lane, where they differ from the layout's.

    Attributes
    ----------
    closed
        Whether `close` was called.
    is_worker
        True in a forked child.
    stream
        The current stream; None before the first write of a forked child, and while no stream can be created.
    unsealed
        Closed files to seal.
    gap_notes
        Writes counted gaps to the stream, and reports them.
    own
        Tables and columns that an overlay adds.
    masks
        Masks that are applied before a row is written.
    misuses
        Counts and logs misuses.
    traceparent
        The run's W3C trace context; empty if it has none.
    settle
        Makes the row of ``runs`` final; see `ranklake.capture.provenance.run_record.RunRecord.settle`.
    """

    def __init__(
        self,
        root: Path,
        launch: Launch,
        spool: str,
        settings: CaptureSettings | None = None,
        file_bytes: dict[str, int] | None = None,
    ) -> None:
        self.root, self.launch, self.spool = root, launch, spool
        self.settings = settings or CaptureSettings()
        self.traceparent = find_traceparent(os.environ)
        self.gaps = Gaps()
        self.keys = SealingKeys(self.settings.encryption_key, self.settings.signing_key)
        self.misuses = Misuses(self.gaps.warn)
        policy, registry = registry_of(self.settings, self.gaps.warn)
        self.own = own_contracts(self.settings, self.gaps.warn)
        policies = Policies(policy, registry, self.misuses.report, self.own.renamed.get(STEPS, NO_NAMES))
        self.series = Series(self.note, policies, policy.max_series)
        self.masks = row_masks(self.settings, self.gaps.warn)
        self.closed = False
        self.stream: Stream | None = None
        self.unsealed = UnsealedFiles()
        self.budget = Budget(self.settings.disk_budget_bytes, evicts=self.settings.backpressure == "drop_oldest")
        self.settle = _is_final
        self._family = new_incarnation()
        self.is_worker = False
        self._mutex = threading.RLock()
        where = (self._new_path, lambda: self.require().folder)
        by = (self.settings, self.gaps, self.series, self.budget)
        self._lanes = Lanes(root, *by, *where, file_bytes or {}, own=self.own, masks=self.masks)
        self.slots, self.records = self._lanes.slots, self._lanes.records
        self.gap_notes = GapNotes(self.gaps, self.require, self.records["events"].append)

    def require(self) -> Stream:
        """Return the stream; create it if there is none. Raises `RefusedError`."""
        stream = self.stream
        if stream is not None:
            return stream
        with self._mutex:
            if self.stream is not None:
                return self.stream
            if self.closed:
                raise RefusedError(AFTER_CLOSE)
            self.stream = self.new_stream()
            return self.stream

    def reopen_for_gaps(self) -> None:
        """Create a stream for the last gaps, after the close, if there is none. Raises `RefusedError`."""
        if self.stream is None:
            self.stream = self.new_stream()

    def new_stream(self) -> Stream:
        """Create a stream that contains all definitions so far. Raises `RefusedError`."""
        launch = self.launch
        try:
            stream = Stream.create(
                self.root,
                launch.run,
                launch.attempt,
                launch.rank,
                world_size=launch.world_size,
                spool=self.spool,
                family=self._family,
                worker=self.is_worker,
                encrypted=self.keys.encrypts,
                signed=self.keys.signs,
            )
            if self.own.frame is not None:
                stream.note({**self.own.frame, "c": list(self.own.step_columns)})
            if self.masks.frame is not None:
                stream.note(self.masks.frame)
            for frame in self.series.frames():
                stream.note(frame)
        except OSError as error:
            raise refusal(error) from error
        return stream

    def note(self, frame: dict[str, Any]) -> None:
        """Append a frame to the stream's meta.frames. Raises `RefusedError`."""
        try:
            self.require().note(frame)
        except OSError as error:
            raise refusal(error) from error

    def note_time(self) -> None:
        """Record an anchor, and an event if the wall clock was set. Raises `OSError`, `RefusedError`."""
        stream = self.require()
        stream.anchor()
        step_s, stream.clock_step_ns = stream.clock_step_ns / 1e9, 0
        if step_s:
            direction = "ahead" if step_s > 0 else "back"
            row = {
                "event": "clock_step",
                "severity": "warning",
                "message": f"the wall clock was set {direction} by {abs(step_s):.3f} s",
                "attributes": json_text({"step_s": step_s}),
            }
            self.records["events"].append(time.monotonic_ns(), row)

    def end_files(self, *, slots: bool = True, hold_ns: int = 0, patience_s: float = 0.0) -> None:
        """Close the files that have rows, so that they can be sealed.

        Parameters
        ----------
        slots
            Whether to close slot files, too.
        hold_ns
            See `Lane.collect`.
        patience_s
            Seconds to wait for the row of ``runs`` to be complete. With 0, its file stays open if it is not complete.
        """
        is_final = self.settle(patience_s, last=patience_s > 0)
        for lane in self.slots.values() if slots else ():
            lane.cut()
        self.collect(hold_ns)
        for ended in self._lanes.cut_records(but=None if is_final else "runs"):
            self.unsealed.add(ended)

    def close(self) -> None:
        """Close all files. Later rows are refused, and counted as gaps with this reason."""
        self.settle(_SETTLE_TIMEOUT_S, last=True)
        self.closed = True
        for lane in self.slots.values():
            lane.shut()
        for _ in range(_RETIRE_TRIES):  # a write in progress keeps its file open for microseconds
            self.collect()
            if not any(lane.retired for lane in self.slots.values()):
                break
            time.sleep(0.001)
        for ended in self._lanes.cut_records():
            self.unsealed.add(ended)

    def collect(self, hold_ns: int = 0) -> None:
        """Add retired slot files to the files to seal."""
        for lane in self.slots.values():
            self.unsealed.add(lane.collect(hold_ns=hold_ns if lane.layout.table == "steps" else 0))

    def files_to_seal(self, *, last: bool = True) -> list[OpenFile]:
        """Return the files to seal. After `close`, only the `last` sealing gets them, which marks them as final."""
        files = self.unsealed.existing()  # before checking `closed`, so that no file of the close is included
        return files if last or not self.closed else []

    def abandon_stream(self) -> None:
        """Drop a stream whose folder was deleted, and count its rows that were not uploaded as gaps.

        Only the sealer's thread calls it. Rows written meanwhile go to the next stream, which has another folder.
        """
        with self._mutex:
            stream, self.stream = self.stream, None
        if stream is None:
            return
        lost: Counter[str] = Counter()
        lost += self.unsealed.clear()
        for table, rows in list(stream.waiting.values()):
            lost[table] += rows
        lost += self._lanes.abandon(stream.folder)
        for table, rows in lost.items():
            self.gaps.count(table, SPOOL_VANISHED, rows, str(stream.folder))
        self.gap_notes.restore_unsent(stream)
        stream.close()

    def reassign(self, launch: Launch) -> Stream | None:
        """Write later rows to a new stream of another run or rank. Only the sealer's thread calls it.

        Returns
        -------
        The previous stream, which is no longer written and has files to seal; None if there was no stream. The row of
        ``runs`` is deleted from it, because it describes the previous run.
        """
        with self._mutex:
            stream, self.stream, self.launch = self.stream, None, launch
        if stream is None:
            return None
        for records in self.records.values():
            ended = records.cut()
            if ended is not None and records.table == "runs":
                ended[0].unlink(missing_ok=True)
        for _ in range(_RETIRE_TRIES):  # a write in progress keeps its file open for microseconds
            for lane in self.slots.values():
                lane.leave(stream.folder)
            self.collect()
            if not any(file.path.parent == stream.folder for lane in self.slots.values() for file in lane.retired):
                break
            time.sleep(0.001)
        self.unsealed.leave(stream.folder)
        with contextlib.suppress(OSError):  # definitions made meanwhile, whose rows may be in this stream
            if self.own.frame is not None:
                stream.note({**self.own.frame, "c": list(self.own.step_columns)})
            for frame in self.series.frames():
                stream.note(frame)
        return stream

    def hand_over(self) -> None:
        """Close the stream without sealing it, for another process to adopt. The next write opens a new stream.

        No other thread may write meanwhile. Raises `OSError`, `RefusedError`; the stream is closed in these cases, too.
        """
        self.gap_notes.flush()
        self.gap_notes.record_events()
        stream = self.stream
        if stream is None or not stream.files_named:
            return
        self._lanes.abandon(stream.folder)
        self.stream = None
        try:
            stream.anchor()  # after the last row, as before sealing
            stream.note(ENDED)
        finally:
            stream.close()

    def sync(self) -> None:
        """Sync all recorded rows to disk. Raises `OSError`.

        Definitions are synced before the rows that use them, and the names of files last. A row is safe when all three
        are on disk.
        """
        stream = self.stream
        try:
            if stream is not None:
                stream.sync()
            self._lanes.sync()
            for file in self.unsealed.existing():
                sync_file(file.path)
            if stream is not None:
                stream.sync_names()
        except FileNotFoundError:
            if self.stream is stream:
                raise
            # The sealer's thread dropped the stream meanwhile; the next call syncs the new one.

    def after_fork(self) -> None:
        """Drop the parent's stream and files in a forked child, which opens a new stream at its first write."""
        self.is_worker = True
        self.settle = _is_final  # the parent writes the row
        stream, self.stream = self.stream, None
        self._mutex = threading.RLock()
        self.gaps.after_fork()
        self.gap_notes.after_fork()
        self.misuses.after_fork()
        self.series.after_fork()
        self.budget.after_fork()
        self.unsealed.after_fork()
        self._lanes.after_fork()
        if stream is not None:
            stream.close()

    def _new_path(self, lane: str) -> Path:
        if self.closed:  # no thread would seal a file created now
            raise RefusedError(AFTER_CLOSE)
        if not self.budget.has_room(lane, 0):  # for samples; slot files are checked with their full size
            raise RefusedError(BACKPRESSURE, f"{self.budget.used_bytes} bytes of the disk budget are used")
        return self.require().next_open(lane)


def _is_final(patience_s: float, *, last: bool) -> bool:
    del patience_s, last
    return True
