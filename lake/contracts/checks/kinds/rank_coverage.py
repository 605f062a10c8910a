"""``rank_coverage``: every rank that a run expects reports each step that any of its ranks reports.

Columns: rank and step; `by`: what a run is. A run expects the ranks that its start names, else those that reported. Of
a rank that reported within the last `tolerance` seconds (900) nothing is missing beyond its last step: that may be on
its way. A step at midnight may lie on two dates, so the first and last step of a run that goes on is not judged.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from ranklake.lake.contracts.checks.kind import CheckKind, Finding, Surroundings, Watch
from ranklake.lake.contracts.model import Check

if TYPE_CHECKING:
    from ranklake.lake.contracts.checks.series import Batch

_SETTLED_S: Final = 900.0
_MIDNIGHT_US: Final = 600_000_000
_DAY_US: Final = 86_400_000_000


def _part(check: Check, batch: "Batch") -> dict[tuple[Any, ...], list[Any]]:
    """Return for each run and rank: steps as ranges, least and greatest time, and ranks that its rows stand for."""
    import numpy as np

    rank, step = check.columns
    many = "ranks" in batch
    found: dict[tuple[Any, ...], list[Any]] = {}
    for key, steps, (when, *ranks) in batch.series((*check.by, rank), step, "ts", *(("ranks",) if many else ())):
        breaks = np.flatnonzero(np.diff(steps) > 1)
        starts, ends = steps[np.r_[0, breaks + 1]], steps[np.r_[breaks, len(steps) - 1]]
        stands_for = np.nanmax(ranks[0]) if many and not np.all(np.isnan(ranks[0])) else 1
        found[key] = [np.stack([starts, ends]), int(when.min()), int(when.max()), int(stands_for)]
    return found


def _judge(check: Check, parts: Sequence[dict[tuple[Any, ...], list[Any]]], about: Surroundings) -> Finding:
    from ranklake.lake.contracts.checks.series import listed, told

    runs: dict[tuple[Any, ...], dict[int, list[list[Any]]]] = {}
    for part in parts:
        for (*whose, rank), facts in part.items():
            runs.setdefault(tuple(whose), {}).setdefault(rank, []).append(facts)
    settled_us = about.now_us - int((check.tolerance or _SETTLED_S) * 1e6)
    due = missing = 0
    lines = []
    for run, ranks in runs.items():
        if any(facts[3] > 1 for all_of in ranks.values() for facts in all_of):
            continue  # one rank records for several
        there = {rank: _joined([facts[0] for facts in all_of]) for rank, all_of in ranks.items()}
        steps = _judged(_joined(list(there.values())), ranks, about)
        silent = max(about.worlds().get((run[0], int(run[1])), 0) - len(there), 0) if len(run) > 1 else 0
        short = {}
        for rank, own in there.items():
            late = max(facts[2] for facts in ranks[rank])
            asked = _within(steps, None, int(own[1].max())) if late > settled_us else steps
            due += _count(asked)
            if lacks := _count(asked) - _count(_common(asked, own)):
                short[rank] = lacks
        if silent and max(facts[2] for all_of in ranks.values() for facts in all_of) <= settled_us:
            due += silent * _count(steps)
            short[-1] = silent * _count(steps)
        if short:
            missing += sum(short.values())
            named = [f"rank {rank} lacks {count:,}" for rank, count in sorted(short.items()) if rank >= 0]
            named += [f"ranks that say nothing: {silent:,}"] if -1 in short else []
            lines.append(f"{told(check.by, run)}: {listed(named)} of {_count(steps):,} steps")
    least = 1.0 if check.min is None else float(check.min)
    enough = not due or 1 - missing / due >= least
    return Finding(due, 0 if enough else missing, listed(lines), f"at least {least:.4g} of the steps of each rank")


def _joined(ranges: list[Any]) -> Any:  # noqa: ANN401 - an array of starts and ends
    """Return the union of ranges of whole numbers."""
    import numpy as np

    if len(ranges) == 1:  # one batch's, which are in order and apart
        return ranges[0]
    starts, ends = np.concatenate(ranges, axis=1)
    order = np.argsort(starts, kind="stable")
    starts, reach = starts[order], np.maximum.accumulate(ends[order])
    new = np.r_[True, starts[1:] > reach[:-1] + 1]
    last = np.r_[np.flatnonzero(new)[1:] - 1, len(reach) - 1]
    return np.stack([starts[new], reach[last]])


def _judged(steps: Any, ranks: dict[int, list[list[Any]]], about: Surroundings) -> Any:  # noqa: ANN401 - as above
    """Leave out the first and last step of a run that was there before, or goes on after, the date."""
    import calendar

    begin = calendar.timegm(about.day.timetuple()) * 1_000_000
    first = min(facts[1] for all_of in ranks.values() for facts in all_of)
    last = max(facts[2] for all_of in ranks.values() for facts in all_of)
    low = int(steps[0][0]) + 1 if first - begin < _MIDNIGHT_US else None
    high = int(steps[1][-1]) - 1 if begin + _DAY_US - last < _MIDNIGHT_US else None
    return _within(steps, low, high)


def _within(ranges: Any, low: int | None, high: int | None) -> Any:  # noqa: ANN401 - as above
    import numpy as np

    starts = ranges[0] if low is None else np.maximum(ranges[0], low)
    ends = ranges[1] if high is None else np.minimum(ranges[1], high)
    return np.stack([starts, ends])[:, starts <= ends]


def _common(some: Any, others: Any) -> Any:  # noqa: ANN401 - as above
    """Return what two unions of ranges have in common."""
    import numpy as np

    if others.shape[1] == 1:  # a rank without a gap, as most are
        return _within(some, int(others[0][0]), int(others[1][0]))
    first = np.searchsorted(others[1], some[0])
    last = np.searchsorted(others[0], some[1], side="right")
    rows = np.repeat(np.arange(some.shape[1]), np.maximum(last - first, 0))
    offset = np.arange(len(rows)) - np.repeat(np.cumsum(np.maximum(last - first, 0)) - np.maximum(last - first, 0),
                                              np.maximum(last - first, 0))  # fmt: skip
    other = np.repeat(first, np.maximum(last - first, 0)) + offset
    return np.stack([np.maximum(some[0][rows], others[0][other]), np.minimum(some[1][rows], others[1][other])])


def _count(ranges: Any) -> int:  # noqa: ANN401 - as above
    return int((ranges[1] - ranges[0] + 1).sum())


KIND = CheckKind(
    name="rank_coverage",
    wrong=lambda _: "ranks of a run do not report all of its steps",
    level="watch",
    needs=(("columns",), ("by",)),
    own_columns=True,
    pair=True,
    dimension="coverage",
    watch=Watch(_part, _judge, also=("ts", "ranks")),
)
