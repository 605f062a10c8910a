"""Arrays: create Arrow arrays from numpy arrays and texts, buffer by buffer.

`pyarrow.array` imports pandas, if it is installed, to check its argument's type. In the training process that would
cost half a second and 60 MB.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

Array = np.ndarray[Any, np.dtype[Any]]

_NUMPY = {
    pa.int32(): np.int32,
    pa.int64(): np.int64,
    pa.float32(): np.float32,
    pa.float64(): np.float64,
    pa.date32(): np.int32,
}


def numbers(values: Array, to: pa.DataType, absent: Array | None = None) -> pa.Array:
    """Return numbers, or times in the type's unit, as an array of a type; NULL where `absent` is true."""
    dtype = _NUMPY.get(to, np.int64)
    data = np.ascontiguousarray(values, dtype)
    return pa.Array.from_buffers(to, len(data), [_validity(absent), pa.py_buffer(data)])


def texts(values: Sequence[str | None]) -> pa.Array:
    """Return texts as an array; None becomes NULL."""
    raw = [b"" if value is None else value.encode() for value in values]
    offsets = np.zeros(len(raw) + 1, np.int32)
    np.cumsum([len(text) for text in raw], out=offsets[1:])
    absent = np.array([value is None for value in values], bool)
    buffers = [_validity(absent), pa.py_buffer(offsets), pa.py_buffer(b"".join(raw))]
    return pa.Array.from_buffers(pa.string(), len(raw), buffers)


def take_texts(codes: Array, of: Sequence[str | None], absent: Array | None = None) -> pa.Array:
    """Return texts ``of[code]`` for each code, NULL where `absent` is true."""
    if not len(codes):
        return texts([])
    return pa.DictionaryArray.from_arrays(numbers(codes, pa.int32(), absent), texts(of)).cast(pa.string())


def list_array(values: Array, lengths: Array) -> pa.Array:
    """Return an array of lists: of each row i of `values`, the first ``lengths[i]`` integers."""
    offsets = np.zeros(len(values) + 1, np.int32)
    np.cumsum(lengths, out=offsets[1:])
    flat = values[np.arange(values.shape[1])[None, :] < lengths[:, None]]
    buffers = [None, pa.py_buffer(offsets)]
    return pa.Array.from_buffers(pa.list_(pa.int64()), len(values), buffers, children=[numbers(flat, pa.int64())])


def truths(values: Sequence[bool | None] | Array) -> pa.Array:
    """Return booleans as an array; None becomes NULL."""
    bits = np.packbits(np.array([bool(value) for value in values], bool), bitorder="little")
    absent = np.array([value is None for value in values], bool)
    return pa.Array.from_buffers(pa.bool_(), len(values), [_validity(absent), pa.py_buffer(bits)])


def to_array(values: Sequence[Any], to: pa.DataType) -> pa.Array:
    """Return Python values as an array of a type.

    Raises `TypeError`, `ValueError` or `OverflowError` if a value does not fit the type.
    """
    absent = np.array([value is None for value in values], bool)
    if pa.types.is_string(to):
        return texts([_check_type(value, str) for value in values])
    if pa.types.is_boolean(to):
        return truths([_check_type(value, bool) for value in values])
    if pa.types.is_decimal(to):
        return texts([_check_type(value, str) for value in values]).cast(to)
    if pa.types.is_list(to):
        return _list_column([_check_type(value, list) for value in values], absent)
    kind = (float, int) if pa.types.is_floating(to) else int
    filled = [0 if value is None else _check_type(value, kind) for value in values]
    return numbers(np.array(filled, _NUMPY.get(to, np.int64)), to, absent)


def _list_column(values: Sequence[list[int] | None], absent: Array) -> pa.Array:
    """Return lists of integers as an array."""
    flat = [_check_type(item, int) for value in values for item in value or ()]
    offsets = np.zeros(len(values) + 1, np.int32)
    np.cumsum([len(value or ()) for value in values], out=offsets[1:])
    buffers = [_validity(absent), pa.py_buffer(offsets)]
    numbers_ = numbers(np.array(flat, np.int64), pa.int64())
    return pa.Array.from_buffers(pa.list_(pa.int64()), len(values), buffers, children=[numbers_])


def _check_type(value: Any, kind: Any) -> Any:  # noqa: ANN401 - JSON
    if value is not None and (not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool)):
        raise TypeError(f"{type(value).__name__} in a column of another type")
    return value


def _validity(absent: Array | None) -> pa.Buffer | None:
    if absent is None or not absent.any():
        return None
    return pa.py_buffer(np.packbits(~absent, bitorder="little"))
