"""A data file that takes column chunks of another over as they are, beside columns that are encoded.

What comes of it holds the same rows under the same statistics as `ranklake.lake.tables.parquet.write_partition` would
write. Which encodings a chunk has stays as it was.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq

from ranklake.lake.contracts.arrow import default_of
from ranklake.lake.contracts.delta import statistics_columns
from ranklake.lake.tables.chunks import ChunkedFile, Part, join, shapes_of, taken_apart
from ranklake.lake.tables.encodings import BLOOM, has_extremes, has_nan
from ranklake.lake.tables.order import sort_names, sort_order
from ranklake.lake.tables.parquet import (
    Content,
    body_of,
    groups_as_they_lie,
    is_grouped,
    put_groups,
    write_content,
    written_fields,
)

if TYPE_CHECKING:
    from datetime import date

    from ranklake.lake.contracts.model import Contract
    from ranklake.lake.store.store import Lake
    from ranklake.lake.tables.data_file import DataFile
    from ranklake.lake.tables.thrift import Fields


@dataclass(frozen=True, slots=True)
class Carried:
    """Columns that a file takes over from another.

    Attributes
    ----------
    file
        The other.
    names
        By name in the new file: the name in the other.
    looked_at
        Those of the new names whose values must be known all the same: what the rows are sorted by, what no footer
        tells NULLs of, and floats of which one may be NaN.
    """

    file: ChunkedFile
    names: Mapping[str, str]
    looked_at: frozenset[str]


def carried(contract: "Contract", whole: pa.Buffer, names: Mapping[str, str]) -> Carried | None:
    """Return what a file of a contract can take over from another; None where that is nothing.

    Parameters
    ----------
    whole
        The other file, whose bytes have been found sound.
    names
        Columns whose values stay as they are: the new name, and the name in the other file.
    """
    file = taken_apart(whole)
    if file is None or not is_grouped(file.group_rows):
        return None
    shapes, extremes = _shapes(contract), has_extremes(contract)
    found: dict[str, str] = {}
    looked_at = set(sort_names(contract))
    for field in written_fields(contract):
        new = field.name
        old = names.get(new)
        if old is None or old not in file.shapes or file.shapes[old] != shapes[new] or default_of(field) is not None:
            continue
        chunks = file.chunks(old)
        have = {one.has_statistics for one in chunks}
        may_be_nan = new in extremes and have == {False} and pa.types.is_floating(field.type)
        if {one.bloom is not None for one in chunks} != {new in BLOOM}:
            continue
        if have != {new in extremes} and not may_be_nan:
            continue
        found[new] = old
        if may_be_nan or (new in statistics_columns(contract) and any(one.nulls is None for one in chunks)):
            looked_at.add(new)
    return Carried(file, found, frozenset(looked_at & found.keys())) if found else None


def write_carried(
    lake: "Lake", contract: "Contract", taken: Carried, rows: pa.Table, day: "date", plan: int
) -> "DataFile | None":
    """Write the rows of a file anew with what it takes over; None, and no file, where that would not be the same.

    That is so where the rows are to be sorted.

    Parameters
    ----------
    rows
        All rows in the order of the other file: columns that are not taken over, and those that must be looked at.

    Otherwise as `ranklake.lake.tables.parquet.write_partition`: other parameters, errors, and what is left on failure.
    """
    body = body_of(contract, rows)  # a default in place of NULL has another place in the order
    if rows.num_rows != sum(taken.file.group_rows) or sort_order(body, sort_names(contract))[0] is not None:
        return None
    lacks = {name for name in taken.looked_at & has_extremes(contract) if not _has_its_statistics(taken, name, rows)}
    names = {new: old for new, old in taken.names.items() if new not in lacks}
    body = body.drop_columns([name for name in body.column_names if name in names])
    made = _encoded(contract, body) if body.num_columns else None
    if body.num_columns and (made is None or made.group_rows != taken.file.group_rows):
        return None
    fields, parts, nulls = [], [], {}
    for field in written_fields(contract):
        name = field.name
        if name in names:
            parts.append(Part(name, taken.file, names[name]))
            seen = [one.nulls for one in taken.file.chunks(names[name])]
            nulls[name] = rows[name].null_count if name in rows.column_names else sum(some or 0 for some in seen)
        elif made is not None and name in body.column_names:
            parts.append(Part(name, made, name))
            nulls[name] = body[name].null_count
        else:
            continue
        fields.append(field)
    put = partial(join, parts=parts, like=taken.file)
    content = Content(schema=pa.schema(fields), rows=rows.num_rows, nulls=nulls, put=put)
    return write_content(lake, contract, content, day, plan)


def _has_its_statistics(taken: Carried, name: str, rows: pa.Table) -> bool:
    return taken.file.chunks(taken.names[name])[0].has_statistics or has_nan(rows[name])


def _encoded(contract: "Contract", body: pa.Table) -> ChunkedFile | None:
    sink = pa.BufferOutputStream()
    put_groups(sink, contract, body, groups_as_they_lie(body))
    return taken_apart(sink.getvalue())


@lru_cache(maxsize=64)
def _shapes(contract: "Contract") -> Mapping[str, Sequence["Fields"]]:
    """Return how the columns of a contract stand in a file's schema."""
    fields = [pa.field(field.name, field.type, field.nullable) for field in written_fields(contract)]
    sink = pa.BufferOutputStream()
    pq.write_table(pa.schema(fields).empty_table(), sink, store_schema=False)
    return shapes_of(sink.getvalue())
