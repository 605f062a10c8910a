"""``refers``: each value of the column stands in the same column of the table that `values` names.

Values whose newest row is no older than `tolerance` seconds (900) are not judged: what they refer to may be on its way.
A lake whose other table has no rows at all says nothing.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from ranklake.lake.contracts.checks.kind import CheckKind, Finding, Surroundings, Watch
from ranklake.lake.contracts.model import Check

if TYPE_CHECKING:
    from ranklake.lake.contracts.checks.series import Batch

_SETTLED_S: Final = 900.0


def _part(check: Check, batch: "Batch") -> dict[Any, list[int]]:
    """Return rows and newest time of each value."""
    import numpy as np

    groups = batch.groups(check.columns)
    count = np.bincount(groups.of, minlength=len(groups.keys))
    newest = np.zeros(len(groups.keys), np.int64)
    np.maximum.at(newest, groups.of, batch.values("ts"))
    return {key[0]: [int(count[at]), int(newest[at])] for at, key in enumerate(groups.keys) if key[0] is not None}


def _judge(check: Check, parts: Sequence[dict[Any, list[int]]], about: Surroundings) -> Finding:
    from ranklake.lake.contracts.checks.series import listed, told

    (table,), (column,) = check.values, check.columns
    found: dict[Any, list[int]] = {}
    for part in parts:
        for value, (rows, newest) in part.items():
            known = found.get(value, [0, 0])
            found[value] = [known[0] + rows, max(known[1], newest)]
    known_values = about.known(str(table), column)
    if known_values is None:
        return Finding(unknown=f"{table} has no rows")
    settled_us = about.now_us - int((check.tolerance or _SETTLED_S) * 1e6)
    lost = {
        value: rows for value, (rows, newest) in found.items() if value not in known_values and newest <= settled_us
    }
    lines = [f"{told((column,), (value,))} ({rows:,} rows)" for value, rows in lost.items()]
    total = sum(rows for rows, _ in found.values())
    return Finding(total, sum(lost.values()), listed(lines), f"each {column} in {table}")


KIND = CheckKind(
    name="refers",
    wrong=lambda check: f"{check.columns[0]} is not in {', '.join(map(str, check.values))}",
    level="watch",
    needs=(("columns",), ("values",)),
    own_columns=True,
    dimension="consistency",
    watch=Watch(_part, _judge, also=("ts",)),
)
