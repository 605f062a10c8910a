"""Lanes: all that one process records into, made as its settings say: a lane of slots or of frames for each table."""

import itertools
import os
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final

from ranklake.capture.common.gaps import AGGREGATED, BACKPRESSURE, Gaps, RefusedError
from ranklake.capture.common.layouts import FRAME_LANES, OWN_STEPS, ROWS, SCALARS, SLOT_LANES, WRITTEN, Layout
from ranklake.capture.common.settings import CaptureSettings
from ranklake.capture.lanes.double_buffer import INTERVAL_CODES, DoubleBuffer
from ranklake.capture.lanes.lane import Lane
from ranklake.capture.lanes.masks import RowMasks
from ranklake.capture.lanes.policies import NO_CONTRACTS, OwnContracts
from ranklake.capture.lanes.records import RecordLane, refusal
from ranklake.capture.lanes.series import Series
from ranklake.capture.lanes.shards import Shards
from ranklake.capture.lanes.slots import SlotFile
from ranklake.capture.lanes.written import RecordFile, WrittenLane
from ranklake.capture.metrics.aggregate import Aggregate
from ranklake.capture.recording.budget import Budget
from ranklake.capture.spool.locations import is_network
from ranklake.capture.spool.stream_files import SPARE

if TYPE_CHECKING:
    from ranklake.capture.lanes.shards import AnyLane


class SlotFiles:
    """Makes slot files. All methods raise `RefusedError` where none is available.

    Parameters
    ----------
    path_of, folder
        Give the path of a lane's next file, and the stream's folder; they raise `RefusedError`, too.
    by_record
        Whether files are written record by record instead of mapped; see `ranklake.capture.lanes.written`.
    sizes
        In bytes by lane, where they are not to be the layout's.
    """

    def __init__(
        self,
        budget: Budget,
        path_of: Callable[[str], Path],
        folder: Callable[[], Path],
        *,
        by_record: bool,
        sizes: dict[str, int],
    ) -> None:
        self._budget, self._path_of, self._folder = budget, path_of, folder
        self._by_record, self._sizes = by_record, sizes
        self._spares = itertools.count()

    def new(self, layout: Layout) -> SlotFile:
        """Make a file to be written now."""
        self._require_room(layout)
        return self._made_at(self._path_for(layout), layout)

    def spare(self, layout: Layout) -> SlotFile:
        """Make a file to be written next, under a name that says that it is empty."""
        self._require_room(layout)
        return self._made_at(self._folder() / f"{layout.lane}-{os.getpid()}-{next(self._spares)}{SPARE}", layout)

    def adopt(self, spare: SlotFile) -> None:
        """Give a spare file the name of one that is written."""
        try:
            spare.rename(self._path_for(spare.layout))
        except OSError as error:
            raise refusal(error) from error

    def _path_for(self, layout: Layout) -> Path:
        return self._path_of(layout.lane + WRITTEN if self._by_record else layout.lane)

    def _require_room(self, layout: Layout) -> None:
        if not self._budget.has_room(layout.lane, self._size(layout)):
            raise RefusedError(BACKPRESSURE, f"{self._budget.used_bytes} bytes of the disk budget are used")

    def _size(self, layout: Layout) -> int:
        return self._sizes.get(layout.lane) or self._budget.file_bytes(layout)

    def _made_at(self, path: Path, layout: Layout) -> SlotFile:
        try:
            file = (RecordFile if self._by_record else SlotFile)(path, layout, self._size(layout))
        except OSError as error:
            raise refusal(error) from error
        self._budget.made(self._size(layout))
        return file


_EVERY_NS: Final = 10 * 10**9


class Folding:
    """Takes what the lanes ``scalars`` and ``rows`` have no room for.

    Each value that is folded is counted as a gap, "aggregated", since no row of its own is recorded; the row that it
    is folded into is a recorded row like any other. A value that finds no room here either is counted by the lane
    ``intervals``.
    """

    def __init__(self, intervals: "Callable[[], AnyLane]", series: "Series", gaps: "Gaps") -> None:
        self._intervals = intervals
        self._twin: DoubleBuffer | None = None
        self._series, self._gaps = series, gaps
        self._folds: dict[int, Aggregate] = {}

    def scalar(self, moment: float, step: float, value: float, series: float) -> None:
        """Fold the fields of a slot of ``scalars``."""
        del moment
        self._fold(int(series), int(step), value)

    def row(self, moment: float, step: float, *values: float) -> None:
        """Fold the fields of a slot of ``rows``, the last of which is the schema."""
        del moment
        for series, value in zip(self._series.metrics_of(int(values[-1])), values[:-1], strict=True):
            self._fold(series, int(step), value)

    def after_fork(self) -> None:
        """In a forked child: the rows are the parent's."""
        self._folds = {}

    def _fold(self, series: int, step: int, value: float) -> None:
        fold = self._folds.get(series)
        if fold is None:
            if self._twin is None:
                self._twin = DoubleBuffer(self._intervals(), INTERVAL_CODES)
            fold = self._folds.setdefault(series, Aggregate("", self._twin, _number(series), _EVERY_NS, _never))
        if fold.take(value, step):
            self._gaps.count("scalars", AGGREGATED, 1, "the disk budget is nearly used up")


def _number(series: int) -> Callable[[], int]:
    return lambda: series


def _never(*_: object) -> None:
    """Numbers are numbers already when they come here."""


class Lanes:
    """The lanes of one process.

    Parameters
    ----------
    root
        Local spool.
    new_path
        Names the next file of a lane; raises `RefusedError` where none is available.
    folder
        Where files go; raises likewise.
    sizes
        Size of slot files by lane, where it is not to be the layout's.
    own
        What an overlay adds.
    masks
        What is masked before it is written.

    Attributes
    ----------
    slots, records
        Lanes by name: those of slots, and those of frames by their table.
    """

    def __init__(  # noqa: PLR0913 - all that lanes are made of comes together here, once
        self,
        root: Path,
        settings: CaptureSettings,
        gaps: Gaps,
        series: Series,
        budget: Budget,
        new_path: Callable[[str], Path],
        folder: Callable[[], Path],
        sizes: dict[str, int],
        *,
        own: OwnContracts = NO_CONTRACTS,
        masks: RowMasks | None = None,
    ) -> None:
        self._settings, self._gaps, self._series = settings, gaps, series
        writes = settings.spool_writes
        by_record = writes == "records" or (writes == "auto" and is_network(root))
        self._kind = WrittenLane if by_record else Lane
        self._files = SlotFiles(budget, new_path, folder, by_record=by_record, sizes=sizes)
        self._is_worker = False
        folding = self._folding = Folding(lambda: self.slots["intervals"], series, gaps)
        self._folds: dict[Layout, Callable[..., None]] = {SCALARS: folding.scalar, ROWS: folding.row}
        sharded = settings.shards == "always" or (settings.shards == "auto" and not has_gil())
        layouts = SLOT_LANES | ({"steps": OWN_STEPS} if own.step_columns else {})
        self.slots: dict[str, Lane | Shards] = {
            name: Shards(layout, self._new_lane) if sharded else self._new_lane(layout)
            for name, layout in layouts.items()
        }
        self.records = {
            table: RecordLane(table, new_path, gaps.count, None if masks is None else masks.of(table))
            for table in (*FRAME_LANES, *own.tables)
        }

    def _new_lane(self, layout: Layout) -> Lane:
        files = self._files
        lane = self._kind(layout, files.new, files.spare, files.adopt, self._gaps.count, self._weigh)
        lane.alone = self._is_worker
        if self._settings.backpressure == "aggregate":
            lane.fold = self._folds.get(layout)
        elif self._settings.backpressure == "block":
            lane.patience_s = self._settings.block_at_most_s
        return lane

    def _weigh(self, file: SlotFile) -> int:
        if file.layout is ROWS:
            return self._series.values_in(file.marked("schema").tolist())
        return len(file.marked("mark"))

    def cut_records(self, but: str | None = None) -> Iterator[dict[Path, int]]:
        """End the files of frames that hold anything, except for one table's; yield each with its rows."""
        for table, records in self.records.items():
            ended = None if table == but else records.cut()
            if ended is not None:
                yield dict([ended])

    def abandon(self, folder: Path) -> Counter[str]:
        """Let go of the files in a folder, and return how many rows they hold, by table."""
        held: Counter[str] = Counter()
        for lane in self.slots.values():
            held[lane.layout.table] += lane.abandon(folder)
        for records in self.records.values():
            held[records.table] += records.abandon(folder)
        return held

    def sync(self) -> None:
        """Bring the rows in open files to the disk itself. Raises `OSError`."""
        for lane in self.slots.values():
            lane.sync()
        for records in self.records.values():
            records.sync()

    def after_fork(self) -> None:
        """In a forked child: let go of all that is the parent's."""
        self._is_worker = True
        self._folding.after_fork()
        for lane in self.slots.values():
            lane.after_fork()
        for records in self.records.values():
            records.after_fork()


def has_gil() -> bool:
    """Whether one thread at a time runs Python code."""
    return bool(getattr(sys, "_is_gil_enabled", lambda: True)())
