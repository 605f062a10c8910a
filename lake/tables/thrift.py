"""Thrift's compact protocol, in which Parquet's footers and page indexes are written: bytes to plain values, and back.

A struct is read as what its bytes say, whatever its fields mean: fields that nobody here knows come back as they were.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

TRUE: Final = 1
FALSE: Final = 2
I32: Final = 5
I64: Final = 6
BINARY: Final = 8
LIST: Final = 9
STRUCT: Final = 12

_BYTE: Final = 3
_I16: Final = 4
_DOUBLE: Final = 7
_SET: Final = 10
_MAP: Final = 11
_UUID: Final = 13
_DEEPEST: Final = 32
"""Structs and lists within each other; Parquet has eight."""
_LONGEST: Final = 10
"""Bytes of a number of 64 bits."""

_MORE: Final = 15
"""The most that four bits say: the length of a list then stands after them."""
_GOES_ON: Final = 128
"""Bit of a byte that another one follows."""

Fields = dict[int, "Field"]
"""A struct: its fields by their number."""


class ThriftError(ValueError):
    """Bytes that are no struct of Thrift's compact protocol."""


@dataclass(slots=True)
class Field:
    """A field of a struct.

    Attributes
    ----------
    kind
        Type of the compact protocol.
    value
        Of `STRUCT` its `Fields`, of `LIST` an `Items`, of `BINARY` bytes, of whole numbers an int; otherwise its bytes.
    """

    kind: int
    value: Any


@dataclass(slots=True)
class Items:
    """A list: the type of its elements, and these."""

    kind: int
    values: list[Any]


def loads(data: bytes, at: int = 0) -> tuple[Fields, int]:
    """Return the struct that begins at a place, and the place after it. Raises `ThriftError`."""
    try:
        return _struct(data, at, 0)
    except IndexError:
        raise ThriftError("the bytes end within a struct") from None


def dumps(fields: Fields) -> bytes:
    """Return a struct as bytes."""
    out = bytearray()
    _put_struct(out, fields)
    return bytes(out)


def _struct(data: bytes, at: int, depth: int) -> tuple[Fields, int]:
    if depth > _DEEPEST:
        raise ThriftError("structs within structs without end")
    fields: Fields = {}
    number = 0
    while head := data[at]:
        at += 1
        kind = head & 15
        if step := head >> 4:
            number += step
        else:
            number, at = _number(data, at, depth)
        if number in fields:
            raise ThriftError("a field stands twice in a struct")
        if kind in (TRUE, FALSE):
            fields[number] = Field(kind, None)
        else:
            value, at = _value(data, at, kind, depth)
            fields[number] = Field(kind, value)
    return fields, at + 1


def _value(data: bytes, at: int, kind: int, depth: int) -> tuple[Any, int]:
    read = _READ.get(kind)
    if read is None:
        raise ThriftError("a type that the compact protocol has not")
    return read(data, at, depth + 1)


def _number(data: bytes, at: int, depth: int) -> tuple[int, int]:
    del depth
    told, at = _varint(data, at)
    return (told >> 1) ^ -(told & 1), at


def _binary(data: bytes, at: int, depth: int) -> tuple[bytes, int]:
    del depth
    size, at = _varint(data, at)
    return _taken(data, at, size)


def _items(data: bytes, at: int, depth: int) -> tuple[Items, int]:
    if depth > _DEEPEST:
        raise ThriftError("lists within lists without end")
    head = data[at]
    at += 1
    count, kind = head >> 4, head & 15
    if count == _MORE:
        count, at = _varint(data, at)
    if count > len(data) - at:  # each takes a byte at least
        raise ThriftError("a list is longer than the bytes")
    values = []
    for _ in range(count):
        value, at = _value(data, at, kind, depth)
        values.append(value)
    return Items(kind, values), at


def _pairs(data: bytes, at: int, depth: int) -> tuple[tuple[int, list[Any]], int]:
    count, at = _varint(data, at)
    if not count:
        return (0, []), at
    if depth > _DEEPEST or count > len(data) - at:
        raise ThriftError("a map is longer or deeper than can be")
    kinds = data[at]
    at += 1
    pairs = []
    for _ in range(count):
        key, at = _value(data, at, kinds >> 4, depth)
        value, at = _value(data, at, kinds & 15, depth)
        pairs.append((key, value))
    return (kinds, pairs), at


def _sized(size: int, data: bytes, at: int, depth: int) -> tuple[bytes, int]:
    del depth
    return _taken(data, at, size)


def _taken(data: bytes, at: int, size: int) -> tuple[bytes, int]:
    if size > len(data) - at:
        raise ThriftError("the bytes end within a value")
    return data[at : at + size], at + size


_READ: Final[Mapping[int, Callable[[bytes, int, int], tuple[Any, int]]]] = {
    I32: _number,
    I64: _number,
    _I16: _number,
    BINARY: _binary,
    STRUCT: _struct,
    LIST: _items,
    _SET: _items,
    _MAP: _pairs,
    TRUE: partial(_sized, 1),  # within a list; that of a struct takes no byte of its own
    FALSE: partial(_sized, 1),
    _BYTE: partial(_sized, 1),
    _DOUBLE: partial(_sized, 8),
    _UUID: partial(_sized, 16),
}


def _varint(data: bytes, at: int) -> tuple[int, int]:
    byte = data[at]
    if byte < _GOES_ON:
        return byte, at + 1
    value, shift, begin = byte & 127, 7, at
    while byte & _GOES_ON:
        at += 1
        if at - begin >= _LONGEST:
            raise ThriftError("a number without end")
        byte = data[at]
        value |= (byte & 127) << shift
        shift += 7
    return value, at + 1


def _put_struct(out: bytearray, fields: Fields) -> None:
    last = 0
    for number in sorted(fields):
        field = fields[number]
        if 0 < number - last <= _MORE:
            out.append((number - last) << 4 | field.kind)
        else:
            out.append(field.kind)
            _put_number(out, number)
        last = number
        if field.kind not in (TRUE, FALSE):
            _put(out, field.kind, field.value)
    out.append(0)


def _put(out: bytearray, kind: int, value: Any) -> None:  # noqa: ANN401 - any of the protocol's
    if kind in (I32, I64, _I16):
        _put_number(out, value)
    elif kind == BINARY:
        _put_varint(out, len(value))
        out += value
    elif kind == STRUCT:
        _put_struct(out, value)
    elif kind in (LIST, _SET):
        count = len(value.values)
        if count < _MORE:
            out.append(count << 4 | value.kind)
        else:
            out.append(_MORE << 4 | value.kind)
            _put_varint(out, count)
        for one in value.values:
            _put(out, value.kind, one)
    elif kind == _MAP:
        kinds, pairs = value
        _put_varint(out, len(pairs))
        if pairs:
            out.append(kinds)
        for key, one in pairs:
            _put(out, kinds >> 4, key)
            _put(out, kinds & 15, one)
    else:
        out += value


def _put_number(out: bytearray, value: int) -> None:
    _put_varint(out, value << 1 if value >= 0 else (-value << 1) - 1)


def _put_varint(out: bytearray, value: int) -> None:
    while value >= _GOES_ON:
        out.append(value & 127 | _GOES_ON)
        value >>= 7
    out.append(value)
