"""Series of a batch of rows: which rows belong to the same rank, device or metric, and in which order.

For check kinds of level ``watch``. Results that several of them need are computed once a batch.
"""

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

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


class Batch:
    """Some rows of one partition; text is dictionary-typed or plain."""

    def __init__(self, rows: pa.Table) -> None:
        self.rows = rows
        self._values: dict[str, Numbers] = {}
        self._groups: dict[tuple[str, ...], Groups] = {}
        self._orders: dict[tuple[tuple[str, ...], str], Numbers] = {}

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

    def groups(self, by: Sequence[str]) -> Groups:
        """Group rows by the values of some columns; columns that the table lacks are ignored."""
        names = tuple(name for name in by if name in self)
        if names not in self._groups:
            self._groups[names] = self._group_by(names)
        return self._groups[names]

    def order(self, by: Sequence[str], name: str) -> Numbers:
        """Return the rows ordered by series, and within one by a column."""
        names = tuple(one for one in by if one in self)
        if (names, name) not in self._orders:
            of, along = self.groups(names).of, self.values(name)
            step = np.diff(of)
            sorted_already = not np.any((step < 0) | ((step == 0) & (np.diff(along) < 0)))
            self._orders[names, name] = np.arange(len(of)) if sorted_already else np.lexsort((along, of))
        return self._orders[names, name]

    def series(self, by: Sequence[str], along: str, *names: str) -> Iterator[tuple[Key, Numbers, tuple[Numbers, ...]]]:
        """Yield (key, ordered values of `along`, values of other columns) of each series."""
        order, groups = self.order(by, along), self.groups(by)
        of = groups.of[order]
        ends = [0, *(np.flatnonzero(np.diff(of)) + 1).tolist(), len(of)]
        columns = [self.values(name)[order] for name in (along, *names)]
        for start, end in pairwise(ends):
            if end > start:
                first, *rest = (column[start:end] for column in columns)
                yield groups.keys[int(of[start])], first, tuple(rest)

    def _group_by(self, names: tuple[str, ...]) -> Groups:
        of = np.zeros(len(self), np.int64)
        distinct: list[list[Any]] = []
        for name in names:
            codes, words = value_codes(self.rows[name])
            of = of * len(words) + codes
            distinct.append(words)
        heads = np.flatnonzero(np.diff(of, prepend=-1))  # most rows are of the series of the row before
        present, numbers = np.unique(of[heads], return_inverse=True)
        of = np.repeat(numbers, np.diff(heads, append=len(of)))
        keys = []
        for number in present.tolist():
            key: list[Any] = []
            left = number
            for words in reversed(distinct):
                left, code = divmod(left, len(words))
                key.append(words[code])
            keys.append(tuple(reversed(key)))
        return Groups(of, keys)


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
