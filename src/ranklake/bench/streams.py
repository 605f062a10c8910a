"""Streams: what a process that records keeps of itself, and the segments that the sealer makes of it."""

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np

from ranklake.bench.job import Job
from ranklake.capture.common.arrays import Array
from ranklake.capture.common.layouts import SLOT_LANES, table_of
from ranklake.capture.sealing.rows import NO_ROWS, Rows
from ranklake.capture.sealing.segment_bytes import Origin, segment_bytes
from ranklake.capture.sealing.tables import read_rows
from ranklake.capture.spool import frames
from ranklake.capture.spool.clock import Anchor, straighten
from ranklake.capture.spool.meta import Meta
from ranklake.capture.spool.stream_files import SealedFile, StreamName
from ranklake.segments.segment import ClockReading

ANCHOR_S: Final = 10
_NS: Final = 10**9


@dataclass(frozen=True)
class Clock:
    """A node's clocks: the monotonic one, and what it says of the wall.

    Attributes
    ----------
    boot_ns
        Monotonic time at which the job started.
    anchors, readings
        One each `ANCHOR_S`, and what the kernel said then.
    """

    boot_ns: int
    anchors: tuple[Anchor, ...]
    readings: Mapping[int, ClockReading]

    @classmethod
    def of(cls, job: Job, node: int) -> "Clock":
        """Return the clock of a node: some tens of microseconds off, and drifting by a part in a million."""
        draws = job.random_for("clock", node)
        boot_ns = int(draws.integers(3_600 * _NS, 90 * 86_400 * _NS))
        epoch_ns = round(job.start.timestamp()) * _NS
        after = np.arange(-ANCHOR_S, job.seconds + 2 * ANCHOR_S, ANCHOR_S)
        off = draws.normal(0, 60_000) + 1e3 * draws.normal(0, 1.0) * after + draws.normal(0, 300, len(after))
        monos = boot_ns + (after * _NS).astype(np.int64) + draws.integers(0, 4_000_000, len(after))
        walls = epoch_ns + (monos - boot_ns) + off.astype(np.int64)
        anchors = tuple(straighten(zip(monos.tolist(), walls.tolist(), strict=True)))
        offsets = draws.integers(-9_000, 9_000, len(anchors)).tolist()
        readings = {
            mono: ClockReading(mono, offset, 2_000_000, 9_000, 1, 0)
            for (mono, _), offset in zip(anchors, offsets, strict=True)
        }
        return cls(boot_ns, anchors, readings)

    def anchors_between(self, begin_s: float, end_s: float) -> tuple[Anchor, ...]:
        """Return the anchors that times of a stretch are computed from: what is further off changes no segment."""
        first = max(0, int(begin_s) // ANCHOR_S)
        return self.anchors[first : int(end_s) // ANCHOR_S + 3]


@dataclass(frozen=True, slots=True)
class Segment:
    """A sealed segment: its path below the spool, and its bytes."""

    file: SealedFile
    path: str
    raw: bytes


@dataclass
class Recording:
    """One process's stream. Segments of a table are numbered in the order in which they are sealed."""

    origin: Origin
    meta: Meta
    clock: Clock
    _next: dict[str, int] = field(default_factory=dict)

    @classmethod
    def of(cls, name: StreamName, world_size: int, boot_id: str, meta: Meta, clock: Clock) -> "Recording":
        """Begin a stream whose process defined what `meta` says."""
        meta.clock.update(clock.readings)
        return cls(Origin(name, world_size, boot_id), meta, clock)

    def slots(
        self, lane: str, slots: Array, around: tuple[Anchor, ...], date: str, *, final: bool
    ) -> Iterator[Segment]:
        """Seal slots of a lane, a full slot file at a time."""
        layout = SLOT_LANES[lane]
        most = layout.file_bytes // layout.slot_bytes
        parts = [slots[at : at + most] for at in range(0, len(slots), most)]
        for part in parts:
            rows = read_rows(lane, np.ascontiguousarray(part).tobytes(), self.meta, around)
            yield self.rows(layout.table, rows, around, date, final=final and part is parts[-1])

    def frames(self, lane: str, of: list[tuple[int, dict[str, Any]]], around: tuple[Anchor, ...], date: str, *,
               final: bool = False) -> Segment:  # fmt: skip
        """Seal frames of a lane, given as monotonic time and columns."""
        raw = b"".join(frames.pack({"s": slot, "m": mono, **columns}) for slot, (mono, columns) in enumerate(of))
        return self.rows(table_of(lane), read_rows(lane, raw, self.meta, around), around, date, final=final)

    def end(self, table: str, date: str) -> Segment:
        """Seal a last segment without rows, for the gaps that no footer carries yet."""
        return self.rows(table, NO_ROWS, (), date, final=True)

    def rows(self, table: str, rows: Rows, around: tuple[Anchor, ...], date: str, *, final: bool) -> Segment:
        """Seal rows as the next segment of a table."""
        number = self._next.get(table, 0)
        self._next[table] = number + 1
        raw, footer = segment_bytes(self.origin, self.meta, table, number, rows, around, final=final)
        self.meta.add_sealed(table, number, len(rows), footer.gaps, final=final)
        file = SealedFile(Path(), table, number, date, len(rows), hashlib.sha256(raw).hexdigest())
        return Segment(file, file.remote(self.origin.name), raw)
