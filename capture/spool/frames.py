"""Frames: rows of any width in an append-only file, each with its length and checksum.

    u32 length ─ u32 crc32 of the payload ─ payload: one JSON object

A frame is one `os.write` to a descriptor opened with O_APPEND: a killed process leaves whole frames and at most one
torn tail. Payloads begin with ``{"``, which is what the scan looks for behind a damaged frame; so one bad byte
costs one frame, never the rest of the file.
"""

import errno
import json
import os
import struct
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from ranklake.capture.spool.files import open_regular, read_regular, sync_open_file

Frame = dict[str, Any]

MAX_BYTES: Final = 1 << 20
_HEAD: Final = struct.Struct("<II")
_OPENING: Final = b'{"'


class FrameTooLargeError(ValueError):
    """A payload beyond `MAX_BYTES`; nothing was written."""


@dataclass(frozen=True, slots=True)
class Scan:
    """What a file of frames holds.

    Attributes
    ----------
    frames
        The readable ones, in order.
    damaged
        Stretches that are no frames.
    torn_bytes
        Length of a frame at the end that was not written to its end; it is not counted as damaged.
    """

    frames: list[Frame]
    damaged: int
    torn_bytes: int


def pack(facts: Mapping[str, Any]) -> bytes:
    """Return one frame.

    Raises
    ------
    FrameTooLargeError
        The payload has more than `MAX_BYTES`.
    ValueError, TypeError
        A value is no JSON (NaN and infinities are none).
    """
    payload = json.dumps(facts, separators=(",", ":"), allow_nan=False).encode()
    if len(payload) > MAX_BYTES:
        raise FrameTooLargeError(f"a frame of {len(payload)} bytes")
    return _HEAD.pack(len(payload), zlib.crc32(payload)) + payload


def scan(raw: bytes) -> Scan:
    """Read all frames that are whole, skipping what is not. Never raises on any bytes."""
    frames: list[Frame] = []
    damaged = at = end = 0
    while at < len(raw):
        frame_end = _frame_at(raw, at)
        if frame_end is None:
            opening = raw.find(_OPENING, at + _HEAD.size + 1)
            if opening < 0:
                break
            at = opening - _HEAD.size
        else:
            damaged += at > end
            frames.append(frame_end[0])
            at = end = frame_end[1]
    torn = len(raw) - end
    if torn >= _HEAD.size and _HEAD.unpack_from(raw, end)[0] <= torn - _HEAD.size:
        return Scan(frames, damaged + 1, 0)  # all of it is there, and it is wrong
    return Scan(frames, damaged, torn)


def read(path: Path) -> Scan:
    """Read a file of frames; one that is absent is empty. Raises `OSError` for other troubles."""
    try:
        raw = read_regular(path)
    except FileNotFoundError:
        raw = b""
    return scan(raw)


class FrameFile:
    """A file of frames being written. Callers hold their own lock around `append`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._fd = open_regular(path, os.O_RDWR | os.O_APPEND | os.O_CREAT)
        self._size = os.fstat(self._fd).st_size
        self._synced_size = -1  # at first the file itself is to be brought there, too

    def append(self, facts: Mapping[str, Any]) -> None:
        """Write one frame; whole or, if an `OSError` is raised, not at all. Raises what `pack` raises, too."""
        frame = pack(facts)
        written = os.write(self._fd, frame)
        if written < len(frame):  # the disk filled up within the frame: take its head back
            os.ftruncate(self._fd, self._size)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self.path))
        self._size += written

    def read(self) -> Scan:
        """Read back what was written, though the file may have lost its name meanwhile. Raises `OSError`."""
        return scan(os.pread(self._fd, self._size, 0))

    def sync(self) -> None:
        """Bring what was written to the disk itself, if anything was since the last time. Raises `OSError`."""
        size = self._size
        if size != self._synced_size:
            sync_open_file(self._fd)
            self._synced_size = size

    def close(self) -> None:
        """Close the file; closing twice is harmless."""
        fd, self._fd = self._fd, -1  # forgotten first: a fork in between must not close it again, or somebody else's
        if fd >= 0:
            os.close(fd)


def _frame_at(raw: bytes, at: int) -> tuple[Frame, int] | None:
    if at + _HEAD.size > len(raw):
        return None
    length, checksum = _HEAD.unpack_from(raw, at)
    begin = at + _HEAD.size
    payload = raw[begin : begin + length]
    if length > MAX_BYTES or len(payload) < length or zlib.crc32(payload) != checksum:
        return None
    try:
        frame = json.loads(payload)
    except ValueError:
        return None
    return (frame, begin + length) if isinstance(frame, dict) else None
