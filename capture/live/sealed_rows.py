"""Sealed rows: a few columns of a segment that waits in the local spool."""

from collections.abc import Sequence
from typing import NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from ranklake.capture.common.arrays import Array
from ranklake.capture.live.step_files import Columns
from ranklake.capture.sealing.keys import SealingKeys
from ranklake.capture.sealing.seal import in_clear
from ranklake.capture.spool.files import read_regular
from ranklake.capture.spool.stream_files import SealedFile, StreamName


class SealedRows(NamedTuple):
    """Rows of a segment: slots, times (wall ns) and those of the columns asked for that it has."""

    slots: Array
    time_ns: Array
    columns: Columns


def read_sealed(file: SealedFile, name: StreamName, keys: SealingKeys, wanted: Sequence[str]) -> SealedRows:
    """Read columns of a segment.

    Raises `OSError`, `ranklake.segments.envelope.EncryptionError` without its key, and `ValueError` (`pa.ArrowInvalid`)
    where it is damaged.
    """
    raw = in_clear(keys, name, file, read_regular(file.path))
    parquet = pq.ParquetFile(pa.BufferReader(raw))
    there = [column for column in ("slot", "ts", *wanted) if column in parquet.schema_arrow.names]
    rows = parquet.read(there)
    columns = dict(zip(rows.column_names, rows.columns, strict=True))
    times = columns["ts"].cast(pa.int64()).to_numpy() * 1000
    return SealedRows(columns["slot"].to_numpy(), times, columns)
