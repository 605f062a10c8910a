"""Image file: reads type and size of a PNG or JPEG, and encodes pixels as PNG, without an image library.

Images are decoded only by browsers. Encoded pixels have eight bits per channel.
"""

import struct
import zlib
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from ranklake.capture.common.values import BadValueError

if TYPE_CHECKING:
    import numpy as np

MOST_PIXELS: Final = 1 << 24
"""Most pixels of an image. A small file may claim any size, and a browser would allocate memory for it."""
MOST_SIDE: Final = 1 << 14
"""Most pixels of a side that browsers can draw."""

_PNG: Final = b"\x89PNG\r\n\x1a\n"
_PNG_END: Final = b"\0\0\0\0IEND\xaeB`\x82"
_JPEG: Final = b"\xff\xd8\xff"
_JPEG_END: Final = b"\xff\xd9"
_IHDR: Final = struct.Struct(">II")
_FRAME_MARKERS: Final = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
"""Markers of a JPEG's frame, which are followed by its size."""
_SKIPPED_MARKERS: Final = frozenset({0xC4, 0xCC, 0xDB, 0xDD, *range(0xE0, 0xF0), 0xFE})
"""Markers with a length that may precede a JPEG's frame: tables, application data, comments."""
_COMPRESSED: Final = (b"zTXt", b"iTXt", b"iCCP")
_COLOR_TYPES: Final = {1: 0, 3: 2, 4: 6}
"""PNG's color types by number of channels: gray, RGB, RGBA."""
_WHITE: Final = 255
_ROUNDING: Final = 1e-3


@dataclass(frozen=True, slots=True)
class ImageFile:
    """A PNG or JPEG, with type and size from its header. The pixels are not decoded."""

    raw: bytes
    media_type: str
    width: int
    height: int


def image_file(raw: bytes) -> ImageFile:
    """Read the header of a PNG or JPEG.

    Raises `BadValueError` if the bytes are of neither, are cut short, or claim more than `MOST_PIXELS`, or a side above
    `MOST_SIDE`.
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
    """Return an image without compressed texts of a PNG, in which a search for a person's data would find nothing.

    Raises `BadValueError` for a PNG with damaged chunks.
    """
    raw = image.raw
    if not raw.startswith(_PNG):
        return image
    chunks, at = [_PNG], len(_PNG)
    while at < len(raw):
        end = at + 12 + int.from_bytes(raw[at : at + 4])
        if end > len(raw):
            raise BadValueError(f"{image.media_type} that is damaged")
        if raw[at + 4 : at + 8] not in _COMPRESSED:
            chunks.append(raw[at:end])
        at = end
    return replace(image, raw=b"".join(chunks))


def _refuse_size(width: int, height: int, noun: str) -> None:
    if not 0 < width * height <= MOST_PIXELS or max(width, height) > MOST_SIDE:
        limit = f"at most {MOST_PIXELS:,}, and {MOST_SIDE:,} a side"
        raise BadValueError(f"{noun} of {width:,} by {height:,} pixels; {limit}")


def _jpeg_size(raw: bytes) -> tuple[int, int] | None:
    """Return height and width of the first frame, read marker by marker as decoders do.

    Returns None at markers that decoders may treat differently, such as those without a length. A hostile file could
    otherwise have a small frame for this function, and a huge one for a browser.
    """
    at = 2
    while at + 9 <= len(raw) and raw[at] == 0xFF:  # noqa: PLR2004
        if raw[at + 1] == 0xFF:  # noqa: PLR2004 - a fill byte
            at += 1
            continue
        marker, length = raw[at + 1], int.from_bytes(raw[at + 2 : at + 4])
        if marker in _FRAME_MARKERS:
            return int.from_bytes(raw[at + 5 : at + 7]), int.from_bytes(raw[at + 7 : at + 9])
        if marker not in _SKIPPED_MARKERS or length < 2:  # noqa: PLR2004
            return None
        at += 2 + length
    return None


def png(pixels: "np.ndarray[Any, Any]") -> ImageFile:
    """Encode pixels as PNG.

    Parameters
    ----------
    pixels
        Height by width, or with 1, 3 or 4 channels last or first. Integers from 0 to 255, floats from 0 to 1, or bools.

    Raises `BadValueError` for another shape, values out of range, or NaN.
    """
    shaped = _channels_last(pixels)
    height, width, channels = shaped.shape
    _refuse_size(width, height, "an image")
    bytes_array = _eight_bits(shaped)
    rows = b"".join(b"\0" + bytes_array[row].tobytes() for row in range(height))
    head = _IHDR.pack(width, height) + bytes((8, _COLOR_TYPES[channels], 0, 0, 0))
    body = _chunk(b"IHDR", head) + _chunk(b"IDAT", zlib.compress(rows, 6)) + _PNG_END
    return ImageFile(_PNG + body, "image/png", width, height)


def _channels_last(pixels: "np.ndarray[Any, Any]") -> "np.ndarray[Any, Any]":
    shape = pixels.shape
    if 0 in shape:
        raise BadValueError("an image without pixels")
    if len(shape) == 2:  # noqa: PLR2004
        return pixels.reshape(*shape, 1)
    if len(shape) == 3 and shape[2] in _COLOR_TYPES:  # noqa: PLR2004
        return pixels
    if len(shape) == 3 and shape[0] in _COLOR_TYPES:  # noqa: PLR2004
        return pixels.transpose(1, 2, 0)
    raise BadValueError(f"an image of shape {shape}: height, width, and 1, 3 or 4 channels")


def _eight_bits(pixels: "np.ndarray[Any, Any]") -> "np.ndarray[Any, Any]":
    kind = pixels.dtype.kind
    if kind not in "buif":
        raise BadValueError(f"pixels of type {pixels.dtype}")
    lowest, highest = pixels.min(), pixels.max()  # NaN if any pixel is
    if kind == "f":
        if not (lowest >= -_ROUNDING and highest <= 1 + _ROUNDING):
            raise BadValueError(f"floats from {lowest} to {highest} as pixels; they are from 0 to 1, and no NaN")
        return (pixels.astype("float32") * _WHITE).round().clip(0, _WHITE).astype("uint8")
    if kind == "b":
        return pixels.astype("uint8") * _WHITE
    if lowest < 0 or highest > _WHITE:
        raise BadValueError(f"whole numbers from {lowest} to {highest} as pixels; they are from 0 to {_WHITE}")
    return pixels.astype("uint8")


def _chunk(name: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))
