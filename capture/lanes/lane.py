"""Lane: the open slot file of one layout, its successor, and the handling of rows that find no slot.

writers ──▶ pair ──▶ open file ──full or cut──▶ retired ──nobody writes──▶ collected by the sealer
▲
spare, prepared in the background

One class, because all of it is what may be done under the lane's one lock: half of it elsewhere would be as long, and
the lock's rules would stand in two places.
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
PRESSED_NS: Final = 50_000_000  # room within the budget is quickly asked for, and quickly made
_PAUSE_S: Final = 0.02
LEAST_AHEAD_BYTES: Final = 1 << 20  # of pages kept ready in front of the writers


def _no_waker() -> None:
    """Wake nobody."""


def _remove(spare: SlotFile) -> None:
    spare.forget()
    with contextlib.suppress(OSError):
        spare.path.unlink()


def _is_lasting(refused: RefusedError) -> bool:
    """Whether room has to come from elsewhere: room within the disk budget is made here, by sealing and folding."""
    return refused.reason not in {BACKPRESSURE, BLOCKED}


class Lane:
    """The open slot file of one layout, and its successor.

    Parameters
    ----------
    layout
        Of the slots.
    create
        Makes the next `SlotFile`, or raises `RefusedError`.
    spare
        Makes a `SlotFile` in advance, under a name that is not yet a segment's; may raise `RefusedError`.
    adopt
        Gives a spare its name as a segment's file, or raises `RefusedError`.
    refuse
        Called with (table, reason, rows, detail) for rows that found no place.
    weigh
        Counts the rows in an ended file: a slot may hold several.

    Attributes
    ----------
    alone
        Set in a forked child, where no sealer runs: ended files are closed at once and left to the parent's.
    is_shut
        Whether `shut` was called.
    fold
        Called with the fields of rows that find no room within the disk budget, to make less of them; it counts them.
    patience_s
        How long a call may wait for room within the disk budget.
    wake
        Called when a prepared file was taken and another is wanted; by any thread, and in signal handlers.

    Notes
    -----
    `pair` is read without a lock by any thread. Everything else is written under `_lock`, which is re-entrant
    because a signal handler may log while the same thread is in here. Ended files are closed under `_collecting`, which
    no writer takes, and which is taken before `_lock`.
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
        self._slot_bytes = layout.slot_bytes  # asked for at every row
        self.alone = False
        self.fold: Callable[..., None] | None = None
        self.patience_s = 0.0
        self.wake: Callable[[], object] = _no_waker
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
        self._ahead_bytes = layout.file_bytes  # until it is known how fast the writers are
        self._synced: tuple[Path | None, int] = (None, 0)  # which file, how far

    def put(self, pack: Callable[..., None], *fields: float, rows: int = 1) -> Place | None:
        """Write one slot, making room where needed, and return where it is; None if it was counted as a gap.

        Parameters
        ----------
        pack
            `pack_into` of the layout's packer or of one of the same size.
        fields
            All but the mark: plain ints and floats, whose conversion runs no foreign code.
        rows
            How many rows the slot holds.
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
            why = self._advance(pair)
            if why is not None:
                self._give_up(why, fields, rows)
                return None

    def _give_up(self, why: RefusedError, fields: tuple[float, ...], rows: int) -> None:
        if self.fold is not None and why.reason == BACKPRESSURE:
            self.fold(*fields)
        else:
            self._refuse(self.layout.table, why.reason, rows, why.detail)

    def _advance(self, seen: Pair) -> RefusedError | None:
        """Publish a next file unless another thread did; return why none is available."""
        until = None
        while True:
            with self._lock:
                if self.pair is not seen:
                    return None
                if self._refused is not None and time.monotonic_ns() < self._retry_ns:
                    return self._refused
                try:
                    self._publish(self._next_file())
                except RefusedError as refused:
                    self._publish(None)
                    seen, why = self.pair, refused
                else:
                    self._refused = None
                    return None
                now = time.monotonic()
                until = now + self.patience_s if until is None else until
                if why.reason != BACKPRESSURE or now >= until:
                    if why.reason == BACKPRESSURE and self.patience_s:
                        why = RefusedError(BLOCKED, why.detail)
                    pause_ns = PRESSED_NS if why.reason == BACKPRESSURE else RETRY_NS
                    self._refused, self._retry_ns = why, time.monotonic_ns() + pause_ns
                    self.wake()
                    return why
            self.wake()
            time.sleep(_PAUSE_S)  # without the lock: sealing, which makes room, needs it

    def _next_file(self) -> SlotFile:
        spare, self._spare = self._spare, None
        self.wake()
        if spare is None:
            refused = self._refused
            if refused is not None and _is_lasting(refused) and self.wake is not _no_waker:
                raise refused  # to ask a full disk takes milliseconds: `prepare` does, in another thread
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
        """Whether the last try to make a file failed, for another reason than the disk budget."""
        return self._refused is not None and _is_lasting(self._refused)

    def prepare(self) -> None:
        """Have the next file, or the first one, ready, with its first pages touched."""
        spare = self._spare
        if spare is None and not self.is_shut:
            try:
                spare = self._make_spare(self.layout)
            except RefusedError:  # the writer that needs it gets the error
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
        """End the open file if it holds anything, so that it can be sealed; the next is the spare, or made here."""
        with self._lock:
            if self._file is None or not self._file.is_used():
                return
            try:
                following = self._next_file()
            except RefusedError as refused:
                following = None
                if _is_lasting(refused):  # room within the budget is asked for by the writer, who may fold
                    self._refused, self._retry_ns = refused, time.monotonic_ns() + RETRY_NS
            self._publish(following)

    def shut(self) -> None:
        """End the open file, used or not, and drop the spare; no other is prepared, later writes ask for one."""
        with self._lock:
            self.is_shut = True
            self._publish(None)
            self._refused = None
            self.drop_spare()

    def leave(self, folder: Path) -> None:
        """End the open file, used or not, if it is in a folder that nothing more is to be written to; so the spare."""
        with self._lock:
            if self._spare is not None and self._spare.path.parent == folder:
                self.drop_spare()
            if self._file is not None and self._file.path.parent == folder:
                self._publish(None)
                self._refused = None

    def drop_spare(self) -> None:
        """Remove the prepared file."""
        with self._lock:
            spare, self._spare = self._spare, None
        if spare is not None:
            _remove(spare)

    def sync(self) -> None:
        """Bring the rows in open files to the disk, and ready pages in front of the writers. Raises `OSError`.

        As many pages as twice what was written since the last time, since the next second may be busier.
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
        for ended in list(self.retired):  # held for values from devices, or with a write under way
            ended.sync()

    def collect(self, *, hold_ns: int = 0) -> dict[Path, int]:
        """Retire ended files and return the paths of those that nobody can write to any more, with their rows.

        Parameters
        ----------
        hold_ns
            Leave a file alone for that long after its end: values still on their way from a device belong in it.
        """
        ready: dict[Path, int] = {}
        with self._collecting:
            for file in list(self.retired):  # not under the writers' lock: to count and unmap takes milliseconds
                held = time.monotonic_ns() - file.retired_ns < hold_ns
                rows = None if held else file.retire(None if self.alone else self._weigh)
                if rows is not None:
                    ready[file.path] = rows
            with self._lock:
                self.retired = [file for file in self.retired if file.path not in ready]
        return ready

    def abandon(self, folder: Path) -> int:
        """Close the files in a folder that vanished and return how many rows they hold."""
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
            while (held := file.retire(self._weigh)) is None:  # a write is under way, for microseconds
                time.sleep(0.0001)
            rows += held
        return rows

    def after_fork(self) -> None:
        """In a forked child: the files are the parent's; the lock may be held by a thread that is not there.

        That thread may also have been anywhere in this class, so nothing is relied upon here.
        """
        self.pair = SHUT
        self.alone = True
        self.wake = _no_waker
        self._lock, self._collecting = threading.RLock(), threading.RLock()
        files = [self._file, self._spare, *self.retired]
        self._file = self._spare = self._refused = None
        self._synced = (None, 0)
        self.retired = []
        for file in files:
            if file is not None:
                with contextlib.suppress(OSError):
                    file.forget()
