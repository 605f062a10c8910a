"""Groups the rows of a batch into series, one per rank, device or metric, and orders them within each series.

Check kinds of level ``watch`` use it. Groups and orders that several checks need are computed once per batch.

Values of all series are kept in one array. `bounds` has one more item than there are series: series ``i`` has the
values ``bounds[i]:bounds[i + 1]``.
"""

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from ranklake.lake.contracts.arrow import value_codes
from ranklake.printable import printable

Numbers = npt.NDArray[Any]
Key = tuple[Any, ...]

_LINES: Final = 3
_LONGEST: Final = 80


class Groups(NamedTuple):
    """Series number of each row (`of`), and the key of each series."""

    of: Numbers
    keys: list[Key]


class Order(NamedTuple):
    """Rows ordered by series: keys of the series, their bounds, and the row numbers in this order.

    `rows` is None if the batch is already in this order.
    """

    keys: list[Key]
    bounds: Numbers
    rows: Numbers | None


class Batch:
    """A batch of rows of one partition. Text columns may be dictionary-encoded."""

    def __init__(self, rows: pa.Table) -> None:
        self.rows = rows
        self._values: dict[str, Numbers] = {}
        self._groups: dict[tuple[str, ...], Groups] = {}
        self._orders: dict[tuple[tuple[str, ...], str], Order] = {}

    def __len__(self) -> int:
        return int(self.rows.num_rows)

    def __contains__(self, name: object) -> bool:
        return name in self.rows.column_names

    def values(self, name: str) -> Numbers:
        """Return a column of numbers or times (µs since 1970); floats with NaN for NULL if any value is NULL."""
        if name not in self._values:
            column = self.rows[name]
            if pa.types.is_temporal(column.type):
                column = column.cast(pa.int64()) if not pa.types.is_date(column.type) else column.cast(pa.int32())
            self._values[name] = column.to_numpy()
        return self._values[name]

    def where(self, name: str, text: str, columns: Sequence[str]) -> "Batch":
        """Return a batch with some columns of the rows in which the text column `name` equals `text`."""
        values = self.rows[name]
        if pa.types.is_dictionary(values.type):
            distinct = pa.chunked_array([chunk.dictionary for chunk in values.chunks], values.type.value_type)
            if not pc.any(pc.equal(distinct, text)).as_py():
                return Batch(self.rows.select(columns).slice(0, 0))
        return Batch(self.rows.select(columns).filter(pc.equal(values.cast(pa.string()), text)))

    def groups(self, by: Sequence[str]) -> Groups:
        """Group rows by the values of some columns. Columns that the batch lacks are ignored."""
        names = tuple(name for name in by if name in self)
        if names not in self._groups:
            self._groups[names] = self._group_by(names)
        return self._groups[names]

    def order(self, by: Sequence[str], along: str) -> Order:
        """Order rows by series, and within each series by the column `along`."""
        names = tuple(name for name in by if name in self)
        if (names, along) not in self._orders:
            of, keys = self.groups(names)
            values = self.values(along)
            step = np.diff(of)
            is_sorted = not np.any((step < 0) | ((step == 0) & (np.diff(values) < 0)))
            rows = None if is_sorted else np.lexsort((values, of))
            bounds = np.append(0, np.cumsum(np.bincount(of, minlength=len(keys))))
            self._orders[names, along] = Order(keys, bounds, rows)
        return self._orders[names, along]

    def ordered(self, order: Order, name: str) -> Numbers:
        """Return the values of a column in the given order."""
        values = self.values(name)
        return values if order.rows is None else values[order.rows]

    def filled(self, by: Sequence[str], along: str, name: str) -> tuple[list[Key], Numbers, Numbers, Numbers]:
        """Return keys, bounds, `along` and values of the series that have values in the column `name`.

        Rows without a value are left out.
        """
        order = self.order(by, along)
        places, values, bounds = self.ordered(order, along), self.ordered(order, name), order.bounds
        if values.dtype.kind == "f":
            has_value = ~np.isnan(values)
            places, values, bounds = places[has_value], values[has_value], select_bounds(bounds, has_value)
        is_filled = np.diff(bounds) > 0
        keys = [key for key, has_values in zip(order.keys, is_filled.tolist(), strict=True) if has_values]
        return keys, np.append(bounds[:-1][is_filled], len(values)), places, values

    def _group_by(self, names: tuple[str, ...]) -> Groups:
        is_head = group_starts([self.rows[name] for name in names], len(self))
        heads = np.flatnonzero(is_head)
        first_rows = self.rows.select(names).filter(pa.array(is_head))
        of = np.zeros(len(heads), np.int64)
        distinct: list[list[Any]] = []
        for name in names:
            codes, words = value_codes(first_rows[name])
            of = of * len(words) + codes
            distinct.append(words)
        present, begin, numbers = np.unique(of, return_index=True, return_inverse=True)
        appearance = np.argsort(begin)  # numbered by first appearance, so that rows grouped by series need no sorting
        place = np.empty_like(appearance)
        place[appearance] = np.arange(len(appearance))
        keys = []
        for number in present[appearance].tolist():
            key: list[Any] = []
            remainder = number
            for words in reversed(distinct):
                remainder, code = divmod(remainder, len(words))
                key.append(words[code])
            keys.append(tuple(reversed(key)))
        return Groups(np.repeat(place[numbers], np.diff(heads, append=len(self))), keys)


def group_starts(columns: Sequence[pa.ChunkedArray], rows: int) -> npt.NDArray[np.bool_]:
    """Return a mask of rows that may begin a new group of equal rows.

    True for the first row and for each row that differs in some column from the row before. It may be true for further
    rows.
    """
    heads = np.zeros(rows, bool)
    heads[:1] = True
    for column in columns:
        heads |= _changes(column)
    return heads


def _changes(column: pa.ChunkedArray) -> npt.NDArray[np.bool_]:
    """Return a mask, true where a value differs from the row before. It may be true for further rows."""
    changes = np.ones(len(column), bool)
    begin = 0
    for chunk in column.chunks:
        inner = changes[begin + 1 : begin + len(chunk)]
        begin += len(chunk)
        if not pa.types.is_dictionary(chunk.type) and (chunk.null_count or not pa.types.is_primitive(chunk.type)):
            chunk = chunk.dictionary_encode()  # noqa: PLW2901
        codes = pc.fill_null(chunk.indices, -1) if pa.types.is_dictionary(chunk.type) else chunk
        numbers = codes.to_numpy(zero_copy_only=False)
        np.not_equal(numbers[1:], numbers[:-1], out=inner)
    return changes


def select_bounds(bounds: Numbers, chosen: Numbers) -> Numbers:
    """Return the bounds of series after only the values in the mask `chosen` are kept.

    >>> select_bounds(np.array([0, 2, 5]), np.array([True, False, True, True, False])).tolist()
    [0, 1, 3]
    """
    return np.append(0, np.cumsum(chosen))[bounds]


def differences(values: Numbers, bounds: Numbers) -> tuple[Numbers, Numbers]:
    """Return the difference of each value from the previous one in its series, and the bounds of the differences.

    No series may be empty.

    >>> [array.tolist() for array in differences(np.array([1, 3, 9, 2, 3]), np.array([0, 2, 3, 5]))]
    [[2, 1], [0, 1, 1, 2]]
    """
    return np.delete(np.diff(values), bounds[1:-1] - 1), bounds - np.arange(len(bounds))


def medians(values: Numbers, bounds: Numbers) -> Numbers:
    """Return the median of each series as `numpy.median` does; NaN for an empty series. Values must not be NaN.

    >>> medians(np.array([5, 1, 3, 8, 2]), np.array([0, 3, 3, 5])).tolist()
    [3.0, nan, 5.0]
    """
    lengths = np.diff(bounds)
    middle = np.full(len(lengths), np.nan)
    for length in np.unique(lengths[lengths > 0]).tolist():  # the series of a batch have few different lengths
        chosen = np.flatnonzero(lengths == length)
        low, high = (length - 1) // 2, length // 2
        series = np.partition(values[bounds[chosen][:, None] + np.arange(length)], sorted({low, high}), axis=1)
        middle[chosen] = series[:, low] if low == high else (series[:, low].astype(float) + series[:, high]) / 2
    return middle


def label(by: Sequence[str], key: Key) -> str:
    """Return the name of a series, such as ``run r1, rank 3``."""
    return ", ".join(
        f"{name} {printable(str(value))[:_LONGEST]}" for name, value in zip(by, key, strict=False) if value is not None
    )


def join_lines(lines: Sequence[str]) -> str:
    """Join the first few of some texts, and say how many more there are."""
    more = f"; and {len(lines) - _LINES} more" if len(lines) > _LINES else ""
    return "; ".join(lines[:_LINES]) + more


def median_and_spread(values: Sequence[float]) -> tuple[float, float]:
    """Return the median and the median absolute deviation, scaled to estimate a standard deviation."""
    numbers = np.asarray(values, float)
    middle = float(np.median(numbers))
    return middle, 1.4826 * float(np.median(np.abs(numbers - middle)))


def weighted_median(medians: Sequence[tuple[float, float]]) -> float:
    """Estimate the median of several parts, given as (count, median).

    Parts are sorted by their medians. The result is the median of the part that contains the middle value.

    >>> weighted_median([(10, 5.0), (90, 7.0), (5, 6.0)])
    7.0
    """
    counts, values = np.asarray(medians, float).T
    order = np.argsort(values, kind="stable")
    reach = np.cumsum(counts[order])
    return float(values[order][np.searchsorted(reach, reach[-1] / 2)])


def usual_distance(parts: Sequence[tuple[float, float, float]]) -> float:
    """Return the usual distance between rows of a series, given (rows, first, usual distance) of its parts.

    It is the usual distance of the part with the most rows. If each part has one row, it is the median distance between
    parts. 0 if unknown.

    >>> usual_distance([(2, 0.0, 15.0), (4, 60.0, 10.0)]), usual_distance([(1, 60.0, 0.0), (1, 0.0, 0.0)])
    (10.0, 60.0)
    """
    usual = max((rows, distance) for rows, _, distance in parts)[1]
    between = np.diff(np.sort([first for _, first, _ in parts])) if not usual else np.empty(0)
    between = between[between > 0]
    return float(np.median(between)) if len(between) else usual


def quartiles_of_others(values: Sequence[float]) -> Numbers:
    """Return, for each value, the quartiles of all other values as `numpy.quantile` computes them: shape (count, 3).

    Needs at least three values. All are sorted only once, because a partition may have 10,000 series.
    """
    count = len(values)
    order = np.argsort(values, kind="stable")
    ordered = np.asarray(values, dtype=float)[order]
    place = np.empty(count, dtype=np.int64)
    place[order] = np.arange(count)
    spots = np.array([0.25, 0.5, 0.75]) * (count - 2)
    low = np.floor(spots).astype(np.int64)
    high = np.minimum(low + 1, count - 2)
    below, above = (ordered[at + (at >= place[:, None])] for at in (low, high))
    quartiles: Numbers = below + (above - below) * (spots - low)
    return quartiles


def figure(value: float) -> str:
    """Return a number as text, rounded for people."""
    return f"{value:,.0f}" if abs(value) >= 1000 or value == int(value) else f"{value:.4g}"  # noqa: PLR2004


def seconds(microseconds: float) -> str:
    """Return a duration in seconds as text, given in µs."""
    return f"{figure(microseconds / 1e6)} s"
