"""The sort order of a contract, taking rows in that order, and digests of rows that no order and no file changes."""

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
    """Return the stable order of rows by some columns, NULLs last; None where they lie in that order already.

    Returned beside it: those of the columns that the order leaves as they are. Rows that come stream by stream are in
    the order of run, attempt and rank, and only within a rank they change places.

    Every column is mapped to integers from 0 in its order, and as many bits as they need are put side by side: one sort
    of plain integers then does for all columns. Where they do not fit into 63 bits, or a column is a float, Arrow sorts
    column by column, which takes many times as long.

    Parameters
    ----------
    keys
        Names of columns, the first counts most. Columns the table lacks are NULL throughout, so they order nothing.
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
    # numpy's stable sort of large integers is Timsort, which finds the runs that rows in stream order are full of: ten
    # times as fast here as sorts that look at every bit.
    return np.argsort(packed, kind="stable"), settled


def take_rows(values: pa.Array, places: Indices) -> pa.Array:
    """Return the values at some places, all of which there are.

    A third of what Arrow's own take costs: places are not checked, and NULLs are moved apart from the values.
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
    """Return the columns that a contract sorts its files by."""
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
    """A column as integers from 0 that have its order, NULL above all.

    Attributes
    ----------
    values
        Integers; of text the places of its words in their dictionary.
    width
        Bits that the greatest takes; 0 where all rows are alike.
    low
        The least of `values`, which becomes 0.
    null
        What NULL becomes; 0 where there is none.
    ranks
        Of text: what each word becomes.
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
    """Return the codes of each row side by side, and how many of the first columns the rows lie in the order of.

    Block by block, so that what is made on the way stays in the processor's cache.
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
    """Return a column's codes; None where they would be expensive."""
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


_MOST: Final = 2**256
RECORDED_KEY: Final = ("incarnation", "segment", "slot")
"""What tells recorded rows of a table apart."""
_PACKED: Final = struct.Struct("<qii")


def key_columns(contract: "Contract", but: Collection[str] = ()) -> list[str]:
    """Return the columns that tell rows of a table apart: the recorder's key, else all, except for some."""
    if contract.envelope:
        return list(RECORDED_KEY)
    return [column.name for column in contract.columns if column.name not in but]


def keys_digest(rows: pa.Table, columns: Iterable[str]) -> int:
    """Return the sum of the digests of rows by some columns; that of no rows is 0."""
    names = list(columns)
    values = zip(*(rows[name].to_pylist() for name in names), strict=True)
    if tuple(names) == RECORDED_KEY:
        shares = (hashlib.sha256(_PACKED.pack(*key)).digest() for key in values)
    else:
        shares = (hashlib.sha256(json.dumps(key, default=str).encode()).digest() for key in values)
    return sum(int.from_bytes(share) for share in shares) % _MOST


def digest_text(total: int) -> str:
    """Return a digest as text."""
    return f"{total % _MOST:064x}"


def digest_of_files(tables: "Tables", contract: "Contract", files: pa.Table, columns: Collection[str]) -> int:
    """Return the digest of all rows of files: rows of `ranklake.lake.tables.live_files.files`."""
    return sum(keys_digest(rows, columns) for _, rows in read_some(tables, contract, files, list(columns))) % _MOST


def keys_sha256(rows: pa.Table) -> str:
    """Return the digest of the keys of recorded rows, in any order."""
    columns = [rows[name].to_pylist() for name in RECORDED_KEY]
    return hashlib.sha256(json.dumps(sorted(zip(*columns, strict=True))).encode()).hexdigest()
