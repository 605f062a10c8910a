"""Attempts at the tasks of a plan: a marker is written when a task begins and removed when it ends.

    <lake>/attempts/<plan>~<task>~begun~<number>    task: the whole plan, or the digest of some of its segments
    <lake>/attempts/<plan>~<task>~died~<number>     the driver saw a worker process die at this task

A driver that is killed leaves its marker behind. So the next driver knows how often a task was tried, by any driver.
Two concurrent drivers count each other's markers as deaths; they then proceed more carefully than necessary.
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
    """The markers of a plan.

    Parameters
    ----------
    number
        Number of the plan.
    """

    def __init__(self, store: "Store", number: int) -> None:
        self._store, self._stem = store, f"{FOLDER}/{number:010d}~"
        names = (file.path.rpartition("/")[2] for file in listed(store.fs, store.path(FOLDER)))
        stem = self._stem.removeprefix(f"{FOLDER}/")
        self._marks = {name.removeprefix(stem) for name in names if name.startswith(stem)}

    def times_begun(self, task: str) -> int:
        """Return how often a task was begun and did not end."""
        return self._count(task, "begun")

    def times_died(self, task: str) -> int:
        """Return how often a driver saw a worker process die at a task."""
        return self._count(task, "died")

    @contextmanager
    def at(self, task: str) -> Iterator[None]:
        """Mark a task as begun, and remove the marker when the block ends, also after an error."""
        mark = self._put(task, "begun")
        try:
            yield
        finally:
            self._remove(mark)

    def record_death(self, task: str) -> None:
        """Record that a worker process died at a task."""
        self._put(task, "died")

    def _count(self, task: str, state: str) -> int:
        return sum(1 for mark in self._marks if mark.rpartition("~")[0] == f"{task}~{state}")

    def _put(self, task: str, state: str) -> str:
        number = self._count(task, state) + 1
        while not self._store.put_if_absent(f"{self._stem}{task}~{state}~{number}", b""):
            self._marks.add(f"{task}~{state}~{number}")
            number += 1
        self._marks.add(f"{task}~{state}~{number}")
        return f"{task}~{state}~{number}"

    def clear(self) -> None:
        """Remove all markers of the plan, which is finished."""
        for mark in sorted(self._marks):
            self._remove(mark)

    def _remove(self, mark: str) -> None:
        self._marks.discard(mark)
        with suppress(OSError):  # already removed, or a read-only place
            self._store.fs.rm_file(self._store.path(f"{self._stem}{mark}"))


def segments_digest(segments: Sequence[Mapping[str, object]]) -> str:
    """Return the name of the task that ingests these segments: a digest of their paths."""
    return hashlib.sha256("\n".join(str(row["path"]) for row in segments).encode("utf-8", "replace")).hexdigest()[:16]
