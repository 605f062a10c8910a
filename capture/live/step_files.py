"""Step files: the steps in a stream's slot files, read while they are written."""

import contextlib
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, Self

import numpy as np
import pyarrow as pa

from ranklake.capture.common.arrays import Array
from ranklake.capture.common.layouts import LAYOUT_OF_LANE, WRITTEN
from ranklake.capture.sealing.tables import read_rows
from ranklake.capture.spool.clock import Anchor, wall_ns
from ranklake.capture.spool.files import open_regular
from ranklake.capture.spool.meta import Meta
from ranklake.capture.spool.stream_files import OpenFile

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
