"""Recorder: the lanes, names and gaps of one process, and the stream they are written to.

It is what `Run` writes into and what the sealer works on. A process has one stream at a time: a forked child opens
its own at its first write, and so does a process whose folder vanished.
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
    """Files that writers filled, or that were cut, each with its rows. Any thread may add to them."""

    def __init__(self) -> None:
        self._files: dict[OpenFile, int] = {}
        self._mutex = threading.RLock()

    def __len__(self) -> int:
        return len(self._files)

    def add(self, ended: dict[Path, int]) -> None:
        """Take ended files, with their rows."""
        with self._mutex:  # `Recorder.close` does this, too, while the sealer is at work
            for path, rows in ended.items():
                file = OpenFile.of(path)
                assert file is not None
                self._files[file] = rows

    def existing(self) -> list[OpenFile]:
        """Return the open files that exist."""
        with self._mutex:
            return [file for file in self._files if file.path.exists()]

    def forget_sealed(self) -> None:
        """Forget those that are gone."""
        with self._mutex:
            self._files = {file: rows for file, rows in self._files.items() if file.path.exists()}

    def leave(self, folder: Path) -> None:
        """Forget those in a folder, which somebody else seals."""
        with self._mutex:
            self._files = {file: rows for file, rows in self._files.items() if file.path.parent != folder}

    def give_up(self) -> Counter[str]:
        """Forget all, and return how many rows they held, by table."""
        with self._mutex:
            files, self._files = self._files, {}
        lost: Counter[str] = Counter()
        for file, rows in files.items():
            lost[file.table] += rows
        return lost

    def after_fork(self) -> None:
        """In a forked child: they are the parent's."""
        self._files, self._mutex = {}, threading.RLock()


_RETIRE_TRIES: Final = 1000
_PATIENCE_S: Final = 2.0


class Recorder:
    """What one process records.

    Parameters
    ----------
    root
        Local spool.
    launch
        Who this process is.
    spool
        URI that the segments are meant for.
    settings
        How it is to behave.
    file_bytes
        Size of slot files by lane, where it is not to be the layout's.

    Attributes
    ----------
    closed
        Set for good by `close`.
    is_worker
        True in a forked child.
    stream
        What is written to now; None before the first write of a child, and while there is no place to write.
    unsealed
        Files that nobody writes to any more.
    gap_notes
        Writes counted gaps down, and reports them.
    own
        What an overlay adds to what every process records.
    masks
        What is masked before it is written.
    misuses
        What callers may have meant otherwise.
    traceparent
        The run's place in a W3C trace; empty if it is in none.
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
        """Return the stream, making one if there is none. Raises `RefusedError`."""
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

    def reopen_for_the_end(self) -> None:
        """Make a stream after the close, if there is none, for the last gaps to be written down in.

        Raises `RefusedError`.
        """
        if self.stream is None:
            self.stream = self.new_stream()

    def new_stream(self) -> Stream:
        """Make a stream that knows all names. Raises `RefusedError`."""
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
        """Write a frame to the stream's meta.frames. Raises `RefusedError`."""
        try:
            self.require().note(frame)
        except OSError as error:
            raise refusal(error) from error

    def note_time(self) -> None:
        """Note both clocks; an event tells if the wall clock was set. Raises `OSError`, `RefusedError`."""
        stream = self.require()
        stream.anchor()
        step_s, stream.clock_step_ns = stream.clock_step_ns / 1e9, 0
        if step_s:
            way = "ahead" if step_s > 0 else "back"
            row = {
                "event": "clock_step",
                "severity": "warning",
                "message": f"the wall clock was set {way} by {abs(step_s):.3f} s",
                "attributes": json_text({"step_s": step_s}),
            }
            self.records["events"].append(time.monotonic_ns(), row)

    def end_files(self, *, slots: bool = True, hold_ns: int = 0, patience_s: float = 0.0) -> None:
        """End the files that hold anything, so that they can be sealed; see `Lane.collect` for `hold_ns`.

        The row of ``runs`` stays open while it is being completed, unless there is some patience for that. Slot files
        stay open where `slots` is False.
        """
        is_final = self.settle(patience_s, last=patience_s > 0)
        for lane in self.slots.values() if slots else ():
            lane.cut()
        self.collect(hold_ns)
        for ended in self._lanes.cut_records(but=None if is_final else "runs"):
            self.unsealed.add(ended)

    def close(self) -> None:
        """End all files for good; later rows are refused, and counted as having come after the close."""
        self.settle(_PATIENCE_S, last=True)
        self.closed = True
        for lane in self.slots.values():
            lane.shut()
        for _ in range(_RETIRE_TRIES):  # a write that is just under way holds its file for microseconds
            self.collect()
            if not any(lane.retired for lane in self.slots.values()):
                break
            time.sleep(0.001)
        for ended in self._lanes.cut_records():
            self.unsealed.add(ended)

    def collect(self, hold_ns: int = 0) -> None:
        """Take the slot files that writers filled, or that were cut, on the list of those to seal."""
        for lane in self.slots.values():
            self.unsealed.add(lane.collect(hold_ns=hold_ns if lane.layout.table == "steps" else 0))

    def to_seal(self, *, last: bool = True) -> list[OpenFile]:
        """Return the files to seal: once closed, to the `last` sealing alone, which says that nothing follows."""
        files = self.unsealed.existing()  # first: if it is not closed after that, none is of the close
        return files if last or not self.closed else []

    def abandon_stream(self) -> None:
        """Give up a stream whose folder vanished: what it held and was not uploaded is counted as gaps.

        Only the sealer's thread calls it. Rows written meanwhile go to the next stream, whose files have another
        folder.
        """
        with self._mutex:
            stream, self.stream = self.stream, None
        if stream is None:
            return
        lost: Counter[str] = Counter()
        lost += self.unsealed.give_up()
        for table, rows in list(stream.waiting.values()):
            lost[table] += rows
        lost += self._lanes.abandon(stream.folder)
        for table, rows in lost.items():
            self.gaps.count(table, SPOOL_VANISHED, rows, str(stream.folder))
        self.gap_notes.note_again(stream)
        stream.close()

    def reassign(self, launch: Launch) -> Stream | None:
        """Have what is recorded from here on go to a stream of another run or rank; the sealer's thread calls it.

        Returns
        -------
        The stream that was, which nobody writes to any more, with files that are to be sealed; the row of ``runs`` is
        taken out of it, for it says whose run this was taken to be. None if there was no stream.
        """
        with self._mutex:
            stream, self.stream, self.launch = self.stream, None, launch
        if stream is None:
            return None
        for records in self.records.values():
            ended = records.cut()
            if ended is not None and records.table == "runs":
                ended[0].unlink(missing_ok=True)
        for _ in range(_RETIRE_TRIES):  # a write that is just under way holds its file for microseconds
            for lane in self.slots.values():
                lane.leave(stream.folder)
            self.collect()
            if not any(file.path.parent == stream.folder for lane in self.slots.values() for file in lane.retired):
                break
            time.sleep(0.001)
        self.unsealed.leave(stream.folder)
        with contextlib.suppress(OSError):  # those that were defined in between, of rows that still went here
            if self.own.frame is not None:
                stream.note({**self.own.frame, "c": list(self.own.step_columns)})
            for frame in self.series.frames():
                stream.note(frame)
        return stream

    def hand_over(self) -> None:
        """End the stream and leave it, unsealed, to whoever adopts streams; the next write opens another.

        Nobody may write meanwhile. Raises `OSError`, `RefusedError`; the stream is let go of all the same.
        """
        self.gap_notes.flush()
        self.gap_notes.record_events()
        stream = self.stream
        if stream is None or not stream.files_named:
            return
        self._lanes.abandon(stream.folder)
        self.stream = None
        try:
            stream.anchor()  # behind the last row, as when it is sealed here
            stream.note(ENDED)
        finally:
            stream.close()

    def sync(self) -> None:
        """Bring everything recorded to the disk itself. Raises `OSError`.

        Definitions come before the rows that use them, and the names of files last: a row is safe when all three are.
        """
        stream = self.stream
        try:
            if stream is not None:
                stream.sync()
            self._lanes.sync()
            for ended in self.unsealed.existing():
                sync_file(ended.path)
            if stream is not None:
                stream.sync_names()
        except FileNotFoundError:
            if self.stream is stream:
                raise
            # The sealer's thread gave the stream up meanwhile; the next round syncs what is recorded since.

    def after_fork(self) -> None:
        """In a forked child: let go of all that is the parent's; the child's own stream opens at its first write."""
        self.is_worker = True
        self.settle = _is_final  # the row is the parent's
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
        if self.closed:  # a file made now would be nobody's to seal
            raise RefusedError(AFTER_CLOSE)
        if not self.budget.has_room(lane, 0):  # samples: other files are asked for at their full size
            raise RefusedError(BACKPRESSURE, f"{self.budget.used_bytes} bytes of the disk budget are used")
        return self.require().next_open(lane)


def _is_final(patience_s: float, *, last: bool) -> bool:
    del patience_s, last
    return True
