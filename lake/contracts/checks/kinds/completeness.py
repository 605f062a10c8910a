"""``completeness``: rows that are there, over rows that steps or intervals imply, are at least `min` (0.95) of them.

The column counts steps or is a time. A series, told apart by `by`, implies a row for each of its usual distances
between its first and its last row; the usual distance is the median of those that it has.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from ranklake.lake.contracts.checks.kind import CheckKind, Finding, Surroundings, Watch
from ranklake.lake.contracts.model import Check

if TYPE_CHECKING:
    from ranklake.lake.contracts.checks.series import Batch

_FEWEST: Final = 8
_LEAST: Final = 0.95


def _part(check: Check, batch: "Batch") -> dict[tuple[Any, ...], list[float]]:
    """Return for each series: rows at different places, first, last, and the usual distance."""
    import numpy as np

    found = {}
    for key, along, _ in batch.series(check.by, check.columns[0]):
        steps = np.diff(along[~np.isnan(along)] if along.dtype.kind == "f" else along)
        steps = steps[steps > 0]
        usual = float(np.median(steps)) if len(steps) else 0.0
        found[key] = [len(steps) + 1, float(along[0]), float(along[-1]), usual]
    return found


def _judge(check: Check, parts: Sequence[dict[tuple[Any, ...], list[float]]], about: Surroundings) -> Finding:
    from ranklake.lake.contracts.checks.series import listed, told

    del about
    least = _LEAST if check.min is None else float(check.min)
    series: dict[tuple[Any, ...], list[list[float]]] = {}
    for part in parts:
        for key, facts in part.items():
            series.setdefault(key, []).append(facts)
    due = lacking = 0
    lines = []
    for key, all_of in series.items():
        there = sum(facts[0] for facts in all_of)
        usual = max(all_of)[3]
        if there < _FEWEST or not usual:
            continue
        implied = round((max(facts[2] for facts in all_of) - min(facts[1] for facts in all_of)) / usual) + 1
        due += max(implied, int(there))
        if there < least * implied:
            lacking += int(implied - there)
            lines.append(f"{told(check.by, key)}: {there:,.0f} of {implied:,} rows")
    return Finding(int(due), lacking, listed(lines), f"at least {least:.4g} of the rows that each series implies")


KIND = CheckKind(
    name="completeness",
    wrong=lambda check: f"rows are missing from series along {check.columns[0]}",
    level="watch",
    needs=(("columns",), ("by",)),
    own_columns=True,
    types=frozenset({"int32", "int64", "timestamp"}),
    dimension="completeness",
    watch=Watch(_part, _judge),
)
