"""Checks of runs: their ranks, what they record and refer to."""

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from ranklake.lake.contracts.checks.kind import CheckKind, Finding, Series, Surroundings, Watch
from ranklake.lake.contracts.model import Check
from ranklake.segments.segment import is_agent_run

if TYPE_CHECKING:
    from ranklake.lake.contracts.checks.series import Batch


_RANK_COVERAGE_SETTLED_S: Final = 900.0
_RANK_COVERAGE_MIDNIGHT_US: Final = 600_000_000
_RANK_COVERAGE_DAY_US: Final = 86_400_000_000


def _rank_coverage_part(check: Check, batch: "Batch") -> Series:
    """Return for each run and rank: ranges of steps, least and greatest time, and the ranks that its rows represent."""
    import numpy as np

    rank, step = check.columns
    order = batch.order((*check.by, rank), step)
    if not order.keys:
        return {}
    steps, when = batch.ordered(order, step), batch.ordered(order, "ts")
    first = order.bounds[:-1]
    begins = np.ones(len(steps), bool)
    begins[1:] = np.diff(steps) > 1
    begins[first] = True
    starts = np.flatnonzero(begins)
    ranges = np.stack([steps[starts], steps[np.append(starts[1:], len(steps)) - 1]])
    parts = np.split(ranges, np.searchsorted(starts, first[1:]), axis=1)
    stands_for = np.ones(len(first), np.int64)
    if "ranks" in batch:
        ranks = np.nan_to_num(batch.ordered(order, "ranks").astype(float), nan=-np.inf)
        most = np.maximum.reduceat(ranks, first)
        stands_for[most > -np.inf] = most[most > -np.inf].astype(np.int64)
    ends = (of.reduceat(when, first).astype(np.int64).tolist() for of in (np.minimum, np.maximum))
    facts = zip(parts, *ends, stands_for.tolist(), strict=True)
    return dict(zip(order.keys, map(list, facts), strict=True))


def _rank_coverage_judge(check: Check, parts: Sequence[Series], about: Surroundings) -> Finding:
    from ranklake.lake.contracts.checks.series import first_of, label

    runs: dict[tuple[Any, ...], dict[int, list[list[Any]]]] = {}
    for part in parts:
        for (*owner, rank), facts in part.items():
            runs.setdefault(tuple(owner), {}).setdefault(rank, []).append(facts)
    settled_us = about.now_us - int((check.tolerance or _RANK_COVERAGE_SETTLED_S) * 1e6)
    due = missing = 0
    lines = []
    for run, ranks in runs.items():
        if any(facts[3] > 1 for all_of in ranks.values() for facts in all_of):
            continue  # one rank records for several
        there = {rank: _rank_coverage_joined([facts[0] for facts in all_of]) for rank, all_of in ranks.items()}
        steps = _rank_coverage_judged(_rank_coverage_joined(list(there.values())), ranks, about)
        silent = max(about.worlds().get((run[0], int(run[1])), 0) - len(there), 0) if len(run) > 1 else 0
        short = {}
        for rank, own in there.items():
            late = max(facts[2] for facts in ranks[rank])
            asked = _rank_coverage_within(steps, None, int(own[1].max())) if late > settled_us else steps
            due += _rank_coverage_count(asked)
            if lacks := _rank_coverage_count(asked) - _rank_coverage_count(_rank_coverage_common(asked, own)):
                short[rank] = lacks
        if silent and max(facts[2] for all_of in ranks.values() for facts in all_of) <= settled_us:
            due += silent * _rank_coverage_count(steps)
            short[-1] = silent * _rank_coverage_count(steps)
        if short:
            missing += sum(short.values())
            named = [f"rank {rank} lacks {count:,}" for rank, count in sorted(short.items()) if rank >= 0]
            named += [f"ranks that say nothing: {silent:,}"] if -1 in short else []
            lines.append(f"{label(check.by, run)}: {first_of(named)} of {_rank_coverage_count(steps):,} steps")
    least = 1.0 if check.min is None else float(check.min)
    enough = not due or 1 - missing / due >= least
    return Finding(due, 0 if enough else missing, first_of(lines), f"at least {least:.4g} of the steps of each rank")


def _rank_coverage_joined(ranges: list[Any]) -> Any:  # noqa: ANN401 - an array of starts and ends
    """Return the union of ranges of whole numbers."""
    import numpy as np

    if len(ranges) == 1:  # of one batch: sorted and disjoint already
        return ranges[0]
    starts, ends = np.concatenate(ranges, axis=1)
    order = np.argsort(starts, kind="stable")
    starts, reach = starts[order], np.maximum.accumulate(ends[order])
    new = np.r_[True, starts[1:] > reach[:-1] + 1]
    last = np.r_[np.flatnonzero(new)[1:] - 1, len(reach) - 1]
    return np.stack([starts[new], reach[last]])


def _rank_coverage_judged(steps: Any, ranks: dict[int, list[list[Any]]], about: Surroundings) -> Any:  # noqa: ANN401 - as above
    """Leave out the first and last step of a run that began before the date or continues after it."""
    import calendar

    begin = calendar.timegm(about.day.timetuple()) * 1_000_000
    first = min(facts[1] for all_of in ranks.values() for facts in all_of)
    last = max(facts[2] for all_of in ranks.values() for facts in all_of)
    low = int(steps[0][0]) + 1 if first - begin < _RANK_COVERAGE_MIDNIGHT_US else None
    high = int(steps[1][-1]) - 1 if begin + _RANK_COVERAGE_DAY_US - last < _RANK_COVERAGE_MIDNIGHT_US else None
    return _rank_coverage_within(steps, low, high)


def _rank_coverage_within(ranges: Any, low: int | None, high: int | None) -> Any:  # noqa: ANN401 - as above
    import numpy as np

    starts = ranges[0] if low is None else np.maximum(ranges[0], low)
    ends = ranges[1] if high is None else np.minimum(ranges[1], high)
    return np.stack([starts, ends])[:, starts <= ends]


def _rank_coverage_common(ranges: Any, others: Any) -> Any:  # noqa: ANN401 - as above
    """Return what two unions of ranges have in common."""
    import numpy as np

    if others.shape[1] == 1:  # a rank without a gap, as most are
        return _rank_coverage_within(ranges, int(others[0][0]), int(others[1][0]))
    first = np.searchsorted(others[1], ranges[0])
    last = np.searchsorted(others[0], ranges[1], side="right")
    rows = np.repeat(np.arange(ranges.shape[1]), np.maximum(last - first, 0))
    offset = np.arange(len(rows)) - np.repeat(np.cumsum(np.maximum(last - first, 0)) - np.maximum(last - first, 0),
                                              np.maximum(last - first, 0))  # fmt: skip
    other = np.repeat(first, np.maximum(last - first, 0)) + offset
    return np.stack([np.maximum(ranges[0][rows], others[0][other]), np.minimum(ranges[1][rows], others[1][other])])


def _rank_coverage_count(ranges: Any) -> int:  # noqa: ANN401 - as above
    return int((ranges[1] - ranges[0] + 1).sum())


RANK_COVERAGE = CheckKind(
    name="rank_coverage",
    wrong=lambda _: "ranks of a run do not report all of its steps",
    level="watch",
    needs=(("columns",), ("by",)),
    own_columns=True,
    pair=True,
    dimension="coverage",
    watch=Watch(_rank_coverage_part, _rank_coverage_judge, also=("ts", "ranks")),
)
"""``rank_coverage``: every rank that a run expects reports each step that any of its ranks reports.

Columns: rank and step; `by`: the columns that identify a run. A run expects the ranks that its start names, else those
that reported. Of a rank that reported within the last `tolerance` seconds (900) nothing is missing beyond its last
step: that may be on its way. A step at midnight may lie on two dates, so the first and last step of a run that goes on
is not judged.
"""


_SIGNALS_SETTLED_S: Final = 3600.0


def _signals_part(check: Check, batch: "Batch") -> Series:
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
        if _signals_selects(check, key[-1]) and not is_agent_run(str(key[0]))
    }


def _signals_selects(check: Check, stage: object) -> bool:
    if check.pattern is None:
        return True
    return stage is not None and re.fullmatch(check.pattern, str(stage), re.IGNORECASE) is not None


def _signals_judge(check: Check, parts: Sequence[Series], about: Surroundings) -> Finding:
    from ranklake.lake.contracts.checks.series import first_of, label

    runs: Series = {}
    for part in parts:
        for run, (rows, newest) in part.items():
            known = runs.get(run, [0, 0])
            runs[run] = [known[0] + rows, max(known[1], newest)]
    settled_us = about.now_us - int((check.tolerance or _SIGNALS_SETTLED_S) * 1e6)
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
            lines.append(f"{label(check.by, run)} lacks {', '.join(lacks)}")
    expected = f"each run has {', '.join(having)}"
    return Finding(sum(old.values()), wrong, first_of(lines), expected, again=young)


def _signals_wrong(check: Check) -> str:
    stage = f" whose {check.columns[0]} is {check.pattern}" if check.pattern else ""
    return f"a run{stage} lacks one of {', '.join(map(str, check.values))}"


SIGNALS = CheckKind(
    name="signals",
    wrong=_signals_wrong,
    level="watch",
    needs=(("columns",), ("values",), ("by",)),
    own_columns=True,
    types=frozenset({"string"}),
    dimension="completeness",
    watch=Watch(_signals_part, _signals_judge, also=("ts",)),
)
"""``signals``: each run of a stage records what runs of that stage must record.

The column says a run's stage; `pattern` says which stages are meant (of all runs, if there is none), whatever their
case. `values` are the signals: a table (``spans``), a column of one that has a value in some row (``steps.loss``), or a
metric of ``scalars`` by its name (``eval/accuracy``). A run is judged once its newest row is older than `tolerance`
seconds (3,600): a large job takes a while before its first step. `by`: columns that identify a run, its name first.
Runs of agents are left out.
"""


def _alike_part(check: Check, batch: "Batch") -> dict[tuple[Any, ...], dict[Any, int]]:
    """Return rows by series and value."""
    import numpy as np

    groups = batch.groups((*check.by, check.columns[0]))
    series: dict[tuple[Any, ...], dict[Any, int]] = {}
    for key, rows in zip(groups.keys, np.bincount(groups.of, minlength=len(groups.keys)).tolist(), strict=True):
        if key[-1] is not None:
            series.setdefault(key[:-1], {})[key[-1]] = rows
    return series


def _alike_judge(check: Check, parts: Sequence[dict[tuple[Any, ...], dict[Any, int]]], about: Surroundings) -> Finding:
    from ranklake.lake.contracts.checks.series import first_of, label

    del about
    series: dict[tuple[Any, ...], dict[Any, int]] = {}
    for part in parts:
        for key, counts in part.items():
            known = series.setdefault(key, {})
            for value, rows in counts.items():
                known[value] = known.get(value, 0) + rows
    total = sum(sum(some.values()) for some in series.values())
    wrong, lines = 0, []
    for key, counts in series.items():
        if len(counts) > 1:
            wrong += sum(counts.values()) - max(counts.values())
            lines.append(f"{label(check.by, key)}: {len(counts)} different values")
    if not total:
        return Finding(unknown="there was no value to judge")
    return Finding(total, wrong, first_of(lines), "one value in each series")


ALIKE = CheckKind(
    name="alike",
    wrong=lambda check: f"{check.columns[0]} differs within a series",
    level="watch",
    needs=(("columns",), ("by",)),
    own_columns=True,
    dimension="consistency",
    watch=Watch(_alike_part, _alike_judge),
)
"""``alike``: all rows of a series have one value, such as the lock file of a run's processes. NULL is ignored."""


_REFERS_SETTLED_S: Final = 900.0


def _refers_part(check: Check, batch: "Batch") -> dict[Any, list[int]]:
    """Return rows and newest time of each value."""
    import numpy as np

    groups = batch.groups(check.columns)
    count = np.bincount(groups.of, minlength=len(groups.keys))
    newest = np.zeros(len(groups.keys), np.int64)
    np.maximum.at(newest, groups.of, batch.values("ts"))
    return {key[0]: [int(count[at]), int(newest[at])] for at, key in enumerate(groups.keys) if key[0] is not None}


def _refers_judge(check: Check, parts: Sequence[dict[Any, list[int]]], about: Surroundings) -> Finding:
    from ranklake.lake.contracts.checks.series import first_of, label

    (table,), (column,) = check.values, check.columns
    references: dict[Any, list[int]] = {}
    for part in parts:
        for value, (rows, newest) in part.items():
            known = references.get(value, [0, 0])
            references[value] = [known[0] + rows, max(known[1], newest)]
    known_values = about.known(str(table), column)
    if known_values is None:
        return Finding(unknown=f"{table} has no rows")
    settled_us = about.now_us - int((check.tolerance or _REFERS_SETTLED_S) * 1e6)
    lost = {
        value: rows
        for value, (rows, newest) in references.items()
        if value not in known_values and newest <= settled_us
    }
    lines = [f"{label((column,), (value,))} ({rows:,} rows)" for value, rows in lost.items()]
    total = sum(rows for rows, _ in references.values())
    return Finding(total, sum(lost.values()), first_of(lines), f"each {column} in {table}")


REFERS = CheckKind(
    name="refers",
    wrong=lambda check: f"{check.columns[0]} is not in {', '.join(map(str, check.values))}",
    level="watch",
    needs=(("columns",), ("values",)),
    own_columns=True,
    dimension="consistency",
    watch=Watch(_refers_part, _refers_judge, also=("ts",)),
)
"""``refers``: each value of the column stands in the same column of the table that `values` names.

Values whose newest row is no older than `tolerance` seconds (900) are not judged: what they refer to may be on its way.
If the other table has no rows, nothing is judged.
"""
