"""Shards: one slot file per thread, for an interpreter without a GIL.

With a GIL, all threads share a lane's open file, because taking a slot is one atomic call. Without a GIL the call is
not atomic, so each thread gets its own lane, which no other thread writes to:

    thread ──▶ its lane ──▶ its open file            one more file per recording thread
                                │
                 sealer's thread: cut, collect, …    iterates over the lanes of all threads

Rows are still identified by file number and slot. Readers always expect several files per table.
"""

import threading
import weakref
from collections.abc import Callable
from pathlib import Path

from ranklake.capture.common.layouts import Layout
from ranklake.capture.lanes.lane import Lane
from ranklake.capture.lanes.slots import SHUT, Pair, Place, SlotFile


class _Token:
    """An object in a thread's local storage; it is deleted when the thread ends."""


class _ThreadState(threading.local):
    """The calling thread's lane and token."""

    lane: Lane | None = None

    def __init__(self) -> None:
        self.token = _Token()


class Shards:
    """A lane for each thread that records, with the interface of one `Lane`.

    Parameters
    ----------
    layout
        Layout of the slots.
    make
        Creates the lane of a thread.
    """

    def __init__(self, layout: Layout, make: Callable[[Layout], Lane]) -> None:
        self.layout = layout
        self._make = make
        self._thread_state = _ThreadState()
        self._lock = threading.RLock()
        self._lanes: dict[Lane, weakref.ref[_Token]] = {}
        self._wake: Callable[[], object] | None = None
        self._is_shut = False

    @property
    def pair(self) -> Pair:
        """The pair of the calling thread's lane; see `Lane`."""
        lane = self._thread_state.lane
        return SHUT if lane is None else lane.pair

    @property
    def retired(self) -> list[SlotFile]:
        """Retired files of all threads."""
        return [file for lane in self._all_lanes() for file in lane.retired]

    @property
    def wake(self) -> Callable[[], object] | None:
        """See `Lane`; lanes of later threads get it, too."""
        return self._wake

    @wake.setter
    def wake(self, wake: Callable[[], object]) -> None:
        with self._lock:
            self._wake = wake
            for lane in self._lanes:
                lane.wake = wake

    def put(self, pack: Callable[..., None], *fields: float, rows: int = 1) -> Place | None:
        """See `Lane.put`."""
        state = self._thread_state
        lane = state.lane
        if lane is None:
            lane = state.lane = self._make(self.layout)
            with self._lock:
                if self._wake is not None:
                    lane.wake = self._wake
                if self._is_shut:
                    lane.shut()
                self._lanes[lane] = weakref.ref(state.token)
        return lane.put(pack, *fields, rows=rows)

    @property
    def is_hungry(self) -> bool:
        """Whether any thread's lane is hungry; see `Lane`."""
        return any(lane.is_hungry for lane in self._all_lanes())

    def prepare(self) -> None:
        """See `Lane.prepare`. Lanes of threads that have ended get no spare."""
        for lane, token in self._open_shards():
            if token() is not None:
                lane.prepare()

    def cut(self) -> None:
        """See `Lane.cut`. A lane whose thread has ended is shut."""
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
        for lane in self._all_lanes():
            lane.leave(folder)

    def drop_spare(self) -> None:
        """See `Lane.drop_spare`."""
        for lane in self._all_lanes():
            lane.drop_spare()

    def sync(self) -> None:
        """See `Lane.sync`."""
        for lane in self._all_lanes():
            lane.sync()

    def collect(self, *, hold_ns: int = 0) -> dict[Path, int]:
        """See `Lane.collect`. Empty lanes of threads that have ended are removed."""
        ready: dict[Path, int] = {}
        for lane, token in self._open_shards():
            has_ended = token() is None
            ready |= lane.collect(hold_ns=hold_ns)
            if has_ended and lane.is_shut and not lane.retired:
                with self._lock:
                    self._lanes.pop(lane, None)
        return ready

    def abandon(self, folder: Path) -> int:
        """See `Lane.abandon`."""
        return sum(lane.abandon(folder) for lane in self._all_lanes())

    def after_fork(self) -> None:
        """See `Lane.after_fork`. Only the calling thread exists in the child."""
        self._lock = threading.RLock()
        self._wake = None
        for lane in list(self._lanes):
            lane.after_fork()
        own = self._thread_state.lane
        self._lanes = {} if own is None else {own: weakref.ref(self._thread_state.token)}

    def _open_shards(self) -> list[tuple[Lane, "weakref.ref[_Token]"]]:
        with self._lock:
            return list(self._lanes.items())

    def _all_lanes(self) -> list[Lane]:
        with self._lock:
            return list(self._lanes)


AnyLane = Lane | Shards
