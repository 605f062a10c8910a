"""Media value: what a script gives as an image, table, confusion matrix or text, held until it can be made bytes.

Holding is what training waits for: at most a copy of `MOST_HELD_BYTES`. Making bytes is for the background.
"""

import io
import json
import math
import os
import stat
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, Final

from ranklake.capture.assets.image_file import MOST_PIXELS, ImageFile, image_file, png
from ranklake.capture.common.gaps import TOO_LARGE, RefusedError
from ranklake.capture.common.values import BadValueError, DeviceValueError, number, plain, redacted, text
from ranklake.redaction.redact import redact

IMAGE, TABLE, CONFUSION_MATRIX, TEXT = "image", "table", "confusion_matrix", "text"
KINDS: Final = (IMAGE, TABLE, CONFUSION_MATRIX, TEXT)
MOST_HELD_BYTES: Final = 16 << 20
"""Of one value: copying so much takes some milliseconds."""
MOST_ROWS: Final = 1000
MOST_COLUMNS: Final = 50
MOST_CLASSES: Final = 100
_LONGEST_CELL: Final = 1024
_LONGEST_LABEL: Final = 80


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
    if _frame_rows(value) is not None or isinstance(value, Mapping | list | tuple):
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
    if kind == TEXT:
        if not isinstance(value, str):
            raise BadValueError(f"{type(value).__name__} as text")
        _refuse_above(len(value), most_bytes, "characters")
        return Held(partial(_text, value), len(value))
    if kind == TABLE:
        names, rows = _rows(value, columns)
        return Held(partial(_table, names, rows), 64 * (len(rows) + 1) * max(1, len(names)))
    if kind == CONFUSION_MATRIX:
        cells, words = _matrix(value), None if labels is None else list(islice(labels, MOST_CLASSES + 1))
        return Held(partial(_confusion, cells, words), 64 * len(cells) ** 2)
    if isinstance(value, bytes | bytearray):
        _refuse_above(len(value), most_bytes, "bytes")
        return Held(partial(_image_of, bytes(value)), len(value))
    if isinstance(value, str | os.PathLike):
        return Held(partial(_image_at, Path(value), most_bytes), 0)
    if _is_pillows(value):
        width, height = value.size
        _refuse_above(width * height, MOST_PIXELS // 4, "pixels")
        return Held(partial(_pillows, value.copy()), 4 * width * height)
    pixels = _array(value)
    return Held(partial(_pixels, pixels), pixels.nbytes)


def _refuse_device(value: object) -> None:
    device = getattr(value, "device", None)
    where = text(getattr(device, "type", None) or getattr(device, "platform", "cpu"), 40)  # torch's word, jax's word
    if where != "cpu":
        raise DeviceValueError(f"it is on {where}: pass value.cpu()")


def _refuse_above(size: int, most: int, what: str) -> None:
    if size > most:
        raise RefusedError(TOO_LARGE, f"{size:,} {what}, at most {most:,}")


# ── images ──


def _is_pillows(value: object) -> bool:
    return callable(getattr(value, "save", None)) and hasattr(value, "size") and hasattr(value, "mode")


def _array(value: Any) -> Any:  # noqa: ANN401 - numpy's, which is not imported here
    """Return a copy of an array or tensor as numpy's."""
    _refuse_device(value)
    if not hasattr(value, "shape") or not hasattr(value, "__array__"):
        raise BadValueError(f"{type(value).__name__} as an image: bytes, a path, an array, a tensor or a PIL image")
    _refuse_above(math.prod(value.shape) * _item_bytes(value), MOST_HELD_BYTES, "bytes of pixels")
    given = value.detach() if hasattr(value, "detach") else value
    if hasattr(given, "is_floating_point") and given.is_floating_point():
        given = given.float()  # numpy has no bfloat16
    return given.__array__().copy()


def _item_bytes(value: Any) -> int:  # noqa: ANN401 - an array or a tensor
    size = getattr(value.dtype, "itemsize", 8)
    return size if isinstance(size, int) else 8


def _made(image: ImageFile) -> Made:
    return Made(image.raw, image.media_type, image.height, image.width)


def _image_of(raw: bytes) -> Made:
    return _made(image_file(raw))


def _image_at(path: Path, most_bytes: int) -> Made:
    try:
        if not stat.S_ISREG(path.stat().st_mode):  # opening a FIFO would wait for its writer
            raise BadValueError(f"{path.name}: no file")
        with path.open("rb") as file:
            raw = file.read(most_bytes + 1)
    except (OSError, ValueError) as error:
        raise BadValueError(f"{path.name}: {getattr(error, 'strerror', None) or type(error).__name__}") from error
    _refuse_above(len(raw), most_bytes, "bytes")
    return _image_of(raw)


def _pillows(image: Any) -> Made:  # noqa: ANN401 - Pillow's
    buffer = io.BytesIO()
    try:
        image.save(buffer, "PNG")
    except Exception as error:
        raise BadValueError(f"a PIL image of mode {text(image.mode, 20)}: {text(error, 80)}") from error
    return _image_of(buffer.getvalue())


def _pixels(pixels: Any) -> Made:  # noqa: ANN401 - numpy's
    return _made(png(pixels))


# ── tables, matrices, texts ──


def _frame_rows(value: Any) -> Iterable[Sequence[Any]] | None:  # noqa: ANN401 - pandas' or Polars'
    """Return the rows of a data frame; None if it is none."""
    if not hasattr(value, "columns"):
        return None
    rows: Iterable[Sequence[Any]] | None = None
    if callable(getattr(value, "iter_rows", None)):
        rows = value.iter_rows()
    elif callable(getattr(value, "itertuples", None)):
        rows = value.itertuples(index=False, name=None)
    return rows


def _rows(value: Any, columns: Any) -> tuple[list[Any], list[list[Any]]]:  # noqa: ANN401 - anything
    """Return names of columns, and rows that are the caller's no longer; cells may be anything."""
    frame = _frame_rows(value)
    if frame is not None:
        _refuse_above(len(value.columns), MOST_COLUMNS, "columns")
        columns = list(value.columns) if columns is None else columns
        some = [list(row) for row in islice(frame, MOST_ROWS + 1)]
    elif isinstance(value, Mapping):
        columns = list(islice(value, MOST_COLUMNS + 1)) if columns is None else columns
        lists = [_cells(value[name]) for name in islice(value, MOST_COLUMNS + 1)]
        if len({len(one) for one in lists}) > 1:
            raise BadValueError("columns of a table are of different lengths")
        some = [list(row) for row in zip(*lists, strict=True)]
    else:
        given = list(islice(_cells(value), MOST_ROWS + 1))
        if columns is None and given and all(isinstance(row, Mapping) for row in given):
            columns = list(islice(dict.fromkeys(name for row in given for name in row), MOST_COLUMNS + 1))
        names = list(islice(columns or (), MOST_COLUMNS + 1))
        some = [
            [row.get(name) for name in names]
            if isinstance(row, Mapping)
            else list(islice(_cells(row), MOST_COLUMNS + 1))
            for row in given
        ]
    width = max(map(len, some), default=0)
    names = list(islice(range(width) if columns is None else columns, MOST_COLUMNS + 1))
    _refuse_above(len(some), MOST_ROWS, "rows or more")
    _refuse_above(max(width, len(names)), MOST_COLUMNS, "columns or more")
    if any(len(row) != len(names) for row in some) or not names:
        raise BadValueError(f"a table whose rows do not have a cell for each of {len(names)} columns")
    return names, some


def _cells(value: Any) -> Sequence[Any]:  # noqa: ANN401 - a list, or what can be made one
    if isinstance(value, str | bytes | Mapping) or not hasattr(value, "__len__"):
        raise BadValueError(f"{type(value).__name__} in the place of a list")
    _refuse_device(value)
    _refuse_above(len(value), MOST_ROWS, "rows")
    if isinstance(value, list | tuple):
        return value
    _refuse_above(math.prod(getattr(value, "shape", ())), MOST_ROWS * MOST_COLUMNS, "cells")
    return value.tolist() if hasattr(value, "tolist") else list(value)


def _table(names: list[Any], rows: list[list[Any]]) -> Made:
    told = {
        "columns": [redacted(name, _LONGEST_LABEL) for name in names],
        "rows": [[_cell(cell) for cell in row] for row in rows],
    }
    return Made(_json(told), "application/json", len(rows), len(names))


def _cell(value: object) -> Any:  # noqa: ANN401 - JSON's
    shown = redact(plain(value))
    if isinstance(shown, str):
        return text(shown, _LONGEST_CELL)
    return text(json.dumps(shown), _LONGEST_CELL) if isinstance(shown, dict | list) else shown


def _matrix(value: Any) -> list[list[Any]]:  # noqa: ANN401 - an array, a tensor or lists
    rows = _cells(value)
    _refuse_above(len(rows), MOST_CLASSES, "classes")
    some = [list(islice(_cells(row), MOST_CLASSES + 1)) for row in rows]
    if not some or any(len(row) != len(some) for row in some):
        raise BadValueError("a confusion matrix has as many columns as rows")
    return some


def _confusion(cells: list[list[Any]], labels: list[Any] | None) -> Made:
    if labels is not None and len(labels) != len(cells):
        raise BadValueError(f"{len(labels)} labels of {len(cells)} classes")
    counts = [[number(cell) for cell in row] for row in cells]
    if not all(math.isfinite(one) and one >= 0 for row in counts for one in row):
        raise BadValueError("a confusion matrix with a NaN, an infinity or a number below 0")
    told = {
        "labels": [redacted(one, _LONGEST_LABEL) for one in (range(len(cells)) if labels is None else labels)],
        "counts": [[int(one) if one.is_integer() else one for one in row] for row in counts],
    }
    return Made(_json(told), "application/json", len(cells), len(cells))


def _text(value: str) -> Made:
    return Made(redact(text(value, len(value))).encode(), "text/plain")


def _json(told: Mapping[str, Any]) -> bytes:
    return json.dumps(told, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode()
