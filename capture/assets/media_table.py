"""Media table: converts a data frame, a mapping of columns, a list of rows, or a confusion matrix to JSON.

Training waits while rows are copied, at most `MOST_ROWS`. Their cells are converted in the background.
"""

import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import islice
from typing import Any, Final

from ranklake.capture.common.gaps import TOO_LARGE, RefusedError
from ranklake.capture.common.values import BadValueError, DeviceValueError, Room, number, redacted_name, text, to_json
from ranklake.redaction.redact import redact
from ranklake.redaction.secret_names import secret_level

MOST_ROWS: Final = 1000
MOST_COLUMNS: Final = 50
MOST_CLASSES: Final = 100
_MAX_CELL_CHARACTERS: Final = 1024
_MAX_ITEMS: Final = _MAX_CELL_CHARACTERS // 2 + 16
"""Most items of a nested cell. Each takes at least two characters of JSON, so more would be cut off anyway."""
_MAX_LABEL_CHARACTERS: Final = 80
_CERTAIN: Final = 2
_MIN_TOKEN: Final = 12

Rows = Iterable[Sequence[Any]]


def refuse_device(value: object) -> None:
    """Raise `DeviceValueError` for an array or tensor outside of main memory."""
    device = getattr(value, "device", None)
    device_type = text(getattr(device, "type", None) or getattr(device, "platform", "cpu"), 40)  # torch, jax
    if device_type != "cpu":
        raise DeviceValueError(f"it is on {device_type}: pass value.cpu()")


def refuse_above(size: int, limit: int, noun: str) -> None:
    """Raise `RefusedError` if a size exceeds its limit."""
    if size > limit:
        raise RefusedError(TOO_LARGE, f"{size:,} {noun}, at most {limit:,}")


def is_frame(value: Any) -> bool:  # noqa: ANN401 - anything
    """Whether a value is a data frame of pandas or Polars, or a table of pyarrow."""
    return _frame_rows(value) is not None


def rows_of(value: Any, columns: Any) -> tuple[list[Any], list[list[Any]]]:  # noqa: ANN401 - anything
    """Return names of columns and copied rows; cells may be any objects.

    Raises `BadValueError` for a value that is no table, and `RefusedError` for too many rows or columns.
    """
    frame = _frame_rows(value)
    if frame is not None:
        frame_columns, read = frame
        refuse_above(len(frame_columns), MOST_COLUMNS, "columns")  # first: reading rows copies each column
        columns = frame_columns if columns is None else columns
        rows = [list(row) for row in islice(read(), MOST_ROWS + 1)]
    elif isinstance(value, Mapping):
        columns = list(islice(value, MOST_COLUMNS + 1)) if columns is None else columns
        lists = [_cells(value[name]) for name in islice(value, MOST_COLUMNS + 1)]
        if len({len(cells) for cells in lists}) > 1:
            raise BadValueError("columns of a table are of different lengths")
        rows = [list(row) for row in zip(*lists, strict=True)]
    else:
        columns, rows = _columns_and_rows(value, columns)
    width = max(map(len, rows), default=0)
    names = list(islice(range(width) if columns is None else columns, MOST_COLUMNS + 1))
    refuse_above(len(rows), MOST_ROWS, "rows or more")
    refuse_above(max(width, len(names)), MOST_COLUMNS, "columns or more")
    if any(len(row) != len(names) for row in rows) or not names:
        raise BadValueError(f"a table whose rows do not have a cell for each of {len(names)} columns")
    return names, rows


def _frame_rows(value: Any) -> tuple[Sequence[Any], Callable[[], Rows]] | None:  # noqa: ANN401 - anything
    """Return a data frame's columns, and a function that yields its rows; None for other values."""
    if callable(read := getattr(value, "iter_rows", None)):  # Polars
        return list(value.columns), read
    if callable(read := getattr(value, "itertuples", None)):  # pandas
        return list(value.columns), lambda: read(index=False, name=None)
    if callable(getattr(value, "to_pylist", None)) and hasattr(value, "column_names"):  # pyarrow
        return list(value.column_names), lambda: zip(
            *(column.slice(0, MOST_ROWS + 1).to_pylist() for column in value.columns), strict=True
        )
    return None


def _columns_and_rows(value: Any, columns: Any) -> tuple[Any, list[list[Any]]]:  # noqa: ANN401 - anything
    """Return names of columns, if rows are mappings, and the rows of a list."""
    items = list(islice(_cells(value), MOST_ROWS + 1))
    if columns is None and items and all(isinstance(row, Mapping) for row in items):
        columns = list(islice(dict.fromkeys(name for row in items for name in row), MOST_COLUMNS + 1))
    names = list(islice(columns or (), MOST_COLUMNS + 1))
    return columns, [
        [row.get(name) for name in names] if isinstance(row, Mapping) else list(islice(_cells(row), MOST_COLUMNS + 1))
        for row in items
    ]


def _cells(value: Any) -> Sequence[Any]:  # noqa: ANN401 - a list, or what can be made one
    if isinstance(value, str | bytes | Mapping) or not hasattr(value, "__len__"):
        raise BadValueError(f"{type(value).__name__} in the place of a list")
    refuse_device(value)
    refuse_above(len(value), MOST_ROWS, "rows")
    if isinstance(value, list | tuple):
        return value
    refuse_above(math.prod(getattr(value, "shape", ())), MOST_ROWS * MOST_COLUMNS, "cells")
    return value.tolist() if hasattr(value, "tolist") else list(value)


def table_json(names: Sequence[Any], rows: Iterable[Sequence[Any]], most_bytes: int) -> bytes:
    """Return a table as JSON: `columns`, and `rows` of JSON values, with nested values as JSON text.

    Cells are redacted like log lines, and by the name of their column: a column ``password`` is redacted completely.
    Raises `RefusedError` as soon as cells exceed `most_bytes`.
    """
    texts = [text(name, 256) for name in names]
    json_rows, size = [], 0
    for row in rows:
        cells = [to_json(cell, room=Room(_MAX_ITEMS)) for cell in row]
        json_rows.append(list(map(_cell, _redacted_row(texts, cells))))
        size += sum(len(cell) if isinstance(cell, str) else 1 for cell in json_rows[-1])
        refuse_above(size, most_bytes, "characters of cells or more")
    return _json({"columns": [redacted_name(name, _MAX_LABEL_CHARACTERS) for name in names], "rows": json_rows})


def _redacted_row(names: Sequence[str], cells: Sequence[Any]) -> list[Any]:
    """Redact credentials in cells, also by the names of their columns.

    A column such as ``token`` may contain words of a language model. There, only long texts without blanks are
    redacted.
    """
    row = dict(zip(names, cells, strict=True))
    redacted = list(redact(row).values()) if len(row) == len(cells) else []
    if len(redacted) < len(cells):  # two columns have equal names, or equal redacted names
        redacted = [next(iter(redact({name: cell}).values())) for name, cell in zip(names, cells, strict=True)]
    return [
        redact(cell)
        if isinstance(cell, str) and 0 < secret_level(name) < _CERTAIN and (len(cell) < _MIN_TOKEN or " " in cell)
        else redacted_cell
        for name, cell, redacted_cell in zip(names, cells, redacted, strict=True)
    ]


def _cell(value: Any) -> Any:  # noqa: ANN401 - JSON
    if isinstance(value, str):
        return text(value, _MAX_CELL_CHARACTERS)
    return text(json.dumps(value), _MAX_CELL_CHARACTERS) if isinstance(value, dict | list) else value


def matrix_of(value: Any) -> list[list[Any]]:  # noqa: ANN401 - an array, a tensor or lists
    """Return the cells of a confusion matrix. Raises `BadValueError` if not square, `RefusedError` if too large."""
    rows = _cells(value)
    refuse_above(len(rows), MOST_CLASSES, "classes")
    cells = [list(islice(_cells(row), MOST_CLASSES + 1)) for row in rows]
    if not cells or any(len(row) != len(cells) for row in cells):
        raise BadValueError("a confusion matrix has as many columns as rows")
    return cells


def matrix_json(cells: Sequence[Sequence[Any]], labels: Sequence[Any] | None) -> bytes:
    """Return a confusion matrix as JSON: `labels` and `counts`. Raises `BadValueError` for an invalid count."""
    if labels is not None and len(labels) != len(cells):
        raise BadValueError(f"{len(labels)} labels of {len(cells)} classes")
    counts = [[number(cell) for cell in row] for row in cells]
    if not all(math.isfinite(count) and count >= 0 for row in counts for count in row):
        raise BadValueError("a confusion matrix with a NaN, an infinity or a number below 0")
    labels = range(len(cells)) if labels is None else labels
    return _json({
        "labels": [redacted_name(label, _MAX_LABEL_CHARACTERS) for label in labels],
        "counts": [[int(count) if count.is_integer() else count for count in row] for row in counts],
    })  # fmt: skip


def _json(content: Mapping[str, Any]) -> bytes:
    return json.dumps(content, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode()
