"""Slot files: created for the lanes of one recorder, as large as the disk budget permits, and prepared ahead."""

import itertools
import os
from collections.abc import Callable
from pathlib import Path

from ranklake.capture.common.gaps import BACKPRESSURE, RefusedError
from ranklake.capture.common.layouts import WRITTEN, Layout
from ranklake.capture.lanes.records import refusal
from ranklake.capture.lanes.slots import SlotFile
from ranklake.capture.lanes.written import RecordFile
from ranklake.capture.recording.budget import Budget
from ranklake.capture.spool.stream_files import SPARE


class SlotFiles:
    """Makes slot files. All methods raise `RefusedError` where none can be had.

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
