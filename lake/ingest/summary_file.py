"""The index summary as a file of the lake: returns the newest valid one of this table, or none."""

import hashlib
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from ranklake.lake.contracts.arrow import arrow_schema
from ranklake.lake.contracts.load import contract
from ranklake.lake.ingest.ingestion_index import IDENTITY, STREAM
from ranklake.lake.store.listing import listed

if TYPE_CHECKING:
    from ranklake.lake.store.store import Lake


FOLDER: Final = "known"

COLUMNS: Final = (*IDENTITY, *STREAM, "segment", "plan", "slots", "date")

LEAST_ROWS: Final = 50_000
"""Rows that are summed up at a time; fewer are read as fast."""

_ROWS: Final = b"ranklake.rows"


@dataclass(frozen=True, slots=True)
class Summary:
    """What was taken in up to a plan.

    Attributes
    ----------
    plan, rows
        The plan, and how many rows of ``segments`` there are up to it.
    streams
        Columns table, incarnation, last_segment, first_plan, last_plan.
    odd
        Columns `COLUMNS`.
    """

    plan: int
    rows: int
    streams: pa.Table
    odd: pa.Table


def save(lake: "Lake", summary: Summary) -> None:
    """Write a summary down and delete those before it. A lake that cannot be written goes without."""
    both = pa.concat_tables([summary.streams, summary.odd], promote_options="default")
    sink = pa.BufferOutputStream()
    pq.write_table(both.replace_schema_metadata({_ROWS: str(summary.rows).encode()}), sink, compression="zstd")
    raw = sink.getvalue().to_pybytes()
    with suppress(OSError):
        before = [one.path for one in listed(lake.fs, lake.path(FOLDER))]
        name = f"{FOLDER}/{summary.plan:010d}~{hashlib.sha256(raw).hexdigest()}.parquet"
        lake.put_if_absent(name, raw)
        for path in before:
            if path < lake.path(name):
                with suppress(FileNotFoundError):
                    lake.fs.rm_file(path)


def load(lake: "Lake", live: pa.Table, last: int) -> Summary:
    """Return the newest summary that is sound and of this table; an empty one where there is none."""
    none = Summary(0, 0, no_streams(), no_rows())
    if (pc.sum(live["num_records"]).as_py() or 0) < LEAST_ROWS:
        return none
    for path in sorted((one.path for one in listed(lake.fs, lake.path(FOLDER))), reverse=True):
        said, _, digest = path.rpartition("/")[2].removesuffix(".parquet").partition("~")
        try:
            raw = bytes(lake.fs.cat_file(path))
        except OSError:
            continue
        if hashlib.sha256(raw).hexdigest() != digest or int(said) > last:
            continue
        both = pq.read_table(pa.BufferReader(raw))
        rows = int((both.schema.metadata or {})[_ROWS])
        covered = live.filter(pc.less_equal(live["max.plan"], int(said)))
        if (pc.sum(covered["num_records"]).as_py() or 0) > rows:  # the table was restored, and went another way
            continue
        is_stream = pc.is_valid(both["last_segment"])
        streams = both.filter(is_stream).select(none.streams.column_names).cast(none.streams.schema)
        odd = both.filter(pc.invert(is_stream)).select(none.odd.column_names).cast(none.odd.schema)
        return Summary(int(said), rows, streams.replace_schema_metadata(None), odd.replace_schema_metadata(None))
    return none


def no_rows() -> pa.Table:
    """Return rows with `COLUMNS` of the table ``segments``: none."""
    schema = arrow_schema(contract("segments"))
    return pa.schema([pa.field(name, schema.field(name).type) for name in COLUMNS]).empty_table()


def no_streams() -> pa.Table:
    """Return the streams of a summary of nothing."""
    kinds = {"table": pa.string(), "incarnation": pa.int64(), "last_segment": pa.int32()}
    return pa.schema({**kinds, "first_plan": pa.int64(), "last_plan": pa.int64()}).empty_table()
