"""Columns as numbers: any chunks of them, with NULLs, plain or with dictionaries."""

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ranklake.lake.contracts.arrow import value_codes
from ranklake.lake.contracts.checks.series import Batch

VALUES = {pa.int32(): st.integers(-2, 2), pa.string(): st.sampled_from("abc"), pa.timestamp("us"): st.integers(0, 2)}
CHUNKS = st.sampled_from(list(VALUES)).flatmap(
    lambda type_: st.lists(st.lists(st.none() | VALUES[type_], max_size=4).map(lambda one: pa.array(one, type_)))
)
FORMS = {
    "plain": lambda chunk: chunk,
    "NULL beside the dictionary": lambda chunk: chunk.dictionary_encode(),
    "NULL in the dictionary": lambda chunk: chunk.dictionary_encode("encode"),
}


@pytest.mark.parametrize("form", FORMS.values(), ids=list(FORMS))
@given(CHUNKS)
def test_codes_stand_for_the_values_however_they_are_cut(form, chunks):
    """Each row's code stands for its value, equal values have one code, and NULL has the last one."""
    column = pa.chunked_array(
        [form(chunk) for chunk in chunks], form(pa.array([], pa.int32())).type if not chunks else None
    )
    codes, values = value_codes(column)
    assert [values[code] for code in codes] == [value for chunk in chunks for value in chunk.to_pylist()]
    assert values[-1] is None
    assert len(set(values)) == len(values)


@given(
    st.lists(
        st.lists(st.tuples(st.none() | st.integers(0, 2), st.none() | st.sampled_from("ab")), max_size=5), max_size=4
    )
)
def test_series_are_told_apart_over_chunks_with_nulls(chunks):
    """Rows of several files or segments have the same series as those of one; NULL is a value of a series."""
    rows = [row for chunk in chunks for row in chunk]
    numbers = pa.chunked_array([pa.array([one for one, _ in chunk], pa.int32()) for chunk in chunks], pa.int32())
    texts = [pa.array([one for _, one in chunk], pa.string()).dictionary_encode() for chunk in chunks]
    words = pa.chunked_array(texts, pa.dictionary(pa.int32(), pa.string()))
    of, keys = Batch(pa.table({"holder_rank": numbers, "source": words})).groups(["holder_rank", "source"])
    assert [keys[number] for number in of] == rows
    assert len(set(keys)) == len(keys) == len(set(rows))
