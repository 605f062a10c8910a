"""Decoding: the bytes of a file as lines of UTF-8, decompressed if necessary."""

import codecs
import io
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final

LINE_BYTES: Final = 16 << 20
"""A line that is longer is refused, and counted."""
NO_TEXT: Final = "\ufdd0"
"""A character that Unicode keeps out of texts."""
_GZIP: Final = b"\x1f\x8b"
_GZIP_BITS: Final = 31  # zlib: a gzip header, and the largest window
Told = Callable[[int], None]
"""Is told how many bytes more were read of a file as it lies there."""


@dataclass(frozen=True, slots=True)
class Line:
    """A line without its end.

    Attributes
    ----------
    number
        From 1.
    text
        What could not be decoded stands as U+FFFD; empty if the line is too long.
    flaw
        What is wrong with it, without any of its words; None for a sound one.
    """

    number: int
    text: str
    flaw: str | None = None


def line_of(number: int, raw: bytes, *, too_long: bool) -> Line:
    """Return a line, and what is wrong with it."""
    if too_long or len(raw) > LINE_BYTES:
        return Line(number, "", f"a line longer than {LINE_BYTES >> 20} MiB")
    raw = raw.removesuffix(b"\r")
    try:
        return Line(number, raw.decode())
    except UnicodeDecodeError:
        return Line(number, raw.decode(errors="replace"), "not UTF-8")


def as_utf8(blocks: Iterator[bytes]) -> Iterator[bytes]:
    """Yield blocks of UTF-8 without a mark of their order; bytes that are none stand as `NO_TEXT`."""
    decoder = codecs.getincrementaldecoder("utf-8")(_MARKED)
    for block in blocks:
        if text := decoder.decode(block):
            yield text.encode()
    if text := decoder.decode(b"", final=True):
        yield text.encode()


def _marked(error: UnicodeError) -> tuple[str, int]:
    assert isinstance(error, UnicodeDecodeError)
    return NO_TEXT, error.end


_MARKED: Final = "ranklake.marked"
codecs.register_error(_MARKED, _marked)


def unpacked(raw: Any, block_bytes: int) -> Iterator[bytes]:  # noqa: ANN401 - any binary file
    """Yield a file's bytes, unpacked where they are packed; all there are before the damage, then `DamagedError`."""
    block = raw.read(block_bytes)
    if not block.startswith(_GZIP):
        while block:
            yield block
            block = raw.read(block_bytes)
        return
    unpacker = zlib.decompressobj(_GZIP_BITS)
    while block:
        try:
            out = unpacker.decompress(block, block_bytes)
        except zlib.error:
            raise DamagedError("the gzip archive is damaged") from None
        if out:
            yield out
        block = unpacker.unused_data if unpacker.eof else unpacker.unconsumed_tail
        if unpacker.eof:  # archives may follow each other, with zeros behind them
            block = (block or raw.read(block_bytes)).lstrip(b"\0")
            unpacker = zlib.decompressobj(_GZIP_BITS) if block else unpacker
        else:
            block = block or raw.read(block_bytes)
    if not unpacker.eof and (rest := unpacker.flush()):
        yield rest
    if not unpacker.eof:
        raise DamagedError("the gzip archive is cut off")


class DamagedError(Exception):
    """An archive's rest cannot be read."""


class _Counted:
    """A file that tells how much of it was read."""

    def __init__(self, raw: Any, told: Told) -> None:  # noqa: ANN401 - any binary file
        self._raw, self._told = raw, told

    def read(self, size: int = -1) -> bytes:
        block = bytes(self._raw.read(size))
        self._told(len(block))
        return block


class Blocks(io.RawIOBase):
    """Blocks of bytes as a file."""

    def __init__(self, blocks: Iterator[bytes]) -> None:
        super().__init__()
        self._blocks, self._rest = blocks, b""

    def readable(self) -> bool:
        """Say that it can be read."""
        return True

    def readinto(self, into: Any) -> int:  # noqa: ANN401 - a buffer
        """Fill a buffer; return how many bytes of it are filled."""
        if not self._rest:
            self._rest = next(self._blocks, b"")
        part, self._rest = self._rest[: len(into)], self._rest[len(into) :]
        into[: len(part)] = part
        return len(part)
