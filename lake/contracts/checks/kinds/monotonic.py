"""``monotonic``: a counter never falls, but to nearly 0 where it was reset.

A fall to no more than `max` (0.1) of the value before is a reset. Of a table with a column ``kind`` only counters are
judged. Falls between two batches are seen where their series do not overlap in time.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from ranklake.lake.contracts.checks.kind import CheckKind, Finding, Surroundings, Watch
from ranklake.lake.contracts.model import NUMBERS, Check

if TYPE_CHECKING:
    from ranklake.lake.contracts.checks.series import Batch

_RESET: Final = 0.1


def _part(check: Check, batch: "Batch") -> dict[tuple[Any, ...], list[float]]:
    """Return for each series: values, falls, resets, and its first and last time and value."""
    import numpy as np

    share = _RESET if check.max is None else float(check.max)
    names = (*check.by, "kind") if "kind" in batch else check.by
    found = {}
    for key, moments, (told,) in batch.series(names, "ts", check.columns[0]):
        there = ~np.isnan(told) if told.dtype.kind == "f" else np.ones(len(told), bool)
        values, when = told[there], moments[there]
        if not len(values) or (len(names) > len(check.by) and key[-1] != "counter"):
            continue
        down = values[1:] < values[:-1]
        resets = down & (values[1:] <= share * values[:-1])
        found[key] = [len(values), int(down.sum() - resets.sum()), int(resets.sum()), float(when[0]), float(values[0]),
                      float(when[-1]), float(values[-1])]  # fmt: skip
    return found


def _judge(check: Check, parts: Sequence[dict[tuple[Any, ...], list[float]]], about: Surroundings) -> Finding:
    from itertools import pairwise

    from ranklake.lake.contracts.checks.series import listed, told

    del about
    share = _RESET if check.max is None else float(check.max)
    series: dict[tuple[Any, ...], list[list[float]]] = {}
    for part in parts:
        for key, facts in part.items():
            series.setdefault(key, []).append(facts)
    rows = wrong = resets = 0
    lines = []
    for key, all_of in series.items():
        falls = int(sum(facts[1] for facts in all_of))
        for before, after in pairwise(sorted(all_of, key=lambda facts: facts[3])):
            if before[5] < after[3] and share * before[6] < after[4] < before[6]:
                falls += 1
        rows += int(sum(facts[0] for facts in all_of))
        resets += int(sum(facts[2] for facts in all_of))
        wrong += falls
        if falls:
            lines.append(f"{told(check.by, key)}: falls: {falls:,}")
    if not rows:
        return Finding(unknown="there is no counter")
    return Finding(rows, wrong, listed(lines), f"no fall (resets: {resets:,})")


KIND = CheckKind(
    name="monotonic",
    wrong=lambda check: f"the counter {check.columns[0]} falls without a reset",
    level="watch",
    needs=(("columns",), ("by",)),
    own_columns=True,
    types=NUMBERS - {"decimal"},
    dimension="consistency",
    watch=Watch(_part, _judge, also=("ts", "kind")),
)
