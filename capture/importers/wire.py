"""Wire: protobuf messages as fields by number, and the record formats of event files. No schema, no dependencies.

A field's value is a whole number (varint and fixed width, as unsigned bits) or bytes. Sources:
https://protobuf.dev/programming-guides/encoding, and for the records tensorflow/core/lib/io/record_writer.h.
"""

import struct
from collections.abc import Iterator
from typing import IO, Final

_POLYNOMIAL: Final = 0x82F63B78
_MASK: Final = 0xA282EAD8
_LONGEST_VARINT: Final = 10
MOST_BYTES: Final = 256 << 20
"""A record that says that it is longer is damaged."""

Fields = dict[int, list[int | bytes]]


class DamagedError(ValueError):
    """Bytes are not what they should be; the text says what, and nothing of them."""


def fields(raw: bytes) -> Fields:
    """Return a message's fields by number, repeated ones in their order. Raises `DamagedError`."""
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


def text(of: Fields, number: int) -> str:
    """Return a field as text; empty if it is not there."""
    value = of.get(number, [b""])[-1]
    return value.decode(errors="replace") if isinstance(value, bytes) else ""


def message(of: Fields, number: int) -> Fields:
    """Return a field as a message; no fields if it is not there. Raises `DamagedError`."""
    value = of.get(number, [b""])[-1]
    return fields(value) if isinstance(value, bytes) else {}


def double(bits: int | bytes) -> float:
    """Return a fixed field of 8 bytes as a number."""
    return float(struct.unpack("<d", int(bits).to_bytes(8, "little"))[0]) if isinstance(bits, int) else 0.0


def single(bits: int | bytes) -> float:
    """Return a fixed field of 4 bytes as a number."""
    return float(struct.unpack("<f", int(bits).to_bytes(4, "little"))[0]) if isinstance(bits, int) else 0.0


def records(file: IO[bytes]) -> Iterator[bytes]:
    """Yield the records of a TFRecord file: length, its checksum, bytes, their checksum.

    Raises
    ------
    DamagedError
        The file ends in the middle of one, or a checksum does not match; what follows cannot be found.
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
    """Return the CRC-32C of bytes, masked as TFRecord has it."""
    crc = 0xFFFFFFFF
    for byte in raw:
        crc = _CRC[(crc ^ byte) & 0xFF] ^ (crc >> 8)
    crc ^= 0xFFFFFFFF
    return (((crc >> 15) | (crc << 17)) + _MASK) & 0xFFFFFFFF


def _varint(raw: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    for place in range(at, min(at + _LONGEST_VARINT, len(raw))):
        value |= (raw[place] & 0x7F) << shift
        if raw[place] < 0x80:  # noqa: PLR2004 - of the encoding
            return value & 0xFFFFFFFFFFFFFFFF, place + 1
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
