"""Tables for Python: as Arrow, pandas or Polars, whichever the caller works with."""

from importlib import import_module
from typing import Any, Final

import pyarrow as pa

from ranklake.errors import RanklakeError, did_you_mean

KINDS: Final = ("arrow", "pandas", "polars")


class UnknownFrameError(RanklakeError):
    """No kind of table, or one whose library is not installed."""


def check_kind(kind: str) -> str:
    """Return a kind of `KINDS`. Raises `UnknownFrameError`, also where its library cannot be imported."""
    if kind not in KINDS:
        raise UnknownFrameError(f"unknown kind of table {kind!r}", where="as_", hint=did_you_mean(kind, KINDS))
    if kind != "arrow":
        _library(kind)
    return kind


def as_frame(table: pa.Table, kind: str) -> Any:  # noqa: ANN401 - the caller names the library
    """Return a table as `pyarrow.Table`, `pandas.DataFrame` or `polars.DataFrame`. Raises as `check_kind`."""
    check_kind(kind)
    if kind == "pandas":
        return table.to_pandas()
    return _library(kind).from_arrow(table) if kind == "polars" else table


def _library(kind: str) -> Any:  # noqa: ANN401 - a module
    try:
        return import_module(kind)
    except ImportError as error:
        hint = f"pip install {kind}, or leave as_ out for Arrow"
        raise UnknownFrameError(f"{kind} is not installed", where=f"as_={kind!r}", hint=hint) from error
