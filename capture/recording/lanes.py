"""Lanes: create the lanes of one process by its settings: lanes of slots, and a lane of frames for each other table."""

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
    """Creates slot files. All methods raise `RefusedError` if no file is available.

    Parameters
    ----------
    path_of, folder
        Return the path of a lane's next file, and the stream's folder; both raise `RefusedError`.
    by_record
        Whether files are written record by record instead of mapped; see `ranklake.capture.lanes.written`.
    sizes
        Sizes in bytes by lane, where they differ from the layout's.
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
        """Create a file to write now."""
        self._require_room(layout)
        return self._create(self._path_for(layout), layout)

    def spare(self, layout: Layout) -> SlotFile:
        """Create a spare file, under a name that marks it as empty."""
        self._require_room(layout)
        return self._create(self._folder() / f"{layout.lane}-{os.getpid()}-{next(self._spares)}{SPARE}", layout)

    def adopt(self, spare: SlotFile) -> None:
        """Rename a spare file to the lane's next file."""
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

    def _create(self, path: Path, layout: Layout) -> SlotFile:
        try:
            file = (RecordFile if self._by_record else SlotFile)(path, layout, self._size(layout))
        except OSError as error:
            raise refusal(error) from error
        self._budget.add_file(self._size(layout))
        return file


_INTERVAL_NS: Final = 10 * 10**9


class Folding:
    """Aggregates the values of ``scalars`` and ``rows`` that exceed the disk budget.

    Each aggregated value is counted as a gap with the reason "aggregated", because it has no row. The aggregate's row
    is recorded as usual. If there is no space for it, either, the lane ``intervals`` counts the value.
    """

    def __init__(self, intervals: "Callable[[], AnyLane]", series: "Series", gaps: "Gaps") -> None:
        self._intervals = intervals
        self._buffer: DoubleBuffer | None = None
        self._series, self._gaps = series, gaps
        self._aggregates: dict[int, Aggregate] = {}

    def scalar(self, time_ns: float, step: float, value: float, series: float) -> None:
        """Aggregate the value of a slot of ``scalars``."""
        del time_ns
        self._fold(int(series), int(step), value)

    def row(self, time_ns: float, step: float, *values: float) -> None:
        """Aggregate the values of a slot of ``rows``, whose last field is the schema."""
        del time_ns
        for series, value in zip(self._series.metrics_of(int(values[-1])), values[:-1], strict=True):
            self._fold(series, int(step), value)

    def after_fork(self) -> None:
        """Start new rows in a forked child, because the current rows belong to the parent."""
        self._aggregates = {}

    def _fold(self, series: int, step: int, value: float) -> None:
        aggregate = self._aggregates.get(series)
        if aggregate is None:
            if self._buffer is None:
                self._buffer = DoubleBuffer(self._intervals(), INTERVAL_CODES)
            new = Aggregate("", self._buffer, _number(series), _INTERVAL_NS, _ignore_failure)
            aggregate = self._aggregates.setdefault(series, new)
        if aggregate.take(value, step):
            self._gaps.count("scalars", AGGREGATED, 1, "the disk budget is nearly used up")


def _number(series: int) -> Callable[[], int]:
    return lambda: series


def _ignore_failure(*_: object) -> None:
    """Do nothing: aggregated values are valid numbers, so adding them does not fail."""


class Lanes:
    """The lanes of one process.

    Parameters
    ----------
    root
        Local spool.
    new_path
        Returns the path of a lane's next file; raises `RefusedError`.
    folder
        Returns the stream's folder; raises `RefusedError`.
    sizes
        Sizes of slot files by lane, where they differ from the layout's.
    own
        Tables and columns that an overlay adds.
    masks
        Masks that are applied before a row is written.

    Attributes
    ----------
    slots, records
        Lanes of slots by name, and lanes of frames by table.
    """

    def __init__(  # noqa: PLR0913 - lanes need many independent objects
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
        """Close the files of frames that have rows, except the file of table `but`; yield each with its rows."""
        for table, records in self.records.items():
            closed_file = None if table == but else records.cut()
            if closed_file is not None:
                yield dict([closed_file])

    def abandon(self, folder: Path) -> Counter[str]:
        """Close the files in a folder, and return their numbers of rows by table."""
        rows: Counter[str] = Counter()
        for lane in self.slots.values():
            rows[lane.layout.table] += lane.abandon(folder)
        for records in self.records.values():
            rows[records.table] += records.abandon(folder)
        return rows

    def sync(self) -> None:
        """Sync the rows in open files to disk. Raises `OSError`."""
        for lane in self.slots.values():
            lane.sync()
        for records in self.records.values():
            records.sync()

    def after_fork(self) -> None:
        """Drop the parent's files in a forked child."""
        self._is_worker = True
        self._folding.after_fork()
        for lane in self.slots.values():
            lane.after_fork()
        for records in self.records.values():
            records.after_fork()


def has_gil() -> bool:
    """Whether the interpreter has a GIL, so that only one thread at a time runs Python code."""
    return bool(getattr(sys, "_is_gil_enabled", lambda: True)())
