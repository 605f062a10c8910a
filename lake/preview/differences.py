"""What sets two states of a derived table apart, row by row of its key."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ranklake.lake.tables.live_files import files
from ranklake.lake.tables.read import read
from ranklake.lake.tables.table_schema import as_read
from ranklake.lake.tables.tables import latest

if TYPE_CHECKING:
    from datetime import date

    from ranklake.lake.contracts.model import Contract
    from ranklake.lake.store.store import Lake

NEAR: Final = 1e-6
"""Floats that differ by less, as a part of the greater, are the same: float32, there and back."""


@dataclass(slots=True)
class Figures:
    """A column of numbers or words, in rows that both states have.

    Attributes
    ----------
    changed
        Rows with another value.
    before, after
        Sums of its values in these rows; None of what are no numbers.
    """

    changed: int = 0
    before: float | None = None
    after: float | None = None


@dataclass(slots=True)
class RollupDifference:
    """What became of a rollup.

    Attributes
    ----------
    rows_before, rows_after, came, gone
        Rows in each state; rows whose key only one of them has.
    columns
        Columns with other values, by name.
    only_before, only_after
        Columns that only one of them has.
    stale
        Whether what is stored was computed from other inputs than there are now: then a difference may be due to that.
    error
        Why it could not be computed; empty if it could.
    """

    name: str
    rows_before: int = 0
    rows_after: int = 0
    came: int = 0
    gone: int = 0
    columns: dict[str, Figures] = field(default_factory=dict)
    only_before: tuple[str, ...] = ()
    only_after: tuple[str, ...] = ()
    stale: bool = False
    error: str = ""

    @property
    def is_same(self) -> bool:
        """Whether nothing differs."""
        lists = (self.columns, self.only_before, self.only_after)
        return not (self.came or self.gone or self.error or any(lists))


def compare(before: "Lake", after: "Lake", contract: "Contract", found: RollupDifference) -> None:
    """Add up what sets a derived table of one lake apart from that of another, a date at a time."""
    handles = [latest(lake, contract.table) for lake in (before, after)]
    paths = [_by_day(handle) for handle in handles]
    olds, new = as_read(handles[0], contract), contract
    found.only_before = tuple(name for name in olds.names if name not in new)
    found.only_after = tuple(name for name in new.names if name not in olds)
    for day in sorted(paths[0].keys() | paths[1].keys()):
        one, other = (read(lake, known, partitions=[day]) for lake, known in ((before, olds), (after, new)))
        found.rows_before += one.num_rows
        found.rows_after += other.num_rows
        if paths[0].get(day) != paths[1].get(day):
            _compare_day(one, other, [name for name in new.grain if name in olds], found)


def _by_day(handle: object) -> "dict[date, list[str]]":
    by_day: dict[date, list[str]] = {}
    for row in [] if handle is None else files(handle).select(["date", "path"]).to_pylist():  # type: ignore[arg-type]
        by_day.setdefault(row["date"], []).append(row["path"])
    return {day: sorted(paths) for day, paths in by_day.items()}


def _compare_day(one: pa.Table, other: pa.Table, grain: Sequence[str], found: RollupDifference) -> None:
    one, other = (rows.sort_by([(name, "ascending") for name in grain]) for rows in (one, other))
    if not one.select(grain).equals(other.select(grain)):
        keys = [list(zip(*(rows[name].to_pylist() for name in grain), strict=True)) for rows in (one, other)]
        both = set(keys[0]) & set(keys[1])
        found.gone += sum(key not in both for key in keys[0])
        found.came += sum(key not in both for key in keys[1])
        one, other = (
            rows.filter(pa.array([key in both for key in mine], pa.bool_()))
            for rows, mine in zip((one, other), keys, strict=True)
        )
        if one.num_rows != other.num_rows:  # a key twice: nobody can say which row became which
            found.gone, found.came = found.gone + one.num_rows, found.came + other.num_rows
            return
    for name in one.column_names:
        if name in other.column_names and (differs := _differing(one[name], other[name])).any():
            figures = found.columns.setdefault(name, Figures())
            figures.changed += int(differs.sum())
            for side, values in (("before", one[name]), ("after", other[name])):
                if (total := _sum(values)) is not None:
                    setattr(figures, side, (getattr(figures, side) or 0) + total)


def _differing(one: pa.ChunkedArray, other: pa.ChunkedArray) -> "np.ndarray[tuple[int], np.dtype[np.bool_]]":
    if one.equals(other):
        return np.zeros(len(one), bool)
    nulls = [values.is_null().to_numpy() for values in (one, other)]
    if pa.types.is_floating(one.type) and _is_number(other.type):
        a, b = (values.cast(pa.float64()).fill_null(0).to_numpy() for values in (one, other))
        apart = ~(np.isclose(a, b, rtol=NEAR, atol=0, equal_nan=True))
    else:
        apart = np.array([a != b for a, b in zip(one.to_pylist(), other.to_pylist(), strict=True)], bool)
    found: np.ndarray[tuple[int], np.dtype[np.bool_]] = np.where(nulls[0] | nulls[1], nulls[0] != nulls[1], apart)
    return found


def _is_number(type_: pa.DataType) -> bool:
    return bool(pa.types.is_floating(type_) or pa.types.is_integer(type_))


def _sum(values: pa.ChunkedArray) -> float | None:
    return float(pc.sum(values).as_py() or 0) if _is_number(values.type) else None
