"""Checks a segment's columns against the contract, and its keys against its name and footer."""

import json
import re
from collections.abc import Collection, Iterable, Mapping
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from ranklake.lake.contracts.arrow import arrow_schema, conform
from ranklake.lake.contracts.freeze import contract_digest
from ranklake.lake.contracts.model import Contract
from ranklake.lake.ingest.footer_columns import constant_names, constants_fault, with_footer_columns
from ranklake.lake.ingest.spool.gate import MISNAMED, NEWER, UnreadError
from ranklake.lake.migrations.rewriting import upgrade_rows
from ranklake.lake.store.json_shape import Bounded, Maybe, fault
from ranklake.lake.store.limits import DAY_US
from ranklake.segments.segment import (
    FORMAT,
    METADATA_KEY,
    REFUSED,
    REFUSED_ROW,
    RUN_NAME,
    NotASegmentError,
    SegmentFooter,
    SegmentName,
)

NEWER_FORMAT = f"{NEWER}segment format {FORMAT}"
"""Of a segment whose footer is of a later format."""


class NewerSegmentError(UnreadError):
    """A sound segment of a later contract or format; `what` names the contract or format known here."""


def known_here(table: str, contracts: "Mapping[str, Contract]") -> str:
    """Return the reason for which newer segments of a table wait: it names the contract known here.

    It changes with the contract, so that segments which waited under the earlier one are tried again.
    """
    contract = contracts.get(table)
    return unknown_table(table) if contract is None else _known(contract)


def _known(contract: "Contract") -> str:
    added = f", your columns version {contract.added_version}" if contract.added_version > 1 else ""
    return f"{NEWER}{contract.table} version {contract.version}{added} ({contract_digest(contract)[:12]})"


def unknown_table(table: str) -> str:
    """Return the reason for which segments of a table without a contract wait."""
    return f"{NEWER}no table {table}"


def refuse_newer(footer: "SegmentFooter", columns: Iterable[str], target: "Contract") -> None:
    """Raise `NewerSegmentError` where a segment was written by a later contract, or has columns that are not known.

    Unknown columns under an older contract do not make a segment newer; `conform_columns` judges them.
    """
    known = {*target.names, REFUSED, REFUSED_ROW}
    theirs, ours = ((footer.contract_version, footer.added_version), (target.version, target.added_version))
    unknown = theirs == ours and not known.issuperset(columns)
    if theirs[0] > ours[0] or theirs[1] > ours[1] or unknown:
        raise NewerSegmentError(_known(target))


FOOTER_BYTES: Final = 2**20
_INT32: Final = range(2**31)
_COUNT: Final = range(10**15 + 1)
"""Rows of a process in its life: more than any can record, and a thousand of them still add up in 64 bits."""
_NS: Final = range(-(2**63), 2**63)
_TABLE: Final = re.compile(r"[a-z][a-z0-9_]{0,63}", re.ASCII)
_REASON: Final = re.compile(r"[^\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]{1,256}")
_REQUIRED: Final[dict[str, Any]] = {
    "table": _TABLE,
    "contract_version": range(1, 2**31),
    "run": RUN_NAME,
    "attempt": _INT32,
    "rank": _INT32,
    "world_size": _INT32,
    "incarnation": range(2**63),
    "segment": _INT32,
    "rows": _COUNT,
}
_OPTIONAL: Final[dict[str, Any]] = {
    "rows_before": _COUNT,
    "gaps": Bounded(1000, {_REASON: _COUNT}),
    "gaps_before": _COUNT,
    "anchors": [(_NS, _NS)],
    "clock": [Bounded(16, [Maybe(_NS)])],
    "boot_id": str,
    "final": bool,
    "totals": Bounded(1000, {_TABLE: (_COUNT, _COUNT)}),
    "writer": str,
    "key_id": str,
    "ranks": (_INT32, _INT32),
    "added_version": range(1, 2**31),
    "format": int,
}


def read_footer(raw: bytes) -> SegmentFooter:
    """Return what a segment says of itself. Raises `NewerSegmentError`; `NotASegmentError` never quotes it."""
    if len(raw) > FOOTER_BYTES:
        raise NotASegmentError(f"the footer is larger than {FOOTER_BYTES} bytes")
    try:
        facts = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise NotASegmentError("the footer is not a segment's") from error
    there = facts.keys() if isinstance(facts, dict) else ()
    shape = _REQUIRED | {name: one for name, one in _OPTIONAL.items() if name in there}
    wrong = fault(facts, shape, "footer")
    if wrong is not None:
        raise NotASegmentError(f"the {wrong}")
    if facts.get("format", FORMAT) > FORMAT:
        raise NewerSegmentError(NEWER_FORMAT)
    if clause := constants_fault(facts.get("constants", {})):
        raise NotASegmentError(f"the footer.constants {clause}")
    return SegmentFooter.from_facts(facts)


Counts = npt.NDArray[np.int64]

_LARGE_ROWS: Final = 4096
"""From as many rows a segment on, looking at each costs less than moving them all together."""


def all_text(column: pa.ChunkedArray, meant: list[str]) -> bool:
    """Whether each chunk is of one text, as meant; False where that is not sure."""
    if column.null_count or not pa.types.is_dictionary(column.type) or column.num_chunks != len(meant):
        return False
    words = pa.chunked_array([chunk.dictionary for chunk in column.chunks], column.type.value_type)
    return len(words) == len(meant) and bool(words.to_pylist() == meant)


def validate(column: pa.ChunkedArray, counts: Counts) -> None:
    """Raise an Arrow error where text is not UTF-8, or a place in a dictionary is not in it."""
    if pa.types.is_primitive(column.type):
        return
    if not pa.types.is_dictionary(column.type) or column.null_count or not _in_chunks(column, counts):
        column.validate(full=True)
        return
    for chunk in column.chunks:  # a tenth of what Arrow's own look at each place costs
        places = chunk.indices.to_numpy()
        if places.min() < 0 or places.max() >= len(chunk.dictionary):
            raise pa.ArrowInvalid("a place that the dictionary does not have")
        chunk.dictionary.validate(full=True)


def all_number(column: pa.ChunkedArray, meant: list[int], counts: Counts) -> bool:
    """Whether the rows of each segment hold its number."""
    if column.null_count:
        return False
    if _in_chunks(column, counts):
        return all((chunk.to_numpy() == number).all() for chunk, number in zip(column.chunks, meant, strict=True))
    return bool((column.to_numpy() == np.repeat(np.array(meant, np.int64), counts)).all())


def extremes(column: pa.ChunkedArray, counts: Counts) -> tuple[list[int], list[int]]:
    """Return the least and the greatest number of each segment."""
    if _in_chunks(column, counts):
        plain = [chunk.to_numpy() for chunk in column.chunks]
        return [int(values.min()) for values in plain], [int(values.max()) for values in plain]
    values, starts = column.to_numpy(), np.cumsum(counts) - counts
    return np.minimum.reduceat(values, starts).tolist(), np.maximum.reduceat(values, starts).tolist()


def _in_chunks(column: pa.ChunkedArray, counts: Counts) -> bool:
    """Whether it pays to look at each segment where it lies: many small ones are put together first."""
    return len(counts) == column.num_chunks and int(counts.sum()) >= len(counts) * _LARGE_ROWS


_EPOCH: Final = datetime.fromtimestamp(0, UTC)


def footer_of(metadata: pq.FileMetaData, name: SegmentName, target: Contract) -> SegmentFooter:
    """Return the footer.

    Raises `NotASegmentError` where it is none, or not that of the name, and `NewerSegmentError`.
    """
    footer = named_footer(metadata, name, target.table)
    columns, constants = _columns_of(metadata.schema), constant_names(footer)
    if constants and not set(columns).isdisjoint(constants):
        raise NotASegmentError("a column that the footer says is the same in all rows")
    refuse_newer(footer, [*columns, *constants], target)
    return footer


def _columns_of(schema: pq.ParquetSchema) -> list[str]:
    """Return the names of columns; `names` of a Parquet schema are those of leaves, of a list that of its elements."""
    return [schema.column(at).path.partition(".")[0] for at in range(len(schema.names))]


def named_footer(metadata: pq.FileMetaData, name: SegmentName, table: str) -> SegmentFooter:
    """Return the footer of a segment of any table, known or not. Raises as `footer_of`."""
    footer = read_footer((metadata.metadata or {}).get(METADATA_KEY, b""))
    identity = (footer.table, footer.run, footer.attempt, footer.rank, footer.incarnation, footer.segment, footer.rows)
    meant = (table, name.run, name.attempt, name.rank, name.incarnation, name.segment, metadata.num_rows)
    if identity != meant or name.rows != footer.rows or name.key_id != footer.key_id:
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


def check_columns(stored: pa.Table, name: SegmentName, footer: SegmentFooter, target: Contract) -> pa.Table:
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
    rows = conform_columns(stored, target, footer)
    same = _is_text(rows["run"], name.run)
    for column_name in ("attempt", "incarnation", "segment"):
        same &= _is_number(rows[column_name], getattr(name, column_name))
    same &= _is_within(rows["rank"], *footer.ranks) if footer.ranks else _is_number(rows["rank"], name.rank)
    if not same:
        raise NotASegmentError(MISNAMED)
    return rows


def conform_columns(stored: pa.Table, target: Contract, footer: SegmentFooter) -> pa.Table:
    """Return rows of a segment under the contract here, without the columns that have no value."""
    stored = with_footer_columns(stored, [footer], [stored.num_rows])
    stored = upgrade_rows(stored, target, footer.contract_version, footer.added_version)
    as_meant = has_contract_types(stored.schema, target)
    rows = stored.replace_schema_metadata(None) if as_meant else conform(stored, target, segment=True)
    return with_values(rows, target)


def has_contract_types(schema: pa.Schema, target: Contract, without: Collection[str] = ()) -> bool:
    """Whether columns are the contract's, under its types, some required ones aside; a dictionary of text is text."""
    meant, required = _expected_types(target)
    names = schema.names
    plain = [type_.value_type if pa.types.is_dictionary(type_) else type_ for type_ in schema.types]
    as_meant = all(meant.get(name) == type_ for name, type_ in zip(names, plain, strict=True))
    return as_meant and len(set(names)) == len(names) and (required.issubset({*names, *without}) or REFUSED in names)


def with_values(rows: pa.Table, target: Contract) -> pa.Table:
    """Return rows without the columns that have no value, except for required ones."""
    _, required = _expected_types(target)
    columns = dict(zip(rows.column_names, rows.columns, strict=True))
    full = [name for name, column in columns.items() if name in required or column.null_count < rows.num_rows]
    return rows if len(full) == len(columns) else rows.select(full)


def required_columns(target: Contract) -> frozenset[str]:
    """Names of a segment's columns that must have a value in each row."""
    return _expected_types(target)[1]


@lru_cache(maxsize=64)
def _expected_types(target: Contract) -> tuple[dict[str, pa.DataType], frozenset[str]]:
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
