"""One column over all segments of a batch at once, checked against the segments' names."""

from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Counts = npt.NDArray[np.int64]

_LARGE_ROWS: Final = 4096
"""From as many rows a segment on, looking at each costs less than moving them all together."""


def all_text(column: pa.ChunkedArray, meant: list[str]) -> bool:
    """Say whether each chunk is of one text, as meant; False where that is not sure."""
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
    """Say whether the rows of each segment hold its number."""
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
    """Say whether it pays to look at each segment where it lies: many small ones are put together first."""
    return len(counts) == column.num_chunks and int(counts.sum()) >= len(counts) * _LARGE_ROWS
