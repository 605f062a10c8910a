"""Histograms of a metric of a run over its steps: shares of values by range and step, and quantiles of each step."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from ranklake.insight.runs import statements
from ranklake.insight.runs.asking import Ask, QueriedFacts, Row
from ranklake.insight.runs.media import matches
from ranklake.lake.query.literal import literal

MOST_STEPS: Final = 100
RANGES: Final = 40
"""Number of value ranges in a map."""
QUANTILES: Final = (0.05, 0.5, 0.95)
_MOST_ROWS: Final = 20_000
_OUTSIDE: Final = 0.002
"""Share of values in each outermost range, so that a spike does not compress the rest into one row."""
_LARGEST: Final = float(np.finfo(np.float64).max)
Array = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class StepHistogram:
    """Histogram of a step's values on all ranks.

    Attributes
    ----------
    low, high, counts
        Bounds and counts of ranges, in order; zero has its own range, from 0 to 0.
    mean
        None if sums overflowed.
    """

    step: int
    low: Array
    high: Array
    counts: Array
    mean: float | None

    @property
    def count(self) -> int:
        """Number of finite values."""
        return int(self.counts.sum())

    def counts_below(self, limits: Array) -> Array:
        """Return the number of values below each limit, assuming even distribution within ranges."""
        with np.errstate(invalid="ignore", over="ignore", divide="ignore"):
            share = (limits[:, None] / 2 - self.low / 2) / (self.high / 2 - self.low / 2)  # halves: no overflow
        share = np.where(self.high > self.low, share, limits[:, None] > self.low)
        return np.asarray(np.clip(np.nan_to_num(share), 0, 1) @ self.counts)

    def quantile(self, ratio: float) -> float:
        """Return the value below which a share of the values lies, from 0 to 1."""
        cumulative = np.cumsum(self.counts)
        place = min(int(np.searchsorted(cumulative, ratio * cumulative[-1])), len(cumulative) - 1)
        within = (ratio * cumulative[-1] - (cumulative[place] - self.counts[place])) / max(self.counts[place], 1)
        low, high = float(self.low[place]), float(self.high[place])
        return min(max(low * (1 - float(within)) + high * float(within), low), high)


@dataclass(frozen=True, slots=True)
class HistogramMap:
    """A metric's histograms.

    Attributes
    ----------
    limits
        `RANGES` + 1 rising limits; the outermost ranges also include all values beyond.
    answer
        The rows of the histograms, or the reason why they are hidden from the role.
    is_cut
        Whether there were more rows than are read.
    """

    metric: str
    steps: tuple[StepHistogram, ...]
    limits: tuple[float, ...]
    answer: QueriedFacts
    is_cut: bool = False

    def shares(self) -> list[list[float]]:
        """Return one row per range, from the least values up: the share of each step's values."""
        inner = np.array(self.limits[1:-1])
        columns = []
        for each in self.steps:
            below = np.concatenate([[0.0], each.counts_below(inner), [each.count]])
            columns.append(np.diff(below) / each.count)
        return [list(map(float, row)) for row in np.array(columns).T]


def histogram_metrics(ask: Ask, run: str, patterns: Sequence[str], most: int) -> list[str]:
    """Return the metrics of a run with histograms by step whose names match a pattern."""
    sql = f"SELECT DISTINCT metric FROM distributions WHERE run = {literal(run)} AND step IS NOT NULL ORDER BY metric"  # noqa: S608 - quoted
    names = [str(row["metric"]) for row in ask(sql).rows]
    return [name for name in names if matches(name, patterns)][:most]


def histogram_map(ask: Ask, run: str, metric: str) -> HistogramMap:
    """Return the histograms of a metric over at most `MOST_STEPS` steps; the last attempt for repeated steps."""
    answer = ask(statements.of_run("histograms", run, metric, parts=MOST_STEPS, most=_MOST_ROWS))
    steps = []
    for step, group in groupby(answer.rows, lambda row: int(row["step"])):
        rows = list(group)
        newest = [row for row in rows if row["attempt"] == rows[-1]["attempt"]]
        if histogram := _step_histogram(step, newest):
            steps.append(histogram)
    return HistogramMap(metric, tuple(steps), _limits(steps), answer, len(answer.rows) == _MOST_ROWS)


def _step_histogram(step: int, rows: Sequence[Row]) -> StepHistogram | None:
    """Return the histogram of rows of a step; None without values."""
    counts: dict[tuple[float, float], float] = {}
    for row in rows:
        least, greatest = row["min"], row["max"]
        for low, high, count in _ranges(row):
            # A bucket may be wider than its values; rows have the least and greatest value.
            pair = (
                low if least is None else max(low, min(least, high)),
                high if greatest is None else min(high, max(greatest, low)),
            )
            counts[pair] = counts.get(pair, 0) + count
    total = sum(counts.values())
    if not total:
        return None
    ordered = sorted(counts)
    with np.errstate(over="ignore", invalid="ignore"):
        mean = sum(row["sum"] for row in rows if row["sum"] is not None) / total
    limits = np.clip(np.array(ordered, dtype=np.float64), -_LARGEST, _LARGEST)
    each = np.array([counts[pair] for pair in ordered])
    return StepHistogram(step, limits[:, 0], limits[:, 1], each, mean if np.isfinite(mean) else None)


def _ranges(row: Row) -> list[tuple[float, float, float]]:
    """Return the nonempty ranges of a row: bucket i holds magnitudes above 2^(i·2^-scale), up to the next."""
    ranges: list[tuple[float, float, float]] = [(0.0, 0.0, row["zero_count"])] if row["zero_count"] else []
    for side, sign in (("positive", 1.0), ("negative", -1.0)):
        for place, count in enumerate(row[f"{side}_counts"] or ()):
            if count and count > 0:
                index = (row[f"{side}_offset"] or 0) + place
                ends = sorted(sign * _power(index + more, row["scale"]) for more in (0, 1))
                ranges.append((ends[0], ends[1], float(count)))
    return ranges


def _power(index: int, scale: int) -> float:
    try:
        return float(2.0 ** (index * 2.0**-scale))
    except OverflowError:
        return _LARGEST


def _limits(steps: Sequence[StepHistogram]) -> tuple[float, ...]:
    """Return the limits of the ranges that the steps share; empty without values."""
    if not steps:
        return ()
    ends: list[tuple[Any, ...]] = [(each.quantile(_OUTSIDE), each.quantile(1 - _OUTSIDE)) for each in steps]
    low, high = min(end[0] for end in ends), max(end[1] for end in ends)
    if low == high:
        low, high = low - abs(low) * 0.5 - 0.5, high + abs(high) * 0.5 + 0.5
    share = np.linspace(0, 1, RANGES + 1)
    return tuple(map(float, low * (1 - share) + high * share))
