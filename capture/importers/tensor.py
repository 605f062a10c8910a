"""Tensor: the values of TensorFlow's TensorProto (tensorflow/core/framework/tensor.proto). Pure."""

import struct
from collections.abc import Callable
from typing import Final

import numpy as np

from ranklake.capture.common.arrays import Array
from ranklake.capture.importers.wire import Fields, double, fields, message, single

_TYPE, _SHAPE, _CONTENT, _TEXTS = 1, 2, 4, 8
_DIMENSION, _SIZE = 2, 1
_FORMS: Final = {1: (5, "<f"), 2: (6, "<d"), 3: (7, "<i"), 9: (10, "<q")}
"""By a tensor's type: number of the field with its values, and their form as `struct` writes it."""
_FLOATS: Final = frozenset({1, 2})


def shape_of(tensor: Fields) -> list[int]:
    """Return the sizes of a tensor's dimensions; empty for a scalar."""
    dimensions = [raw for raw in message(tensor, _SHAPE).get(_DIMENSION, []) if isinstance(raw, bytes)]
    sizes = [fields(raw).get(_SIZE, [0])[-1] for raw in dimensions]
    return [size for size in sizes if isinstance(size, int)]


def tensor_array(tensor: Fields) -> Array:
    """Return the numbers of a tensor of floats, flat, as float64; empty for other types."""
    kind = tensor.get(_TYPE, [0])[-1]
    if kind not in _FLOATS or not isinstance(kind, int):
        return np.zeros(0)
    number, form = _FORMS[kind]
    raw = b"".join(part for part in tensor.get(_CONTENT, tensor.get(number, [])) if isinstance(part, bytes))
    width = struct.calcsize(form)
    return np.frombuffer(raw[: len(raw) // width * width], form).astype(np.float64)


def texts_of(tensor: Fields) -> list[str]:
    """Return the texts of a tensor of strings."""
    return [raw.decode(errors="replace") for raw in tensor.get(_TEXTS, []) if isinstance(raw, bytes)]


def doubles(parent: Fields, number: int) -> Array:
    """Return the values of a repeated field of doubles, by its number, packed or not."""
    packed = [raw if isinstance(raw, bytes) else raw.to_bytes(8, "little") for raw in parent.get(number, [])]
    raw = b"".join(packed)
    return np.frombuffer(raw[: len(raw) // 8 * 8], "<d")


def scalar_of(tensor: Fields) -> float | None:
    """Return the number of a scalar tensor; None of other tensors."""
    kind = tensor.get(_TYPE, [0])[-1]
    if not isinstance(kind, int) or kind not in _FORMS or message(tensor, _SHAPE).get(_DIMENSION):
        return None
    number, form = _FORMS[kind]
    raw = tensor.get(_CONTENT, tensor.get(number, [b""]))
    packed = raw[-1] if len(raw) == 1 else b""
    if isinstance(packed, bytes):
        return float(struct.unpack(form, packed)[0]) if len(packed) == struct.calcsize(form) else None
    return number_of({1: single, 2: double}.get(kind, _to_signed), packed)


def number_of(read: Callable[[int | bytes], float], field: int | bytes) -> float | None:
    """Return a field as a number; None where it is of another wire type than its name has."""
    try:
        return read(field) if isinstance(field, int) else None
    except OverflowError:
        return None


def _to_signed(bits: int | bytes) -> float:
    return float(int(bits) - (1 << 64) if int(bits) >= 1 << 63 else int(bits))
