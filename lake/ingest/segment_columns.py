"""Checks a segment's columns against the contract, and its identity columns against its name and footer."""

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
from ranklake.lake.store.json_shape import Bounded, Nullable, fault
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
"""Reason for a segment with a footer of a later format."""


class NewerSegmentError(UnreadError):
    """A sound segment of a later contract or format; `what` names the contract or format that this software has."""


def known_here(table: str, contracts: "Mapping[str, Contract]") -> str:
    """Return the reason with which newer segments of a table wait. It names the contract that the lake has now.

    The reason changes with the contract, so segments that waited under the previous contract are tried again.
    """
    contract = contracts.get(table)
    return unknown_table(table) if contract is None else _newer_than(contract)


def _newer_than(contract: "Contract") -> str:
    added = f", your columns version {contract.added_version}" if contract.added_version > 1 else ""
    return f"{NEWER}{contract.table} version {contract.version}{added} ({contract_digest(contract)[:12]})"


def unknown_table(table: str) -> str:
    """Return the reason with which segments of a table without a contract wait."""
    return f"{NEWER}no table {table}"


def refuse_newer(footer: "SegmentFooter", columns: Iterable[str], target: "Contract") -> None:
    """Raise `NewerSegmentError` if a segment has a later contract, or the same one with unknown columns.

    Unknown columns under an older contract do not make a segment newer; `conform_columns` checks them.
    """
    known = {*target.names, REFUSED, REFUSED_ROW}
    segment_version, version = (footer.contract_version, footer.added_version), (target.version, target.added_version)
    has_unknown = segment_version == version and not known.issuperset(columns)
    if segment_version[0] > version[0] or segment_version[1] > version[1] or has_unknown:
        raise NewerSegmentError(_newer_than(target))


FOOTER_BYTES: Final = 2**20
_INT32: Final = range(2**31)
_COUNT: Final = range(10**15 + 1)
"""Most rows that a footer may count: more than a process can record. The sum of a thousand such counts fits 64 bits."""
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
    "clock": [Bounded(16, [Nullable(_NS)])],
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
    """Parse a segment's footer. Raises `NewerSegmentError`, and `NotASegmentError` without a quote of the footer."""
    if len(raw) > FOOTER_BYTES:
        raise NotASegmentError(f"the footer is larger than {FOOTER_BYTES} bytes")
    try:
        facts = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise NotASegmentError("the footer is not a segment's") from error
    present = facts.keys() if isinstance(facts, dict) else ()
    shape = _REQUIRED | {name: field for name, field in _OPTIONAL.items() if name in present}
    problem = fault(facts, shape, "footer")
    if problem is not None:
        raise NotASegmentError(f"the {problem}")
    if facts.get("format", FORMAT) > FORMAT:
        raise NewerSegmentError(NEWER_FORMAT)
    if clause := constants_fault(facts.get("constants", {})):
        raise NotASegmentError(f"the footer.constants {clause}")
    return SegmentFooter.from_facts(facts)


Counts = npt.NDArray[np.int64]

_LARGE_ROWS: Final = 4096
"""From this average number of rows a segment on, checking chunk by chunk is faster than joining the chunks first."""


def has_texts(column: pa.ChunkedArray, texts: list[str]) -> bool:
    """Whether chunk i has only the text i of `texts`. False, too, if its dictionary has further words."""
    if column.null_count or not pa.types.is_dictionary(column.type) or column.num_chunks != len(texts):
        return False
    words = pa.chunked_array([chunk.dictionary for chunk in column.chunks], column.type.value_type)
    return len(words) == len(texts) and bool(words.to_pylist() == texts)


def validate(column: pa.ChunkedArray, counts: Counts) -> None:
    """Raise an Arrow error if text is not UTF-8, or if an index is outside of its dictionary.

    Parameters
    ----------
    counts
        Number of rows of each segment in the column.
    """
    if pa.types.is_primitive(column.type):
        return
    if not pa.types.is_dictionary(column.type) or column.null_count or not _by_chunk(column, counts):
        column.validate(full=True)
        return
    for chunk in column.chunks:  # takes a tenth of the time of Arrow's own check of each index
        indexes = chunk.indices.to_numpy()
        if indexes.min() < 0 or indexes.max() >= len(chunk.dictionary):
            raise pa.ArrowInvalid("an index outside of the dictionary")
        chunk.dictionary.validate(full=True)


def has_numbers(column: pa.ChunkedArray, numbers: list[int], counts: Counts) -> bool:
    """Whether all rows of segment i have the number i of `numbers`; segment i has `counts[i]` rows."""
    if column.null_count:
        return False
    if _by_chunk(column, counts):
        return all((chunk.to_numpy() == number).all() for chunk, number in zip(column.chunks, numbers, strict=True))
    return bool((column.to_numpy() == np.repeat(np.array(numbers, np.int64), counts)).all())


def extremes(column: pa.ChunkedArray, counts: Counts) -> tuple[list[int], list[int]]:
    """Return the lowest and the highest number of each segment; segment i has `counts[i]` rows."""
    if _by_chunk(column, counts):
        arrays = [chunk.to_numpy() for chunk in column.chunks]
        return [int(values.min()) for values in arrays], [int(values.max()) for values in arrays]
    values, starts = column.to_numpy(), np.cumsum(counts) - counts
    return np.minimum.reduceat(values, starts).tolist(), np.maximum.reduceat(values, starts).tolist()


def _by_chunk(column: pa.ChunkedArray, counts: Counts) -> bool:
    """Whether to check chunk by chunk: there is a chunk per segment, and segments are large."""
    return len(counts) == column.num_chunks and int(counts.sum()) >= len(counts) * _LARGE_ROWS


_EPOCH: Final = datetime.fromtimestamp(0, UTC)


def footer_of(metadata: pq.FileMetaData, name: SegmentName, target: Contract) -> SegmentFooter:
    """Parse the footer and check it against the name and the contract.

    Raises `NotASegmentError` if there is no footer or it does not match, and `NewerSegmentError`.
    """
    footer = named_footer(metadata, name, target.table)
    columns, constants = _columns_of(metadata.schema), constant_names(footer)
    if constants and not set(columns).isdisjoint(constants):
        raise NotASegmentError("a column that the footer says is the same in all rows")
    refuse_newer(footer, [*columns, *constants], target)
    return footer


def _columns_of(schema: pq.ParquetSchema) -> list[str]:
    """Return the names of columns. `schema.names` has the names of leaves, such as "element" for a list."""
    return [schema.column(at).path.partition(".")[0] for at in range(len(schema.names))]


def named_footer(metadata: pq.FileMetaData, name: SegmentName, table: str) -> SegmentFooter:
    """Parse the footer and check it against the name; the table need not have a contract. Raises as `footer_of`."""
    footer = read_footer((metadata.metadata or {}).get(METADATA_KEY, b""))
    identity = (footer.table, footer.run, footer.attempt, footer.rank, footer.incarnation, footer.segment, footer.rows)
    expected = (table, name.run, name.attempt, name.rank, name.incarnation, name.segment, metadata.num_rows)
    if identity != expected or name.rows != footer.rows or name.key_id != footer.key_id:
        raise NotASegmentError(MISNAMED)
    if footer.ranks and name.rank:
        raise NotASegmentError(f"{MISNAMED}: rows of several ranks under the name of one")
    return footer


def extent_of(rows: pa.Table) -> tuple[int, int] | None:
    """Return the lowest and the highest time, in microseconds since 1970; None if no row has a time."""
    if "ts" not in rows.column_names:  # the recorder refused all rows
        return None
    moments = rows["ts"].cast(pa.int64())
    values = (moments.drop_null() if moments.null_count else moments).to_numpy()
    return (int(values.min()), int(values.max())) if len(values) else None


def days_of(rows: pa.Table) -> set[int]:
    """Return the UTC dates of the rows that have a time, as days since 1970."""
    return set(np.unique(rows["ts"].cast(pa.int64()).drop_null().to_numpy() // DAY_US).tolist())


def moments(extent: tuple[int, int] | None) -> tuple[datetime | None, datetime | None]:
    """Convert an extent to datetimes; None for both if there is none or one is out of Python's range."""
    if extent is None:
        return None, None
    try:
        return _EPOCH + timedelta(microseconds=extent[0]), _EPOCH + timedelta(microseconds=extent[1])
    except OverflowError:
        return None, None


def check_columns(stored: pa.Table, name: SegmentName, footer: SegmentFooter, target: Contract) -> pa.Table:
    """Check a segment's rows and convert them to the contract's types.

    Columns without any value are left out. Text that is stored with a dictionary keeps it. NULLs in required columns
    are left to `ranklake.lake.contracts.edge`.

    Raises
    ------
    pyarrow.ArrowInvalid
        Text is not UTF-8. Without this check, a later reader of the table would fail.
    ContractMismatchError
        The columns are not the contract's.
    NotASegmentError
        The rows do not have the identity in the name.
    """
    for column in stored.columns:
        if not pa.types.is_primitive(column.type):
            column.validate(full=True)
    rows = conform_columns(stored, target, footer)
    matches = _is_text(rows["run"], name.run)
    for column_name in ("attempt", "incarnation", "segment"):
        matches &= _is_number(rows[column_name], getattr(name, column_name))
    matches &= _is_within(rows["rank"], *footer.ranks) if footer.ranks else _is_number(rows["rank"], name.rank)
    if not matches:
        raise NotASegmentError(MISNAMED)
    return rows


def conform_columns(stored: pa.Table, target: Contract, footer: SegmentFooter) -> pa.Table:
    """Convert rows of a segment to the contract `target`, without the columns that have no value."""
    stored = with_footer_columns(stored, [footer], [stored.num_rows])
    stored = upgrade_rows(stored, target, footer.contract_version, footer.added_version)
    is_conform = has_contract_types(stored.schema, target)
    rows = stored.replace_schema_metadata(None) if is_conform else conform(stored, target, segment=True)
    return with_values(rows, target)


def has_contract_types(schema: pa.Schema, target: Contract, without: Collection[str] = ()) -> bool:
    """Whether all columns are in the contract, with its types, and all required ones are present.

    Dictionary-encoded text counts as text.

    Parameters
    ----------
    without
        Required columns that may be missing.
    """
    expected, required = _expected_types(target)
    names = schema.names
    types = [type_.value_type if pa.types.is_dictionary(type_) else type_ for type_ in schema.types]
    all_match = all(expected.get(name) == type_ for name, type_ in zip(names, types, strict=True))
    return all_match and len(set(names)) == len(names) and (required.issubset({*names, *without}) or REFUSED in names)


def with_values(rows: pa.Table, target: Contract) -> pa.Table:
    """Drop the columns that have no value, except for required ones."""
    _, required = _expected_types(target)
    columns = dict(zip(rows.column_names, rows.columns, strict=True))
    filled = [name for name, column in columns.items() if name in required or column.null_count < rows.num_rows]
    return rows if len(filled) == len(columns) else rows.select(filled)


def required_columns(target: Contract) -> frozenset[str]:
    """Return the names of a segment's columns that must have a value in each row."""
    return _expected_types(target)[1]


@lru_cache(maxsize=64)
def _expected_types(target: Contract) -> tuple[dict[str, pa.DataType], frozenset[str]]:
    """Return the types of a segment's columns, and the names of the required ones."""
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
        is_dictionary = pa.types.is_dictionary(chunk.type)
        if is_dictionary and set(chunk.dictionary.to_pylist()) <= {text, None}:
            continue
        if not set(chunk.unique().to_pylist()) <= {text, None}:  # a dictionary may have words that no row uses
            return False
    return True
