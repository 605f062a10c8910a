"""Live stream: read steps and events of a stream in the local spool while it is written, without changing it."""

import contextlib
import math
import os
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple, Self

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from ranklake.capture.common.arrays import Array
from ranklake.capture.common.gaps import DELIBERATE
from ranklake.capture.common.layouts import LAYOUT_OF_LANE, WRITTEN
from ranklake.capture.sealing.constants import constant_columns
from ranklake.capture.sealing.keys import SealingKeys
from ranklake.capture.sealing.seal import in_clear
from ranklake.capture.sealing.segment_bytes import read_footer
from ranklake.capture.sealing.tables import read_rows
from ranklake.capture.spool.clock import Anchor, straighten, wall_ns
from ranklake.capture.spool.files import open_regular, read_regular
from ranklake.capture.spool.meta import Meta, read_meta
from ranklake.capture.spool.owner import HELD, Owner
from ranklake.capture.spool.stream import META_FILE
from ranklake.capture.spool.stream_files import OpenFile, SealedFile, StreamName, open_files, sealed_files
from ranklake.segments.envelope import EncryptionError
from ranklake.segments.segment import NotASegmentError

LATE_SLOTS: Final = 256
"""Number of last slots to read again, because values from a GPU are added to them late."""
_CHECKSUM_BYTES: Final = 4
_NUMBERS: Final = ("step_time_s", "collective_time_s", "loss", "tokens")

Place = tuple[int, int]
"""Segment and slot, which identify a row before and after sealing."""
Columns = Mapping[str, pa.Array | pa.ChunkedArray]


class Step(NamedTuple):
    """A step of one rank. NaN means unknown; `flagged` names the values that were NaN or infinite."""

    step: int
    end_ns: int
    step_time_s: float
    collective_time_s: float
    loss: float
    tokens: float
    flagged: str


@dataclass(slots=True)
class OpenSteps:
    """A file of steps that is being written. It is kept open, so that rows written shortly before sealing are read.

    Attributes
    ----------
    file
        The file in the stream.
    fd
        Descriptor for reading, valid also after the file was deleted.
    settled
        Slots with a lower number do not change any more.
    """

    file: OpenFile
    fd: int
    settled: int = 0

    @classmethod
    def of(cls, file: OpenFile) -> Self:
        """Open a file. Raises `OSError`."""
        return cls(file, open_regular(file.path))

    def read(self, meta: Meta, straight: Sequence[Anchor]) -> Iterator[tuple[Place, Step]]:
        """Yield new steps, and again those that may have changed. Raises `OSError`."""
        stride = LAYOUT_OF_LANE[self.file.lane].slot_bytes
        stride += _CHECKSUM_BYTES if self.file.lane.endswith(WRITTEN) else 0
        raw = os.pread(self.fd, os.fstat(self.fd).st_size, self.settled * stride)
        rows = read_rows(self.file.lane, raw, meta, straight)
        if not len(rows):
            return
        slots = rows.slots + self.settled
        self.settled = max(self.settled, int(slots[-1]) + 1 - LATE_SLOTS)
        yield from steps_in(self.file.segment, slots, wall_ns(rows.mono_ns, straight), rows.columns)

    def is_sealed(self) -> bool:
        """Whether the file was deleted after sealing, so that it gets no more steps."""
        return os.fstat(self.fd).st_nlink == 0

    def close(self) -> None:
        """Close the descriptor."""
        with contextlib.suppress(OSError):
            os.close(self.fd)


def steps_in(segment: int, slots: Array, start_ns: Array, columns: Columns) -> Iterator[tuple[Place, Step]]:
    """Yield the steps in columns of the contract `steps`; values of missing columns are unknown."""
    times, collectives, losses, tokens = (_numbers(columns.get(name), len(slots)) for name in _NUMBERS)
    ends = start_ns + np.rint(np.nan_to_num(times) * 1e9).astype(np.int64)
    flags = columns["non_finite"].to_pylist() if "non_finite" in columns else [None] * len(slots)
    numbers = (array.tolist() for array in (slots, ends, times, collectives, losses, tokens))
    for step, slot, end, *values, flagged in zip(columns["step"].to_pylist(), *numbers, flags, strict=True):
        time, collective, loss, count = values
        yield (segment, slot), Step(step, end, time, collective, loss, count, flagged or "")


def _numbers(column: pa.Array | pa.ChunkedArray | None, count: int) -> Array:
    if column is None:
        return np.full(count, math.nan)
    floats: Array = np.asarray(column.cast(pa.float64()).to_numpy(zero_copy_only=False))
    return floats


class SealedRows(NamedTuple):
    """Rows of a segment: slots, times (wall ns), and the requested columns that it has."""

    slots: Array
    time_ns: Array
    columns: Columns


def read_sealed(file: SealedFile, name: StreamName, keys: SealingKeys, names: Sequence[str]) -> SealedRows:
    """Read columns of a segment.

    Raises `OSError`; `ranklake.segments.envelope.EncryptionError` without its key; and `ValueError` (`pa.ArrowInvalid`)
    or `NotASegmentError` if it is damaged.
    """
    raw = in_clear(keys, name, file, read_regular(file.path))
    parquet = pq.ParquetFile(pa.BufferReader(raw))
    rows = parquet.read([column for column in ("slot", "ts", *names) if column in parquet.schema_arrow.names])
    constants = constant_columns(read_footer(raw).constants, rows.num_rows)
    columns = constants | dict(zip(rows.column_names, rows.columns, strict=True))
    times = columns["ts"].cast(pa.int64()).to_numpy() * 1000
    return SealedRows(columns["slot"].to_numpy(), times, columns)


MOST_STEPS: Final = 5_000
"""Most steps kept per rank; older ones are dropped."""
_COLUMNS: Final = {
    "steps": ("step", "step_time_s", "collective_time_s", "loss", "tokens", "non_finite"),
    "events": ("event", "severity", "message"),
}
_ALERT_SEVERITIES: Final = frozenset({"warning", "error"})


@dataclass(frozen=True, slots=True, order=True)
class LiveEvent:
    """An event of severity warning or error."""

    time_ns: int
    event: str
    severity: str
    message: str


@dataclass
class LiveStream:
    """The rows of one stream that were read so far.

    Attributes
    ----------
    state
        ``runs``; ``ended`` (recorded its end); ``died`` (the process is dead and did not record its end); or ``sent``
        (all of it has left the local spool).
    world_size
        Number of ranks of the run, as known at the start; 0 if unknown.
    is_child
        Whether a forked child writes it; such a stream never records its end.
    steps
        The latest steps, by segment and slot.
    gaps
        Rows that could not be recorded, by table and reason, without those sampled out.
    alerts
        Events of severity warning and error.
    unreadable
        Number of sealed segments that could not be read, such as encrypted ones without their key.
    """

    name: StreamName
    folder: Path
    keys: SealingKeys
    state: str = "runs"
    world_size: int = 0
    is_child: bool = False
    steps: dict[Place, Step] = field(default_factory=dict)
    gaps: "Counter[tuple[str, str]]" = field(default_factory=Counter)
    alerts: dict[Place, LiveEvent] = field(default_factory=dict)
    unreadable: int = 0
    _meta: Meta = field(default_factory=Meta)
    _meta_bytes: int = -1
    _open: dict[Path, OpenSteps] = field(default_factory=dict)
    _read: set[Path] = field(default_factory=set)

    def look(self) -> None:
        """Read new rows. If the stream was deleted, earlier rows are kept. Raises `OSError` without access."""
        try:
            self._look()
        except FileNotFoundError:
            self._read_steps()
            self.close()
            self.state = "ended" if self._meta.ended else "sent"
        for place in list(self.steps)[: max(len(self.steps) - MOST_STEPS, 0)]:
            del self.steps[place]

    def close(self) -> None:
        """Close its files."""
        for file in self._open.values():
            file.close()
        self._open.clear()

    def _look(self) -> None:
        self._read_meta()
        self._read_owner()
        # Unsealed files are opened before sealed ones are listed, so that rows sealed meanwhile are read in one of both
        # ways. Rows are read in the order of recording where possible.
        unsealed = open_files(self.folder)
        for file in unsealed:
            if file.table == "steps" and file.path not in self._open:
                with contextlib.suppress(FileNotFoundError):
                    self._open[file.path] = OpenSteps.of(file)
        open_segments = {steps.file.segment for steps in self._open.values()}
        for sealed in sealed_files(self.folder):
            if sealed.path not in self._read and (sealed.table == "events" or sealed.segment not in open_segments):
                self._read_sealed(sealed)
        self._read_steps()
        for file in unsealed:
            if file.table == "events":
                self._read_events(file)

    @property
    def _anchors(self) -> list[Anchor]:
        return straighten(self._meta.anchors, self._meta.clock) or [(time.monotonic_ns(), time.time_ns())]

    def _read_meta(self) -> None:
        size = (self.folder / META_FILE).stat().st_size
        if size == self._meta_bytes:
            return
        self._meta, self._meta_bytes = read_meta(self.folder), size
        self.gaps = Counter({key: rows for key, rows in self._meta.gaps.items() if key[1] not in DELIBERATE})

    def _read_owner(self) -> None:
        if self._meta.ended:
            self.state = "ended"
        if HELD.has(self.name.incarnation):  # of this process: closing the file would release its lock
            return
        owner = Owner.read(self.folder)
        if owner is not None:
            self.world_size, self.is_child = owner.world_size, owner.role == "worker"
            if not self._meta.ended and owner.boot_id:
                self.state = "runs" if owner.runs() else "died"

    def _read_steps(self) -> None:
        for path, steps in list(self._open.items()):
            sealed = steps.is_sealed()  # checked before reading, so that the file is complete if it is sealed
            self.steps.update(steps.read(self._meta, self._anchors))
            if sealed:
                steps.close()
                del self._open[path]

    def _read_events(self, file: OpenFile) -> None:
        with contextlib.suppress(FileNotFoundError):  # sealed meanwhile; the next call reads the segment
            rows = read_rows(file.lane, read_regular(file.path), self._meta, self._anchors)
            if len(rows):
                times = wall_ns(rows.mono_ns, self._anchors)
                self._add_alerts(file.segment, rows.slots.tolist(), times.tolist(), rows.columns)

    def _read_sealed(self, file: SealedFile) -> None:
        self._read.add(file.path)
        if file.table not in _COLUMNS:
            return
        try:
            rows = read_sealed(file, self.name, self.keys, _COLUMNS[file.table])
        except FileNotFoundError:  # sent meanwhile
            return
        except (EncryptionError, NotASegmentError, OSError, ValueError):
            self.unreadable += 1
            return
        if file.table == "steps":
            self.steps.update(steps_in(file.segment, rows.slots, rows.time_ns, rows.columns))
        else:
            self._add_alerts(file.segment, rows.slots.tolist(), rows.time_ns.tolist(), rows.columns)

    def _add_alerts(self, segment: int, slots: Iterable[int], times_ns: Iterable[int], columns: Columns) -> None:
        texts = [columns[name].to_pylist() if name in columns else None for name in _COLUMNS["events"]]
        events, severities, messages = (column or [None] * len(texts[0] or ()) for column in texts)
        for slot, time_ns, event, severity, message in zip(slots, times_ns, events, severities, messages, strict=True):
            if severity in _ALERT_SEVERITIES:
                self.alerts[segment, slot] = LiveEvent(time_ns, event, severity, message or "")
