"""``clock_skew``: ranks of a run begin the same step within `max` seconds (60), and nothing is of the future.

Columns: time, rank and step; `by`: what a run is. A rank is off by the median, over steps that it shares with the
others, of its distance from their median. A single late step is no skew.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from ranklake.lake.contracts.checks.kind import CheckKind, Finding, Surroundings, Watch
from ranklake.lake.contracts.model import Check

if TYPE_CHECKING:
    from ranklake.lake.contracts.checks.series import Batch

_MOST_S: Final = 60.0
_STEPS: Final = 128
_FEWEST: Final = 3
_PAIR: Final = 2


def _part(check: Check, batch: "Batch") -> tuple[dict[tuple[Any, ...], tuple[Any, Any]], int, int]:
    """Return steps and times of each rank, thinned to some at numbers that all batches agree on; rows; newest time."""
    import numpy as np

    when, rank, step = check.columns
    found = {}
    for key, steps, (times,) in batch.series((*check.by, rank), step, when):
        every = 1 << max(0, (len(steps) // _STEPS).bit_length())
        chosen = steps % every == 0
        found[key] = (steps[chosen], times[chosen])
    return found, len(batch), int(np.max(batch.values(when)))


def _judge(check: Check, parts: Sequence[Any], about: Surroundings) -> Finding:
    import numpy as np

    from ranklake.lake.contracts.checks.series import listed, seconds, told

    limit_us = (_MOST_S if check.max is None else float(check.max)) * 1e6
    rows = sum(part[1] for part in parts)
    runs: dict[tuple[Any, ...], dict[int, list[Any]]] = {}
    for some, _, _ in parts:
        for (*whose, rank), at in some.items():
            runs.setdefault(tuple(whose), {}).setdefault(rank, []).append(at)
    lines, off_rows = [], 0
    for run, ranks in runs.items():
        if len(ranks) < _PAIR:
            continue  # nobody to compare with
        room_us = limit_us / (2 if len(ranks) == _PAIR else 1)  # of two the median is half-way between
        own = [_latest(pieces) for pieces in ranks.values()]
        seen = np.array([len(steps) for steps, _ in own])
        whose = np.repeat(np.arange(len(own)), seen)
        steps, times = (np.concatenate(some) for some in zip(*own, strict=True))
        at, middle, count = _medians(steps, times)
        place = np.searchsorted(at, steps)
        shared = count[place] > 1
        who, offs, count = _medians(whose[shared], (times - middle[place])[shared])
        names = list(ranks)
        for number, off in zip(who[count >= _FEWEST].tolist(), offs[count >= _FEWEST].tolist(), strict=True):
            if abs(off) > room_us:
                off_rows += int(seen[number])
                lines.append(f"{told((*check.by, check.columns[1]), (*run, names[number]))}: off by {seconds(off)}")
    ahead = max((part[2] for part in parts), default=0) - about.now_us
    if ahead > limit_us:
        off_rows = max(off_rows, 1)
        lines.append(f"newest row {seconds(ahead)} in the future")
    return Finding(rows, min(off_rows, rows), listed(lines), f"clocks within {limit_us / 1e6:,.4g} s")


def _latest(pieces: Sequence[tuple[Any, Any]]) -> tuple[Any, Any]:
    """Return steps, in order, and their times of one rank; of a step that comes twice, the last."""
    import numpy as np

    steps, times = (np.concatenate(some)[::-1] for some in zip(*pieces, strict=True))
    steps, first = np.unique(steps, return_index=True)
    return steps, times[first]


def _medians(keys: Any, values: Any) -> tuple[Any, Any, Any]:  # noqa: ANN401 - arrays
    """Return distinct keys in order, the median of each one's values, and how many those are."""
    import numpy as np

    order = np.lexsort((values, keys))
    found, begin, count = np.unique(keys[order], return_index=True, return_counts=True)
    low, high = (values[order][begin + half] for half in ((count - 1) // 2, count // 2))
    return found, (low + high) / 2, count


KIND = CheckKind(
    name="clock_skew",
    wrong=lambda _: "clocks of ranks disagree",
    level="watch",
    needs=(("columns",), ("by",)),
    own_columns=True,
    dimension="accuracy",
    watch=Watch(_part, _judge),
)
