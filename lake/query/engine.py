"""DataFusion as the lake uses it: with an allocator that keeps memory for reuse, and few threads.

DataFusion comes from here, so that it is loaded once and in this way.

JSON in SQL: functions that take a value out of a column of JSON, such as ``config`` and ``labels`` of ``runs``.

DataFusion has neither PostgreSQL's operator ``->>`` nor functions of its own for it.
"""

import json
import math
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

import pyarrow as pa

from ranklake.cores import usable_cores


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


_ALLOCATOR: Final = {"MIMALLOC_PURGE_DELAY": "1000"}
"""For DataFusion's own allocator, which reads its settings when it is loaded: milliseconds that freed memory is kept.

As it comes it gives memory back after 10 ms, and a third of a query's CPU time goes into getting it again.
"""

_FOOTERS_AT_ONCE: Final = 2
"""Files whose footers are read side by side. DataFusion's 32 make as many threads, and each keeps memory of its own."""


@contextmanager
def _environment(variables: Mapping[str, str]) -> Iterator[None]:
    """Add variables to the environment for as long as it takes; what somebody set stays."""
    added = [name for name in variables if name not in os.environ]
    os.environ.update({name: variables[name] for name in added})
    try:
        yield
    finally:
        for name in added:
            del os.environ[name]


with _environment(_ALLOCATOR):
    from datafusion import DataFrame, Expr, SessionConfig, SessionContext, SQLOptions, col, lit, udf
    from datafusion.functions import coalesce

BATCH_ROWS: Final = 65_536
"""Aggregates over everything take up to a fifth less time than with DataFusion's 8,192."""

_JSON_FUNCTIONS: Final = (
    udf(json_text, [pa.string(), pa.string()], pa.string(), "immutable", name="json_text"),
    udf(json_number, [pa.string(), pa.string()], pa.float64(), "immutable", name="json_number"),
)

__all__ = [
    "BATCH_ROWS",
    "DataFrame",
    "Expr",
    "SQLOptions",
    "SessionConfig",
    "SessionContext",
    "coalesce",
    "col",
    "engine",
    "lit",
    "udf",
]


def engine(threads: int | None = None, batch_rows: int = 8192) -> SessionContext:
    """Return a session without tables.

    Parameters
    ----------
    threads
        Partitions that a query runs in; default one per core.
    batch_rows
        Rows that go through it at a time.
    """
    config = SessionConfig().with_target_partitions(threads or usable_cores())
    config = config.with_information_schema(enabled=True).with_batch_size(batch_rows)
    config = config.set("datafusion.execution.meta_fetch_concurrency", str(_FOOTERS_AT_ONCE))
    # Contracts put their facts into field metadata. DataFusion merges it where tables meet and then takes its own
    # result for another schema; names and types are checked elsewhere.
    ctx = SessionContext(config.set("datafusion.execution.skip_physical_aggregate_schema_check", "true"))
    for function in _JSON_FUNCTIONS:
        ctx.register_udf(function)
    return ctx
