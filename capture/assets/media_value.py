"""Media value: what a script gives as an image, table, confusion matrix or text, held until it can be made bytes.

Holding is what training waits for: at most a copy of `MOST_HELD_BYTES`. Making bytes is for the background.
"""

import io
import math
import os
import stat
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, Final

from ranklake.capture.assets.image_file import MOST_PIXELS, ImageFile, image_file, png, searchable
from ranklake.capture.assets.media_table import (
    MOST_CLASSES,
    is_frame,
    matrix_json,
    matrix_of,
    refuse_above,
    refuse_device,
    rows_of,
    table_json,
)
from ranklake.capture.common.values import BadValueError, repr_of, text
from ranklake.redaction.redact import redact

IMAGE, TABLE, CONFUSION_MATRIX, TEXT = "image", "table", "confusion_matrix", "text"
KINDS: Final = (IMAGE, TABLE, CONFUSION_MATRIX, TEXT)
MOST_HELD_BYTES: Final = 16 << 20
"""Of one value: copying so much takes some milliseconds."""
_FLOAT_BYTES: Final = 4
"""What a tensor's floats are copied as, however small they are there."""
_AS_PNG: Final = {
    **dict.fromkeys(("CMYK", "YCbCr", "LAB", "HSV", "RGBX"), "RGB"),
    **dict.fromkeys(("RGBa", "PA", "La"), "RGBA"),
}
"""Pillow's modes that PNG does not have, and those that show the same."""


@dataclass(frozen=True, slots=True)
class Made:
    """A medium as bytes; `rows` and `columns` are height and width of an image, None of a text."""

    raw: bytes
    media_type: str
    rows: int | None = None
    columns: int | None = None


@dataclass(frozen=True, slots=True)
class Held:
    """A value that no longer changes.

    Attributes
    ----------
    make
        Returns it as bytes. Raises `BadValueError` if it is not what it was said to be, and `RefusedError`.
    size_bytes
        Memory that it takes until then.
    """

    make: Callable[[], Made]
    size_bytes: int


def kind_of(value: object) -> str:
    """Return what a value is, by its type. Raises `BadValueError` where that does not tell."""
    if isinstance(value, str):
        return TEXT
    if isinstance(value, bytes | bytearray | os.PathLike) or _is_pillows(value):
        return IMAGE
    if is_frame(value) or isinstance(value, Mapping | list | tuple):
        return TABLE
    if len(getattr(value, "shape", ())) in {2, 3}:
        return IMAGE
    raise BadValueError(f"{type(value).__name__} is no image, table or text; kind= says what is meant")


def held(  # noqa: PLR0911 - a line for each kind
    value: Any,  # noqa: ANN401 - anything
    kind: str,
    *,
    labels: Any,  # noqa: ANN401 - likewise
    columns: Any,  # noqa: ANN401 - likewise
    most_bytes: int,
) -> Held:
    """Hold a value of a kind.

    Raises
    ------
    BadValueError
        It cannot be of that kind.
    DeviceValueError
        It is in a GPU's memory: reading it would make training wait.
    RefusedError
        It is larger than it may be.
    """
    if kind not in KINDS:
        raise BadValueError(f"kind {repr_of(kind)}: {', '.join(KINDS)}")
    if kind == TEXT:
        if not isinstance(value, str):
            raise BadValueError(f"{type(value).__name__} as text")
        refuse_above(len(value), most_bytes, "characters")
        return Held(partial(_text, value), len(value))
    if kind == TABLE:
        names, rows = rows_of(value, columns)
        return Held(partial(_table, names, rows, most_bytes), 64 * (len(rows) + 1) * max(1, len(names)))
    if kind == CONFUSION_MATRIX:
        cells, words = matrix_of(value), None if labels is None else list(islice(labels, MOST_CLASSES + 1))
        return Held(partial(_confusion, cells, words), 64 * len(cells) ** 2)
    if isinstance(value, bytes | bytearray):
        refuse_above(len(value), most_bytes, "bytes")
        return Held(partial(_image_of, bytes(value)), len(value))
    if isinstance(value, str | os.PathLike):
        return Held(partial(_image_at, Path(value), most_bytes), 0)
    if _is_pillows(value):
        width, height = value.size
        refuse_above(width * height, MOST_PIXELS // 4, "pixels")
        return Held(partial(_pillows, value.copy()), 4 * width * height)
    pixels = _array(value)
    return Held(partial(_pixels, pixels), pixels.nbytes)


# ── images ──


def _is_pillows(value: object) -> bool:
    return callable(getattr(value, "save", None)) and hasattr(value, "size") and hasattr(value, "mode")


def _array(value: Any) -> Any:  # noqa: ANN401 - numpy's, which is not imported here
    """Return a copy of an array or tensor as numpy's."""
    refuse_device(value)
    if not hasattr(value, "shape") or not hasattr(value, "__array__"):
        raise BadValueError(f"{type(value).__name__} as an image: bytes, a path, an array, a tensor or a PIL image")
    refuse_above(math.prod(value.shape) * _item_bytes(value), MOST_HELD_BYTES, "bytes of pixels")
    given = value.detach() if hasattr(value, "detach") else value
    if hasattr(given, "is_floating_point") and given.is_floating_point():
        given = given.float()  # numpy has no bfloat16
    return given.__array__().copy()


def _item_bytes(value: Any) -> int:  # noqa: ANN401 - an array or a tensor
    size = getattr(value.dtype, "itemsize", 8)
    is_float = hasattr(value, "is_floating_point") and value.is_floating_point()
    return max(size, _FLOAT_BYTES if is_float else 1) if isinstance(size, int) else 8


def _made(image: ImageFile) -> Made:
    return Made(image.raw, image.media_type, image.height, image.width)


def _image_of(raw: bytes) -> Made:
    return _made(searchable(image_file(raw)))


def _image_at(path: Path, most_bytes: int) -> Made:
    try:
        if not stat.S_ISREG(path.stat().st_mode):  # opening a FIFO would wait for its writer
            raise BadValueError(f"{path.name}: no file")
        with path.open("rb") as file:
            raw = file.read(most_bytes + 1)
    except (OSError, ValueError) as error:
        raise BadValueError(f"{path.name}: {getattr(error, 'strerror', None) or type(error).__name__}") from error
    refuse_above(len(raw), most_bytes, "bytes")
    return _image_of(raw)


def _pillows(image: Any) -> Made:  # noqa: ANN401 - Pillow's
    buffer = io.BytesIO()
    try:
        mode = _AS_PNG.get(image.mode)
        (image if mode is None else image.convert(mode)).save(buffer, "PNG")
    except Exception as error:
        raise BadValueError(f"a PIL image of mode {text(image.mode, 20)}: {text(error, 80)}") from error
    return _image_of(buffer.getvalue())


def _pixels(pixels: Any) -> Made:  # noqa: ANN401 - numpy's
    return _made(png(pixels))


# ── the others ──


def _table(names: list[Any], rows: list[list[Any]], most_bytes: int) -> Made:
    return Made(table_json(names, rows, most_bytes), "application/json", len(rows), len(names))


def _confusion(cells: list[list[Any]], labels: list[Any] | None) -> Made:
    return Made(matrix_json(cells, labels), "application/json", len(cells), len(cells))


def _text(value: str) -> Made:
    return Made(redact(text(value, len(value))).encode(), "text/plain")
