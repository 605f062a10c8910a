"""Sorting rows as a contract defines, and digests of rows that do not depend on their order or files."""

import hashlib
import json
import struct
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from ranklake.lake.tables.read import read_some

if TYPE_CHECKING:
    from ranklake.lake.contracts.model import Contract
    from ranklake.lake.store.tables import Tables

Indices = npt.NDArray[np.int64]

_WORD_BITS: Final = 63
_BLOCK_ROWS: Final = 65_536


def sort_order(rows: pa.Table, keys: Sequence[str]) -> tuple[Indices | None, list[str]]:
    """Return the indices that sort rows by some columns, NULL last, and the columns that sorting does not change.

    The indices are None if the rows are already sorted. The sort is stable. Rows that come stream by stream are sorted
    by run, attempt and rank already; sorting moves them only within a rank and does not change these columns.

    Each column is encoded as integers from 0 in its sort order, and the bits of all columns are packed into one integer
    per row, so that a single sort is enough. If more than 63 bits are needed, or a column is a float, Arrow sorts
    column by column, which takes many times as long.

    Parameters
    ----------
    keys
        Names of the sort columns, the most significant first. Columns that the table lacks are ignored.
    """
    present = [name for name in keys if name in rows.column_names]
    coded: list[_CodedColumn] = []
    for name in present:
        code = _codes(rows[name])
        if code is None or code.width + sum(other.width for other in coded) > _WORD_BITS:
            return _by_column(rows, present), []
        coded.append(code)
    packed, unordered = _pack_codes(coded, rows.num_rows)
    settled = [name for place, name in enumerate(present) if place < unordered or not coded[place].width]
    if unordered == len(coded):
        return None, settled
    # NumPy's stable sort of 64-bit integers is Timsort. It uses the sorted runs of rows in stream order, and is ten
    # times as fast here as a radix sort.
    return np.argsort(packed, kind="stable"), settled


def take_rows(values: pa.Array, places: Indices) -> pa.Array:
    """Return the values at some places, which must all be valid.

    Takes a third of the time of Arrow's `take`, because places are not checked, and the validity bitmap is handled
    separately from the values.
    """
    type_ = values.type
    if pa.types.is_dictionary(type_):
        return pa.DictionaryArray.from_arrays(take_rows(values.indices, places), values.dictionary, safe=False)
    where = pa.array(places)
    if not values.null_count or not pa.types.is_primitive(type_) or pa.types.is_boolean(type_):
        return pc.take(values, where, boundscheck=False)
    bare = pa.Array.from_buffers(type_, len(values), [None, values.buffers()[1]], 0, values.offset)
    valid = np.asarray(values.is_valid()).take(places)
    moved = pc.take(bare, where, boundscheck=False)
    bits = pa.py_buffer(np.packbits(valid, bitorder="little"))
    return pa.Array.from_buffers(type_, len(moved), [bits, moved.buffers()[1]], offset=moved.offset)


def sort_names(contract: "Contract") -> list[str]:
    """Return the columns by which a contract sorts the rows of a file."""
    return [name for name in contract.sort if name != "date"]


def _by_column(rows: pa.Table, keys: Sequence[str]) -> Indices | None:
    plain = pa.table({name: _decode(rows[name]) for name in keys})
    order = pc.sort_indices(plain, sort_keys=[(name, "ascending") for name in keys])
    indices = order.to_numpy().astype(np.int64)
    return None if bool(np.all(indices[1:] >= indices[:-1])) else indices


def _decode(column: pa.ChunkedArray) -> pa.ChunkedArray:
    return column.cast(column.type.value_type) if pa.types.is_dictionary(column.type) else column


@dataclass(frozen=True, slots=True)
class _CodedColumn:
    """A column encoded as integers from 0 with the same sort order. NULL has the highest code.

    Attributes
    ----------
    values
        The column's integers; for text the indices into its dictionary.
    width
        Number of bits of the highest code; 0 if all rows have the same value.
    low
        Minimum of `values`, which is encoded as 0.
    null
        Code of NULL; 0 if the column has no NULL.
    ranks
        For text: the code of each word of the dictionary.
    """

    values: pa.ChunkedArray
    width: int
    low: int = 0
    null: int = 0
    ranks: npt.NDArray[np.int64] | None = None

    def block(self, at: int, count: int) -> Indices:
        """Return the codes of some rows."""
        values = self.values.slice(at, count)
        nulls = values.is_null().to_numpy() if self.null and values.null_count else None
        plain = (values if nulls is None else values.fill_null(self.low)).to_numpy()
        codes: Indices = np.subtract(plain, self.low, dtype=np.int64) if self.ranks is None else self.ranks[plain]
        if nulls is not None:
            codes[nulls] = self.null
        return codes


def _pack_codes(coded: Sequence[_CodedColumn], count: int) -> tuple[Indices, int]:
    """Return the packed codes of each row, and the number of leading columns by which the rows are already sorted.

    Works in blocks, so that intermediate arrays fit into the processor's cache.
    """
    packed = np.zeros(count, np.int64)
    unordered = len(coded)
    last = np.zeros(len(coded), np.int64)
    for at in range(0, count, _BLOCK_ROWS):
        block = packed[at : at + _BLOCK_ROWS]
        for place, code in enumerate(coded):
            if not code.width:
                continue
            np.left_shift(block, code.width, out=block)
            np.bitwise_or(block, code.block(at, len(block)), out=block)
            if place < unordered and (block[0] < last[place] or not np.all(block[1:] >= block[:-1])):
                unordered = place
            last[place] = block[-1]
    return packed, unordered


def _codes(column: pa.ChunkedArray) -> _CodedColumn | None:
    """Return a column's codes; None if encoding it would be expensive."""
    type_ = column.type
    if column.null_count == len(column):
        return _CodedColumn(column, 0)
    if pa.types.is_string(type_) or pa.types.is_dictionary(type_):
        return _coded_text(column)
    if pa.types.is_timestamp(type_):
        column = column.cast(pa.int64())
    elif not pa.types.is_integer(type_):
        return None
    extremes = pc.min_max(column).as_py()
    low, high = extremes["min"], extremes["max"]
    if high - low >= (1 << _WORD_BITS) - 1:
        return None
    null = high - low + 1 if column.null_count else 0
    return _CodedColumn(column, max(high - low, null).bit_length(), low, null)


def _coded_text(column: pa.ChunkedArray) -> _CodedColumn:
    joined = column.unify_dictionaries() if pa.types.is_dictionary(column.type) else column.dictionary_encode()
    words = joined.chunk(0).dictionary
    ranks = np.empty(len(words), np.int64)
    ranks[pc.sort_indices(words).to_numpy()] = np.arange(len(words))
    null = len(words) if column.null_count else 0
    places = pa.chunked_array([chunk.indices for chunk in joined.chunks])
    return _CodedColumn(places, max(len(words) - 1, null).bit_length(), null=null, ranks=ranks)


_MODULUS: Final = 2**256
RECORDED_KEY: Final = ("incarnation", "segment", "slot")
"""Unique key of recorded rows of a table."""
_PACKED: Final = struct.Struct("<qii")


def key_columns(contract: "Contract", but: Collection[str] = ()) -> list[str]:
    """Return the unique key of a table's rows: `RECORDED_KEY` for recorded tables, else all columns except `but`."""
    if contract.envelope:
        return list(RECORDED_KEY)
    return [column.name for column in contract.columns if column.name not in but]


def keys_digest(rows: pa.Table, columns: Iterable[str]) -> int:
    """Return the sum of the SHA-256 digests of rows, by some columns, modulo 2**256; 0 for no rows."""
    names = list(columns)
    values = zip(*(rows[name].to_pylist() for name in names), strict=True)
    if tuple(names) == RECORDED_KEY:
        shares = (hashlib.sha256(_PACKED.pack(*key)).digest() for key in values)
    else:
        shares = (hashlib.sha256(json.dumps(key, default=str).encode()).digest() for key in values)
    return sum(int.from_bytes(share) for share in shares) % _MODULUS


def digest_text(total: int) -> str:
    """Return a sum of digests as 64 hexadecimal digits."""
    return f"{total % _MODULUS:064x}"


def digest_of_files(tables: "Tables", contract: "Contract", files: pa.Table, columns: Collection[str]) -> int:
    """Return `keys_digest` of all rows of some files, given as rows of `ranklake.lake.tables.live_files.files`."""
    return sum(keys_digest(rows, columns) for _, rows in read_some(tables, contract, files, list(columns))) % _MODULUS


def keys_sha256(rows: pa.Table) -> str:
    """Return the SHA-256 of the sorted keys of recorded rows."""
    columns = [rows[name].to_pylist() for name in RECORDED_KEY]
    return hashlib.sha256(json.dumps(sorted(zip(*columns, strict=True))).encode()).hexdigest()
