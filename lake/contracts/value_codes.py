"""Columns as whole numbers: what groups, folds and counts rows by their values."""

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc


def value_codes(column: pa.ChunkedArray) -> tuple[npt.NDArray[np.int64], list[Any]]:
    """Return a number for each value of a column of any chunks, and the value of each number, NULL last.

    >>> codes, values = value_codes(pa.chunked_array([[7, None], [None, 7]]))
    >>> codes.tolist(), values
    ([0, 1, 1, 0], [7, None])

    Arrow joins no dictionaries that hold NULL, so NULL stays out of them until they are joined.
    """
    if pa.types.is_dictionary(column.type) and any(chunk.dictionary.null_count for chunk in column.chunks):
        column = column.cast(column.type.value_type)
    encoded = column if pa.types.is_dictionary(column.type) else column.dictionary_encode()
    chunks = encoded.unify_dictionaries().chunks
    values = [*chunks[0].dictionary.to_pylist(), None] if chunks else [None]
    parts = [pc.fill_null(chunk.indices.cast(pa.int64()), len(values) - 1).to_numpy() for chunk in chunks]
    return np.concatenate([np.empty(0, np.int64), *parts]), values
