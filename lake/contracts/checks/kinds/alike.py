"""``alike``: all rows of a series say the same, such as the lock file of all processes of a run. NULL says nothing."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ranklake.lake.contracts.checks.kind import CheckKind, Finding, Surroundings, Watch
from ranklake.lake.contracts.model import Check

if TYPE_CHECKING:
    from ranklake.lake.contracts.checks.series import Batch


def _part(check: Check, batch: "Batch") -> dict[tuple[Any, ...], dict[Any, int]]:
    """Return rows by series and value."""
    import numpy as np

    groups = batch.groups((*check.by, check.columns[0]))
    found: dict[tuple[Any, ...], dict[Any, int]] = {}
    for key, rows in zip(groups.keys, np.bincount(groups.of, minlength=len(groups.keys)).tolist(), strict=True):
        if key[-1] is not None:
            found.setdefault(key[:-1], {})[key[-1]] = rows
    return found


def _judge(check: Check, parts: Sequence[dict[tuple[Any, ...], dict[Any, int]]], about: Surroundings) -> Finding:
    from ranklake.lake.contracts.checks.series import listed, told

    del about
    series: dict[tuple[Any, ...], dict[Any, int]] = {}
    for part in parts:
        for key, some in part.items():
            known = series.setdefault(key, {})
            for value, rows in some.items():
                known[value] = known.get(value, 0) + rows
    total = sum(sum(some.values()) for some in series.values())
    wrong, lines = 0, []
    for key, some in series.items():
        if len(some) > 1:
            wrong += sum(some.values()) - max(some.values())
            lines.append(f"{told(check.by, key)}: {len(some)} different values")
    if not total:
        return Finding(unknown="there was no value to judge")
    return Finding(total, wrong, listed(lines), "one value in each series")


KIND = CheckKind(
    name="alike",
    wrong=lambda check: f"{check.columns[0]} differs within a series",
    level="watch",
    needs=(("columns",), ("by",)),
    own_columns=True,
    dimension="consistency",
    watch=Watch(_part, _judge),
)
