"""JSON in SQL: functions that take a value out of a column of JSON, such as ``config`` and ``labels`` of ``runs``.

DataFusion has neither PostgreSQL's operator ``->>`` nor functions of its own for it.
"""

import json
import math
from typing import Any

import pyarrow as pa


def json_text(texts: pa.Array, paths: pa.Array) -> pa.Array:
    """Return the value at a path of each text of JSON, as text; NULL where there is none.

    A path is a key, or keys with dots between them: a key that has dots itself goes before. Texts come without quotes,
    truth values as ``true`` and ``false``, objects and lists as JSON.
    """
    return pa.array(_values(texts, paths), pa.string())


def json_number(texts: pa.Array, paths: pa.Array) -> pa.Array:
    """Return the value at a path of each text of JSON, as a number; NULL where it is none, or not finite."""
    return pa.array([_number(text) for text in _values(texts, paths)], pa.float64())


def _values(texts: pa.Array, paths: pa.Array) -> list[str | None]:
    """Return the value of each row as text; ranks of a run have the same JSON, which is read once a batch."""
    pairs = list(zip(texts.to_pylist(), paths.to_pylist(), strict=True))
    shown = {(text, path): _shown(text, path) for text, path in dict.fromkeys(pairs) if None not in (text, path)}
    return [shown.get(pair) for pair in pairs]


def _shown(text: str, path: str) -> str | None:
    try:
        value = _at(json.loads(text), path)
    except (ValueError, RecursionError):
        return None
    if value is None or isinstance(value, str):
        return value
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _at(value: Any, path: str) -> Any:  # noqa: ANN401 - JSON
    """Return what is at a path of a value; None if nothing is.

    >>> _at({"a.b": 1, "a": {"b": 2, "c": [3, 4]}}, "a.b"), _at({"a": {"c": [3, 4]}}, "a.c.1")
    (1, 4)
    """
    if isinstance(value, list):
        key, _, rest = path.partition(".")
        within = value[int(key)] if key.isdecimal() and len(key) < 10 and int(key) < len(value) else None  # noqa: PLR2004
        return _at(within, rest) if rest else within
    if not isinstance(value, dict):
        return None
    if path in value:
        return value[path]
    parts = path.split(".")
    heads = (place for place in range(len(parts) - 1, 0, -1) if ".".join(parts[:place]) in value)
    return next((_at(value[".".join(parts[:place])], ".".join(parts[place:])) for place in heads), None)


def _number(text: str | None) -> float | None:
    try:
        number = float(text) if text is not None else math.nan
    except ValueError:
        return None
    return number if math.isfinite(number) else None
