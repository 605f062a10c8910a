"""Typed rows: converts an importer's rows to the contract's types; their ranks, and how they are split by date."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any, Final

import numpy as np
import pyarrow as pa

from ranklake.capture.common.arrays import Array, numbers, plain
from ranklake.capture.sealing.rows import FLAGS, NO_ROWS, Columns, Rows
from ranklake.lake.contracts.arrow import arrow_schema
from ranklake.lake.contracts.load import contract
from ranklake.lake.contracts.overlay import Overlay
from ranklake.segments.segment import DATES_PER_SEGMENT

_DAY_NS: Final = 86_400 * 10**9
SEVERAL: Final = -1
"""Where a rank stands: that of the stream for rows of several."""


def stream_of(rows: Rows) -> tuple[int, Rows]:
    """Return the stream that rows go into, and the rows as they go there: with their ranks only where they differ."""
    low, high = extent_of(rows) or (0, 0)
    if low != high:
        return SEVERAL, rows
    return low, replace(rows, columns={name: column for name, column in rows.columns.items() if name != RANK})


def extent_of(rows: Rows) -> tuple[int, ...]:
    """Return the least and the greatest rank; nothing where there is no row."""
    ranks = rows.columns[RANK].to_numpy() if len(rows) else NO_ROWS.slots
    return (int(ranks.min()), int(ranks.max())) if len(ranks) else ()


def cuts_of(rows: Rows) -> list[Rows]:
    """Return rows in parts of no more dates than ingest takes from a segment; nearly always that is one."""
    _, firsts = np.unique(rows.mono_ns // _DAY_NS, return_index=True)
    if len(firsts) <= DATES_PER_SEGMENT:
        return [rows] if len(rows) else []
    end = int(np.sort(firsts)[DATES_PER_SEGMENT])
    return [_slice(rows, 0, end), *cuts_of(_slice(rows, end, len(rows)))]


def _slice(rows: Rows, begin: int, end: int) -> Rows:
    columns = {name: column[begin:end] for name, column in rows.columns.items()}
    return Rows(rows.mono_ns[begin:end], np.arange(end - begin), columns, 0)


RANK: Final = "rank"
_ENVELOPE: Final = frozenset({"run", "attempt", "rank", "incarnation", "segment", "slot", "ts"})


@lru_cache(maxsize=256)
def fields_of(table: str, overlay: Overlay | None = None) -> tuple[pa.Field, ...]:
    """Return the columns of a table that an importer may fill."""
    schema = arrow_schema(contract(table, overlay), segment=True)
    return tuple(item for item in schema if item.name not in _ENVELOPE)


def typed_columns(table: str, given: list[Mapping[str, Any]], fields: Sequence[pa.Field]) -> Columns | None:
    """Return the columns that rows have values for; None if a value does not fit, or a required one is missing."""
    named = set().union(*(row.keys() for row in given)) if given else set()
    unknown = named - {item.name for item in fields}
    assert not unknown, f"{table} has no {sorted(unknown)}"
    columns: Columns = {}
    try:
        for item in fields:
            if item.name in named:
                values = [row.get(item.name) for row in given]
                if not item.nullable and None in values:
                    return None
                columns[item.name] = plain(values, item.type)
            elif not item.nullable:
                return None
    except (TypeError, ValueError, OverflowError):
        return None
    return columns


def joined(fields: Sequence[pa.Field], batches: list[tuple[Array, Columns, Array]]) -> Rows:
    """Return the rows of several batches: times, columns and ranks of each."""
    if not batches:
        return NO_ROWS
    times = np.concatenate([times for times, *_ in batches])
    columns: Columns = {RANK: numbers(np.concatenate([ranks for *_, ranks in batches]), pa.int32())}
    for item in fields:
        if any(item.name in some for _, some, _ in batches):
            parts = [some[item.name] if item.name in some else pa.nulls(len(at), item.type) for at, some, _ in batches]
            columns[item.name] = pa.concat_arrays(parts)
    return Rows(times, np.arange(len(times)), columns, 0)


def fit(times: list[int]) -> bool:
    """Say whether times are ones that a segment can hold."""
    return all(isinstance(ts_ns, int) and abs(ts_ns) < 1 << 62 for ts_ns in times)


def flag_of(value: float) -> str:
    """Return how a value that is not finite is flagged."""
    return FLAGS[0] if math.isnan(value) else FLAGS[1] if value > 0 else FLAGS[2]


def narrow(value: float) -> float:
    """Return a value as a float of 32 bits holds it."""
    with np.errstate(over="ignore"):
        return float(np.float32(value))
