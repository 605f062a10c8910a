"""Written: slots written with a system call each, for file systems where mapped files are not reliable.

On a network file system another client's lock, a lost connection or a full server turns a store into a mapped page into
SIGBUS, or into nothing. Here each slot is a record with a checksum behind it, written at the file's end:

    slot ─ u32 crc32 of the slot        again and again, without holes

Slots that values are folded into are written again in place, a copy at a time; their copies' numbers are their check.
"""

import contextlib
import errno
import itertools
import os
import struct
import threading
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from ranklake.capture.common.gaps import BAD_VALUE, RefusedError
from ranklake.capture.common.layouts import MARK, Layout
from ranklake.capture.lanes.lane import Lane
from ranklake.capture.lanes.records import refusal
from ranklake.capture.lanes.slots import Pair, Place, SlotFile
from ranklake.capture.spool.files import sync_open_file

if TYPE_CHECKING:
    import numpy as np

_CHECKSUM: Final = struct.Struct("<I")


def slots_in(raw: bytes, layout: Layout) -> tuple["np.ndarray[Any, np.dtype[Any]]", int]:
    """Return the slots of a file of records, and how many are damaged, whose mark is 0 then. Never raises.

    A record at the end that was not written to its end is no damage: its call had not returned.
    """
    import numpy as np  # called by the sealer, which has it; recording does not need it

    stride = layout.slot_bytes + _CHECKSUM.size
    count = len(raw) // stride
    kind = np.dtype([("slot", layout.dtype()), ("checksum", "<u4")])
    records = np.frombuffer(raw, kind, count)
    slots = records["slot"].copy()
    if layout.is_rewritten:
        bad = slots["mark"] != MARK
    else:
        sums = [zlib.crc32(raw[at : at + layout.slot_bytes]) for at in range(0, count * stride, stride)]
        bad = (records["checksum"] != np.array(sums, np.uint32)) | (slots["mark"] != MARK)
    slots["mark"][bad] = 0
    return slots, int(np.count_nonzero(bad))


class Record(bytearray):
    """The bytes of one slot that may be written again, and where they are."""

    def __init__(self, size: int, file: "RecordFile", offset: int) -> None:
        super().__init__(size)
        self.file, self.offset = file, offset

    def write_again(self, begin: int, end: int) -> bool:
        """Write a part of the slot again; False if its file was taken to be sealed, or cannot be written."""
        return self.file.rewrite(self.offset + begin, self[begin:end])


class RecordFile(SlotFile):
    """A file of records. Creating it raises `OSError`. Nothing is preallocated: network file systems would write it.

    Notes
    -----
    All writes are made under a lock, which is re-entrant for the sake of signal handlers. Its pair refuses every write:
    so the fast ways end in `WrittenLane.put`.
    """

    def __init__(self, path: Path, layout: Layout, file_bytes: int = 0) -> None:
        self.path, self.layout = path, layout
        self._most = (file_bytes or layout.file_bytes) // layout.slot_bytes
        self._lock = threading.RLock()
        self._records = 0
        view = memoryview(bytearray(1))
        view.release()
        self.pair: Pair = view, itertools.repeat(0).__next__
        self.retired_ns = 0
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)

    def write(self, slot: bytes | bytearray) -> int | None:
        """Write a record and return its offset; None if the file is full or closed. Raises `OSError`, leaving none."""
        stride = self.layout.slot_bytes + _CHECKSUM.size
        with self._lock:
            if self._fd < 0 or self._records >= self._most:
                return None
            offset = self._records * stride
            self._records += 1  # before the write: a signal handler may write in the middle of it
            try:
                self._write_all(slot + _CHECKSUM.pack(zlib.crc32(slot)), offset)
            except OSError:
                if self._records * stride == offset + stride:
                    self._records -= 1
                    with contextlib.suppress(OSError):
                        os.ftruncate(self._fd, offset)
                raise
            return offset

    def _write_all(self, raw: bytes | bytearray, offset: int) -> None:
        if os.pwrite(self._fd, raw, offset) < len(raw):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self.path))

    def rewrite(self, offset: int, part: bytes | bytearray) -> bool:
        """Write bytes again; False if the file is closed, or cannot be written."""
        with self._lock, contextlib.suppress(OSError):
            return self._fd >= 0 and os.pwrite(self._fd, part, offset) == len(part)
        return False

    def position(self) -> int:
        """Return how far writers have got, in bytes."""
        return self._records * (self.layout.slot_bytes + _CHECKSUM.size)

    def touch_pages(self, ahead_bytes: int) -> None:
        """Do nothing: no writer touches a page."""

    def marked(self, field: str) -> "np.ndarray[Any, np.dtype[Any]]":
        """Return one field of all slots written so far. The file must not be retired."""
        with self._lock:
            slots, _ = slots_in(os.pread(self._fd, self.position(), 0), self.layout)
        values: np.ndarray[Any, np.dtype[Any]] = slots[field][slots["mark"] == MARK]
        return values

    def is_used(self) -> bool:
        """Whether anything was ever written."""
        return self._records > 0

    def sync(self) -> None:
        """Bring what was written to the disk itself; a file that was closed meanwhile is left alone.

        Raises `OSError`.
        """
        sync_open_file(self._fd)

    def retire(self, weigh: Callable[[SlotFile], int] | None) -> int | None:
        """Make further writes impossible; see `SlotFile.retire`."""
        if not self._lock.acquire(blocking=False):
            return None
        try:
            rows = weigh(self) if weigh is not None else 0
            self.forget()
        finally:
            self._lock.release()
        return rows

    def forget(self) -> None:
        """Close the file; see `SlotFile.forget`."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)


class WrittenLane(Lane):
    """A lane of record files. What came late for a slot of another lane than those that fold finds it gone."""

    def put(self, pack: Callable[..., None], *fields: float, rows: int = 1) -> Place | None:
        """See `Lane.put`."""
        slot = bytearray(self.layout.slot_bytes)
        try:
            pack(slot, 0, *fields, MARK)
        except (ValueError, TypeError, OverflowError, struct.error) as error:
            self._refuse(self.layout.table, BAD_VALUE, rows, str(error))
            return None
        while True:
            pair, file = self.pair, self._file
            if isinstance(file, RecordFile):
                try:
                    offset = file.write(slot)
                except OSError as error:
                    self._give_up(refusal(error), fields, rows)
                    return None
                if offset is not None:
                    return self._place(file, offset, slot)
            why: RefusedError | None = self._advance(pair)
            if why is not None:
                self._give_up(why, fields, rows)
                return None

    def _place(self, file: RecordFile, offset: int, slot: bytearray) -> Place:
        if not self.layout.is_rewritten:
            return file.pair[0], 0  # refuses every write: what comes late becomes a row of its own
        record = Record(len(slot), file, offset)
        record[:] = slot
        return memoryview(record), 0
