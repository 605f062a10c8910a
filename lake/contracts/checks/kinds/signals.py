"""``signals``: each run of a stage records what runs of that stage must record.

The column says a run's stage; `pattern` says which stages are meant (of all runs, if there is none), whatever their
case. `values` are the signals: a table (``spans``), a column of one that has a value in some row (``steps.loss``), or a
metric of ``scalars`` by its name (``eval/accuracy``). A run is judged once its newest row is older than `tolerance`
seconds (3,600): a large job takes a while before its first step. `by`: what a run is, the run's name first. Runs of
agents are left out.
"""

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from ranklake.lake.contracts.checks.kind import CheckKind, Finding, Surroundings, Watch
from ranklake.lake.contracts.model import Check
from ranklake.segments.run_names import is_agent_run

if TYPE_CHECKING:
    from ranklake.lake.contracts.checks.series import Batch

_SETTLED_S: Final = 3600.0


def _part(check: Check, batch: "Batch") -> dict[tuple[Any, ...], list[int]]:
    """Return rows and newest time of each run of the stage."""
    import numpy as np

    (stage,) = check.columns
    groups = batch.groups((*check.by, stage))
    count = np.bincount(groups.of, minlength=len(groups.keys))
    newest = np.zeros(len(groups.keys), np.int64)
    np.maximum.at(newest, groups.of, batch.values("ts"))
    return {
        key[:-1]: [int(count[at]), int(newest[at])]
        for at, key in enumerate(groups.keys)
        if _is_meant(check, key[-1]) and not is_agent_run(str(key[0]))
    }


def _is_meant(check: Check, stage: object) -> bool:
    if check.pattern is None:
        return True
    return stage is not None and re.fullmatch(check.pattern, str(stage), re.IGNORECASE) is not None


def _judge(check: Check, parts: Sequence[dict[tuple[Any, ...], list[int]]], about: Surroundings) -> Finding:
    from ranklake.lake.contracts.checks.series import listed, told

    runs: dict[tuple[Any, ...], list[int]] = {}
    for part in parts:
        for run, (rows, newest) in part.items():
            known = runs.get(run, [0, 0])
            runs[run] = [known[0] + rows, max(known[1], newest)]
    settled_us = about.now_us - int((check.tolerance or _SETTLED_S) * 1e6)
    old = {run: rows for run, (rows, newest) in runs.items() if newest <= settled_us}
    young = len(old) < len(runs)
    if not old:
        return Finding(unknown="no run of this stage began long enough ago", again=young)
    having = {str(signal): about.recorded(str(signal)) for signal in check.values}
    wrong, lines = 0, []
    for run, rows in old.items():
        lacks = [signal for signal, names in having.items() if run[0] not in names]
        if lacks:
            wrong += rows
            lines.append(f"{told(check.by, run)} lacks {', '.join(lacks)}")
    expected = f"each run has {', '.join(having)}"
    return Finding(sum(old.values()), wrong, listed(lines), expected, again=young)


def _wrong(check: Check) -> str:
    stage = f" whose {check.columns[0]} is {check.pattern}" if check.pattern else ""
    return f"a run{stage} lacks one of {', '.join(map(str, check.values))}"


KIND = CheckKind(
    name="signals",
    wrong=_wrong,
    level="watch",
    needs=(("columns",), ("values",), ("by",)),
    own_columns=True,
    types=frozenset({"string"}),
    dimension="completeness",
    watch=Watch(_part, _judge, also=("ts",)),
)
