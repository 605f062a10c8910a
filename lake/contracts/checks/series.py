"""Series of a batch of rows: which rows belong to the same rank, device or metric, and in which order.

For check kinds of level ``watch``. Results that several of them need are computed once a batch.
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

_NAMED: Final = 3
_LONGEST: Final = 80


class Groups(NamedTuple):
    """Number of each row's series, and the key of each series."""

    of: Numbers
    keys: list[Key]


class Order(NamedTuple):
    """Rows in order of their series: key of each series, its bounds in that order (one more), and the rows.

    `rows` is None where they are in that order already.
    """

    keys: list[Key]
    bounds: Numbers
    rows: Numbers | None


class Batch:
    """Some rows of one partition; text is dictionary-typed or plain."""

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
        """Return a column of numbers or times (µs since 1970): integers if no value is NULL, else floats with NaN."""
        if name not in self._values:
            column = self.rows[name]
            if pa.types.is_temporal(column.type):
                column = column.cast(pa.int64()) if not pa.types.is_date(column.type) else column.cast(pa.int32())
            self._values[name] = column.to_numpy()
        return self._values[name]

    def where(self, name: str, text: str, columns: Sequence[str]) -> "Batch":
        """Select some columns of the rows in which a column of text has this value."""
        words = self.rows[name]
        if pa.types.is_dictionary(words.type):
            there = pa.chunked_array([chunk.dictionary for chunk in words.chunks], words.type.value_type)
            if not pc.any(pc.equal(there, text)).as_py():
                return Batch(self.rows.select(columns).slice(0, 0))
        return Batch(self.rows.select(columns).filter(pc.equal(words.cast(pa.string()), text)))

    def groups(self, by: Sequence[str]) -> Groups:
        """Group rows by the values of some columns; columns that the table lacks are ignored."""
        names = tuple(name for name in by if name in self)
        if names not in self._groups:
            self._groups[names] = self._group_by(names)
        return self._groups[names]

    def order(self, by: Sequence[str], along: str) -> Order:
        """Order rows by series, and within one by a column."""
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
        """Values of a column in an order."""
        values = self.values(name)
        return values if order.rows is None else values[order.rows]

    def filled(self, by: Sequence[str], along: str, name: str) -> tuple[list[Key], Numbers, Numbers, Numbers]:
        """Return keys and bounds of the series that have values of a column, and `along` and the values themselves."""
        order = self.order(by, along)
        places, values, bounds = self.ordered(order, along), self.ordered(order, name), order.bounds
        if values.dtype.kind == "f":
            there = ~np.isnan(values)
            places, values, bounds = places[there], values[there], within(bounds, there)
        has = np.diff(bounds) > 0
        keys = [key for key, is_there in zip(order.keys, has.tolist(), strict=True) if is_there]
        return keys, np.append(bounds[:-1][has], len(values)), places, values

    def _group_by(self, names: tuple[str, ...]) -> Groups:
        is_head = heads_of([self.rows[name] for name in names], len(self))
        heads = np.flatnonzero(is_head)
        first_rows = self.rows.select(names).filter(pa.array(is_head))
        of = np.zeros(len(heads), np.int64)
        distinct: list[list[Any]] = []
        for name in names:
            codes, words = value_codes(first_rows[name])
            of = of * len(words) + codes
            distinct.append(words)
        present, begin, numbers = np.unique(of, return_index=True, return_inverse=True)
        appearance = np.argsort(begin)  # numbered so, series that follow one another need no sorting
        place = np.empty_like(appearance)
        place[appearance] = np.arange(len(appearance))
        keys = []
        for number in present[appearance].tolist():
            key: list[Any] = []
            left = number
            for words in reversed(distinct):
                left, code = divmod(left, len(words))
                key.append(words[code])
            keys.append(tuple(reversed(key)))
        return Groups(np.repeat(place[numbers], np.diff(heads, append=len(self))), keys)


def heads_of(columns: Sequence[pa.ChunkedArray], rows: int) -> npt.NDArray[np.bool_]:
    """Which rows have another value in some column than the row before has, the first, and perhaps some more."""
    heads = np.zeros(rows, bool)
    heads[:1] = True
    for column in columns:
        heads |= _changes(column)
    return heads


def _changes(column: pa.ChunkedArray) -> npt.NDArray[np.bool_]:
    """Where a column has another value than in the row before, and perhaps at some rows more."""
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


def within(bounds: Numbers, chosen: Numbers) -> Numbers:
    """Bounds of series among those of their values that are chosen (a mask).

    >>> within(np.array([0, 2, 5]), np.array([True, False, True, True, False])).tolist()
    [0, 1, 3]
    """
    return np.append(0, np.cumsum(chosen))[bounds]


def steps_of(values: Numbers, bounds: Numbers) -> tuple[Numbers, Numbers]:
    """Distance of each value from the one before in its series, of which none is empty, and the bounds of these.

    >>> [array.tolist() for array in steps_of(np.array([1, 3, 9, 2, 3]), np.array([0, 2, 3, 5]))]
    [[2, 1], [0, 1, 1, 2]]
    """
    return np.delete(np.diff(values), bounds[1:-1] - 1), bounds - np.arange(len(bounds))


def medians(values: Numbers, bounds: Numbers) -> Numbers:
    """Median of each series' values, which are never NaN; NaN of a series without any. As `numpy.median` gives it.

    >>> medians(np.array([5, 1, 3, 8, 2]), np.array([0, 3, 3, 5])).tolist()
    [3.0, nan, 5.0]
    """
    lengths = np.diff(bounds)
    middle = np.full(len(lengths), np.nan)
    for length in np.unique(lengths[lengths > 0]).tolist():  # most series of a batch are of a few lengths
        alike = np.flatnonzero(lengths == length)
        low, high = (length - 1) // 2, length // 2
        series = np.partition(values[bounds[alike][:, None] + np.arange(length)], sorted({low, high}), axis=1)
        middle[alike] = series[:, low] if low == high else (series[:, low].astype(float) + series[:, high]) / 2
    return middle


def label(by: Sequence[str], key: Key) -> str:
    """Return a series in words, such as ``run r1, rank 3``."""
    return ", ".join(
        f"{name} {printable(str(value))[:_LONGEST]}" for name, value in zip(by, key, strict=False) if value is not None
    )


def first_of(lines: Sequence[str]) -> str:
    """Return the first few of some findings in one line, and how many more there are."""
    more = f"; and {len(lines) - _NAMED} more" if len(lines) > _NAMED else ""
    return "; ".join(lines[:_NAMED]) + more


def median_and_spread(values: Sequence[float]) -> tuple[float, float]:
    """Return median and spread: the median of the distances from it, scaled to a normal deviation."""
    numbers = np.asarray(values, float)
    middle = float(np.median(numbers))
    return middle, 1.4826 * float(np.median(np.abs(numbers - middle)))


def weighted_median(medians: Sequence[tuple[float, float]]) -> float:
    """Median of several (count, median): of the parts in order of their medians, the one that holds the middle value.

    >>> weighted_median([(10, 5.0), (90, 7.0), (5, 6.0)])
    7.0
    """
    counts, values = np.asarray(medians, float).T
    order = np.argsort(values, kind="stable")
    reach = np.cumsum(counts[order])
    return float(values[order][np.searchsorted(reach, reach[-1] / 2)])


def usual_distance(parts: Sequence[tuple[float, float, float]]) -> float:
    """Usual distance of a series' rows, from (rows, first, usual distance) of its parts; 0 if unknown.

    It is that of the part with the most rows. Where each part has one row, it is the distance between parts.

    >>> usual_distance([(2, 0.0, 15.0), (4, 60.0, 10.0)]), usual_distance([(1, 60.0, 0.0), (1, 0.0, 0.0)])
    (10.0, 60.0)
    """
    usual = max((rows, distance) for rows, _, distance in parts)[1]
    between = np.diff(np.sort([first for _, first, _ in parts])) if not usual else np.empty(0)
    between = between[between > 0]
    return float(np.median(between)) if len(between) else usual


def quartiles_of_others(values: Sequence[float]) -> Numbers:
    """Return, for each of at least three values, the quartiles of all the others: rows of three, as `numpy.quantile`.

    One sort serves all, so that a partition of 10,000 series costs no more than that.
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
    """Return a number for a person."""
    return f"{value:,.0f}" if abs(value) >= 1000 or value == int(value) else f"{value:.4g}"  # noqa: PLR2004


def seconds(microseconds: float) -> str:
    """Return a length of time for a person."""
    return f"{figure(microseconds / 1e6)} s"
