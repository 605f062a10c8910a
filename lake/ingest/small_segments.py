"""Decodes small segments cheaply: each is opened like the one before it."""

from dataclasses import dataclass

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow._parquet import ParquetReader

from ranklake.lake.contracts.model import Contract
from ranklake.lake.ingest.incoming import PART_BYTES
from ranklake.lake.ingest.segment_columns import fits
from ranklake.lake.ingest.segment_opener import with_dictionary
from ranklake.lake.store.limits import Limits, decoded_bytes


@dataclass(frozen=True, slots=True)
class _Shape:
    """Columns that segments of a table were seen to have, under the contract's types.

    Attributes
    ----------
    texts
        Columns that are stored with a dictionary: who opens such a segment has to name them.
    """

    schema: pa.Schema
    texts: list[str]


class SmallSegments:
    """Decodes segments of one table; what it has seen of their columns is remembered.

    Parameters
    ----------
    limits
        What one segment may ask.
    """

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._shapes: list[_Shape] = []
        self._shape: _Shape | None = None

    def decode(self, raw: bytes, target: Contract, count: int) -> tuple[pa.Table | None, pq.FileMetaData]:
        """Return the rows of a segment of a known or new shape, None if that is not the contract's; and its metadata.

        Segments of a table are alike, so each is opened as the one before it was.
        """
        source = pa.BufferReader(raw)
        reader = ParquetReader()  # what `ParquetFile` wraps, at twice the cost of opening a small one
        shape = self._shape
        try:
            reader.open(source, read_dictionary=shape.texts if shape else None)
            metadata = reader.metadata
        except KeyError:  # some of the text is not there
            source.seek(0)
            shape, metadata = None, pq.read_metadata(source)
        if not self._is_small(metadata, count):
            return None, metadata
        if shape is None or metadata.num_columns != len(shape.schema):
            shape = next((one for one in self._shapes if len(one.schema) == metadata.num_columns), None)
            reader = _reader(raw, metadata, shape.texts) if shape else reader
        if shape is not None:
            rows = reader.read_all(use_threads=False)
            if not rows.schema.equals(shape.schema):
                shape = next((one for one in self._shapes if rows.schema.equals(one.schema)), None)
        if shape is None:
            texts = with_dictionary(raw, metadata)
            if texts is None:
                return None, metadata
            rows = _reader(raw, metadata, texts).read_all(use_threads=False)
            if not fits(rows.schema, target):
                return None, metadata
            shape = _Shape(rows.schema.remove_metadata(), texts)
            self._shapes.append(shape)
        self._shape = shape
        return rows, metadata

    def _is_small(self, metadata: pq.FileMetaData, count: int) -> bool:
        """Say whether a segment of so many rows may be decoded beside others: nothing of it was yet."""
        limits = self._limits
        if metadata.num_row_groups != 1 or metadata.num_rows != count or count > limits.row_group_rows:
            return False
        most = min(PART_BYTES, limits.decoded_bytes)  # as much as the careful way decodes at once
        return metadata.num_columns <= limits.columns and decoded_bytes(metadata) <= most


def _reader(raw: bytes, metadata: pq.FileMetaData, texts: list[str]) -> ParquetReader:
    reader = ParquetReader()
    reader.open(pa.BufferReader(raw), metadata=metadata, read_dictionary=texts)
    return reader
