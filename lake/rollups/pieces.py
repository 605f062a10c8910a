"""Splits a large date into ranges of one column of its group key, of which a few are computed at once.

No group has rows in two of them, so the result is that of the whole date; but memory holds only the state of a few,
and it stays in the caches. Where to cut is told by the Delta log alone: files know their range and their rows.
"""

import math
from typing import Final

import numpy as np
import pyarrow as pa

PIECE_COST: Final = 8_000_000
"""What a piece may cost, in rows: a group weighs as much as `GROUP_COST` rows, since it has as many results."""
LEAST_COST: Final = 1_000_000
"""What a piece must cost to be computed beside others: below it, planning a query costs more than is saved."""
GROUP_COST: Final = 8
WHOLE_RANGE: Final = (-(2**63), 2**63 - 1)

AT_ONCE: Final = 4
"""Most pieces that are computed side by side, so that memory has a limit on machines of many cores."""

Range = tuple[int, int]
"""First and last value, both included."""


def ranges(live: pa.Table, column: str, cost: int = PIECE_COST, at_once: int = 1) -> list[Range]:
    """Return ranges of a column that cover all integers, in order, each with about as much to do.

    Parameters
    ----------
    live
        Files as `ranklake.lake.tables.live_files.files` returns them, with bounds of `column` and of ``rank``.
    cost
        How much a piece may cost.
    at_once
        How many are computed side by side: a date that is worth it gives each of them something to do.

    Rows are taken to lie evenly between a file's bounds, and each rank of it to have all of its groups. One range where
    bounds are missing: cutting is never needed for the result.
    """
    names = [f"min.{column}", f"max.{column}", "min.rank", "max.rank"]
    if not live.num_rows or not set(names) <= set(live.column_names) or any(live[name].null_count for name in names):
        return [WHOLE_RANGE]
    low, high, first, last = (live[name].to_numpy().astype(np.float64) for name in names)
    rows = live["num_records"].to_numpy()
    weights = rows * (1 + GROUP_COST / (last - first + 1))
    total = float(weights.sum())
    count = math.ceil(total / cost)
    if total >= at_once * LEAST_COST:
        count = math.ceil(count / at_once) * at_once
    if count <= 1:
        return [WHOLE_RANGE]
    density = weights / (high - low + 1)
    points = np.concatenate([low, high + 1])
    changes = np.concatenate([density, -density])
    order = np.argsort(points, kind="stable")
    points, changes = points[order], changes[order]
    done = np.concatenate([[0], np.cumsum(np.cumsum(changes)[:-1] * np.diff(points))])
    size = total / count
    cuts = size * np.arange(1, count)
    # a file that begins is the best place: what a cut goes through is read on both sides of it
    marks = np.interp(np.unique(low), points, done)
    nearest = marks[[np.abs(marks - cut).argmin() for cut in cuts]]
    cuts = np.where(np.abs(nearest - cuts) <= size / 3, nearest, cuts)
    places = sorted({round(float(place)) for place in np.interp(cuts, done, points)})
    places = [place for place in places if WHOLE_RANGE[0] < place <= WHOLE_RANGE[1]]
    begins = [WHOLE_RANGE[0], *places]
    return list(zip(begins, [*(begin - 1 for begin in places), WHOLE_RANGE[1]], strict=True))
