"""Double buffer: slots that are overwritten repeatedly and have a complete state at any moment, even after a kill.

A slot has two copies of its state, each followed by a sequence number. A write replaces the older copy and writes its
number last. Readers use the copy with the higher number. So a kill during a write loses only the value whose call had
not returned.
"""

import struct
from collections.abc import Callable
from typing import Final

from ranklake.capture.common.layouts import HISTOGRAMS, INTERVALS
from ranklake.capture.lanes.shards import AnyLane
from ranklake.capture.lanes.slots import Place
from ranklake.capture.lanes.written import Record

Pack = Callable[..., None]
Field = float | bytes


class DoubleBuffer:
    """Writes the slots of a layout with two copies of the state.

    Parameters
    ----------
    lane
        Lane of the slots.
    state
        `struct` codes of one copy, without its sequence number.
    """

    def __init__(self, lane: AnyLane, state: str) -> None:
        copy = struct.Struct(f"<{state}q")
        header_bytes = lane.layout.offset("a_end_ns")
        rest_bytes = lane.layout.slot_bytes - header_bytes - copy.size - 8
        self._lane = lane
        self._pack_first: Pack = struct.Struct(f"<q{state}q{rest_bytes}xII").pack_into
        self.pack: Pack = copy.pack_into
        self.copy_bytes = copy.size
        self.offsets = header_bytes + copy.size, header_bytes  # of the copy with even, and with odd sequence numbers

    def begin(self, start_ns: int, series: int, state: tuple[Field, ...]) -> "BufferedSlot | None":
        """Take a slot and write its first state; None if there is no slot, and the row was counted as a gap."""
        # The lane only passes the fields on; arrays are bytes.
        place = self._lane.put(self._pack_first, start_ns, *state, 1, series)  # type: ignore[arg-type]
        return None if place is None else BufferedSlot(self, place)


class BufferedSlot:
    """One slot in use, which a single thread writes."""

    __slots__ = ("_offsets", "_pack", "_record", "_sequence", "_size", "_view")

    def __init__(self, buffer: DoubleBuffer, place: Place) -> None:
        self._view, offset = place
        self._record = _record_of(self._view)
        self._pack, self._size = buffer.pack, buffer.copy_bytes
        even, odd = buffer.offsets
        self._offsets = offset + even, offset + odd
        self._sequence = 1

    def write(self, state: tuple[Field, ...]) -> bool:
        """Replace the state; False if the file was closed for sealing, with the previous state in it."""
        sequence = self._sequence + 1
        try:
            self._pack(self._view, self._offsets[sequence & 1], *state, sequence)
        except (TypeError, ValueError):  # the view is released: decision 007
            return False
        if self._record is not None:  # the view is a copy in memory
            begin = self._offsets[sequence & 1]
            if not self._record.write_again(begin, begin + self._size):
                return False
        self._sequence = sequence
        return True


def _record_of(view: memoryview) -> Record | None:
    try:
        buffer: object = view.obj
    except ValueError:  # released meanwhile; the first write fails in the same way
        return None
    return buffer if isinstance(buffer, Record) else None


INTERVAL_CODES: Final = "".join(code for _, code in INTERVALS.fields[1:10])
HISTOGRAM_CODES: Final = "".join(
    code if len(code) == 1 else f"{8 * int(code[:-1])}s" for _, code in HISTOGRAMS.fields[1:15]
)
"""Arrays of counts are passed as bytes, because packing 320 Python integers would dominate the cost."""
