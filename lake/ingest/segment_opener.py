"""Opens a segment's Parquet bytes, with dictionary-encoded text kept as dictionaries."""

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow._parquet import ParquetReader

from ranklake.lake.store.limits import Limits


class Opener:
    """Opens segments of a table; text whose values are stored in a dictionary is read as one.

    Which text that is has to be said before a file is opened, and opening one to find out costs as much as decoding
    some hundred rows. Segments of a table are alike, so each is opened as the one before it was. The checksums of pages
    are not looked at: the digest of the whole file was, just before.
    """

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._names: list[str] = []
        self._texts: list[str] = []

    def open(self, raw: bytes) -> pq.ParquetFile:
        """Open Parquet bytes. Raises an Arrow error, or `NotASegmentError` where they hold too much."""
        source = pa.BufferReader(raw)
        if self._names:
            try:
                file = pq.ParquetFile(source, read_dictionary=self._texts)
            except KeyError:  # some of the text is not there
                source.seek(0)
            else:
                self._limits.check(file.metadata)
                if file.metadata.schema.names == self._names:
                    return file
        metadata = pq.read_metadata(source)
        self._limits.check(metadata)
        texts = with_dictionary(raw, metadata)
        if metadata.num_row_groups and texts is not None:
            self._names, self._texts = metadata.schema.names, texts
        return pq.ParquetFile(source, metadata=metadata, read_dictionary=texts)


def with_dictionary(raw: bytes, metadata: pq.FileMetaData) -> list[str] | None:
    """Return the columns of text that are stored with a dictionary; None where it is damaged: reading will say how."""
    if not metadata.num_row_groups:
        return []
    # What pyarrow throws at a footer's lies about a column ends the process where metadata is asked for that column,
    # and is an error like others where rows are: so they are asked for first, one will do.
    try:
        reader = ParquetReader()
        reader.open(pa.BufferReader(raw), metadata=metadata)
        next(reader.iter_batches(1, row_groups=[0], use_threads=False), None)
    except MemoryError:
        raise
    except Exception:  # noqa: BLE001 - whatever foreign bytes raise
        return None
    group = metadata.row_group(0)
    columns = [(metadata.schema.column(index), group.column(index)) for index in range(metadata.num_columns)]
    return [
        column.path for column, chunk in columns if column.physical_type == "BYTE_ARRAY" and chunk.has_dictionary_page
    ]
