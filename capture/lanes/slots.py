"""Slots: fixed-width rows in a memory-mapped file that is written without a lock and survives SIGKILL.

A lane publishes its open file as one tuple, ``(view, take)``. A writer unpacks it, takes a slot and packs into the
view:

    view, take = lane.pair
    pack_into(view, take(), …, MARK)

`take` is an `itertools.count` that steps by the slot's size, so every call in the process gets another offset. The
sealer ends a file by publishing the next pair and then *releasing* the view, after which no write into the old file
can succeed:

    Thread 1  view, take = lane.pair             Thread 2 (sealer)  lane.pair = next
    Thread 1  offset = take()                    Thread 2           view.release()
    Thread 1  pack_into(view, …) raises: it writes again by way of the new pair

    Thread 1  is within pack_into                Thread 2           view.release() → BufferError: try again later

So a row is in the old file, whole, before it is sealed, or in the new one; there is no state between. Slots that
were taken and not written stay zero, and readers skip what has no mark. A full file shows as `struct.error` from
the bounds check that `pack_into` makes anyway, a value that is no number likewise: both end in `Lane.put`, which
sorts it out at leisure.
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
    """Fault in the pages of a range, so that the first write to each costs its writer nothing more.

    Raises `OSError` where the kernel cannot do that, and `ValueError` if the map is closed.
    """
    _call("madvise", mapped, begin, end, _POPULATE_WRITE)


def sync(mapped: mmap.mmap, begin: int, end: int) -> None:
    """Bring a range to the disk itself; pages beyond it stay ready to be written to.

    The kernel protects the pages it has written out, so that the next write to each faults again: therefore no more
    than was written, and therefore `populate` afterwards. Raises `OSError`, and `ValueError` if the map is closed.
    """
    _call("msync", mapped, begin, end, _MS_SYNC)


def _call(name: str, mapped: mmap.mmap, begin: int, end: int, how: int) -> None:
    begin = begin // mmap.PAGESIZE * mmap.PAGESIZE
    end = min(end, len(mapped))
    if end <= begin:
        return
    held = ctypes.c_char.from_buffer(mapped)  # nobody can unmap it meanwhile
    if getattr(_LIBC, name)(ctypes.addressof(held) + begin, end - begin, how):
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))


Pair = tuple[memoryview, Callable[[], int]]
Place = tuple[memoryview, int]

_COUNT: Final = re.compile(r"count\((\d+)")
_READY_FOR_NS: Final = 10 * 10**9  # Linux writes pages out by itself once they are dirty for 30 s (dirty_expire)


def _shut() -> Pair:
    view = memoryview(bytearray(1))
    view.release()
    return view, itertools.repeat(0).__next__


SHUT: Final[Pair] = _shut()  # every write raises


def is_released(view: memoryview) -> bool:
    """Whether nobody can write into a file any more."""
    try:
        view.nbytes  # noqa: B018 - the one question a released view answers with an error
    except ValueError:
        return True
    return False


class SlotFile:
    """One preallocated, mapped file of slots. Creating it raises `OSError` and then leaves no file behind."""

    def __init__(self, path: Path, layout: Layout, file_bytes: int = 0) -> None:
        self.path, self.layout = path, layout
        size = (file_bytes or layout.file_bytes) // layout.slot_bytes * layout.slot_bytes
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            os.posix_fallocate(self._fd, 0, size)  # a sparse file would kill us with SIGBUS when the disk fills
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
        """Give the file another name. Raises `OSError`."""
        self.path.rename(path)
        self.path = path

    def position(self) -> int:
        """Return how far writers have got, in bytes: what the counter would give next, beyond the end if it is full."""
        counter = getattr(self.pair[1], "__self__", None)
        match = _COUNT.match(repr(counter))  # to ask in any other way would take a slot
        return int(match[1]) if match else len(self._map)

    def touch_pages(self, ahead_bytes: int) -> None:
        """Fault the pages in front of the writers in now, instead of one by one in the training thread.

        To look over pages that are there costs time, too: while half of them are still ahead, and too young for the
        kernel to have written them out by itself, only the page is looked at that the last `sync` has protected.
        """
        with contextlib.suppress(OSError, ValueError):  # an older kernel, or the file was closed just now
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
        import numpy as np  # called by the sealer, which has it; recording does not need it

        slots = np.frombuffer(self._map, self.layout.dtype())
        values: np.ndarray[Any, np.dtype[Any]] = slots[field][slots["mark"] == MARK]
        del slots  # it holds the map
        return values

    def is_used(self) -> bool:
        """Whether anything was ever written. The file must not be retired."""
        return any(self._map[: self.layout.slot_bytes]) or len(self.marked("mark")) > 0

    def sync(self) -> None:
        """Bring what was written to the disk itself; a file that was closed meanwhile is left alone. Raises `OSError`.

        From the beginning, since a row may come late to a slot that was taken long ago; what has not changed costs
        nothing.
        """
        with contextlib.suppress(ValueError):
            sync(self._map, 0, self.position())

    def retire(self, weigh: Callable[["SlotFile"], int] | None) -> int | None:
        """Make further writes impossible.

        Parameters
        ----------
        weigh
            Counts the rows in the file before it is closed; None counts nothing.

        Returns
        -------
        The count, or None if a write is just under way and it has to be tried again.
        """
        try:
            self._view.release()
        except BufferError:
            return None
        rows = weigh(self) if weigh is not None else 0
        self.forget()
        return rows

    def forget(self) -> None:
        """Close the file without a look at it: at the end of `retire`, and in a forked child, whose parent owns it."""
        fd, self._fd = self._fd, -1  # forgotten first: a fork in between must not close it again, or somebody else's
        with contextlib.suppress(BufferError, ValueError):
            self._view.release()
            self._map.close()
        if fd >= 0:
            os.close(fd)
