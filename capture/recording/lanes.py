"""Lanes: all that one process records into, made as its settings say: a lane of slots or of frames for each table."""

import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

from ranklake.capture.common.gaps import Gaps
from ranklake.capture.common.layouts import FRAME_LANES, OWN_STEPS, ROWS, SCALARS, SLOT_LANES, Layout
from ranklake.capture.common.settings import CaptureSettings
from ranklake.capture.lanes.lane import Lane
from ranklake.capture.lanes.records import RecordLane
from ranklake.capture.lanes.shards import Shards
from ranklake.capture.lanes.slots import SlotFile
from ranklake.capture.lanes.written import WrittenLane
from ranklake.capture.recording.budget import Budget
from ranklake.capture.recording.folding import Folding
from ranklake.capture.recording.slot_files import SlotFiles
from ranklake.capture.series.masks import RowMasks
from ranklake.capture.series.own_contracts import NO_CONTRACTS, OwnContracts
from ranklake.capture.series.series import Series
from ranklake.capture.spool.locations import is_network


class Lanes:
    """The lanes of one process.

    Parameters
    ----------
    root
        Local spool.
    new_path
        Names the next file of a lane; raises `RefusedError` where there is none to be had.
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
        """End the files of frames that hold anything, but for one table's; yield each with its rows."""
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
    """Say whether one thread at a time runs Python code."""
    return bool(getattr(sys, "_is_gil_enabled", lambda: True)())
