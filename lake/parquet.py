"""One Parquet file of a Delta table: written whole, and described by an add action that we vouch for.

`DeltaTable.create_write_transaction` checks nothing of what it is told. So the statistics are computed here from the
rows themselves, for the contract's statistics columns only, and hold no NaN; the row count is read back from the
file's footer.
"""

import json
import os
import re
import time
import uuid
from dataclasses import dataclass
from datetime import UTC, date, datetime
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake.transaction import AddAction

from ranklake.errors import RanklakeError
from ranklake.lake.contracts.arrow import arrow_schema
from ranklake.lake.contracts.delta import statistics_columns
from ranklake.lake.unreachable import cannot_write

if TYPE_CHECKING:
    from ranklake.lake.contracts.model import Contract
    from ranklake.lake.store import Lake

ROW_GROUP_ROWS = 262_144
STATISTIC_CHARACTERS = 64
_NAME = re.compile(r"date=\d{4,}-\d{2}-\d{2}/p(?P<plan>\d+)-[0-9a-f]{32}(~[0-9a-f]+)?\.parquet")


class FileMismatchError(RanklakeError):
    """A written file that does not hold what its add action is about to claim."""


@dataclass(frozen=True, slots=True)
class DataFile:
    """A data file of a table, on disk, perhaps not committed yet.

    Attributes
    ----------
    table, path
        Table, and path relative to it.
    partition
        UTC date of all rows.
    rows, size_bytes
        What the file holds and takes.
    stats
        Delta statistics as JSON text.
    """

    table: str
    path: str
    partition: date
    rows: int
    size_bytes: int
    stats: str

    def add_action(self, *, data_change: bool = True) -> AddAction:
        """Return the action that makes the file part of its table."""
        values = {"date": self.partition.isoformat()}
        return AddAction(
            self.path, self.size_bytes, values, int(time.time() * 1000), data_change=data_change, stats=self.stats
        )


def plan_of(path: str) -> int | None:
    """Return the number in a data file's path, relative to its table; None if `write_partition` did not write it."""
    found = _NAME.fullmatch(path)
    return int(found["plan"]) if found else None


def write_partition(
    lake: "Lake", contract: "Contract", rows: pa.Table, day: date, plan: int, *, merged: str = ""
) -> DataFile:
    """Sort rows of one date as the contract says and write them as one new file of its table.

    Parameters
    ----------
    rows
        Conforming rows (the contract's Arrow schema; `date` may be absent), all of `day`.
    plan
        Number of the plan this belongs to; it is part of the file's name, so that orphans can be told.
    merged
        Fingerprint of the files that these very rows come from, if the new one only takes their place.

    Raises `FileMismatchError` if what was written does not read back as claimed, `LakeUnreachableError` where it cannot
    be written. The file is complete and, on a local disk, synced when this returns; on failure a file that no commit
    names stays behind.
    """
    schema = arrow_schema(contract)
    schema = schema.remove(schema.get_field_index("date"))
    body = rows.select(schema.names).cast(schema)
    if contract.sort:
        keys = [(name, "ascending") for name in contract.sort if name != "date"]
        body = body.take(pc.sort_indices(body, sort_keys=keys))
    path = f"date={day.isoformat()}/p{plan:010d}-{uuid.uuid4().hex}{merged and '~'}{merged}.parquet"
    full = lake.path("tables", contract.table, path)
    if lake.is_local:
        os.makedirs(os.path.dirname(full), exist_ok=True)  # noqa: PTH103, PTH120 - fsspec paths are strings
    try:
        with lake.fs.open(full, "wb") as sink:
            pq.write_table(body, sink, **writer_options(body.schema), row_group_size=ROW_GROUP_ROWS)
            if lake.is_local:  # a commit must never name bytes that a power cut can take back
                sink.flush()
                os.fsync(sink.fileno())
    except OSError as error:
        raise cannot_write(full, error) from error
    with lake.fs.open(full, "rb") as source:
        written = pq.ParquetFile(source)
        if written.metadata.num_rows != body.num_rows or not written.schema_arrow.equals(body.schema):
            raise FileMismatchError("a data file does not read back as written", where=full, mend="check the storage")
    return DataFile(contract.table, path, day, body.num_rows, int(lake.fs.size(full)), statistics(contract, body))


def writer_options(schema: pa.Schema) -> dict[str, Any]:
    """Return Parquet writer options: deltas for integers and times, split bytes for floats, dictionaries for text."""
    encoding: dict[str, str] = {}
    for column in schema:
        if pa.types.is_integer(column.type) or pa.types.is_timestamp(column.type):
            encoding[column.name] = "DELTA_BINARY_PACKED"
        elif pa.types.is_floating(column.type):
            encoding[column.name] = "BYTE_STREAM_SPLIT"
    return {
        "compression": "zstd",
        "compression_level": 3,
        "use_dictionary": [column.name for column in schema if pa.types.is_string(column.type)],
        "column_encoding": encoding,
        "write_page_index": True,
        "write_page_checksum": True,
    }


def statistics(contract: "Contract", rows: pa.Table) -> str:
    """Return Delta statistics, as JSON, of the contract's statistics columns.

    A column whose bounds are long text has none: cut short they would be no values of the column, and some readers
    answer MIN and MAX from them.
    """
    low: dict[str, Any] = {}
    high: dict[str, Any] = {}
    nulls: dict[str, int] = {}
    for name in statistics_columns(contract):
        if name not in rows.column_names:
            continue
        column = rows[name]
        nulls[name] = column.null_count
        if pa.types.is_boolean(column.type):
            continue
        least, most = bounds(column)
        if least is None or (isinstance(most, str) and max(len(least), len(most)) > STATISTIC_CHARACTERS):
            continue
        low[name], high[name] = _plain(least), _plain(most)
    return json.dumps(
        {"numRecords": rows.num_rows, "minValues": low, "maxValues": high, "nullCount": nulls}, allow_nan=False
    )


def bounds(column: pa.ChunkedArray) -> tuple[Any, Any]:
    """Return (minimum, maximum) of a column; None for both where it has no value, or a time that Python cannot hold."""
    try:
        found = pc.min_max(column).as_py()
    except (OverflowError, ValueError):
        return None, None
    return found["min"], found["max"]


def _plain(value: object) -> object:
    if isinstance(value, datetime):
        return value.astimezone(UTC).replace(tzinfo=None).isoformat(timespec="microseconds") + "Z"
    if isinstance(value, date):
        return value.isoformat()
    return value
