"""Recorder: the lanes, names and gaps of one process, and the stream they are written to.

It is what `Run` writes into and what the sealer works on. A process has one stream at a time: a forked child opens
its own at its first write, and so does a process whose folder vanished.
"""

import contextlib
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from ranklake.capture.common.gaps import (
    AFTER_CLOSE,
    BACKPRESSURE,
    DELIBERATE,
    DROPPED_OLDEST,
    FOUND_WHEN_SEALING,
    SPOOL_VANISHED,
    Gaps,
    RefusedError,
)
from ranklake.capture.common.layouts import FRAME_LANES, ROWS, SCALARS, SLOT_LANES, STEPS, Layout
from ranklake.capture.common.misuse import Misuses
from ranklake.capture.common.settings import Settings
from ranklake.capture.common.values import json_text
from ranklake.capture.lanes.lane import RETRY_NS, Lane
from ranklake.capture.lanes.records import RecordLane, refusal
from ranklake.capture.lanes.shards import Shards
from ranklake.capture.lanes.slots import SlotFile
from ranklake.capture.lanes.written import WrittenLane
from ranklake.capture.provenance.launcher import Launch
from ranklake.capture.recording.budget import Budget
from ranklake.capture.recording.folding import Folding
from ranklake.capture.recording.slot_files import SlotFiles
from ranklake.capture.sealing.keys import SealingKeys
from ranklake.capture.series.policies import Policies, registry_of
from ranklake.capture.series.series import Series
from ranklake.capture.spool.files import sync_file
from ranklake.capture.spool.meta import ENDED, sum_up
from ranklake.capture.spool.mounts import is_network
from ranklake.capture.spool.stream import Stream, new_incarnation
from ranklake.capture.spool.stream_files import OpenFile, SealedFile

if TYPE_CHECKING:
    from collections.abc import Callable

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
        Files that nobody writes to any more, and their rows.
    untold
        Gaps that no event tells of yet.
    misuses
        What callers may have meant otherwise.
    settle
        Makes the row of ``runs`` final; see `ranklake.capture.provenance.run_record.RunRecord.settle`.
    """

    def __init__(
        self,
        root: Path,
        launch: Launch,
        spool: str,
        settings: Settings | None = None,
        file_bytes: dict[str, int] | None = None,
    ) -> None:
        self.root, self.launch, self.spool = root, launch, spool
        self.settings = settings or Settings()
        self.gaps = Gaps()
        self.keys = SealingKeys(self.settings.encryption_key, self.settings.signing_key)
        self.misuses = Misuses(self.gaps.warn)
        policy, registry = registry_of(self.settings, self.gaps.warn)
        self.series = Series(self.note, Policies(policy, registry, self.misuses.tell), policy.max_series)
        self.closed = False
        self.stream: Stream | None = None
        self.unsealed: dict[OpenFile, int] = {}
        self.untold: Counter[tuple[str, str]] = Counter()
        self.budget = Budget(self.settings.disk_budget_bytes, evicts=self.settings.backpressure == "drop_oldest")
        self.settle: Callable[..., bool] = _is_final
        self._family = new_incarnation()
        self.is_worker = False
        self._gaps_again_ns = 0
        self._mutex = threading.RLock()
        folding = self._folding = Folding(lambda: self.slots["intervals"], self.series, self.gaps)
        self._folds: dict[Layout, Callable[..., None]] = {SCALARS: folding.scalar, ROWS: folding.row}
        writes = self.settings.spool_writes
        self._writes_records = writes == "records" or (writes == "auto" and is_network(root))
        self._files = SlotFiles(
            self.budget,
            self._new_path,
            lambda: self.require().folder,
            by_record=self._writes_records,
            sizes=file_bytes or {},
        )
        sharded = self.settings.shards == "always" or (self.settings.shards == "auto" and not has_gil())
        self.slots: dict[str, Lane | Shards] = {
            name: Shards(layout, self._new_lane) if sharded else self._new_lane(layout)
            for name, layout in SLOT_LANES.items()
        }
        self.records = {table: RecordLane(table, self._new_path, self.gaps.count) for table in FRAME_LANES}

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

    def flush_gaps(self) -> None:
        """Write counted gaps down; what cannot be written stays counted in memory."""
        counts = self.gaps.drain()
        if not counts:
            return
        try:
            self.require().note_gaps(counts)
        except (OSError, RefusedError):
            self.gaps.restore(counts)
            self._gaps_again_ns = time.monotonic_ns() + RETRY_NS
        else:
            with self._mutex:
                self.untold.update(counts)

    def count_found(self, table: str, found: dict[str, int]) -> None:
        """Count rows that sealing left out and wrote down already."""
        for reason, rows in found.items():
            self.gaps.count(table, reason, rows, is_written_down=True)
        with self._mutex:
            self.untold.update({(table, reason): rows for reason, rows in found.items()})

    def tell_gaps(self) -> None:
        """Make new gaps visible as events, one for each table and reason; what was sampled out is none."""
        with self._mutex:
            told, self.untold = self.untold, Counter()
        for (table, reason), rows in sorted(told.items()):
            if reason in DELIBERATE:
                continue
            row = {
                "event": "gap",
                "severity": "warning",
                "message": f"{rows} rows of {table} were not recorded: {reason}",
                "attributes": json_text({"table": table, "reason": reason, "rows": rows}),
            }
            self.records["events"].append(time.monotonic_ns(), row)

    def count_given_up(self, table: str, rows: int) -> None:
        """Count rows of sealed segments that were given up, which the stream has written down."""
        self.gaps.count(table, DROPPED_OLDEST, rows, is_written_down=True)
        with self._mutex:
            self.untold[table, DROPPED_OLDEST] += rows

    def _flush_gaps_of_worker(self) -> None:
        if time.monotonic_ns() >= self._gaps_again_ns:
            self.flush_gaps()

    def end_files(self, *, hold_ns: int = 0, patience_s: float = 0.0) -> None:
        """End all files that hold anything, so that they can be sealed; see `Lane.collect` for `hold_ns`.

        The row of ``runs`` stays open while it is being completed, unless there is some patience for that.
        """
        is_final = self.settle(patience_s, last=patience_s > 0)
        for lane in self.slots.values():
            lane.cut()
        self.collect(hold_ns)
        for records in self.records.values():
            if records.table == "runs" and not is_final:
                continue
            self._take(dict([cut]) if (cut := records.cut()) is not None else {})

    def close(self) -> None:
        """End all files for good; later rows are refused, and counted as having come after the close."""
        self.settle(_PATIENCE_S, last=True)
        with self._mutex:
            self.closed = True
        for lane in self.slots.values():
            lane.shut()
        for _ in range(_RETIRE_TRIES):  # a write that is just under way holds its file for microseconds
            self.collect()
            if not any(lane.retired for lane in self.slots.values()):
                break
            time.sleep(0.001)
        for records in self.records.values():
            self._take(dict([cut]) if (cut := records.cut()) is not None else {})

    def collect(self, hold_ns: int = 0) -> None:
        """Take the slot files that writers filled, or that were cut, on the list of those to seal."""
        for lane in self.slots.values():
            self._take(lane.collect(hold_ns=hold_ns if lane.layout is STEPS else 0))

    def _take(self, ended: dict[Path, int]) -> None:
        with self._mutex:  # `close` does this, too, while the sealer is at work
            for path, rows in ended.items():
                file = OpenFile.of(path)
                assert file is not None
                self.unsealed[file] = rows

    def to_seal(self, *, last: bool = True) -> list[OpenFile]:
        """Return the files that nobody writes to any more and that are there.

        Once the recorder is closed, all are left to the `last` sealing, whose segments say that nothing follows.
        """
        with self._mutex:
            if self.closed and not last:
                return []
            return [file for file in self.unsealed if file.path.exists()]

    def forget_sealed(self) -> None:
        """Take files that are gone off the list of those to seal."""
        with self._mutex:
            self.unsealed = {file: rows for file, rows in self.unsealed.items() if file.path.exists()}

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
        with self._mutex:
            unsealed, self.unsealed = self.unsealed, {}
        for file, rows in unsealed.items():
            lost[file.table] += rows
        for table, rows in list(stream.waiting.values()):
            lost[table] += rows
        for lane in self.slots.values():
            lost[lane.layout.table] += lane.abandon(stream.folder)
        for records in self.records.values():
            lost[records.table] += records.abandon(stream.folder)
        for table, rows in lost.items():
            self.gaps.count(table, SPOOL_VANISHED, rows, str(stream.folder))
        self._write_gaps_again(stream)
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
        with self._mutex:
            self.unsealed = {file: rows for file, rows in self.unsealed.items() if file.path.parent != stream.folder}
        with contextlib.suppress(OSError):  # those that were defined in between, of rows that still went here
            for frame in self.series.frames():
                stream.note(frame)
        return stream

    def hand_over(self) -> None:
        """End the stream and leave it, unsealed, to whoever adopts streams; the next write opens another.

        Nobody may write meanwhile. Raises `OSError`, `RefusedError`; the stream is let go of all the same.
        """
        self.flush_gaps()
        self.tell_gaps()
        stream = self.stream
        if stream is None or not stream.files_named:
            return
        for lane in self.slots.values():
            lane.abandon(stream.folder)
        for records in self.records.values():
            records.abandon(stream.folder)
        self.stream = None
        try:
            stream.anchor()  # behind the last row, as when it is sealed here
            stream.note(ENDED)
        finally:
            stream.close()

    def _write_gaps_again(self, stream: Stream) -> None:
        """Have the next stream tell of gaps that were written down in this one, and that no uploaded footer has."""
        try:
            meta = sum_up(stream.frames())
        except OSError as error:
            self.gaps.warn("gaps lost", f"gaps counted before {stream.folder} vanished are in no segment: {error}")
            return
        counts = meta.gaps - meta.taken
        waiting = [file for name in list(stream.waiting) if (file := SealedFile.of(stream.folder / name))]
        for file in waiting:
            for reason, rows in meta.sealed.get((file.table, file.segment), {}).items():
                # What was found in sealing has no frame of its own, and must not get one.
                counts[file.table, SPOOL_VANISHED if reason in FOUND_WHEN_SEALING else reason] += rows
        self.gaps.restore(counts)

    def sync(self) -> None:
        """Bring everything recorded to the disk itself. Raises `OSError`.

        Definitions come before the rows that use them, and the names of files last: a row is safe when all three are.
        """
        stream = self.stream
        if stream is not None:
            stream.sync()
        for lane in self.slots.values():
            lane.sync()
        for records in self.records.values():
            records.sync()
        for ended in self.to_seal():
            sync_file(ended.path)
        if stream is not None:
            stream.sync_names()

    def after_fork(self) -> None:
        """In a forked child: let go of all that is the parent's; the child's own stream opens at its first write."""
        self.is_worker = True
        self.settle = _is_final  # the row is the parent's
        stream, self.stream = self.stream, None
        self._mutex = threading.RLock()
        self.gaps.after_fork()
        self.gaps.at_once = self._flush_gaps_of_worker
        self.misuses.after_fork()
        self.series.after_fork()
        self.budget.after_fork()
        self._folding.after_fork()
        self.unsealed, self.untold = {}, Counter()
        for lane in self.slots.values():
            lane.after_fork()
        for records in self.records.values():
            records.after_fork()
        if stream is not None:
            stream.close()

    def _new_path(self, lane: str) -> Path:
        if self.closed:  # a file made now would be nobody's to seal
            raise RefusedError(AFTER_CLOSE)
        if not self.budget.has_room(lane, 0):  # samples: other files are asked for at their full size
            raise RefusedError(BACKPRESSURE, f"{self.budget.used_bytes} bytes of the disk budget are used")
        return self.require().next_open(lane)

    def _new_lane(self, layout: Layout) -> Lane:
        kind, files = (WrittenLane if self._writes_records else Lane), self._files
        lane = kind(layout, files.new, files.spare, files.adopt, self.gaps.count, self._weigh)
        lane.alone = self.is_worker
        if self.settings.backpressure == "aggregate":
            lane.fold = self._folds.get(layout)
        elif self.settings.backpressure == "block":
            lane.patience_s = self.settings.block_at_most_s
        return lane

    def _weigh(self, file: SlotFile) -> int:
        if file.layout is ROWS:
            return self.series.values_in(file.marked("schema").tolist())
        return len(file.marked("mark"))


def _is_final(patience_s: float, *, last: bool) -> bool:
    del patience_s, last
    return True


def has_gil() -> bool:
    """Say whether one thread at a time runs Python code."""
    return bool(getattr(sys, "_is_gil_enabled", lambda: True)())
