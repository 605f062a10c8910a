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
    runs: dict[tuple[Any, ...], dict[int, dict[int, int]]] = {}
    for some, _, _ in parts:
        for (*whose, rank), (steps, times) in some.items():
            runs.setdefault(tuple(whose), {}).setdefault(rank, {}).update(
                zip(steps.tolist(), times.tolist(), strict=True)
            )
    lines, off_rows = [], 0
    for run, ranks in runs.items():
        if len(ranks) < _PAIR:
            continue  # nobody to compare with
        room_us = limit_us / (2 if len(ranks) == _PAIR else 1)  # of two the median is half-way between
        by_step: dict[int, list[int]] = {}
        for at in ranks.values():
            for step, time in at.items():
                by_step.setdefault(step, []).append(time)
        middle = {step: float(np.median(times)) for step, times in by_step.items() if len(times) > 1}
        for rank, at in ranks.items():
            shared = [time - middle[step] for step, time in at.items() if step in middle]
            if len(shared) >= _FEWEST and abs(off := float(np.median(shared))) > room_us:
                off_rows += len(at)
                lines.append(f"{told((*check.by, check.columns[1]), (*run, rank))}: off by {seconds(off)}")
    ahead = max((part[2] for part in parts), default=0) - about.now_us
    if ahead > limit_us:
        off_rows = max(off_rows, 1)
        lines.append(f"newest row {seconds(ahead)} in the future")
    return Finding(rows, min(off_rows, rows), listed(lines), f"clocks within {limit_us / 1e6:,.4g} s")


KIND = CheckKind(
    name="clock_skew",
    wrong=lambda _: "clocks of ranks disagree",
    level="watch",
    needs=(("columns",), ("by",)),
    own_columns=True,
    dimension="accuracy",
    watch=Watch(_part, _judge),
)
