"""Check kinds for runs: coverage of ranks, required signals, equal values within a run, references."""

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from ranklake.lake.contracts.checks.kind import CheckKind, Series, Watch, WatchContext, WatchResult
from ranklake.lake.contracts.model import Check
from ranklake.segments.segment import is_agent_run

if TYPE_CHECKING:
    from ranklake.lake.contracts.checks.series import Batch


_RANK_COVERAGE_SETTLED_S: Final = 900.0
_RANK_COVERAGE_MIDNIGHT_US: Final = 600_000_000
_RANK_COVERAGE_DAY_US: Final = 86_400_000_000


def _summarize_rank_coverage(check: Check, batch: "Batch") -> Series:
    """Return for each run and rank: ranges of steps, first and last time, and how many ranks its rows represent."""
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
    represented = np.ones(len(first), np.int64)
    if "ranks" in batch:
        ranks = np.nan_to_num(batch.ordered(order, "ranks").astype(float), nan=-np.inf)
        most = np.maximum.reduceat(ranks, first)
        represented[most > -np.inf] = most[most > -np.inf].astype(np.int64)
    ends = (extreme.reduceat(when, first).astype(np.int64).tolist() for extreme in (np.minimum, np.maximum))
    facts = zip(parts, *ends, represented.tolist(), strict=True)
    return dict(zip(order.keys, map(list, facts), strict=True))


def _evaluate_rank_coverage(check: Check, parts: Sequence[Series], context: WatchContext) -> WatchResult:
    from ranklake.lake.contracts.checks.series import join_lines, label

    runs: dict[tuple[Any, ...], dict[int, list[list[Any]]]] = {}
    for part in parts:
        for (*run_key, rank), facts in part.items():
            runs.setdefault(tuple(run_key), {}).setdefault(rank, []).append(facts)
    settled_us = context.now_us - int((check.tolerance or _RANK_COVERAGE_SETTLED_S) * 1e6)
    due = missing = 0
    lines = []
    for run, ranks in runs.items():
        if any(facts[3] > 1 for summaries in ranks.values() for facts in summaries):
            continue  # one rank records for several
        recorded = {rank: _join_ranges([facts[0] for facts in summaries]) for rank, summaries in ranks.items()}
        steps = _without_midnight_steps(_join_ranges(list(recorded.values())), ranks, context)
        silent = max(context.world_sizes().get((run[0], int(run[1])), 0) - len(recorded), 0) if len(run) > 1 else 0
        lacking = {}
        for rank, own_steps in recorded.items():
            newest = max(facts[2] for facts in ranks[rank])
            expected = _clip_ranges(steps, None, int(own_steps[1].max())) if newest > settled_us else steps
            due += _count_steps(expected)
            if lacks := _count_steps(expected) - _count_steps(_intersect_ranges(expected, own_steps)):
                lacking[rank] = lacks
        if silent and max(facts[2] for summaries in ranks.values() for facts in summaries) <= settled_us:
            due += silent * _count_steps(steps)
            lacking[-1] = silent * _count_steps(steps)
        if lacking:
            missing += sum(lacking.values())
            texts = [f"rank {rank} lacks {count:,}" for rank, count in sorted(lacking.items()) if rank >= 0]
            texts += [f"ranks that say nothing: {silent:,}"] if -1 in lacking else []
            lines.append(f"{label(check.by, run)}: {join_lines(texts)} of {_count_steps(steps):,} steps")
    least = 1.0 if check.min is None else float(check.min)
    is_enough = not due or 1 - missing / due >= least
    expected_text = f"at least {least:.4g} of the steps of each rank"
    return WatchResult(due, 0 if is_enough else missing, join_lines(lines), expected_text)


def _join_ranges(ranges: list[Any]) -> Any:  # noqa: ANN401 - an array of starts and ends
    """Return the union of ranges of whole numbers, both ends included."""
    import numpy as np

    if len(ranges) == 1:  # ranges of one batch are sorted and disjoint
        return ranges[0]
    starts, ends = np.concatenate(ranges, axis=1)
    order = np.argsort(starts, kind="stable")
    starts, reach = starts[order], np.maximum.accumulate(ends[order])
    new = np.r_[True, starts[1:] > reach[:-1] + 1]
    last = np.r_[np.flatnonzero(new)[1:] - 1, len(reach) - 1]
    return np.stack([starts[new], reach[last]])


def _without_midnight_steps(steps: Any, ranks: dict[int, list[list[Any]]], context: WatchContext) -> Any:  # noqa: ANN401 - as above
    """Return the steps without the first of a run that began before the date, and the last of one that continues."""
    import calendar

    begin = calendar.timegm(context.day.timetuple()) * 1_000_000
    first = min(facts[1] for summaries in ranks.values() for facts in summaries)
    last = max(facts[2] for summaries in ranks.values() for facts in summaries)
    low = int(steps[0][0]) + 1 if first - begin < _RANK_COVERAGE_MIDNIGHT_US else None
    high = int(steps[1][-1]) - 1 if begin + _RANK_COVERAGE_DAY_US - last < _RANK_COVERAGE_MIDNIGHT_US else None
    return _clip_ranges(steps, low, high)


def _clip_ranges(ranges: Any, low: int | None, high: int | None) -> Any:  # noqa: ANN401 - as above
    """Return the parts of ranges from `low` to `high`."""
    import numpy as np

    starts = ranges[0] if low is None else np.maximum(ranges[0], low)
    ends = ranges[1] if high is None else np.minimum(ranges[1], high)
    return np.stack([starts, ends])[:, starts <= ends]


def _intersect_ranges(ranges: Any, others: Any) -> Any:  # noqa: ANN401 - as above
    """Return the intersection of two unions of ranges."""
    import numpy as np

    if others.shape[1] == 1:  # most ranks have no gap
        return _clip_ranges(ranges, int(others[0][0]), int(others[1][0]))
    first = np.searchsorted(others[1], ranges[0])
    last = np.searchsorted(others[0], ranges[1], side="right")
    rows = np.repeat(np.arange(ranges.shape[1]), np.maximum(last - first, 0))
    offset = np.arange(len(rows)) - np.repeat(np.cumsum(np.maximum(last - first, 0)) - np.maximum(last - first, 0),
                                              np.maximum(last - first, 0))  # fmt: skip
    other = np.repeat(first, np.maximum(last - first, 0)) + offset
    return np.stack([np.maximum(ranges[0][rows], others[0][other]), np.minimum(ranges[1][rows], others[1][other])])


def _count_steps(ranges: Any) -> int:  # noqa: ANN401 - as above
    return int((ranges[1] - ranges[0] + 1).sum())


RANK_COVERAGE = CheckKind(
    name="rank_coverage",
    fault=lambda _: "ranks of a run do not report all of its steps",
    level="watch",
    needs=(("columns",), ("by",)),
    own_columns=True,
    pair=True,
    dimension="coverage",
    watch=Watch(_summarize_rank_coverage, _evaluate_rank_coverage, extra_columns=("ts", "ranks")),
)
"""``rank_coverage``: every expected rank of a run reports each step that any rank of the run reports.

Columns: rank and step. `by`: the columns that identify a run. The recorded start of a run gives the number of expected
ranks; without one, the ranks that reported are expected. If a rank reported within the last `tolerance` seconds (900),
later steps may still arrive and are not missing. A step at midnight may be recorded on two dates, so the first and the
last step of a date are not checked if the run continues across that midnight.
"""


_SIGNALS_SETTLED_S: Final = 3600.0


def _summarize_signals(check: Check, batch: "Batch") -> Series:
    """Return the number of rows and the newest time of each run of the stage."""
    import numpy as np

    (stage,) = check.columns
    groups = batch.groups((*check.by, stage))
    count = np.bincount(groups.of, minlength=len(groups.keys))
    newest = np.zeros(len(groups.keys), np.int64)
    np.maximum.at(newest, groups.of, batch.values("ts"))
    return {
        key[:-1]: [int(count[at]), int(newest[at])]
        for at, key in enumerate(groups.keys)
        if _is_stage(check, key[-1]) and not is_agent_run(str(key[0]))
    }


def _is_stage(check: Check, stage: object) -> bool:
    if check.pattern is None:
        return True
    return stage is not None and re.fullmatch(check.pattern, str(stage), re.IGNORECASE) is not None


def _evaluate_signals(check: Check, parts: Sequence[Series], context: WatchContext) -> WatchResult:
    from ranklake.lake.contracts.checks.series import join_lines, label

    runs: Series = {}
    for part in parts:
        for run, (rows, newest) in part.items():
            known = runs.get(run, [0, 0])
            runs[run] = [known[0] + rows, max(known[1], newest)]
    settled_us = context.now_us - int((check.tolerance or _SIGNALS_SETTLED_S) * 1e6)
    settled = {run: rows for run, (rows, newest) in runs.items() if newest <= settled_us}
    has_recent = len(settled) < len(runs)
    if not settled:
        return WatchResult(unknown="no run of this stage began long enough ago", recheck=has_recent)
    runs_by_signal = {str(signal): context.runs_with_signal(str(signal)) for signal in check.values}
    failed, lines = 0, []
    for run, rows in settled.items():
        lacks = [signal for signal, names in runs_by_signal.items() if run[0] not in names]
        if lacks:
            failed += rows
            lines.append(f"{label(check.by, run)} lacks {', '.join(lacks)}")
    expected = f"each run has {', '.join(runs_by_signal)}"
    return WatchResult(sum(settled.values()), failed, join_lines(lines), expected, recheck=has_recent)


def _signals_fault(check: Check) -> str:
    stage = f" whose {check.columns[0]} is {check.pattern}" if check.pattern else ""
    return f"a run{stage} lacks one of {', '.join(map(str, check.values))}"


SIGNALS = CheckKind(
    name="signals",
    fault=_signals_fault,
    level="watch",
    needs=(("columns",), ("values",), ("by",)),
    own_columns=True,
    types=frozenset({"string"}),
    dimension="completeness",
    watch=Watch(_summarize_signals, _evaluate_signals, extra_columns=("ts",)),
)
"""``signals``: each run of a stage records the signals that runs of that stage must record.

The column contains a run's stage. `pattern` selects stages, ignoring case; without it all runs are checked. `values`
are the signals: a table (``spans``), a column with a value in some row (``steps.loss``), or the name of a metric of
``scalars`` (``eval/accuracy``). A run is checked once its newest row is older than `tolerance` seconds (3,600), because
a large job takes a while until its first step. `by`: columns that identify a run, its name first. Runs of node agents
are not checked.
"""


def _summarize_alike(check: Check, batch: "Batch") -> dict[tuple[Any, ...], dict[Any, int]]:
    """Return the number of rows of each value in each series."""
    import numpy as np

    groups = batch.groups((*check.by, check.columns[0]))
    series: dict[tuple[Any, ...], dict[Any, int]] = {}
    for key, rows in zip(groups.keys, np.bincount(groups.of, minlength=len(groups.keys)).tolist(), strict=True):
        if key[-1] is not None:
            series.setdefault(key[:-1], {})[key[-1]] = rows
    return series


def _evaluate_alike(
    check: Check, parts: Sequence[dict[tuple[Any, ...], dict[Any, int]]], context: WatchContext
) -> WatchResult:
    from ranklake.lake.contracts.checks.series import join_lines, label

    del context
    series: dict[tuple[Any, ...], dict[Any, int]] = {}
    for part in parts:
        for key, counts in part.items():
            known = series.setdefault(key, {})
            for value, rows in counts.items():
                known[value] = known.get(value, 0) + rows
    total = sum(sum(counts.values()) for counts in series.values())
    failed, lines = 0, []
    for key, counts in series.items():
        if len(counts) > 1:
            failed += sum(counts.values()) - max(counts.values())
            lines.append(f"{label(check.by, key)}: {len(counts)} different values")
    if not total:
        return WatchResult(unknown="there was no value to judge")
    return WatchResult(total, failed, join_lines(lines), "one value in each series")


ALIKE = CheckKind(
    name="alike",
    fault=lambda check: f"{check.columns[0]} differs within a series",
    level="watch",
    needs=(("columns",), ("by",)),
    own_columns=True,
    dimension="consistency",
    watch=Watch(_summarize_alike, _evaluate_alike),
)
"""``alike``: all rows of a series have the same value, such as the lock file of a run's processes. NULL is ignored."""


_REFERS_SETTLED_S: Final = 900.0


def _summarize_refers(check: Check, batch: "Batch") -> dict[Any, list[int]]:
    """Return the number of rows and the newest time of each value."""
    import numpy as np

    groups = batch.groups(check.columns)
    count = np.bincount(groups.of, minlength=len(groups.keys))
    newest = np.zeros(len(groups.keys), np.int64)
    np.maximum.at(newest, groups.of, batch.values("ts"))
    return {key[0]: [int(count[at]), int(newest[at])] for at, key in enumerate(groups.keys) if key[0] is not None}


def _evaluate_refers(check: Check, parts: Sequence[dict[Any, list[int]]], context: WatchContext) -> WatchResult:
    from ranklake.lake.contracts.checks.series import join_lines, label

    (table,), (column,) = check.values, check.columns
    references: dict[Any, list[int]] = {}
    for part in parts:
        for value, (rows, newest) in part.items():
            known = references.get(value, [0, 0])
            references[value] = [known[0] + rows, max(known[1], newest)]
    known_values = context.stored_values(str(table), column)
    if known_values is None:
        return WatchResult(unknown=f"{table} has no rows")
    settled_us = context.now_us - int((check.tolerance or _REFERS_SETTLED_S) * 1e6)
    missing = {
        value: rows
        for value, (rows, newest) in references.items()
        if value not in known_values and newest <= settled_us
    }
    lines = [f"{label((column,), (value,))} ({rows:,} rows)" for value, rows in missing.items()]
    total = sum(rows for rows, _ in references.values())
    return WatchResult(total, sum(missing.values()), join_lines(lines), f"each {column} in {table}")


REFERS = CheckKind(
    name="refers",
    fault=lambda check: f"{check.columns[0]} is not in {', '.join(map(str, check.values))}",
    level="watch",
    needs=(("columns",), ("values",)),
    own_columns=True,
    dimension="consistency",
    watch=Watch(_summarize_refers, _evaluate_refers, extra_columns=("ts",)),
)
"""``refers``: each value of the column exists in the column of the same name in the table that `values` names.

A value is not checked before its newest row is older than `tolerance` seconds (900), because the row to which it refers
may still arrive. If the other table has no rows, nothing is checked.
"""
