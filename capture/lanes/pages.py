"""Pages: prefaults a mapped file's pages ahead of the writers, and syncs what was written to disk.

`mmap.flush` and `mmap.madvise` hold the interpreter's lock for as long as the disk takes, so training would wait for
it. The same calls by way of ctypes let go of it.
"""

import ctypes
import mmap
import os
from typing import Final

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
