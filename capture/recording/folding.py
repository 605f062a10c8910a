"""Folding: values that find no room as rows of their own, folded into one row per series and interval."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from ranklake.capture.common.gaps import AGGREGATED
from ranklake.capture.lanes.double_buffer import INTERVAL_CODES, DoubleBuffer
from ranklake.capture.metrics.aggregate import Aggregate

if TYPE_CHECKING:
    from ranklake.capture.common.gaps import Gaps
    from ranklake.capture.lanes.shards import AnyLane
    from ranklake.capture.series.series import Series

_EVERY_NS: Final = 10 * 10**9


class Folding:
    """Takes what the lanes ``scalars`` and ``rows`` have no room for.

    Each value that is folded is counted as a gap, "aggregated", since no row of its own is recorded; the row that it
    is folded into is a recorded row like any other. A value that finds no room here either is counted by the lane
    ``intervals``.
    """

    def __init__(self, intervals: "Callable[[], AnyLane]", series: "Series", gaps: "Gaps") -> None:
        self._intervals = intervals
        self._twin: DoubleBuffer | None = None
        self._series, self._gaps = series, gaps
        self._folds: dict[int, Aggregate] = {}

    def scalar(self, moment: float, step: float, value: float, series: float) -> None:
        """Fold the fields of a slot of ``scalars``."""
        del moment
        self._fold(int(series), int(step), value)

    def row(self, moment: float, step: float, *values: float) -> None:
        """Fold the fields of a slot of ``rows``, the last of which is the schema."""
        del moment
        for series, value in zip(self._series.metrics_of(int(values[-1])), values[:-1], strict=True):
            self._fold(series, int(step), value)

    def after_fork(self) -> None:
        """In a forked child: the rows are the parent's."""
        self._folds = {}

    def _fold(self, series: int, step: int, value: float) -> None:
        fold = self._folds.get(series)
        if fold is None:
            if self._twin is None:
                self._twin = DoubleBuffer(self._intervals(), INTERVAL_CODES)
            fold = self._folds.setdefault(series, Aggregate("", self._twin, _number(series), _EVERY_NS, _never))
        if fold.take(value, step):
            self._gaps.count("scalars", AGGREGATED, 1, "the disk budget is nearly used up")


def _number(series: int) -> Callable[[], int]:
    return lambda: series


def _never(*_: object) -> None:
    """Numbers are numbers already when they come here."""
