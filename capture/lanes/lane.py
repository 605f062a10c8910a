"""Lane: the open slot file of one layout, its successor, and the handling of rows for which there is no slot.

    writers ──▶ pair ──▶ open file ──full or cut──▶ retired ──no writer left──▶ collected by the sealer
                             ▲
                             spare, prepared in the background

This is one class because all its methods share one lock, whose rules are then documented in one place.
"""

import contextlib
import struct
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from ranklake.capture.common.gaps import BACKPRESSURE, BAD_VALUE, BLOCKED, RefusedError
from ranklake.capture.common.layouts import MARK, Layout
from ranklake.capture.lanes.slots import SHUT, Pair, Place, SlotFile, is_released

RETRY_NS: Final = 1_000_000_000
PRESSED_NS: Final = 50_000_000  # the disk budget is cheap to check, and sealing frees space quickly
_PAUSE_S: Final = 0.02
LEAST_AHEAD_BYTES: Final = 1 << 20  # of pages prefaulted ahead of the writers


def _do_nothing() -> None:
    """Do nothing: the default of `Lane.wake`."""


def _remove(spare: SlotFile) -> None:
    spare.forget()
    with contextlib.suppress(OSError):
        spare.path.unlink()


def _is_lasting(refused: RefusedError) -> bool:
    """Whether this process cannot end the shortage itself, as sealing and folding do for the disk budget."""
    return refused.reason not in {BACKPRESSURE, BLOCKED}


class Lane:
    """The open slot file of one layout, and its successor.

    Parameters
    ----------
    layout
        Layout of the slots.
    create
        Creates the next `SlotFile`, or raises `RefusedError`.
    spare
        Creates a `SlotFile` in advance, under a temporary name; may raise `RefusedError`.
    adopt
        Renames a spare to a segment's file, or raises `RefusedError`.
    refuse
        Called with (table, reason, rows, detail) for rows that could not be written.
    weigh
        Counts the rows in a retired file; a slot may have several rows.

    Attributes
    ----------
    alone
        True in a forked child, where no sealer runs. Retired files are closed immediately, and the parent seals them.
    is_shut
        Whether `shut` was called.
    fold
        Called with the fields of rows that exceed the disk budget; it aggregates and counts them.
    patience_s
        Seconds that a call may wait for space within the disk budget.
    wake
        Called when the spare was used and another is needed; from any thread and from signal handlers.

    Notes
    -----
    Any thread reads `pair` without a lock. All other state is written under `_lock`. It is re-entrant, because a signal
    handler may log while its thread has the lock. Retired files are closed under `_collecting`, which no writer takes
    and which is acquired before `_lock`.
    """

    def __init__(
        self,
        layout: Layout,
        create: Callable[[Layout], SlotFile],
        spare: Callable[[Layout], SlotFile],
        adopt: Callable[[SlotFile], None],
        refuse: Callable[[str, str, int, str], None],
        weigh: Callable[[SlotFile], int],
    ) -> None:
        self.layout = layout
        self._slot_bytes = layout.slot_bytes  # cached: read for every row
        self.alone = False
        self.fold: Callable[..., None] | None = None
        self.patience_s = 0.0
        self.wake: Callable[[], object] = _do_nothing
        self.pair: Pair = SHUT
        self.retired: list[SlotFile] = []
        self._create, self._make_spare, self._adopt = create, spare, adopt
        self._refuse, self._weigh = refuse, weigh
        self._lock, self._collecting = threading.RLock(), threading.RLock()
        self._file: SlotFile | None = None
        self._spare: SlotFile | None = None
        self._refused: RefusedError | None = None
        self._retry_ns = 0
        self.is_shut = False
        self._ahead_bytes = layout.file_bytes  # until the speed of the writers is measured
        self._synced: tuple[Path | None, int] = (None, 0)  # last synced file and position

    def put(self, pack: Callable[..., None], *fields: float, rows: int = 1) -> Place | None:
        """Write one slot, in a new file if needed; return its place, or None if it was counted as a gap.

        Parameters
        ----------
        pack
            `pack_into` of the layout's packer, or of a packer of the same size.
        fields
            All fields except the mark: plain ints and floats, whose conversion runs no foreign code.
        rows
            Number of rows in the slot.
        """
        while True:
            pair = self.pair
            view, take = pair
            offset = take()
            try:
                if offset + self._slot_bytes <= len(view):
                    pack(view, offset, *fields, MARK)
                    return view, offset
            except (ValueError, TypeError, OverflowError, struct.error) as error:
                if not is_released(view):
                    self._refuse(self.layout.table, BAD_VALUE, rows, str(error))
                    return None
            refused = self._advance(pair)
            if refused is not None:
                self._drop_rows(refused, fields, rows)
                return None

    def _drop_rows(self, refused: RefusedError, fields: tuple[float, ...], rows: int) -> None:
        if self.fold is not None and refused.reason == BACKPRESSURE:
            self.fold(*fields)
        else:
            self._refuse(self.layout.table, refused.reason, rows, refused.detail)

    def _advance(self, used_pair: Pair) -> RefusedError | None:
        """Publish the next file unless another thread did; if no file is available, return the refusal."""
        deadline = None
        while True:
            with self._lock:
                if self.pair is not used_pair:
                    return None
                if self._refused is not None and time.monotonic_ns() < self._retry_ns:
                    return self._refused
                try:
                    self._publish(self._next_file())
                except RefusedError as error:
                    self._publish(None)
                    used_pair, refused = self.pair, error
                else:
                    self._refused = None
                    return None
                now = time.monotonic()
                deadline = now + self.patience_s if deadline is None else deadline
                if refused.reason != BACKPRESSURE or now >= deadline:
                    if refused.reason == BACKPRESSURE and self.patience_s:
                        refused = RefusedError(BLOCKED, refused.detail)
                    pause_ns = PRESSED_NS if refused.reason == BACKPRESSURE else RETRY_NS
                    self._refused, self._retry_ns = refused, time.monotonic_ns() + pause_ns
                    self.wake()
                    return refused
            self.wake()
            time.sleep(_PAUSE_S)  # without the lock, which sealing needs to free space

    def _next_file(self) -> SlotFile:
        spare, self._spare = self._spare, None
        self.wake()
        if spare is None:
            refused = self._refused
            if refused is not None and _is_lasting(refused) and self.wake is not _do_nothing:
                raise refused  # trying on a full disk takes milliseconds; `prepare` tries in another thread
            return self._create(self.layout)
        try:
            self._adopt(spare)
        except RefusedError:
            _remove(spare)
            raise
        return spare

    def _publish(self, file: SlotFile | None) -> None:
        old, self._file = self._file, file
        self.pair = SHUT if file is None else file.pair
        if old is not None:
            old.retired_ns = time.monotonic_ns()
            if not self.alone or old.retire(None) is None:
                self.retired.append(old)

    @property
    def is_hungry(self) -> bool:
        """Whether the last attempt to create a file failed, for a reason other than the disk budget."""
        return self._refused is not None and _is_lasting(self._refused)

    def prepare(self) -> None:
        """Create the spare if there is none, with its first pages faulted in."""
        spare = self._spare
        if spare is None and not self.is_shut:
            try:
                spare = self._make_spare(self.layout)
            except RefusedError:  # the writer that needs a file gets the error
                return
            spare.touch_pages(self._ahead_bytes)
            with self._lock:
                if self._spare is None and not self.is_shut:
                    self._spare = spare
                    if self.is_hungry:
                        self._refused = None
                    return
            _remove(spare)

    def cut(self) -> None:
        """Retire the open file if it has any rows, so that it can be sealed. The spare or a new file replaces it."""
        with self._lock:
            if self._file is None or not self._file.is_used():
                return
            try:
                next_file = self._next_file()
            except RefusedError as refused:
                next_file = None
                if _is_lasting(refused):  # for the disk budget, the writer tries itself, because it may fold rows
                    self._refused, self._retry_ns = refused, time.monotonic_ns() + RETRY_NS
            self._publish(next_file)

    def shut(self) -> None:
        """Retire the open file, used or not, and delete the spare. Later writes create a file on demand."""
        with self._lock:
            self.is_shut = True
            self._publish(None)
            self._refused = None
            self.drop_spare()

    def leave(self, folder: Path) -> None:
        """Retire the open file and delete the spare if they are in `folder`, which gets no more rows."""
        with self._lock:
            if self._spare is not None and self._spare.path.parent == folder:
                self.drop_spare()
            if self._file is not None and self._file.path.parent == folder:
                self._publish(None)
                self._refused = None

    def drop_spare(self) -> None:
        """Delete the spare."""
        with self._lock:
            spare, self._spare = self._spare, None
        if spare is not None:
            _remove(spare)

    def sync(self) -> None:
        """Sync the rows in open files to disk, and fault pages in ahead of the writers. Raises `OSError`.

        Pages for twice the bytes written since the last call are prepared, because the rate may increase.
        """
        file, spare = self._file, self._spare
        if file is not None:
            position = file.position()
            file.sync()
            before, at = self._synced
            written = position - at if file.path == before else position
            if written:
                self._ahead_bytes = max(LEAST_AHEAD_BYTES, self._ahead_bytes // 2, 2 * written)
                file.touch_pages(self._ahead_bytes)
            self._synced = file.path, position
        if spare is not None:
            spare.touch_pages(self._ahead_bytes)
        for file in list(self.retired):  # waiting for values from a GPU, or with a write in progress
            file.sync()

    def collect(self, *, hold_ns: int = 0) -> dict[Path, int]:
        """Close retired files that no writer uses any more; return their paths with their numbers of rows.

        Parameters
        ----------
        hold_ns
            Keep a file open for this time after its retirement, for values that are still being copied from a GPU.
        """
        ready: dict[Path, int] = {}
        with self._collecting:
            for file in list(self.retired):  # without the writers' lock: counting and unmapping take milliseconds
                is_waiting = time.monotonic_ns() - file.retired_ns < hold_ns
                rows = None if is_waiting else file.retire(None if self.alone else self._weigh)
                if rows is not None:
                    ready[file.path] = rows
            with self._lock:
                self.retired = [file for file in self.retired if file.path not in ready]
        return ready

    def abandon(self, folder: Path) -> int:
        """Close the files in a deleted folder and return their number of rows."""
        rows = 0
        with self._collecting, self._lock:
            if self._spare is not None and self._spare.path.parent == folder:
                self._spare.forget()
                self._spare = None
            if self._file is not None and self._file.path.parent == folder:
                self._publish(None)
                self._refused = None
            lost = [file for file in self.retired if file.path.parent == folder]
            self.retired = [file for file in self.retired if file.path.parent != folder]
        for file in lost:
            while (file_rows := file.retire(self._weigh)) is None:  # a write is in progress, for microseconds
                time.sleep(0.0001)
            rows += file_rows
        return rows

    def after_fork(self) -> None:
        """Reset in a forked child: the files belong to the parent, and a thread of the parent may hold the lock.

        That thread may have been within any method of this class, so no invariant is assumed here.
        """
        self.pair = SHUT
        self.alone = True
        self.wake = _do_nothing
        self._lock, self._collecting = threading.RLock(), threading.RLock()
        files = [self._file, self._spare, *self.retired]
        self._file = self._spare = self._refused = None
        self._synced = (None, 0)
        self.retired = []
        for file in files:
            if file is not None:
                with contextlib.suppress(OSError):
                    file.forget()
