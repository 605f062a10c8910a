"""JSON in SQL: functions that take a value out of a column of JSON, such as ``config`` and ``labels`` of ``runs``.

DataFusion has neither PostgreSQL's operator ``->>`` nor functions of its own for it.
"""

import json
import math
from typing import Any

import pyarrow as pa


def json_text(texts: pa.Array, paths: pa.Array) -> pa.Array:
    """Return the value at a path of each text of JSON, as text; NULL where there is none.

    A path is a key, or keys with dots between them; a key that itself contains the dots wins. Texts come without
    quotes, truth values as ``true`` and ``false``, objects and lists as JSON.
    """
    return pa.array(_values(texts, paths), pa.string())


def json_number(texts: pa.Array, paths: pa.Array) -> pa.Array:
    """Return the value at a path of each text of JSON, as a number; NULL where it is no number, or not finite."""
    return pa.array([_number(text) for text in _values(texts, paths)], pa.float64())


def _values(texts: pa.Array, paths: pa.Array) -> list[str | None]:
    """Return the value of each row as text; ranks of a run have the same JSON, which is read once a batch."""
    pairs = list(zip(texts.to_pylist(), paths.to_pylist(), strict=True))
    text_by_pair = {
        (text, path): _value_text(text, path) for text, path in dict.fromkeys(pairs) if None not in (text, path)
    }
    return [text_by_pair.get(pair) for pair in pairs]


def _value_text(text: str, path: str) -> str | None:
    try:
        value = _value_at(json.loads(text), path)
    except (ValueError, RecursionError):
        return None
    if value is None or isinstance(value, str):
        return value
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _value_at(value: Any, path: str) -> Any:  # noqa: ANN401 - JSON
    """Return the value at a path of a value; None if there is none.

    >>> _value_at({"a.b": 1, "a": {"b": 2, "c": [3, 4]}}, "a.b"), _value_at({"a": {"c": [3, 4]}}, "a.c.1")
    (1, 4)
    """
    if isinstance(value, list):
        key, _, rest = path.partition(".")
        item = value[int(key)] if key.isdecimal() and len(key) < 10 and int(key) < len(value) else None  # noqa: PLR2004
        return _value_at(item, rest) if rest else item
    if not isinstance(value, dict):
        return None
    if path in value:
        return value[path]
    parts = path.split(".")
    lengths = (length for length in range(len(parts) - 1, 0, -1) if ".".join(parts[:length]) in value)
    return next((_value_at(value[".".join(parts[:size])], ".".join(parts[size:])) for size in lengths), None)


def _number(text: str | None) -> float | None:
    try:
        number = float(text) if text is not None else math.nan
    except ValueError:
        return None
    return number if math.isfinite(number) else None
