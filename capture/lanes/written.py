"""Written: slots written with one system call each, for file systems on which mapped files are unreliable.

On a network file system, another client's lock, a lost connection or a full server can turn a store to a mapped page
into SIGBUS, or lose it. So each slot is written as a record with a checksum, at the end of the file:

    slot ─ u32 crc32 of the slot        repeated, without holes

Slots of aggregates and histograms are rewritten in place, one copy at a time. They are validated by the sequence
numbers of their copies instead of the checksum.
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
    """Return the slots of a file of records, and the number of damaged slots, whose mark is set to 0. Never raises.

    An incomplete record at the end does not count as damaged, because the call that wrote it had not returned.
    """
    import numpy as np  # not at the top: only the sealer calls this, and recording must not import numpy

    stride = layout.slot_bytes + _CHECKSUM.size
    count = len(raw) // stride
    kind = np.dtype([("slot", layout.dtype()), ("checksum", "<u4")])
    records = np.frombuffer(raw, kind, count)
    slots = records["slot"].copy()
    if layout.is_rewritten:
        damaged = slots["mark"] != MARK
    else:
        checksums = [zlib.crc32(raw[at : at + layout.slot_bytes]) for at in range(0, count * stride, stride)]
        damaged = (records["checksum"] != np.array(checksums, np.uint32)) | (slots["mark"] != MARK)
    slots["mark"][damaged] = 0
    return slots, int(np.count_nonzero(damaged))


class Record(bytearray):
    """The bytes of one slot that can be rewritten, with its file and offset."""

    def __init__(self, size: int, file: "RecordFile", offset: int) -> None:
        super().__init__(size)
        self.file, self.offset = file, offset

    def write_again(self, begin: int, end: int) -> bool:
        """Rewrite a part of the slot; False if the file was closed for sealing, or cannot be written."""
        return self.file.rewrite(self.offset + begin, self[begin:end])


class RecordFile(SlotFile):
    """A file of records. Creating it raises `OSError`.

    Nothing is preallocated, because network file systems would write the preallocated bytes.

    Notes
    -----
    All writes are made under a lock, which is re-entrant because signal handlers may write. `pair` refuses every write,
    so the fast paths end in `WrittenLane.put`.
    """

    def __init__(self, path: Path, layout: Layout, file_bytes: int = 0) -> None:
        self.path, self.layout = path, layout
        self._most_records = (file_bytes or layout.file_bytes) // layout.slot_bytes
        self._lock = threading.RLock()
        self._records = 0
        view = memoryview(bytearray(1))
        view.release()
        self.pair: Pair = view, itertools.repeat(0).__next__
        self.retired_ns = 0
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)

    def write(self, slot: bytes | bytearray) -> int | None:
        """Write a record and return its offset; None if the file is full or closed.

        Raises `OSError`; the file has no incomplete record then.
        """
        stride = self.layout.slot_bytes + _CHECKSUM.size
        with self._lock:
            if self._fd < 0 or self._records >= self._most_records:
                return None
            offset = self._records * stride
            self._records += 1  # before the write, because a signal handler may write meanwhile
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
        """Overwrite bytes at an offset; False if the file is closed, or cannot be written."""
        with self._lock, contextlib.suppress(OSError):
            return self._fd >= 0 and os.pwrite(self._fd, part, offset) == len(part)
        return False

    def position(self) -> int:
        """Return the number of bytes written."""
        return self._records * (self.layout.slot_bytes + _CHECKSUM.size)

    def touch_pages(self, ahead_bytes: int) -> None:
        """Do nothing: there are no mapped pages."""

    def marked(self, field: str) -> "np.ndarray[Any, np.dtype[Any]]":
        """Return one field of all slots written so far. The file must not be retired."""
        with self._lock:
            slots, _ = slots_in(os.pread(self._fd, self.position(), 0), self.layout)
        values: np.ndarray[Any, np.dtype[Any]] = slots[field][slots["mark"] == MARK]
        return values

    def is_used(self) -> bool:
        """Whether any record was written."""
        return self._records > 0

    def sync(self) -> None:
        """Sync the records to disk; a file that was closed meanwhile is skipped. Raises `OSError`."""
        sync_open_file(self._fd)

    def retire(self, weigh: Callable[[SlotFile], int] | None) -> int | None:
        """Close the file for writers; see `SlotFile.retire`."""
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
    """A lane of record files.

    Slots cannot be changed after they are written, except those of aggregates and histograms. So a late value for a
    step becomes a row of its own.
    """

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
                    self._drop_rows(refusal(error), fields, rows)
                    return None
                if offset is not None:
                    return self._place(file, offset, slot)
            refused: RefusedError | None = self._advance(pair)
            if refused is not None:
                self._drop_rows(refused, fields, rows)
                return None

    def _place(self, file: RecordFile, offset: int, slot: bytearray) -> Place:
        if not self.layout.is_rewritten:
            return file.pair[0], 0  # refuses every write: a late value becomes a separate row
        record = Record(len(slot), file, offset)
        record[:] = slot
        return memoryview(record), 0
