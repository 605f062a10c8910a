"""What a look at a column, instead of at each of its values, can already say of a check.

Nearly always all rows are good. A column's extremes show that they lie in a range, its distinct words that they match a
pattern. Each function below returns how many rows a check can say something of, if surely none of them fails it; else
None, and Great Expectations is asked. `ranklake.quality.forms` says which function goes with which kind.
"""

import math
from datetime import UTC
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from ranklake.lake.contracts.checks.kinds.metric_range import metric_ends
from ranklake.lake.contracts.checks.masks import checked, failures

if TYPE_CHECKING:
    from ranklake.lake.contracts.checks.kind import Ranges
    from ranklake.lake.contracts.model import Check


class Screen:
    """Looks at some rows of one table; what checks have in common is computed once.

    Parameters
    ----------
    rows
        Columns under the contract's types, text dictionary-typed.
    ranges
        Valid range of each metric.
    """

    def __init__(self, rows: pa.Table, ranges: "Ranges") -> None:
        self.rows, self.ranges = rows, ranges
        self._extremes: dict[str, tuple[Any, Any]] = {}
        self._finite: dict[str, bool] = {}
        self._words: dict[str, pa.ChunkedArray] = {}

    def valid(self, name: str) -> int:
        """Return how many values a column has."""
        return int(self.rows.num_rows - self.rows[name].null_count)

    def finite(self, name: str) -> bool:
        """Say whether a column has neither NaN nor infinity; False where that is not sure."""
        if name not in self._finite:
            column = self.rows[name]
            total = pc.sum(column).as_py() if pa.types.is_floating(column.type) else None
            self._finite[name] = total is None or math.isfinite(total)
        return self._finite[name]

    def extremes(self, name: str) -> tuple[Any, Any]:
        """Return the least and the greatest value of a column as Python values, which compare exactly."""
        if name not in self._extremes:
            ends = pc.min_max(self.rows[name])
            self._extremes[name] = (ends["min"].as_py(), ends["max"].as_py())
        return self._extremes[name]

    def words(self, name: str) -> pa.ChunkedArray:
        """Return the distinct values of a column, perhaps with some that none of these rows has."""
        if name not in self._words:
            column = self.rows[name]
            if pa.types.is_dictionary(column.type):
                column = pa.chunked_array([chunk.dictionary for chunk in column.chunks], column.type.value_type)
            self._words[name] = pa.chunked_array([pc.unique(column).drop_null()])
        return self._words[name]


def not_null(screen: Screen, check: "Check") -> int | None:
    """Clear a column that is full."""
    judged = screen.valid(check.columns[0])
    return judged if judged == screen.rows.num_rows else None


def between(screen: Screen, check: "Check") -> int | None:
    """Clear a column whose extremes lie in the range."""
    (name,) = check.columns
    ends = screen.extremes(name)
    if pa.types.is_temporal(screen.rows[name].type):
        of = pa.table({name: pa.array(ends, screen.rows[name].type)})
        inside = not pc.any(failures(check, of, screen.ranges)).as_py()
    else:
        least, greatest = ends
        inside = (check.min is None or least >= check.min) and (check.max is None or greatest <= check.max)
    return screen.valid(name) if inside else None


def by_word(screen: Screen, check: "Check") -> int | None:
    """Clear a column whose distinct values all pass."""
    (name,) = check.columns
    bad = failures(check, pa.table({name: screen.words(name)}), screen.ranges)
    return None if pc.any(bad).as_py() else screen.valid(name)


def by_row(screen: Screen, check: "Check") -> int | None:
    """Clear rows that all pass, by the mask: still a tenth of what Great Expectations costs."""
    rows = screen.rows.select(list(dict.fromkeys(check.columns)))
    if pc.any(failures(check, rows, screen.ranges)).as_py():
        return None
    if all(column.null_count == 0 for column in rows.columns):
        return int(rows.num_rows)
    return checked(check, rows, screen.ranges)


def at_most(screen: Screen, check: "Check") -> int | None:
    """Clear rows that all pass, unless a float is checked against an integer."""
    floats = {pa.types.is_floating(screen.rows[name].type) for name in check.columns}
    return by_row(screen, check) if len(floats) == 1 else None  # a float may not tell two large integers apart


def finite(screen: Screen, check: "Check") -> int | None:
    """Clear a column that `clear` has found to be finite."""
    return screen.valid(check.columns[0])


def dated(screen: Screen, check: "Check") -> int | None:
    """Clear rows whose times and dates are all of one day."""
    moment, day = check.columns
    if screen.rows[moment].null_count or screen.rows[day].null_count:
        return None
    days = {*screen.extremes(day), *(one.astimezone(UTC).date() for one in screen.extremes(moment))}
    return int(screen.rows.num_rows) if len(days) == 1 else None


def metric_range(screen: Screen, check: "Check") -> int | None:
    """Clear values that lie in the ranges of their metrics."""
    judged: int = 0
    for batch in screen.rows.select(list(check.columns)).to_batches():
        metric, value = batch.columns
        low, high = (ends.take(metric.indices) for ends in metric_ends(metric.dictionary, screen.ranges))
        if pc.any(pc.or_(pc.less(value, low), pc.greater(value, high))).as_py():
            return None
        judged += len(batch) - int(pc.add(value, low).null_count)
    return judged
