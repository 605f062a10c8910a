"""Slots: fixed-width rows in a memory-mapped file that is written without a lock and survives SIGKILL.

A lane publishes its open file as a tuple ``(view, take)``. A writer unpacks it, takes a slot and packs into the view:

    view, take = lane.pair
    pack_into(view, take(), …, MARK)

`take` is an `itertools.count` that steps by the slot's size, so every call in the process gets a different offset. The
sealer ends a file by publishing the next pair and then *releasing* the view, after which no write to the old file can
succeed:

    Thread 1  view, take = lane.pair             Thread 2 (sealer)  lane.pair = next
    Thread 1  offset = take()                    Thread 2           view.release()
    Thread 1  pack_into(view, …) raises: it repeats the write with the new pair

    Thread 1  is within pack_into                Thread 2           view.release() → BufferError: try again later

So each row is complete in the old file before it is sealed, or it is in the new file. Slots that were taken and not
written remain zero, and readers skip slots without a mark. A full file raises `struct.error` from the bounds check of
`pack_into`, and so does a value that is not a number. In both cases `Lane.put` handles the row on a slow path.
"""

import contextlib
import ctypes
import itertools
import mmap
import os
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from ranklake.capture.common.layouts import MARK, Layout

if TYPE_CHECKING:
    import numpy as np


_POPULATE_WRITE: Final = 23  # MADV_POPULATE_WRITE, Linux 5.14
_MS_SYNC: Final = 4

_LIBC: Final = ctypes.CDLL(None, use_errno=True)
for _name in ("madvise", "msync"):
    getattr(_LIBC, _name).argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)


def populate(mapped: mmap.mmap, begin: int, end: int) -> None:
    """Fault in the pages of a range, so that writers do not pay for page faults.

    Raises `OSError` if the kernel does not support it, and `ValueError` if the map is closed.
    """
    _call("madvise", mapped, begin, end, _POPULATE_WRITE)


def sync(mapped: mmap.mmap, begin: int, end: int) -> None:
    """Sync a range to disk; pages after it remain faulted in.

    The kernel write-protects the pages that it has written out, so the next write to each page faults again. Therefore
    sync only the written range, and call `populate` afterwards. Raises `OSError`, and `ValueError` if the map is
    closed.
    """
    _call("msync", mapped, begin, end, _MS_SYNC)


def _call(name: str, mapped: mmap.mmap, begin: int, end: int, flags: int) -> None:
    begin = begin // mmap.PAGESIZE * mmap.PAGESIZE
    end = min(end, len(mapped))
    if end <= begin:
        return
    first_byte = ctypes.c_char.from_buffer(mapped)  # prevents closing the map meanwhile
    if getattr(_LIBC, name)(ctypes.addressof(first_byte) + begin, end - begin, flags):
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))


Pair = tuple[memoryview, Callable[[], int]]
Place = tuple[memoryview, int]

_COUNT: Final = re.compile(r"count\((\d+)")
_READY_FOR_NS: Final = 10 * 10**9  # Linux writes out pages that have been dirty for 30 s (dirty_expire)


def _released_pair() -> Pair:
    view = memoryview(bytearray(1))
    view.release()
    return view, itertools.repeat(0).__next__


SHUT: Final[Pair] = _released_pair()  # every write raises


def is_released(view: memoryview) -> bool:
    """Whether a view was released, so that no writer can write to its file."""
    try:
        view.nbytes  # noqa: B018 - raises for a released view
    except ValueError:
        return True
    return False


class SlotFile:
    """One preallocated, mapped file of slots. If its creation raises `OSError`, no file is left."""

    def __init__(self, path: Path, layout: Layout, file_bytes: int = 0) -> None:
        self.path, self.layout = path, layout
        size = (file_bytes or layout.file_bytes) // layout.slot_bytes * layout.slot_bytes
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            os.posix_fallocate(self._fd, 0, size)  # in a sparse file, a write on a full disk would raise SIGBUS
            self._map = mmap.mmap(self._fd, size)
        except BaseException:
            os.close(self._fd)
            path.unlink(missing_ok=True)
            raise
        self._view = memoryview(self._map)
        self.pair: Pair = (self._view, itertools.count(0, layout.slot_bytes).__next__)
        self.retired_ns = 0
        self._ready_until = self._touched_ns = 0

    def rename(self, path: Path) -> None:
        """Rename the file. Raises `OSError`."""
        self.path.rename(path)
        self.path = path

    def position(self) -> int:
        """Return the offset of the next slot in bytes; if the file is full, it is after the end."""
        counter = getattr(self.pair[1], "__self__", None)
        match = _COUNT.match(repr(counter))  # its repr is the only way to read it without taking a slot
        return int(match[1]) if match else len(self._map)

    def touch_pages(self, ahead_bytes: int) -> None:
        """Fault in the pages ahead of the writers now, instead of one by one in the training thread.

        Scanning resident pages costs time, too. So as long as half of the prepared pages are unused and the kernel
        cannot have written them out, only the page that the last `sync` protected is faulted in.
        """
        with contextlib.suppress(OSError, ValueError):  # an older kernel, or the file was closed meanwhile
            begin, now = self.position(), time.monotonic_ns()
            is_ready = self._ready_until >= min(begin + ahead_bytes // 2, len(self._map))
            if is_ready and now - self._touched_ns < _READY_FOR_NS:
                if begin:
                    populate(self._map, begin, begin + 1)
                return
            populate(self._map, begin, begin + ahead_bytes)
            self._ready_until, self._touched_ns = begin + ahead_bytes, now

    def marked(self, field: str) -> "np.ndarray[Any, np.dtype[Any]]":
        """Return one field of all slots written so far. The file must not be retired."""
        import numpy as np  # not at the top: only the sealer calls this, and recording must not import numpy

        slots = np.frombuffer(self._map, self.layout.dtype())
        values: np.ndarray[Any, np.dtype[Any]] = slots[field][slots["mark"] == MARK]
        del slots  # it would prevent closing the map
        return values

    def is_used(self) -> bool:
        """Whether any slot was written. The file must not be retired."""
        return any(self._map[: self.layout.slot_bytes]) or len(self.marked("mark")) > 0

    def sync(self) -> None:
        """Sync the written slots to disk; a file that was closed meanwhile is skipped. Raises `OSError`.

        The whole written range is synced, because an early slot may get its row late. Unchanged pages cost nothing.
        """
        with contextlib.suppress(ValueError):
            sync(self._map, 0, self.position())

    def retire(self, weigh: Callable[["SlotFile"], int] | None) -> int | None:
        """Release the view, so that later writes fail, and close the file.

        Parameters
        ----------
        weigh
            Counts the rows before the file is closed; None to count none.

        Returns
        -------
        The number of rows. None if a write is in progress; call it again then.
        """
        try:
            self._view.release()
        except BufferError:
            return None
        rows = weigh(self) if weigh is not None else 0
        self.forget()
        return rows

    def forget(self) -> None:
        """Close the file without reading it; also used in a forked child, whose parent owns the file."""
        fd, self._fd = self._fd, -1  # reset first: a child forked in between must not close the number again
        with contextlib.suppress(BufferError, ValueError):
            self._view.release()
            self._map.close()
        if fd >= 0:
            os.close(fd)
