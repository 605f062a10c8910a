"""Image file: the bytes of a PNG or JPEG, what they say of themselves, and pixels as such bytes.

No library of images is among the dependencies: browsers decode; here only size and kind are read, and pixels of eight
bits are written, which PNG takes as zlib packs them.
"""

import struct
import zlib
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from ranklake.capture.common.values import BadValueError

if TYPE_CHECKING:
    import numpy as np

MOST_PIXELS: Final = 1 << 24
"""A file of few bytes may claim any size, and a browser would make room for that."""
MOST_SIDE: Final = 1 << 14
"""No browser draws a longer one."""

_PNG: Final = b"\x89PNG\r\n\x1a\n"
_PNG_END: Final = b"\0\0\0\0IEND\xaeB`\x82"
_JPEG: Final = b"\xff\xd8\xff"
_JPEG_END: Final = b"\xff\xd9"
_IHDR: Final = struct.Struct(">II")
_SIZES: Final = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
"""Markers of a JPEG that are followed by its size."""
_SEGMENTS: Final = frozenset({0xC4, 0xCC, 0xDB, 0xDD, *range(0xE0, 0xF0), 0xFE})
"""Markers of a JPEG that may stand before its size, each with a length: tables, application data, comments."""
_COMPRESSED: Final = (b"zTXt", b"iTXt", b"iCCP")
_COLOURS: Final = {1: 0, 3: 2, 4: 6}
"""PNG's number for grey, RGB and RGBA, by channels."""
_WHITE: Final = 255
_ROUNDING: Final = 1e-3


@dataclass(frozen=True, slots=True)
class ImageFile:
    """A PNG or JPEG, as its first bytes say it; what follows them was not decoded."""

    raw: bytes
    media_type: str
    width: int
    height: int


def image_file(raw: bytes) -> ImageFile:
    """Return what bytes say of themselves.

    Raises `BadValueError` if they are neither PNG nor JPEG, are cut short, or claim more than `MOST_PIXELS` or a side
    longer than `MOST_SIDE`.
    """
    if raw.startswith(_PNG):
        size = _IHDR.unpack_from(raw, 16)[::-1] if raw[12:16] == b"IHDR" and len(raw) > 24 else None  # noqa: PLR2004
        media_type, end = "image/png", _PNG_END
    elif raw.startswith(_JPEG):
        media_type, end, size = "image/jpeg", _JPEG_END, _jpeg_size(raw)
    else:
        raise BadValueError("neither PNG nor JPEG")
    if size is None or not raw.endswith(end):
        raise BadValueError(f"{media_type} that is cut short")
    height, width = size
    _refuse_size(width, height, media_type)
    return ImageFile(raw, media_type, width, height)


def searchable(image: ImageFile) -> ImageFile:
    """Return an image without the texts that a PNG may hold compressed: no search for a person would find them there.

    Raises `BadValueError` for a PNG whose chunks do not follow each other.
    """
    raw = image.raw
    if not raw.startswith(_PNG):
        return image
    kept, at = [_PNG], len(_PNG)
    while at < len(raw):
        end = at + 12 + int.from_bytes(raw[at : at + 4])
        if end > len(raw):
            raise BadValueError(f"{image.media_type} that is damaged")
        if raw[at + 4 : at + 8] not in _COMPRESSED:
            kept.append(raw[at:end])
        at = end
    return replace(image, raw=b"".join(kept))


def _refuse_size(width: int, height: int, noun: str) -> None:
    if not 0 < width * height <= MOST_PIXELS or max(width, height) > MOST_SIDE:
        most = f"at most {MOST_PIXELS:,}, and {MOST_SIDE:,} a side"
        raise BadValueError(f"{noun} of {width:,} by {height:,} pixels; {most}")


def _jpeg_size(raw: bytes) -> tuple[int, int] | None:
    """Height and width of the first frame, found by going from one marker to the next, as decoders do.

    None where decoders might go another way, as at markers without a length: a file could show us a small frame, and
    them a huge one.
    """
    at = 2
    while at + 9 <= len(raw) and raw[at] == 0xFF:  # noqa: PLR2004
        if raw[at + 1] == 0xFF:  # noqa: PLR2004 - a fill byte
            at += 1
            continue
        marker, length = raw[at + 1], int.from_bytes(raw[at + 2 : at + 4])
        if marker in _SIZES:
            return int.from_bytes(raw[at + 5 : at + 7]), int.from_bytes(raw[at + 7 : at + 9])
        if marker not in _SEGMENTS or length < 2:  # noqa: PLR2004
            return None
        at += 2 + length
    return None


def png(pixels: "np.ndarray[Any, Any]") -> ImageFile:
    """Return pixels as a PNG.

    Parameters
    ----------
    pixels
        Height by width, or with 1, 3 or 4 channels last or first. Whole numbers from 0 to 255, floats from 0 to 1, or
        booleans.

    Raises `BadValueError` for another shape or another range, NaN included.
    """
    shaped = _channels_last(pixels)
    height, width, channels = shaped.shape
    _refuse_size(width, height, "an image")
    eight = _eight_bits(shaped)
    rows = b"".join(b"\0" + eight[row].tobytes() for row in range(height))
    head = _IHDR.pack(width, height) + bytes((8, _COLOURS[channels], 0, 0, 0))
    body = _chunk(b"IHDR", head) + _chunk(b"IDAT", zlib.compress(rows, 6)) + _PNG_END
    return ImageFile(_PNG + body, "image/png", width, height)


def _channels_last(pixels: "np.ndarray[Any, Any]") -> "np.ndarray[Any, Any]":
    shape = pixels.shape
    if 0 in shape:
        raise BadValueError("an image without pixels")
    if len(shape) == 2:  # noqa: PLR2004
        return pixels.reshape(*shape, 1)
    if len(shape) == 3 and shape[2] in _COLOURS:  # noqa: PLR2004
        return pixels
    if len(shape) == 3 and shape[0] in _COLOURS:  # noqa: PLR2004
        return pixels.transpose(1, 2, 0)
    raise BadValueError(f"an image of shape {shape}: height, width, and 1, 3 or 4 channels")


def _eight_bits(pixels: "np.ndarray[Any, Any]") -> "np.ndarray[Any, Any]":
    kind = pixels.dtype.kind
    if kind not in "buif":
        raise BadValueError(f"pixels of type {pixels.dtype}")
    least, most = pixels.min(), pixels.max()  # NaN if there is one
    if kind == "f":
        if not (least >= -_ROUNDING and most <= 1 + _ROUNDING):
            raise BadValueError(f"floats from {least} to {most} as pixels; they are from 0 to 1, and no NaN")
        return (pixels.astype("float32") * _WHITE).round().clip(0, _WHITE).astype("uint8")
    if kind == "b":
        return pixels.astype("uint8") * _WHITE
    if least < 0 or most > _WHITE:
        raise BadValueError(f"whole numbers from {least} to {most} as pixels; they are from 0 to {_WHITE}")
    return pixels.astype("uint8")


def _chunk(name: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))
