"""Wire: decodes protobuf messages without a schema, and the records of TFRecord files.

A field's value is an unsigned integer (varint or fixed width) or bytes. Sources:
https://protobuf.dev/programming-guides/encoding, and for the records tensorflow/core/lib/io/record_writer.h.
"""

import struct
from collections.abc import Iterator
from typing import IO, Final

_POLYNOMIAL: Final = 0x82F63B78
_MASK: Final = 0xA282EAD8
_MAX_VARINT_BYTES: Final = 10
MOST_BYTES: Final = 256 << 20
"""A record with a greater length is damaged."""

Fields = dict[int, list[int | bytes]]


class DamagedError(ValueError):
    """Bytes cannot be decoded. The message has the reason, without any of the bytes."""


def fields(raw: bytes) -> Fields:
    """Decode a message: return the values of each field by number, in order. Raises `DamagedError`."""
    by_number: Fields = {}
    at = 0
    while at < len(raw):
        key, at = _varint(raw, at)
        kind = key & 7
        value: int | bytes
        if kind == 0:
            value, at = _varint(raw, at)
        elif kind in _FIXED:
            width = _FIXED[kind]
            value, at = int.from_bytes(raw[at : at + width], "little"), at + width
        elif kind == 2:  # noqa: PLR2004 - of the encoding
            size, at = _varint(raw, at)
            value, at = raw[at : at + size], at + size
        else:
            raise DamagedError("a field of an unknown kind")
        if at > len(raw):
            raise DamagedError("a field is cut off")
        by_number.setdefault(key >> 3, []).append(value)
    return by_number


def text(values: Fields, number: int) -> str:
    """Return the last value of a field as text; empty if the field is missing."""
    value = values.get(number, [b""])[-1]
    return value.decode(errors="replace") if isinstance(value, bytes) else ""


def message(values: Fields, number: int) -> Fields:
    """Decode the last value of a field as a message; empty if the field is missing. Raises `DamagedError`."""
    value = values.get(number, [b""])[-1]
    return fields(value) if isinstance(value, bytes) else {}


def double(bits: int | bytes) -> float:
    """Convert a fixed-width field of 8 bytes to a float; 0 for a field of bytes."""
    return float(struct.unpack("<d", int(bits).to_bytes(8, "little"))[0]) if isinstance(bits, int) else 0.0


def single(bits: int | bytes) -> float:
    """Convert a fixed-width field of 4 bytes to a float; 0 for a field of bytes."""
    return float(struct.unpack("<f", int(bits).to_bytes(4, "little"))[0]) if isinstance(bits, int) else 0.0


def records(file: IO[bytes]) -> Iterator[bytes]:
    """Yield the content of each record of a TFRecord file: length, its checksum, content, its checksum.

    Raises
    ------
    DamagedError
        A record is incomplete, or a checksum does not match. Later records cannot be located.
    """
    while head := file.read(12):
        if len(head) < 12:  # noqa: PLR2004 - as it is read
            raise DamagedError("a record is cut off")
        size, checksum = struct.unpack("<QI", head)
        if checksum != masked_crc(head[:8]) or size > MOST_BYTES:
            raise DamagedError("a record's length is damaged")
        body = file.read(size + 4)
        if len(body) < size + 4:
            raise DamagedError("a record is cut off")
        if int.from_bytes(body[size:], "little") != masked_crc(body[:size]):
            raise DamagedError("a record is damaged")
        yield body[:size]


def masked_crc(raw: bytes) -> int:
    """Return the CRC-32C of bytes with TFRecord's mask."""
    crc = 0xFFFFFFFF
    for byte in raw:
        crc = _CRC[(crc ^ byte) & 0xFF] ^ (crc >> 8)
    crc ^= 0xFFFFFFFF
    return (((crc >> 15) | (crc << 17)) + _MASK) & 0xFFFFFFFF


def _varint(raw: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    for index in range(at, min(at + _MAX_VARINT_BYTES, len(raw))):
        value |= (raw[index] & 0x7F) << shift
        if raw[index] < 0x80:  # noqa: PLR2004 - of the encoding
            return value & 0xFFFFFFFFFFFFFFFF, index + 1
        shift += 7
    raise DamagedError("a number is cut off")


def _crc_table() -> tuple[int, ...]:
    table = []
    for byte in range(256):
        crc = byte
        for _ in range(8):
            crc = (crc >> 1) ^ (_POLYNOMIAL if crc & 1 else 0)
        table.append(crc)
    return tuple(table)


_FIXED: Final = {1: 8, 5: 4}
_CRC: Final = _crc_table()
