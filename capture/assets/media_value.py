"""Media value: copies an image, table, confusion matrix or text (`hold`), and encodes it later (`HeldMedia.make`).

Training waits for the copy, of at most `MOST_HELD_BYTES`, and for drawing a figure of matplotlib. Encoding runs in the
background. Large images are scaled down to every k-th pixel of every k-th row.
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
"""Most bytes of a medium: in base64, with its other columns, it must fit into a frame of the local spool."""
MOST_HELD_BYTES: Final = 16 << 20
"""Most bytes to copy of a value, which takes some milliseconds."""
_MAX_PIXELS: Final = 1 << 22
"""Most pixels to encode as PNG, which takes at most a quarter of a second."""
_MAX_SIDE_PIXELS: Final = 2048
_FLOAT_BYTES: Final = 4
"""Bytes of a copied float of a tensor, also of smaller floats."""
_CHANNELS: Final = (1, 3, 4)
_PNG_MODES: Final = {
    **dict.fromkeys(("CMYK", "YCbCr", "LAB", "HSV", "RGBX"), "RGB"),
    **dict.fromkeys(("RGBa", "PA", "La"), "RGBA"),
}
"""Replacements for Pillow's modes that PNG does not support."""


@dataclass(frozen=True, slots=True)
class MediaBytes:
    """An encoded medium. `rows` and `columns` of an image are its height and width; None for a text."""

    raw: bytes
    media_type: str
    rows: int | None = None
    columns: int | None = None

    def row(self, kind: str, column: str, *, has_digest: bool) -> dict[str, Any]:
        """Return the columns of a row of ``media`` for these bytes, which are stored in `column`."""
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
    """A copied value, which the caller can no longer change.

    Attributes
    ----------
    make
        Returns the encoded value. Raises `BadValueError` if it is not of its kind, and `RefusedError` if too large.
    size_bytes
        Memory of the copy.
    """

    make: Callable[[], MediaBytes]
    size_bytes: int


def personal_column(kind: str) -> str:
    """Return the column of ``media`` for content that may be personal."""
    return "personal_image" if kind == IMAGE else "personal_text"


def kind_of(value: object) -> str:
    """Return the kind of a value by its type. Raises `BadValueError` if the type is ambiguous."""
    if isinstance(value, str):
        return TEXT
    if isinstance(value, bytes | bytearray | os.PathLike) or _is_pillow_image(value) or _figure_of(value) is not None:
        return IMAGE
    if is_frame(value) or isinstance(value, Mapping | list | tuple):
        return TABLE
    if len(getattr(value, "shape", ())) in {2, 3}:
        return IMAGE
    raise BadValueError(f"{type(value).__name__} is not an image, table or text; set kind=")


def hold(  # noqa: PLR0911 - a line for each kind
    value: Any,  # noqa: ANN401 - anything
    kind: str,
    *,
    labels: Any,  # noqa: ANN401 - likewise
    columns: Any,  # noqa: ANN401 - likewise
    most_bytes: int,
) -> HeldMedia:
    """Copy a value of a kind.

    Raises
    ------
    BadValueError
        The value is not of that kind.
    DeviceValueError
        The value is in a GPU's memory: copying would make training wait.
    RefusedError
        The value is too large.
    """
    if kind not in KINDS:
        raise BadValueError(f"kind {repr_of(kind)}: {', '.join(KINDS)}")
    if kind == TEXT:
        if not isinstance(value, str):
            raise BadValueError(f"{type(value).__name__} as text")
        refuse_above(len(value), most_bytes, "characters")
        return HeldMedia(partial(_encode_text, value), len(value))
    if kind == TABLE:
        names, rows = rows_of(value, columns)
        return HeldMedia(partial(_encode_table, names, rows, most_bytes), 64 * (len(rows) + 1) * max(1, len(names)))
    if kind == CONFUSION_MATRIX:
        cells, classes = matrix_of(value), None if labels is None else list(islice(labels, MOST_CLASSES + 1))
        return HeldMedia(partial(_encode_matrix, cells, classes), 64 * len(cells) ** 2)
    if isinstance(value, bytes | bytearray):
        refuse_above(len(value), MOST_HELD_BYTES, "bytes")
        return HeldMedia(partial(_encode_image, bytes(value), most_bytes), len(value))
    if isinstance(value, str | os.PathLike):
        return HeldMedia(partial(_encode_image_file, Path(value), most_bytes), 0)
    if _is_pillow_image(value):
        image = _downscale(value, _scale_factor(math.prod(value.size), _MAX_PIXELS)) or value.copy()
        return HeldMedia(partial(_encode_pillow, image, most_bytes), 4 * math.prod(image.size))
    figure = _figure_of(value)
    if figure is not None:
        raw = _render_figure(figure)
        return HeldMedia(partial(_encode_image, raw, most_bytes), len(raw))
    pixels = _array(value)
    return HeldMedia(partial(_encode_pixels, pixels, most_bytes), pixels.nbytes)


# ── images ──


def _is_pillow_image(value: object) -> bool:
    return callable(getattr(value, "save", None)) and hasattr(value, "size") and hasattr(value, "mode")


def _figure_of(value: Any) -> Any:  # noqa: ANN401 - matplotlib's, which is not imported here
    """Return a figure, or the figure of axes; None for other values."""
    return next(
        (
            candidate
            for candidate in (value, getattr(value, "figure", None))
            if callable(getattr(candidate, "savefig", None))
        ),
        None,
    )


def _render_figure(figure: Any) -> bytes:  # noqa: ANN401 - matplotlib's
    """Draw a figure now, because it may change, and return it as PNG."""
    buffer = io.BytesIO()
    inches = max(figure.get_size_inches()) if hasattr(figure, "get_size_inches") else 0
    resolution = {"dpi": min(figure.dpi, _MAX_SIDE_PIXELS / inches)} if inches and hasattr(figure, "dpi") else {}
    figure.savefig(buffer, format="png", **resolution)
    return buffer.getvalue()


def _scale_factor(size: int, limit: int) -> int:
    """Return the least k for which every k-th pixel of every k-th row reduces a size to at most `limit`."""
    return math.isqrt(max(0, size - 1) // limit) + 1


def _downscale(image: Any, factor: int) -> Any:  # noqa: ANN401 - Pillow's
    """Return an image scaled down by a factor; None for the factor 1."""
    width, height = image.size
    return image.resize((max(1, width // factor), max(1, height // factor)), 0) if factor > 1 else None


def _array(value: Any) -> Any:  # noqa: ANN401 - numpy's, which is not imported here
    """Copy an array or tensor to a numpy array, scaled down if it exceeds `MOST_HELD_BYTES`."""
    refuse_device(value)
    if not hasattr(value, "shape") or not hasattr(value, "__array__"):
        raise BadValueError(f"{type(value).__name__} as an image: bytes, a path, an array, a tensor or a PIL image")
    array = value.detach() if hasattr(value, "detach") else value
    factor = _scale_factor(math.prod(value.shape) * _item_bytes(value), MOST_HELD_BYTES)
    if factor > 1:
        array = array[:, ::factor, ::factor] if _is_channels_first(value.shape) else array[::factor, ::factor]
    if hasattr(array, "is_floating_point") and array.is_floating_point():
        array = array.float()  # numpy has no bfloat16
    return array.__array__().copy()


def _item_bytes(value: Any) -> int:  # noqa: ANN401 - an array or a tensor
    size = getattr(value.dtype, "itemsize", 8)
    is_float = hasattr(value, "is_floating_point") and value.is_floating_point()
    return max(size, _FLOAT_BYTES if is_float else 1) if isinstance(size, int) else 8


def _is_channels_first(shape: Any) -> bool:  # noqa: ANN401 - of an array or a tensor
    return len(shape) == 3 and shape[2] not in _CHANNELS and shape[0] in _CHANNELS  # noqa: PLR2004


def _media_bytes(image: ImageFile) -> MediaBytes:
    return MediaBytes(image.raw, image.media_type, image.height, image.width)


def _encode_image(raw: bytes, most_bytes: int) -> MediaBytes:
    image = image_file(raw)
    if len(raw) <= most_bytes:
        return _media_bytes(searchable(image))
    try:
        pillow = importlib.import_module("PIL.Image")
    except ImportError:
        refuse_above(len(raw), most_bytes, "bytes")
    return _encode_pillow(pillow.open(io.BytesIO(raw)), most_bytes, image.media_type.partition("/")[2].upper())


def _encode_image_file(path: Path, most_bytes: int) -> MediaBytes:
    try:
        if not stat.S_ISREG(path.stat().st_mode):  # opening a FIFO would block
            raise BadValueError(f"{path.name}: not a file")
        with path.open("rb") as file:
            raw = file.read(MOST_HELD_BYTES + 1)
    except (OSError, ValueError) as error:
        raise BadValueError(f"{path.name}: {getattr(error, 'strerror', None) or type(error).__name__}") from error
    refuse_above(len(raw), MOST_HELD_BYTES, "bytes")
    return _encode_image(raw, most_bytes)


def _encode_pillow(image: Any, most_bytes: int, kind: str = "PNG") -> MediaBytes:  # noqa: ANN401 - Pillow's
    image = _downscale(image, _scale_factor(math.prod(image.size), _MAX_PIXELS)) or image
    while True:
        buffer = io.BytesIO()
        try:
            mode = _PNG_MODES.get(image.mode)
            (image if mode is None else image.convert(mode)).save(buffer, kind)
        except Exception as error:
            raise BadValueError(f"a PIL image of mode {text(image.mode, 20)}: {text(error, 80)}") from error
        smaller = _downscale(image, _scale_factor(len(buffer.getvalue()), most_bytes))
        if smaller is None or smaller.size == image.size:
            return _media_bytes(searchable(image_file(buffer.getvalue())))
        image = smaller


def _encode_pixels(pixels: Any, most_bytes: int) -> MediaBytes:  # noqa: ANN401 - numpy's
    pixels = pixels.transpose(1, 2, 0) if _is_channels_first(pixels.shape) else pixels
    factor = _scale_factor(math.prod(pixels.shape[:2]), _MAX_PIXELS)
    while True:
        pixels = pixels[::factor, ::factor]
        image = png(pixels)
        factor = _scale_factor(len(image.raw), most_bytes)
        if factor == 1 or max(pixels.shape[:2]) == 1:
            return _media_bytes(image)


# ── tables and texts ──


def _encode_table(names: list[Any], rows: list[list[Any]], most_bytes: int) -> MediaBytes:
    return MediaBytes(table_json(names, rows, most_bytes), "application/json", len(rows), len(names))


def _encode_matrix(cells: list[list[Any]], labels: list[Any] | None) -> MediaBytes:
    return MediaBytes(matrix_json(cells, labels), "application/json", len(cells), len(cells))


def _encode_text(value: str) -> MediaBytes:
    return MediaBytes(redact(text(value, len(value))).encode(), "text/plain")
