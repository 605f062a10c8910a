"""Bytes of other tools' files: protobuf fields, and the records that TensorBoard and wandb put them into."""

import struct
import zlib

from ranklake.capture.importers.wire import masked_crc


def record(raw):
    head = struct.pack("<Q", len(raw))
    return head + struct.pack("<I", masked_crc(head)) + raw + struct.pack("<I", masked_crc(raw))


def varint(value):
    out = b""
    while value > 127:
        out += bytes([value & 127 | 128])
        value >>= 7
    return out + bytes([value])


def sub(number, raw):
    return varint(number << 3 | 2) + varint(len(raw)) + raw


def log(*records):
    """Return a file of records, as LevelDB's log cuts them into blocks."""
    out = bytearray(struct.pack("<4sHB", b":W&B", 0xBEE1, 0))
    for record in records:
        rest, first = record, True
        while first or rest:
            room = 32_768 - len(out) % 32_768
            if room < 7:
                out += bytes(room)
                continue
            part, rest = rest[: room - 7], rest[room - 7 :]
            kind = (1 if not rest else 2) if first else (4 if not rest else 3)
            out += struct.pack("<IHB", zlib.crc32(part, zlib.crc32(bytes([kind]))), len(part), kind) + part
            first = False
    return bytes(out)
