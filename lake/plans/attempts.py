"""Attempts at a plan: markers written when a task begins and removed when it ends, so that deaths are known.

    <lake>/attempts/<plan>~<what>~begun~<number>    what: the whole plan, or the digest of some of its segments
    <lake>/attempts/<plan>~<what>~died~<number>     the driver saw a process die at it

A driver that dies without a word leaves that it began. So the next one knows how often something was tried, whoever
tried it. Two drivers at once count each other as dead, which costs care, no rows.
"""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Final

from ranklake.lake.store.files import listed

if TYPE_CHECKING:
    from ranklake.lake.store.store import Store

FOLDER: Final = "attempts"
WHOLE: Final = "plan"


class Attempts:
    """Marks of a plan.

    Parameters
    ----------
    number
        The plan's.
    """

    def __init__(self, store: "Store", number: int) -> None:
        self._store, self._stem = store, f"{FOLDER}/{number:010d}~"
        names = (one.path.rpartition("/")[2] for one in listed(store.fs, store.path(FOLDER)))
        stem = self._stem.removeprefix(f"{FOLDER}/")
        self._marks = {name.removeprefix(stem) for name in names if name.startswith(stem)}

    def times_begun(self, what: str) -> int:
        """Return how often something was begun and did not end."""
        return self._count(what, "begun")

    def times_died(self, what: str) -> int:
        """Return how often a process was seen to die at something."""
        return self._count(what, "died")

    @contextmanager
    def at(self, what: str) -> Iterator[None]:
        """Mark something as begun; take that back when the block ends, however it ends."""
        mark = self._put(what, "begun")
        try:
            yield
        finally:
            self._remove(mark)

    def record_death(self, what: str) -> None:
        """Mark that a process died at something."""
        self._put(what, "died")

    def _count(self, what: str, how: str) -> int:
        return sum(1 for mark in self._marks if mark.rpartition("~")[0] == f"{what}~{how}")

    def _put(self, what: str, how: str) -> str:
        number = self._count(what, how) + 1
        while not self._store.put_if_absent(f"{self._stem}{what}~{how}~{number}", b""):
            self._marks.add(f"{what}~{how}~{number}")
            number += 1
        self._marks.add(f"{what}~{how}~{number}")
        return f"{what}~{how}~{number}"

    def clear(self) -> None:
        """Take all marks back: the plan is finished."""
        for mark in sorted(self._marks):
            self._remove(mark)

    def _remove(self, mark: str) -> None:
        self._marks.discard(mark)
        with suppress(OSError):  # gone, or a place that can be read alone
            self._store.fs.rm_file(self._store.path(f"{self._stem}{mark}"))


def segments_digest(segments: Sequence[Mapping[str, object]]) -> str:
    """Return what to call some segments of a plan."""
    return hashlib.sha256("\n".join(str(row["path"]) for row in segments).encode("utf-8", "replace")).hexdigest()[:16]
