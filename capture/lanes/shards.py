"""Shards: a slot file for each thread, for an interpreter without a GIL.

With a GIL all threads share a lane's open file, and taking a slot is one call that no other thread can come between.
Without one nothing promises that, so each thread gets a lane of its own, which no other thread writes to:

    thread ──▶ its lane ──▶ its open file            one more file for each thread that records
                                │
                 sealer's thread: cut, collect, …    goes over the lanes of all threads

A row is found by its file's number and its slot as ever; that a table's rows come from several files at a time is
nothing new to whoever reads them.
"""

import threading
import weakref
from collections.abc import Callable
from pathlib import Path

from ranklake.capture.common.layouts import Layout
from ranklake.capture.lanes.lane import Lane
from ranklake.capture.lanes.slots import SHUT, Pair, Place, SlotFile


class _Token:
    """Lives as long as the thread in whose local storage it is."""


class _Mine(threading.local):
    """What a thread has of a `Shards`."""

    lane: Lane | None = None

    def __init__(self) -> None:
        self.token = _Token()


class Shards:
    """A lane for each thread that records, with the interface of one `Lane`.

    Parameters
    ----------
    layout
        Of the slots.
    make
        Makes a thread's lane.
    """

    def __init__(self, layout: Layout, make: Callable[[Layout], Lane]) -> None:
        self.layout = layout
        self._make = make
        self._mine = _Mine()
        self._lock = threading.RLock()
        self._lanes: dict[Lane, weakref.ref[_Token]] = {}
        self._wake: Callable[[], object] | None = None
        self._is_shut = False

    @property
    def pair(self) -> Pair:
        """Of the calling thread; see `Lane`."""
        lane = self._mine.lane
        return SHUT if lane is None else lane.pair

    @property
    def retired(self) -> list[SlotFile]:
        """Ended files of all threads."""
        return [file for lane in self._all() for file in lane.retired]

    @property
    def wake(self) -> Callable[[], object] | None:
        """See `Lane`; the lanes of threads to come get it, too."""
        return self._wake

    @wake.setter
    def wake(self, wake: Callable[[], object]) -> None:
        with self._lock:
            self._wake = wake
            for lane in self._lanes:
                lane.wake = wake

    def put(self, pack: Callable[..., None], *fields: float, rows: int = 1) -> Place | None:
        """See `Lane.put`."""
        mine = self._mine
        lane = mine.lane
        if lane is None:
            lane = mine.lane = self._make(self.layout)
            with self._lock:
                if self._wake is not None:
                    lane.wake = self._wake
                if self._is_shut:
                    lane.shut()
                self._lanes[lane] = weakref.ref(mine.token)
        return lane.put(pack, *fields, rows=rows)

    @property
    def is_hungry(self) -> bool:
        """Whether any lane is; see `Lane`."""
        return any(lane.is_hungry for lane in self._all())

    def prepare(self) -> None:
        """See `Lane.prepare`; lanes of threads that have ended need no next file."""
        for lane, token in self._open_shards():
            if token() is not None:
                lane.prepare()

    def cut(self) -> None:
        """See `Lane.cut`; a lane whose thread has ended gives up its files for good."""
        for lane, token in self._open_shards():
            if token() is None:
                lane.shut()
            else:
                lane.cut()

    def shut(self) -> None:
        """See `Lane.shut`."""
        with self._lock:
            self._is_shut = True
            for lane in self._lanes:
                lane.shut()

    def leave(self, folder: Path) -> None:
        """See `Lane.leave`."""
        for lane in self._all():
            lane.leave(folder)

    def drop_spare(self) -> None:
        """See `Lane.drop_spare`."""
        for lane in self._all():
            lane.drop_spare()

    def sync(self) -> None:
        """See `Lane.sync`."""
        for lane in self._all():
            lane.sync()

    def collect(self, *, hold_ns: int = 0) -> dict[Path, int]:
        """See `Lane.collect`; lanes whose thread has ended, and that are empty, are forgotten."""
        ready: dict[Path, int] = {}
        for lane, token in self._open_shards():
            ended = token() is None
            ready |= lane.collect(hold_ns=hold_ns)
            if ended and lane.is_shut and not lane.retired:
                with self._lock:
                    self._lanes.pop(lane, None)
        return ready

    def abandon(self, folder: Path) -> int:
        """See `Lane.abandon`."""
        return sum(lane.abandon(folder) for lane in self._all())

    def after_fork(self) -> None:
        """See `Lane.after_fork`. Of the threads only the calling one is there."""
        self._lock = threading.RLock()
        self._wake = None
        for lane in list(self._lanes):
            lane.after_fork()
        own = self._mine.lane
        self._lanes = {} if own is None else {own: weakref.ref(self._mine.token)}

    def _open_shards(self) -> list[tuple[Lane, "weakref.ref[_Token]"]]:
        with self._lock:
            return list(self._lanes.items())

    def _all(self) -> list[Lane]:
        with self._lock:
            return list(self._lanes)


AnyLane = Lane | Shards
