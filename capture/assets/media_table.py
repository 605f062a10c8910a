"""Media table: a data frame, a mapping of columns, a list of rows, or a confusion matrix, as JSON.

Taking rows is what training waits for, and is bounded; what is in their cells is looked at in the background.
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
_LONGEST_CELL: Final = 1024
_MOST_ITEMS: Final = _LONGEST_CELL // 2 + 16
"""Of what a cell holds, however deep: each takes two characters of its JSON, so that more of them would not be seen."""
_LONGEST_LABEL: Final = 80
_SURELY: Final = 2
_SHORTEST_TOKEN: Final = 12

Rows = Iterable[Sequence[Any]]


def refuse_device(value: object) -> None:
    """Raise `DeviceValueError` for an array or tensor outside of main memory."""
    device = getattr(value, "device", None)
    where = text(getattr(device, "type", None) or getattr(device, "platform", "cpu"), 40)  # torch's word, jax's word
    if where != "cpu":
        raise DeviceValueError(f"it is on {where}: pass value.cpu()")


def refuse_above(size: int, most: int, noun: str) -> None:
    """Raise `RefusedError` for what is larger than it may be."""
    if size > most:
        raise RefusedError(TOO_LARGE, f"{size:,} {noun}, at most {most:,}")


def is_frame(value: Any) -> bool:  # noqa: ANN401 - anything
    """Whether something is a data frame: of pandas, Polars or pyarrow."""
    return _frame_rows(value) is not None


def rows_of(value: Any, columns: Any) -> tuple[list[Any], list[list[Any]]]:  # noqa: ANN401 - anything
    """Return names of columns, and rows that are the caller's no longer; cells may be anything.

    Raises `BadValueError` for what is no table, `RefusedError` for one of too many rows or columns.
    """
    frame = _frame_rows(value)
    if frame is not None:
        given, read = frame
        refuse_above(len(given), MOST_COLUMNS, "columns")  # before any row is: reading makes an array a column
        columns = given if columns is None else columns
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
    """Return a data frame's columns, and what reads its rows one by one; None if it is none."""
    if callable(read := getattr(value, "iter_rows", None)):  # Polars'
        return list(value.columns), read
    if callable(read := getattr(value, "itertuples", None)):  # pandas'
        return list(value.columns), lambda: read(index=False, name=None)
    if callable(getattr(value, "to_pylist", None)) and hasattr(value, "column_names"):  # pyarrow's
        return list(value.column_names), lambda: zip(
            *(column.slice(0, MOST_ROWS + 1).to_pylist() for column in value.columns), strict=True
        )
    return None


def _columns_and_rows(value: Any, columns: Any) -> tuple[Any, list[list[Any]]]:  # noqa: ANN401 - anything
    """Return names of columns, if rows have some, and the rows of a list of them."""
    given = list(islice(_cells(value), MOST_ROWS + 1))
    if columns is None and given and all(isinstance(row, Mapping) for row in given):
        columns = list(islice(dict.fromkeys(name for row in given for name in row), MOST_COLUMNS + 1))
    names = list(islice(columns or (), MOST_COLUMNS + 1))
    return columns, [
        [row.get(name) for name in names] if isinstance(row, Mapping) else list(islice(_cells(row), MOST_COLUMNS + 1))
        for row in given
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
    """Return a table as JSON: `columns`, and `rows` of cells as JSON has them, what is nested as its JSON.

    Cells are redacted like log lines, and like what a name announces: those of a column ``password`` all are.
    Raises `RefusedError` as soon as cells take more than `most_bytes`.
    """
    called = [text(name, 256) for name in names]
    shown, size = [], 0
    for row in rows:
        shown.append(list(map(_cell, _redacted_row(called, [to_json(cell, room=Room(_MOST_ITEMS)) for cell in row]))))
        size += sum(len(cell) if isinstance(cell, str) else 1 for cell in shown[-1])
        refuse_above(size, most_bytes, "characters of cells or more")
    return _json({"columns": [redacted_name(name, _LONGEST_LABEL) for name in names], "rows": shown})


def _redacted_row(names: Sequence[str], cells: Sequence[Any]) -> list[Any]:
    """Return cells without credentials: names of columns announce some, as keys do.

    A column ``token`` may as well hold words of a language model; only what is long and unbroken goes from it.
    """
    row = dict(zip(names, cells, strict=True))
    shown = list(redact(row).values()) if len(row) == len(cells) else []
    if len(shown) < len(cells):  # two columns of one name, or two names that are equal once redacted
        shown = [next(iter(redact({name: cell}).values())) for name, cell in zip(names, cells, strict=True)]
    return [
        redact(cell)
        if isinstance(cell, str) and 0 < secret_level(name) < _SURELY and (len(cell) < _SHORTEST_TOKEN or " " in cell)
        else hidden
        for name, cell, hidden in zip(names, cells, shown, strict=True)
    ]


def _cell(shown: Any) -> Any:  # noqa: ANN401 - JSON's
    if isinstance(shown, str):
        return text(shown, _LONGEST_CELL)
    return text(json.dumps(shown), _LONGEST_CELL) if isinstance(shown, dict | list) else shown


def matrix_of(value: Any) -> list[list[Any]]:  # noqa: ANN401 - an array, a tensor or lists
    """Return the cells of a confusion matrix. Raises `BadValueError` unless it is square, `RefusedError`."""
    rows = _cells(value)
    refuse_above(len(rows), MOST_CLASSES, "classes")
    cells = [list(islice(_cells(row), MOST_CLASSES + 1)) for row in rows]
    if not cells or any(len(row) != len(cells) for row in cells):
        raise BadValueError("a confusion matrix has as many columns as rows")
    return cells


def matrix_json(cells: Sequence[Sequence[Any]], labels: Sequence[Any] | None) -> bytes:
    """Return a confusion matrix as JSON: `labels` and `counts`. Raises `BadValueError` for what is no count."""
    if labels is not None and len(labels) != len(cells):
        raise BadValueError(f"{len(labels)} labels of {len(cells)} classes")
    counts = [[number(cell) for cell in row] for row in cells]
    if not all(math.isfinite(count) and count >= 0 for row in counts for count in row):
        raise BadValueError("a confusion matrix with a NaN, an infinity or a number below 0")
    return _json({
        "labels": [redacted_name(count, _LONGEST_LABEL) for count in (range(len(cells)) if labels is None else labels)],
        "counts": [[int(count) if count.is_integer() else count for count in row] for row in counts],
    })  # fmt: skip


def _json(content: Mapping[str, Any]) -> bytes:
    return json.dumps(content, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode()
