"""Media value: what a script gives as an image, table, confusion matrix or text, held until it can be made bytes.

Holding is what training waits for: at most a copy of `MOST_HELD_BYTES`; a figure of matplotlib's is drawn. Making bytes
is for the background. Images that are too large are scaled: every k-th pixel of every k-th row stays.
"""

import base64
import hashlib
import importlib
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

from ranklake.capture.assets.image_file import ImageFile, image_file, png, searchable
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
MOST_BYTES: Final = 640 << 10
"""Of one medium: in base64 and with its facts it has to fit a frame of the local spool."""
MOST_HELD_BYTES: Final = 16 << 20
"""Of one value: copying so much takes some milliseconds."""
_MOST_DRAWN: Final = 1 << 22
"""Pixels that are written as PNG at once, which takes a quarter of a second at most."""
_MOST_INCHES_SIDE: Final = 2048
_FLOAT_BYTES: Final = 4
"""What a tensor's floats are copied as, however small they are there."""
_CHANNELS: Final = (1, 3, 4)
_AS_PNG: Final = {
    **dict.fromkeys(("CMYK", "YCbCr", "LAB", "HSV", "RGBX"), "RGB"),
    **dict.fromkeys(("RGBa", "PA", "La"), "RGBA"),
}
"""Pillow's modes that PNG does not have, and those that show the same."""


@dataclass(frozen=True, slots=True)
class MediaBytes:
    """A medium as bytes; `rows` and `columns` are height and width of an image, None of a text."""

    raw: bytes
    media_type: str
    rows: int | None = None
    columns: int | None = None

    def row(self, kind: str, column: str, *, has_digest: bool) -> dict[str, Any]:
        """Return the columns of a row of ``media`` that depend on the bytes; `column` is that which holds them."""
        return {
            "kind": kind,
            "media_type": self.media_type,
            "bytes": len(self.raw),
            "row_count": self.rows,
            "column_count": self.columns,
            "sha256": hashlib.sha256(self.raw).hexdigest() if has_digest else None,
            column: base64.b64encode(self.raw).decode() if kind == IMAGE else self.raw.decode(),
        }


@dataclass(frozen=True, slots=True)
class HeldMedia:
    """A value that no longer changes.

    Attributes
    ----------
    make
        Returns it as bytes. Raises `BadValueError` if it is not what it was said to be, and `RefusedError`.
    size_bytes
        Memory that it takes until then.
    """

    make: Callable[[], MediaBytes]
    size_bytes: int


def personal_column(kind: str) -> str:
    """Return the column of ``media`` for what may be about persons."""
    return "personal_image" if kind == IMAGE else "personal_text"


def kind_of(value: object) -> str:
    """Return what a value is, by its type. Raises `BadValueError` where that does not tell."""
    if isinstance(value, str):
        return TEXT
    if isinstance(value, bytes | bytearray | os.PathLike) or _is_pillows(value) or _figure_of(value) is not None:
        return IMAGE
    if is_frame(value) or isinstance(value, Mapping | list | tuple):
        return TABLE
    if len(getattr(value, "shape", ())) in {2, 3}:
        return IMAGE
    raise BadValueError(f"{type(value).__name__} is no image, table or text; kind= says what is meant")


def hold(  # noqa: PLR0911 - a line for each kind
    value: Any,  # noqa: ANN401 - anything
    kind: str,
    *,
    labels: Any,  # noqa: ANN401 - likewise
    columns: Any,  # noqa: ANN401 - likewise
    most_bytes: int,
) -> HeldMedia:
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
        return HeldMedia(partial(_text, value), len(value))
    if kind == TABLE:
        names, rows = rows_of(value, columns)
        return HeldMedia(partial(_table, names, rows, most_bytes), 64 * (len(rows) + 1) * max(1, len(names)))
    if kind == CONFUSION_MATRIX:
        cells, words = matrix_of(value), None if labels is None else list(islice(labels, MOST_CLASSES + 1))
        return HeldMedia(partial(_confusion, cells, words), 64 * len(cells) ** 2)
    if isinstance(value, bytes | bytearray):
        refuse_above(len(value), MOST_HELD_BYTES, "bytes")
        return HeldMedia(partial(_image_of, bytes(value), most_bytes), len(value))
    if isinstance(value, str | os.PathLike):
        return HeldMedia(partial(_image_at, Path(value), most_bytes), 0)
    if _is_pillows(value):
        image = _downscale(value, _times(math.prod(value.size), _MOST_DRAWN)) or value.copy()
        return HeldMedia(partial(_pillows, image, most_bytes), 4 * math.prod(image.size))
    figure = _figure_of(value)
    if figure is not None:
        raw = _render_figure(figure)
        return HeldMedia(partial(_image_of, raw, most_bytes), len(raw))
    pixels = _array(value)
    return HeldMedia(partial(_pixels, pixels, most_bytes), pixels.nbytes)


# ── images ──


def _is_pillows(value: object) -> bool:
    return callable(getattr(value, "save", None)) and hasattr(value, "size") and hasattr(value, "mode")


def _figure_of(value: Any) -> Any:  # noqa: ANN401 - matplotlib's, which is not imported here
    """Return what draws a figure, or the figure that axes belong to; None if it is neither."""
    return next(
        (
            candidate
            for candidate in (value, getattr(value, "figure", None))
            if callable(getattr(candidate, "savefig", None))
        ),
        None,
    )


def _render_figure(figure: Any) -> bytes:  # noqa: ANN401 - matplotlib's
    """Return a figure as PNG, drawn now: it may change."""
    buffer = io.BytesIO()
    inches = max(figure.get_size_inches()) if hasattr(figure, "get_size_inches") else 0
    sharpness = {"dpi": min(figure.dpi, _MOST_INCHES_SIDE / inches)} if inches and hasattr(figure, "dpi") else {}
    figure.savefig(buffer, format="png", **sharpness)
    return buffer.getvalue()


def _times(size: int, most: int) -> int:
    """Return of how many rows and columns one stays, so that of a size at most so much is left."""
    return math.isqrt(max(0, size - 1) // most) + 1


def _downscale(image: Any, times: int) -> Any:  # noqa: ANN401 - Pillow's
    """Return a smaller image; None where it is to stay as it is."""
    width, height = image.size
    return image.resize((max(1, width // times), max(1, height // times)), 0) if times > 1 else None


def _array(value: Any) -> Any:  # noqa: ANN401 - numpy's, which is not imported here
    """Return a copy of an array or tensor as numpy's."""
    refuse_device(value)
    if not hasattr(value, "shape") or not hasattr(value, "__array__"):
        raise BadValueError(f"{type(value).__name__} as an image: bytes, a path, an array, a tensor or a PIL image")
    given = value.detach() if hasattr(value, "detach") else value
    times = _times(math.prod(value.shape) * _item_bytes(value), MOST_HELD_BYTES)
    if times > 1:
        given = given[:, ::times, ::times] if _is_channels_first(value.shape) else given[::times, ::times]
    if hasattr(given, "is_floating_point") and given.is_floating_point():
        given = given.float()  # numpy has no bfloat16
    return given.__array__().copy()


def _item_bytes(value: Any) -> int:  # noqa: ANN401 - an array or a tensor
    size = getattr(value.dtype, "itemsize", 8)
    is_float = hasattr(value, "is_floating_point") and value.is_floating_point()
    return max(size, _FLOAT_BYTES if is_float else 1) if isinstance(size, int) else 8


def _is_channels_first(shape: Any) -> bool:  # noqa: ANN401 - of an array or a tensor
    return len(shape) == 3 and shape[2] not in _CHANNELS and shape[0] in _CHANNELS  # noqa: PLR2004


def _made(image: ImageFile) -> MediaBytes:
    return MediaBytes(image.raw, image.media_type, image.height, image.width)


def _image_of(raw: bytes, most_bytes: int) -> MediaBytes:
    image = image_file(raw)
    if len(raw) <= most_bytes:
        return _made(searchable(image))
    try:
        pillow = importlib.import_module("PIL.Image")
    except ImportError:
        refuse_above(len(raw), most_bytes, "bytes")
    return _pillows(pillow.open(io.BytesIO(raw)), most_bytes, image.media_type.partition("/")[2].upper())


def _image_at(path: Path, most_bytes: int) -> MediaBytes:
    try:
        if not stat.S_ISREG(path.stat().st_mode):  # opening a FIFO would wait for its writer
            raise BadValueError(f"{path.name}: no file")
        with path.open("rb") as file:
            raw = file.read(MOST_HELD_BYTES + 1)
    except (OSError, ValueError) as error:
        raise BadValueError(f"{path.name}: {getattr(error, 'strerror', None) or type(error).__name__}") from error
    refuse_above(len(raw), MOST_HELD_BYTES, "bytes")
    return _image_of(raw, most_bytes)


def _pillows(image: Any, most_bytes: int, kind: str = "PNG") -> MediaBytes:  # noqa: ANN401 - Pillow's
    image = _downscale(image, _times(math.prod(image.size), _MOST_DRAWN)) or image
    while True:
        buffer = io.BytesIO()
        try:
            mode = _AS_PNG.get(image.mode)
            (image if mode is None else image.convert(mode)).save(buffer, kind)
        except Exception as error:
            raise BadValueError(f"a PIL image of mode {text(image.mode, 20)}: {text(error, 80)}") from error
        smaller = _downscale(image, _times(len(buffer.getvalue()), most_bytes))
        if smaller is None or smaller.size == image.size:
            return _made(searchable(image_file(buffer.getvalue())))
        image = smaller


def _pixels(pixels: Any, most_bytes: int) -> MediaBytes:  # noqa: ANN401 - numpy's
    pixels = pixels.transpose(1, 2, 0) if _is_channels_first(pixels.shape) else pixels
    times = _times(math.prod(pixels.shape[:2]), _MOST_DRAWN)
    while True:
        pixels = pixels[::times, ::times]
        image = png(pixels)
        times = _times(len(image.raw), most_bytes)
        if times == 1 or max(pixels.shape[:2]) == 1:
            return _made(image)


# ── the others ──


def _table(names: list[Any], rows: list[list[Any]], most_bytes: int) -> MediaBytes:
    return MediaBytes(table_json(names, rows, most_bytes), "application/json", len(rows), len(names))


def _confusion(cells: list[list[Any]], labels: list[Any] | None) -> MediaBytes:
    return MediaBytes(matrix_json(cells, labels), "application/json", len(cells), len(cells))


def _text(value: str) -> MediaBytes:
    return MediaBytes(redact(text(value, len(value))).encode(), "text/plain")
