"""DataFusion with the lake's settings, and SQL functions for JSON. Other modules import DataFusion's names from here.

The settings must be set before DataFusion is loaded: freed memory is kept for reuse, and few threads are started.

``json_text`` and ``json_number`` return a value from a column of JSON, such as ``config`` and ``labels`` of ``runs``.
DataFusion has neither PostgreSQL's operator ``->>`` nor JSON functions.
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
    """Return the value at a path in each JSON text, as text; NULL if there is no value.

    A path is a key, or several keys separated by dots. A key that contains the dots itself takes precedence. Strings
    are returned without quotes, Booleans as ``true`` and ``false``, objects and lists as JSON.
    """
    return pa.array(_values(texts, paths), pa.string())


def json_number(texts: pa.Array, paths: pa.Array) -> pa.Array:
    """Return the value at a path in each JSON text, as a number; NULL if it is no number or not finite."""
    return pa.array([_number(text) for text in _values(texts, paths)], pa.float64())


def _values(texts: pa.Array, paths: pa.Array) -> list[str | None]:
    """Return the value of each row as text. Equal JSON texts, such as those of a run's ranks, are parsed only once."""
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
    """Return the value at a path in a JSON value; None if there is none.

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
"""Milliseconds for which DataFusion's allocator, mimalloc, keeps freed memory. It reads this when it is loaded.

By default it returns memory to the system after 10 ms. Then a third of a query's CPU time is spent on getting it again.
"""

_PARALLEL_FOOTERS: Final = 2
"""Files whose footers are read in parallel. DataFusion's default of 32 starts 32 threads, which all keep memory."""


@contextmanager
def _environment(variables: Mapping[str, str]) -> Iterator[None]:
    """Set environment variables within the context, except for those that are set already."""
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
"""Rows per batch for large queries. Aggregates take up to a fifth less time than with DataFusion's default of 8,192."""

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
    """Return a DataFusion session without tables.

    Parameters
    ----------
    threads
        Partitions in which a query runs in parallel; default one per core.
    batch_rows
        Rows per batch.
    """
    config = SessionConfig().with_target_partitions(threads or usable_cores())
    config = config.with_information_schema(enabled=True).with_batch_size(batch_rows)
    config = config.set("datafusion.execution.meta_fetch_concurrency", str(_PARALLEL_FOOTERS))
    # Fields have metadata from contracts. DataFusion merges it in joins, and then reports its own result as a wrong
    # schema. So this check is turned off; names and types are checked elsewhere.
    ctx = SessionContext(config.set("datafusion.execution.skip_physical_aggregate_schema_check", "true"))
    for function in _JSON_FUNCTIONS:
        ctx.register_udf(function)
    return ctx
