"""Budget: how much local disk a process may use while the store is unreachable, and which rows are reduced first.

Files are made at their full size, so what is in use is known when a file is made. Each lane may make files until the
whole process has used the lane's share; what needs no more than the others leave is kept for rows that are never
given up: steps, runs and events.
"""

import os
from pathlib import Path
from typing import Final

from ranklake.capture.common.layouts import SLOT_LANES, Layout
from ranklake.capture.spool.eviction import OnDelete, evict
from ranklake.capture.spool.stream import Stream

SAMPLES: Final = ("gpu_samples", "host_samples")
SHARES: Final = {
    **dict.fromkeys(SAMPLES, 0.6),
    "scalars": 0.7,
    "rows": 0.7,
    "spans": 0.8,
    "histograms": 0.85,
    "intervals": 0.9,
}
"""Of the budget, by lane; the others may use all of it."""
EVICTABLE: Final = ((("scalars", *SAMPLES), "scalars"), (("distributions",), "histograms"), (("spans",), "spans"))
"""Tables whose oldest segments may be given up, and the lane whose share says when; the first goes first."""

_FILES: Final = 32  # at least so many fit into a budget: six lanes have two each, and some wait to be sealed
_MARGIN_FILES: Final = 4  # an open file and a spare of both lanes of values
_LEAST_FILE_BYTES: Final = 1 << 14
_ROOMY_BYTES: Final = 3 << 29  # below it, samples may be short of room (0.6 of 2 GiB) before the next look


class Budget:
    """What one process may use.

    Parameters
    ----------
    limit_bytes
        0 for no limit.
    evicts
        Whether old segments are given up for new rows. Samples, which else are the first to find no room, then share
        that of values: the oldest of either go.

    Attributes
    ----------
    used_bytes
        By the last look at the folder, and what was made since.
    """

    def __init__(self, limit_bytes: int, *, evicts: bool = False) -> None:
        self.limit_bytes, self._evicts = limit_bytes, evicts
        self.used_bytes = 0
        self._made_bytes = 0

    def file_bytes(self, layout: Layout) -> int:
        """Return how large the files of a lane are to be."""
        if not self.limit_bytes:
            return layout.file_bytes
        return min(layout.file_bytes, max(_LEAST_FILE_BYTES, self.limit_bytes // _FILES))

    def has_room(self, lane: str, size_bytes: int) -> bool:
        """Whether a lane may make a file of that size."""
        share = SHARES.get("scalars" if self._evicts and lane in SAMPLES else lane, 1.0)
        return not self.limit_bytes or self.used_bytes + size_bytes <= share * self.limit_bytes

    def made(self, size_bytes: int) -> None:
        """Note a new file."""
        self._made_bytes += size_bytes
        self.used_bytes += size_bytes

    def look(self, *folders: Path) -> None:
        """See how much is in use in the folders. Raises `OSError`.

        Files that are made meanwhile may be counted twice until the next look, but never not at all.
        """
        made = self._made_bytes
        used = 0
        for folder in folders:
            with os.scandir(folder) as entries:
                for entry in entries:
                    try:
                        used += entry.stat(follow_symlinks=False).st_size
                    except FileNotFoundError:
                        continue
        self.used_bytes = used + self._made_bytes - made

    @property
    def is_roomy(self) -> bool:
        """Whether so much was left at the last look that seconds of any flood do not use it up."""
        return not self.limit_bytes or self.limit_bytes - self.used_bytes >= _ROOMY_BYTES

    def excess_bytes(self, layout: Layout) -> int:
        """Return by how much a lane is short of room for its next files; 0 if it has enough."""
        if not self.limit_bytes:
            return 0
        wanted = self.used_bytes + _MARGIN_FILES * self.file_bytes(layout)
        return max(0, wanted - int(SHARES[layout.lane] * self.limit_bytes))

    def after_fork(self) -> None:
        """In a forked child: it has a budget of its own."""
        self.used_bytes = 0


def make_room(budget: Budget, stream: Stream, on_delete: OnDelete) -> None:
    """Give up the oldest segments of those lanes that are short of room; `on_delete` gets each. Raises `OSError`."""
    for tables, lane in EVICTABLE:
        excess = budget.excess_bytes(SLOT_LANES[lane])
        if excess:
            evict(stream.folder, tables, excess, stream.note, on_delete)
            budget.look(stream.folder)
