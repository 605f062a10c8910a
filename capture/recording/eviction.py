"""Eviction: old segments of a recorder's stream are given up for new rows, where the disk budget is nearly used up."""

from ranklake.capture.common.layouts import SLOT_LANES
from ranklake.capture.recording.budget import EVICTABLE, Budget
from ranklake.capture.spool.eviction import Gone, evict
from ranklake.capture.spool.stream import Stream


def make_room(budget: Budget, stream: Stream, gone: Gone) -> None:
    """Give up the oldest segments of those lanes that are short of room; `gone` is told of each. Raises `OSError`."""
    for tables, lane in EVICTABLE:
        excess = budget.excess_bytes(SLOT_LANES[lane])
        if excess:
            evict(stream.folder, tables, excess, stream.note, gone)
            budget.look(stream.folder)
