"""Live stream: steps and sealed rows of a stream in the local spool, read while it is written, without a trace."""

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
"""Values on their way from a GPU are written into slots this far behind the newest, so these are read again."""
_CHECKSUM_BYTES: Final = 4
_NUMBERS: Final = ("step_time_s", "collective_time_s", "loss", "tokens")

Place = tuple[int, int]
"""Segment and slot: what a row is called by, whether it is sealed or not."""
Columns = Mapping[str, pa.Array | pa.ChunkedArray]


class Step(NamedTuple):
    """A step of one rank. NaN is a number that is not known; `flagged` says which were NaN or infinite."""

    step: int
    end_ns: int
    step_time_s: float
    collective_time_s: float
    loss: float
    tokens: float
    flagged: str


@dataclass(slots=True)
class OpenSteps:
    """A file of steps that is being written. It is held open, so that what it gets before it is sealed is not missed.

    Attributes
    ----------
    file
        Its name in the stream.
    fd
        What it is read by, also when it has lost its name.
    settled
        Slots before this one do not change any more.
    """

    file: OpenFile
    fd: int
    settled: int = 0

    @classmethod
    def of(cls, file: OpenFile) -> Self:
        """Open a file. Raises `OSError`."""
        return cls(file, open_regular(file.path))

    def read(self, meta: Meta, straight: Sequence[Anchor]) -> Iterator[tuple[Place, Step]]:
        """Yield the steps that are new, and once more those that may have changed. Raises `OSError`."""
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
        """Whether it has lost its name: it gets no more steps then."""
        return os.fstat(self.fd).st_nlink == 0

    def close(self) -> None:
        """Let go of it."""
        with contextlib.suppress(OSError):
            os.close(self.fd)


def steps_in(segment: int, slots: Array, start_ns: Array, columns: Columns) -> Iterator[tuple[Place, Step]]:
    """Yield steps of columns as the contract of `steps` has them; columns that are left out are not known."""
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
    """Rows of a segment: slots, times (wall ns) and columns, those asked for among them where it has them."""

    slots: Array
    time_ns: Array
    columns: Columns


def read_sealed(file: SealedFile, name: StreamName, keys: SealingKeys, wanted: Sequence[str]) -> SealedRows:
    """Read columns of a segment.

    Raises `OSError`, `ranklake.segments.envelope.EncryptionError` without its key, and `ValueError` (`pa.ArrowInvalid`)
    or `NotASegmentError` where it is damaged.
    """
    raw = in_clear(keys, name, file, read_regular(file.path))
    parquet = pq.ParquetFile(pa.BufferReader(raw))
    there = [column for column in ("slot", "ts", *wanted) if column in parquet.schema_arrow.names]
    rows = parquet.read(there)
    constants = constant_columns(read_footer(raw).constants, rows.num_rows)
    columns = constants | dict(zip(rows.column_names, rows.columns, strict=True))
    times = columns["ts"].cast(pa.int64()).to_numpy() * 1000
    return SealedRows(columns["slot"].to_numpy(), times, columns)


MOST_STEPS: Final = 5_000
"""Of each rank; the oldest are forgotten."""
_WANTED: Final = {
    "steps": ("step", "step_time_s", "collective_time_s", "loss", "tokens", "non_finite"),
    "events": ("event", "severity", "message"),
}
_ALERT_SEVERITIES: Final = frozenset({"warning", "error"})


@dataclass(frozen=True, slots=True, order=True)
class LiveEvent:
    """An event worth showing."""

    time_ns: int
    event: str
    severity: str
    message: str


@dataclass
class LiveStream:
    """What was seen of one stream so far.

    Attributes
    ----------
    state
        ``runs``, ``ended`` (it said so), ``died`` (its process is gone and did not say that it ended) or ``sent`` (all
        of it left the local spool).
    world_size
        Ranks of the run, as its process knew at the start; 0 if that cannot be read.
    is_child
        Whether a forked child writes it: it says nothing at its end.
    steps
        Those that are remembered, by where they are.
    gaps
        Rows that could not be recorded, by table and reason, without what was sampled out.
    alerts
        Events of severity warning and error.
    unreadable
        Sealed segments that could not be read, such as encrypted ones without their key.
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
        """Read what is new. Of a stream that is gone, what was seen stays. Raises `OSError` if it may not be read."""
        try:
            self._look()
        except FileNotFoundError:
            self._read_steps()
            self.close()
            self.state = "ended" if self._meta.ended else "sent"
        for place in list(self.steps)[: max(len(self.steps) - MOST_STEPS, 0)]:
            del self.steps[place]

    def close(self) -> None:
        """Let go of its files."""
        for file in self._open.values():
            file.close()
        self._open.clear()

    def _look(self) -> None:
        self._read_meta()
        self._read_owner()
        # Files are held open before those that are sealed are listed: whatever is sealed meanwhile is read by one of
        # both ways. Rows come in the order in which they were recorded, as far as that goes.
        there = open_files(self.folder)
        for file in there:
            if file.table == "steps" and file.path not in self._open:
                with contextlib.suppress(FileNotFoundError):
                    self._open[file.path] = OpenSteps.of(file)
        held = {steps.file.segment for steps in self._open.values()}
        for sealed in sealed_files(self.folder):
            if sealed.path not in self._read and (sealed.table == "events" or sealed.segment not in held):
                self._read_sealed(sealed)
        self._read_steps()
        for file in there:
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
        if HELD.has(self.name.incarnation):  # this very process's: its lock would go with the file
            return
        owner = Owner.read(self.folder)
        if owner is not None:
            self.world_size, self.is_child = owner.world_size, owner.role == "worker"
            if not self._meta.ended and owner.boot_id:
                self.state = "runs" if owner.runs() else "died"

    def _read_steps(self) -> None:
        for path, steps in list(self._open.items()):
            sealed = steps.is_sealed()  # asked before it is read: what it holds then is all of it
            self.steps.update(steps.read(self._meta, self._anchors))
            if sealed:
                steps.close()
                del self._open[path]

    def _read_events(self, file: OpenFile) -> None:
        with contextlib.suppress(FileNotFoundError):  # sealed meanwhile: it is read next time
            rows = read_rows(file.lane, read_regular(file.path), self._meta, self._anchors)
            if len(rows):
                times = wall_ns(rows.mono_ns, self._anchors)
                self._add_alerts(file.segment, rows.slots.tolist(), times.tolist(), rows.columns)

    def _read_sealed(self, file: SealedFile) -> None:
        self._read.add(file.path)
        if file.table not in _WANTED:
            return
        try:
            rows = read_sealed(file, self.name, self.keys, _WANTED[file.table])
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
        texts = [columns[name].to_pylist() if name in columns else None for name in _WANTED["events"]]
        events, severities, messages = (column or [None] * len(texts[0] or ()) for column in texts)
        for slot, time_ns, event, severity, message in zip(slots, times_ns, events, severities, messages, strict=True):
            if severity in _ALERT_SEVERITIES:
                self.alerts[segment, slot] = LiveEvent(time_ns, event, severity, message or "")
