"""Dictionaries of text that hold the words of their own rows alone.

Arrow keeps a whole dictionary where rows are filtered, sliced or taken, and Parquet writes it as it is. A file would
then hold words of rows that are elsewhere, or that were removed.
"""

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc


def with_own_words(rows: pa.Table) -> pa.Table:
    """Return rows whose dictionary-typed columns have the words of these rows alone."""
    for place, field in enumerate(rows.schema):
        if pa.types.is_dictionary(field.type):
            rows = rows.set_column(place, field, own_words(rows.column(place)))
    return rows


def own_words(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return a dictionary-typed column under one dictionary, without the words that no row has.

    One dictionary, since Parquet's writer gives a dictionary up where the next chunk has another one.

    >>> words = pa.chunked_array([pa.array(["ann", "bob"]).dictionary_encode()])
    >>> own_words(words.slice(1)).chunk(0).dictionary.to_pylist()
    ['bob']
    """
    column = column.unify_dictionaries()
    if not column.num_chunks:
        return column
    words = column.chunk(0).dictionary
    used = np.zeros(len(words), np.bool_)
    for chunk in column.chunks:
        used[chunk.indices.drop_null().to_numpy()] = True
    if used.all():
        return column
    kept, places = words.filter(pa.array(used)), pa.array(np.cumsum(used) - 1, pa.int32())
    return pa.chunked_array(
        [pa.DictionaryArray.from_arrays(pc.take(places, chunk.indices), kept) for chunk in column.chunks]
    )
