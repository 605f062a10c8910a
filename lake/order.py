"""The order that a contract asks for: its sort columns as one integer a row, and rows taken in that order."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

if TYPE_CHECKING:
    from ranklake.lake.contracts.model import Contract

Indices = npt.NDArray[np.int64]

_WORD_BITS: Final = 63


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
    packed: Indices | None = None
    settled: list[str] = []
    bits = 0
    in_order = True
    for name in present:
        codes = _codes(rows[name])
        if codes is None:
            return _by_column(rows, present), settled
        width = int(codes.max(initial=0)).bit_length()
        bits += width
        if bits > _WORD_BITS:
            return _by_column(rows, present), settled
        if width:
            packed = codes.astype(np.int64, copy=False) if packed is None else (packed << width) | codes
            in_order = in_order and bool(np.all(packed[1:] >= packed[:-1]))
        if in_order or not width:
            settled.append(name)
    if packed is None or in_order:
        return None, settled
    # numpy's stable sort of large integers is Timsort, which finds the runs that rows in stream order are full of: ten
    # times as fast here as sorts that look at every bit.
    return np.argsort(packed, kind="stable"), settled


def sort_names(contract: "Contract") -> list[str]:
    """Return the columns that a contract sorts its files by."""
    return [name for name in contract.sort if name != "date"]


def _by_column(rows: pa.Table, keys: Sequence[str]) -> Indices | None:
    plain = pa.table({name: _decoded(rows[name]) for name in keys})
    order = pc.sort_indices(plain, sort_keys=[(name, "ascending") for name in keys])
    found = order.to_numpy().astype(np.int64)
    return None if bool(np.all(found[1:] >= found[:-1])) else found


def _decoded(column: pa.ChunkedArray) -> pa.ChunkedArray:
    return column.cast(column.type.value_type) if pa.types.is_dictionary(column.type) else column


def _codes(column: pa.ChunkedArray) -> npt.NDArray[Any] | None:
    """Return integers from 0 that have the column's order, NULL above all; None where that cannot be had cheaply."""
    type_ = column.type
    if column.null_count == len(column):
        return np.zeros(1, np.int64)
    if pa.types.is_string(type_) or pa.types.is_dictionary(type_):
        return _text_codes(column)
    if pa.types.is_timestamp(type_):
        column = column.cast(pa.int64())
    elif not pa.types.is_integer(type_):
        return None
    nulls = column.is_null().to_numpy() if column.null_count else None
    values = (column if nulls is None else column.fill_null(pc.max(column))).to_numpy()
    low, high = int(values.min()), int(values.max())
    if high - low >= (1 << _WORD_BITS) - 1:
        return None
    if low == high and nulls is None:
        return np.zeros(1, np.int64)
    codes: npt.NDArray[Any] = np.subtract(values, low, dtype=np.int64)
    if nulls is not None:
        codes[nulls] = high - low + 1
    return codes


def _text_codes(column: pa.ChunkedArray) -> npt.NDArray[Any]:
    joined = column.unify_dictionaries() if pa.types.is_dictionary(column.type) else column.dictionary_encode()
    whole = joined.combine_chunks()
    whole = whole if isinstance(whole, pa.DictionaryArray) else pa.concat_arrays(joined.chunks)
    words = whole.dictionary
    if len(words) == 1 and not whole.null_count:
        return np.zeros(1, np.int64)
    ranks = np.empty(len(words) + 1, np.int32)
    ranks[pc.sort_indices(words).to_numpy()] = np.arange(len(words))
    ranks[-1] = len(words)
    places = whole.indices.fill_null(len(words)) if whole.null_count else whole.indices
    codes: npt.NDArray[Any] = ranks[places.to_numpy()]
    return codes
