"""Checks a segment's columns against the contract, and its keys against its name and footer."""

from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from ranklake.lake.contracts.arrow import arrow_schema, conform
from ranklake.lake.contracts.model import Contract
from ranklake.lake.ingest.footers import read_footer
from ranklake.lake.ingest.newer import refuse_newer
from ranklake.lake.ingest.spool.gate import MISNAMED
from ranklake.lake.migrations.upgrading import upgraded
from ranklake.lake.store.limits import DAY_US
from ranklake.segments.segment import (
    METADATA_KEY,
    REFUSED,
    REFUSED_ROW,
    NotASegmentError,
    SegmentFooter,
    SegmentName,
)

_EPOCH: Final = datetime.fromtimestamp(0, UTC)


def footer_of(metadata: pq.FileMetaData, name: SegmentName, target: Contract) -> SegmentFooter:
    """Return the footer.

    Raises `NotASegmentError` where it is none, or not that of the name, and
    `ranklake.lake.ingest.newer.NewerSegmentError`.
    """
    footer = named_footer(metadata, name, target.table)
    refuse_newer(footer, _columns_of(metadata.schema), target)
    return footer


def _columns_of(schema: pq.ParquetSchema) -> list[str]:
    """Return the names of columns; `names` of a Parquet schema are those of leaves, of a list that of its elements."""
    return [schema.column(at).path.partition(".")[0] for at in range(len(schema.names))]


def named_footer(metadata: pq.FileMetaData, name: SegmentName, table: str) -> SegmentFooter:
    """Return the footer of a segment of any table, known or not. Raises as `footer_of`."""
    footer = read_footer((metadata.metadata or {}).get(METADATA_KEY, b""))
    said = (footer.table, footer.run, footer.attempt, footer.rank, footer.incarnation, footer.segment, footer.rows)
    meant = (table, name.run, name.attempt, name.rank, name.incarnation, name.segment, metadata.num_rows)
    if said != meant or name.rows != footer.rows or name.key_id != footer.key_id:
        raise NotASegmentError(MISNAMED)
    if footer.ranks and name.rank:
        raise NotASegmentError(f"{MISNAMED}: rows of several ranks under the name of one")
    return footer


def extent_of(rows: pa.Table) -> tuple[int, int] | None:
    """Return the first and the last moment, in microseconds since 1970; None where there is none."""
    if "ts" not in rows.column_names:  # all were refused
        return None
    moments = rows["ts"].cast(pa.int64())
    values = (moments.drop_null() if moments.null_count else moments).to_numpy()
    return (int(values.min()), int(values.max())) if len(values) else None


def days_of(rows: pa.Table) -> set[int]:
    """Return the UTC dates of rows that have a moment, as days since 1970."""
    return set(np.unique(rows["ts"].cast(pa.int64()).drop_null().to_numpy() // DAY_US).tolist())


def moments(extent: tuple[int, int] | None) -> tuple[datetime | None, datetime | None]:
    """Return moments for people; None for both where Python cannot hold one."""
    if extent is None:
        return None, None
    try:
        return _EPOCH + timedelta(microseconds=extent[0]), _EPOCH + timedelta(microseconds=extent[1])
    except OverflowError:
        return None, None


def checked(stored: pa.Table, name: SegmentName, footer: SegmentFooter, target: Contract) -> pa.Table:
    """Return rows under the contract's types; columns without any value are left out, dictionaries of text kept.

    Raises
    ------
    pyarrow.ArrowInvalid
        Text is not UTF-8: it would pass unseen until somebody reads it.
    ContractMismatchError, NotASegmentError
        Columns are not the contract's; rows are not those of the name. NULLs are left for the judge.
    """
    for column in stored.columns:
        if not pa.types.is_primitive(column.type):
            column.validate(full=True)
    rows = conformed(stored, target, footer)
    same = _is_text(rows["run"], name.run)
    for column_name in ("attempt", "incarnation", "segment"):
        same &= _is_number(rows[column_name], getattr(name, column_name))
    same &= _is_within(rows["rank"], *footer.ranks) if footer.ranks else _is_number(rows["rank"], name.rank)
    if not same:
        raise NotASegmentError(MISNAMED)
    return rows


def conformed(stored: pa.Table, target: Contract, footer: SegmentFooter) -> pa.Table:
    """Return rows of a segment under the contract here, without the columns that have no value."""
    stored = upgraded(stored, target, footer.contract_version, footer.added_version)
    as_meant = fits(stored.schema, target)
    rows = stored.replace_schema_metadata(None) if as_meant else conform(stored, target, segment=True)
    return with_values(rows, target)


def fits(schema: pa.Schema, target: Contract) -> bool:
    """Say whether columns are the contract's, under its types; a dictionary of text is text."""
    meant, required = _meant(target)
    names = schema.names
    plain = [type_.value_type if pa.types.is_dictionary(type_) else type_ for type_ in schema.types]
    as_meant = all(meant.get(name) == type_ for name, type_ in zip(names, plain, strict=True))
    return as_meant and len(set(names)) == len(names) and (required.issubset(names) or REFUSED in names)


def with_values(rows: pa.Table, target: Contract) -> pa.Table:
    """Return rows without the columns that have no value, but for required ones."""
    _, required = _meant(target)
    columns = dict(zip(rows.column_names, rows.columns, strict=True))
    full = [name for name, column in columns.items() if name in required or column.null_count < rows.num_rows]
    return rows if len(full) == len(columns) else rows.select(full)


@lru_cache(maxsize=64)
def _meant(target: Contract) -> tuple[dict[str, pa.DataType], frozenset[str]]:
    """Return the types of a segment's columns, and the names of those that are required."""
    schema = arrow_schema(target, segment=True)
    types = {REFUSED: pa.string(), REFUSED_ROW: pa.string()} | dict(zip(schema.names, schema.types, strict=True))
    return types, frozenset(field.name for field in schema if not field.nullable)


def _is_number(column: pa.ChunkedArray, number: int) -> bool:
    values = (column.drop_null() if column.null_count else column).to_numpy()
    return bool((values == number).all())


def _is_within(column: pa.ChunkedArray, low: int, high: int) -> bool:
    values = (column.drop_null() if column.null_count else column).to_numpy()
    return bool(((values >= low) & (values <= high)).all())


def _is_text(column: pa.ChunkedArray, text: str) -> bool:
    for chunk in column.chunks:
        known = pa.types.is_dictionary(chunk.type) and set(chunk.dictionary.to_pylist()) <= {text, None}
        if not known and not set(chunk.unique().to_pylist()) <= {text, None}:  # a dictionary may have words of no row
            return False
    return True
