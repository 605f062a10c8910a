"""Cutting a large date into ranges of one column of its group key, which are computed one after the other.

No group has rows in two of them, so the result is that of the whole date; but memory holds only the state of one, and
it stays in the caches. Where to cut is told by the Delta log alone: files know their range and their rows.
"""

from typing import Final

import numpy as np
import pyarrow as pa

PIECE_COST: Final = 8_000_000
"""What a piece may cost, in rows: a group weighs as much as `GROUP_COST` rows, since it has as many results."""
GROUP_COST: Final = 8
WHOLE_RANGE: Final = (-(2**63), 2**63 - 1)

Range = tuple[int, int]
"""First and last value, both included."""


def ranges(live: pa.Table, column: str, cost: int = PIECE_COST) -> list[Range]:
    """Return ranges of a column that cover all integers, in order, each with about as much to do.

    Parameters
    ----------
    live
        Files as `ranklake.lake.commit.files` returns them, with bounds of `column` and of ``rank``.
    cost
        How much a piece may cost.

    Rows are taken to lie evenly between a file's bounds, and each rank of it to have all of its groups. One range where
    bounds are missing: cutting is never needed for the result.
    """
    names = [f"min.{column}", f"max.{column}", "min.rank", "max.rank"]
    if not live.num_rows or not set(names) <= set(live.column_names) or any(live[name].null_count for name in names):
        return [WHOLE_RANGE]
    low, high, first, last = (live[name].to_numpy().astype(np.float64) for name in names)
    rows = live["num_records"].to_numpy()
    weights = rows * (1 + GROUP_COST / (last - first + 1))
    if weights.sum() <= cost:
        return [WHOLE_RANGE]
    density = weights / (high - low + 1)
    points = np.concatenate([low, high + 1])
    changes = np.concatenate([density, -density])
    order = np.argsort(points, kind="stable")
    points, changes = points[order], changes[order]
    done = np.concatenate([[0], np.cumsum(np.cumsum(changes)[:-1] * np.diff(points))])
    total = float(weights.sum())
    cuts, at = [], 0.0
    # a file that begins is the best place: what a cut goes through is read on both sides of it
    for mark in [*np.interp(np.unique(low), points, done)[1:], total]:
        whole = max(1, round((mark - at) / cost))
        if whole > 1:
            cuts += list(at + (mark - at) * np.arange(1, whole) / whole)
        if mark - at >= cost / 2:
            cuts.append(float(mark))
            at = float(mark)
    places = sorted({round(float(place)) for place in np.interp([cut for cut in cuts if cut < total], done, points)})
    places = [place for place in places if WHOLE_RANGE[0] < place <= WHOLE_RANGE[1]]
    begins = [WHOLE_RANGE[0], *places]
    return list(zip(begins, [*(begin - 1 for begin in places), WHOLE_RANGE[1]], strict=True))
