"""``fresh``: of a run that goes on here, other tables are no more than `max` seconds (1800) behind.

`values` names those tables; of a run that never wrote to one, nothing is expected there. It stands at the table that
goes on, since one that gets no rows is not checked again.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from ranklake.lake.contracts.checks.kind import CheckKind, Finding, Surroundings, Watch
from ranklake.lake.contracts.model import Check

if TYPE_CHECKING:
    from ranklake.lake.contracts.checks.series import Batch

_LATEST_S: Final = 1800.0


def _part(check: Check, batch: "Batch") -> dict[Any, list[int]]:
    """Return rows and newest time of each run."""
    return {key[0]: [len(when), int(when[-1])] for key, when, _ in batch.series(("run",), check.columns[0])}


def _judge(check: Check, parts: Sequence[dict[Any, list[int]]], about: Surroundings) -> Finding:
    from ranklake.lake.contracts.checks.series import listed, seconds, told

    limit = _LATEST_S if check.max is None else float(check.max)
    runs: dict[Any, list[int]] = {}
    for part in parts:
        for run, (rows, newest) in part.items():
            known = runs.setdefault(run, [0, newest])
            runs[run] = [known[0] + rows, max(known[1], newest)]
    there = about.newest()
    judged = behind = 0
    lines = []
    for run, (rows, newest) in runs.items():
        late = {str(table): newest - there[str(table), run] for table in check.values if (str(table), run) in there}
        judged += rows if late else 0
        worst = {table: by for table, by in late.items() if by > limit * 1e6}
        behind += rows if worst else 0
        lines += [f"{told(('run',), (run,))}: {table} ends {seconds(by)} earlier" for table, by in worst.items()]
    if not judged:
        return Finding(unknown="no run of it writes to those tables")
    return Finding(judged, behind, listed(lines), f"{', '.join(map(str, check.values))} at most {limit:,.0f} s behind")


KIND = CheckKind(
    name="fresh",
    wrong=lambda check: f"of a run that goes on, {' or '.join(map(str, check.values))} stands still",
    level="watch",
    needs=(("columns",), ("values",)),
    own_columns=True,
    types=frozenset({"timestamp"}),
    dimension="timeliness",
    watch=Watch(_part, _judge, also=("run",)),
)
