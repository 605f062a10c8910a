"""Frames: rows of variable size in an append-only file, each with length and checksum.

    u32 length ─ u32 crc32 of the payload ─ payload: one JSON object

A frame is one `os.write` to a descriptor opened with O_APPEND. A killed process leaves complete frames and at most one
incomplete frame at the end. Payloads begin with ``{"``. After a damaged frame, the scan searches for these bytes, so
one bad byte costs one frame, never the rest of the file.
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
    """The payload is larger than `MAX_BYTES`; nothing was written."""


@dataclass(frozen=True, slots=True)
class Scan:
    """Content of a file of frames.

    Attributes
    ----------
    frames
        The readable frames, in order.
    damaged
        Number of damaged byte ranges.
    torn_bytes
        Bytes of an incomplete frame at the end, which does not count as damaged.
    """

    frames: list[Frame]
    damaged: int
    torn_bytes: int


def pack(facts: Mapping[str, Any]) -> bytes:
    """Return one frame.

    Raises
    ------
    FrameTooLargeError
        The payload is larger than `MAX_BYTES`.
    ValueError, TypeError
        A value is not valid JSON, such as NaN and infinities.
    """
    payload = json.dumps(facts, separators=(",", ":"), allow_nan=False).encode()
    if len(payload) > MAX_BYTES:
        raise FrameTooLargeError(f"a frame of {len(payload)} bytes")
    return _HEAD.pack(len(payload), zlib.crc32(payload)) + payload


def scan(raw: bytes) -> Scan:
    """Return all complete frames of some bytes, and counts of the rest. Never raises, for any bytes."""
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
        return Scan(frames, damaged + 1, 0)  # complete but damaged
    return Scan(frames, damaged, torn)


def read(path: Path) -> Scan:
    """Read a file of frames; a missing file counts as empty. Raises `OSError` for other errors."""
    try:
        raw = read_regular(path)
    except FileNotFoundError:
        raw = b""
    return scan(raw)


class FrameFile:
    """A file of frames that is being written. Callers must lock around `append`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._fd = open_regular(path, os.O_RDWR | os.O_APPEND | os.O_CREAT)
        self._size = os.fstat(self._fd).st_size
        self._synced_size = -1  # the first sync is needed even for an empty file

    def append(self, facts: Mapping[str, Any]) -> None:
        """Write one frame completely or, with an `OSError`, not at all. Also raises the errors of `pack`."""
        frame = pack(facts)
        written = os.write(self._fd, frame)
        if written < len(frame):  # the disk filled up within the frame: remove its first part
            os.ftruncate(self._fd, self._size)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self.path))
        self._size += written

    def read(self) -> Scan:
        """Read the frames written so far, even if the file was renamed or deleted. Raises `OSError`."""
        return scan(os.pread(self._fd, self._size, 0))

    def sync(self) -> None:
        """Sync the file to disk if frames were written since the last sync. Raises `OSError`."""
        size = self._size
        if size != self._synced_size:
            sync_open_file(self._fd)
            self._synced_size = size

    def close(self) -> None:
        """Close the file; a second call does nothing."""
        fd, self._fd = self._fd, -1  # reset first: a child forked in between must not close the number again
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
