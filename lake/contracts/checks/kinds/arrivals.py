"""Check kinds for missing and late rows of series: gaps, silence, delay."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from ranklake.lake.contracts.checks.kind import (
    CheckKind,
    Series,
    SeriesKind,
    Watch,
    WatchContext,
    WatchResult,
    facts_by_series,
)
from ranklake.lake.contracts.model import NUMBERS, Check

if TYPE_CHECKING:
    from ranklake.lake.contracts.checks.series import Batch


_COMPLETENESS_FEWEST: Final = 8
_COMPLETENESS_LEAST: Final = 0.95


def _summarize_completeness(check: Check, batch: "Batch") -> Series:
    """Return for each series: number of distinct places, first and last place, and the usual distance."""
    import numpy as np

    from ranklake.lake.contracts.checks.series import differences, medians, select_bounds

    keys, bounds, places, _ = batch.filled(check.by, check.columns[0], check.columns[0])
    steps, step_bounds = differences(places, bounds)
    is_distinct = steps > 0
    step_bounds = select_bounds(step_bounds, is_distinct)
    usual = np.nan_to_num(medians(steps[is_distinct], step_bounds))
    ends = (places[at].astype(float).tolist() for at in (bounds[:-1], bounds[1:] - 1))
    facts = zip((np.diff(step_bounds) + 1).tolist(), *ends, usual.tolist(), strict=True)
    return dict(zip(keys, map(list, facts), strict=True))


def _evaluate_completeness(check: Check, parts: Sequence[Series], context: WatchContext) -> WatchResult:
    from ranklake.lake.contracts.checks.series import join_lines, label, usual_distance

    del context
    least = _COMPLETENESS_LEAST if check.min is None else float(check.min)
    due = lacking = 0
    lines = []
    for key, summaries in facts_by_series(parts).items():
        rows = sum(facts[0] for facts in summaries)
        usual = usual_distance([(facts[0], facts[1], facts[3]) for facts in summaries])
        if rows < _COMPLETENESS_FEWEST or not usual:
            continue
        implied = round((max(facts[2] for facts in summaries) - min(facts[1] for facts in summaries)) / usual) + 1
        due += max(implied, int(rows))
        if rows < least * implied:
            lacking += int(implied - rows)
            lines.append(f"{label(check.by, key)}: {rows:,.0f} of {implied:,} rows")
    return WatchResult(
        int(due), lacking, join_lines(lines), f"at least {least:.4g} of the rows that each series implies"
    )


COMPLETENESS = SeriesKind(
    name="completeness",
    fault=lambda check: f"rows are missing from series along {check.columns[0]}",
    types=frozenset({"int32", "int64", "timestamp"}),
    dimension="completeness",
    watch=Watch(_summarize_completeness, _evaluate_completeness),
)
"""``completeness``: a series has at least the share `min` (0.95) of its expected rows.

The column is a step number or a time. `by`: columns that identify a series. The usual distance of a series is the
median distance between its rows. One row is expected per usual distance, from the first to the last row.
"""


_GAPS_TIMES: Final = 10.0
_GAPS_SHORTEST_S: Final = 5.0
_GAPS_FEWEST: Final = 5

_Gap = tuple[float, float]


def _summarize_gaps(check: Check, batch: "Batch") -> dict[tuple[Any, ...], tuple[int, float, float, float, list[_Gap]]]:
    """Return for each series: number of rows, first and last time, usual distance, and possible gaps."""
    import numpy as np

    from ranklake.lake.contracts.checks.series import differences, medians, select_bounds

    floor = (_GAPS_SHORTEST_S if check.min is None else float(check.min)) * 1e6
    order = batch.order(check.by, check.columns[0])
    along = batch.ordered(order, check.columns[0])
    steps, step_bounds = differences(along, order.bounds)
    is_distinct = steps > 0
    usual = np.nan_to_num(medians(steps[is_distinct], select_bounds(step_bounds, is_distinct)))
    wide = np.flatnonzero(steps > np.repeat(np.maximum(usual, floor), np.diff(step_bounds)))
    series_of = np.searchsorted(step_bounds, wide, side="right") - 1
    spans: list[list[_Gap]] = [[] for _ in order.keys]
    for number, at in zip(series_of.tolist(), (wide + series_of).tolist(), strict=True):
        spans[number].append((float(along[at]), float(along[at + 1])))
    ends = (along[at].astype(float).tolist() for at in (order.bounds[:-1], order.bounds[1:] - 1))
    facts = zip(np.diff(order.bounds).tolist(), *ends, usual.tolist(), spans, strict=True)
    return dict(zip(order.keys, facts, strict=True))


def _evaluate_gaps(check: Check, parts: Sequence[dict[tuple[Any, ...], Any]], context: WatchContext) -> WatchResult:
    from ranklake.lake.contracts.checks.series import join_lines, label, seconds, usual_distance

    del context
    times = _GAPS_TIMES if check.max is None else float(check.max)
    floor = (_GAPS_SHORTEST_S if check.min is None else float(check.min)) * 1e6
    rows = lacking = 0
    lines = []
    for key, summaries in facts_by_series(parts).items():
        count = sum(facts[0] for facts in summaries)
        rows += count
        usual = usual_distance([(facts[0], facts[1], facts[3]) for facts in summaries])
        if count < _GAPS_FEWEST or not usual:
            continue
        gaps = [span for span in _open_spans(summaries) if span[1] - span[0] > max(floor, times * usual)]
        missing = sum(round((end - start) / usual) - 1 for start, end in gaps)
        rows += missing
        lacking += missing
        if gaps:
            longest = max(end - start for start, end in gaps)
            lines.append(
                f"{label(check.by, key)}: gaps: {len(gaps)}, the longest {seconds(longest)} (usual {seconds(usual)})"
            )
    return WatchResult(rows, lacking, join_lines(lines), f"no gap above {times:.4g} times the usual distance")


def _open_spans(summaries: Sequence[Any]) -> list[_Gap]:
    """Return the spans between the first and last row of a series in which no batch has a row."""
    begin, end = min(facts[1] for facts in summaries), max(facts[2] for facts in summaries)
    open_spans: list[_Gap] = [(begin, end)]
    for _, first, last, _, spans in summaries:
        free = [(begin, first), *spans, (last, end)]
        open_spans = [(max(a, c), min(b, d)) for a, b in open_spans for c, d in free if min(b, d) > max(a, c)]
    return open_spans


GAPS = SeriesKind(
    name="gaps",
    fault=lambda check: f"series have gaps along {check.columns[0]}",
    types=frozenset({"timestamp"}),
    dimension="completeness",
    watch=Watch(_summarize_gaps, _evaluate_gaps),
)
"""``gaps``: no series has a gap of more than `max` (10) times its usual distance between samples.

Gaps below `min` seconds (5) are ignored. A span counts as a gap only if no data file of the partition has a row in it.
"""


_FLEET_GAP_LONGEST_S: Final = 600.0
_FLEET_GAP_FEWEST: Final = 3
_SECOND_US: Final = 1_000_000


def _summarize_fleet_gap(
    check: Check, batch: "Batch"
) -> tuple[Any, dict[tuple[Any, ...], tuple[int, int, int, float]]]:
    """Return the seconds that have rows, as ranges; and for each series its rows, first, last and usual distance."""
    import numpy as np

    from ranklake.lake.contracts.checks.series import differences, medians

    when = np.unique(batch.values(check.columns[0]) // _SECOND_US)
    breaks = np.flatnonzero(np.diff(when) > 1)
    ranges = np.stack([when[np.r_[0, breaks + 1]], when[np.r_[breaks, len(when) - 1]]])
    order = batch.order(check.by, check.columns[0])
    along = batch.ordered(order, check.columns[0])
    usual = np.nan_to_num(medians(*differences(along, order.bounds)))
    ends = (along[at].astype(np.int64).tolist() for at in (order.bounds[:-1], order.bounds[1:] - 1))
    facts = zip(np.diff(order.bounds).tolist(), *ends, usual.tolist(), strict=True)
    return ranges, dict(zip(order.keys, facts, strict=True))


def _evaluate_fleet_gap(check: Check, parts: Sequence[Any], context: WatchContext) -> WatchResult:
    import numpy as np

    from ranklake.lake.contracts.checks.series import join_lines, seconds

    del context
    limit = _FLEET_GAP_LONGEST_S if check.max is None else float(check.max)
    fewest = _FLEET_GAP_FEWEST if check.min is None else int(check.min)
    if not parts:
        return WatchResult(unknown="there are no rows")
    ranges = np.concatenate([part[0] for part in parts], axis=1)
    starts, reach = ranges[0][np.argsort(ranges[0], kind="stable")], np.sort(ranges[1])
    series: Series = {}
    for _, gaps in parts:
        for key, facts in gaps.items():
            known = series.setdefault(key, [0, facts[1], facts[2], facts[3]])
            series[key] = [
                known[0] + facts[0],
                min(known[1], facts[1]),
                max(known[2], facts[2]),
                max(known[3], facts[3]),
            ]
    rows = sum(facts[0] for facts in series.values())
    missing, lines = 0, []
    for begin, end in zip(reach[:-1].tolist(), starts[1:].tolist(), strict=True):
        if end - begin <= limit:
            continue
        gap_us = (end - begin) * _SECOND_US
        across = [
            facts
            for facts in series.values()
            if facts[1] <= begin * _SECOND_US + _SECOND_US and facts[2] >= end * _SECOND_US
        ]
        distances = [facts[3] or (facts[2] - facts[1]) / max(facts[0] - 1, 1) for facts in across]
        usual = [distance for distance in distances if 0 < distance * 10 < gap_us]
        if len(usual) >= fewest:
            missing += sum(round(gap_us / distance) for distance in usual)
            lines.append(f"{len(usual)} series at once for {seconds(gap_us)}")
    return WatchResult(rows + missing, missing, join_lines(lines), f"no {limit:,.0f} s in which all series are silent")


FLEET_GAP = SeriesKind(
    name="fleet_gap",
    fault=lambda check: f"all series of {check.columns[0]} are silent at once: the recording may have been out",
    types=frozenset({"timestamp"}),
    dimension="completeness",
    watch=Watch(_summarize_fleet_gap, _evaluate_fleet_gap),
)
"""``fleet_gap``: all series are never silent together for more than `max` seconds (600).

If one series pauses, its device may have failed. If all series pause together, recording has probably failed. At least
`min` (3) series must have rows before and after the gap.
"""


_FRESH_LATEST_S: Final = 1800.0


def _summarize_fresh(check: Check, batch: "Batch") -> dict[Any, list[int]]:
    """Return the number of rows and the newest time of each run."""
    import numpy as np

    groups = batch.groups(("run",))
    newest = np.zeros(len(groups.keys), np.int64)
    np.maximum.at(newest, groups.of, batch.values(check.columns[0]))
    rows = np.bincount(groups.of, minlength=len(groups.keys))
    return {key[0]: list(facts) for key, *facts in zip(groups.keys, rows.tolist(), newest.tolist(), strict=True)}


def _evaluate_fresh(check: Check, parts: Sequence[dict[Any, list[int]]], context: WatchContext) -> WatchResult:
    from ranklake.lake.contracts.checks.series import join_lines, label, seconds

    limit = _FRESH_LATEST_S if check.max is None else float(check.max)
    runs: dict[Any, list[int]] = {}
    for part in parts:
        for run, (rows, newest) in part.items():
            known = runs.setdefault(run, [0, newest])
            runs[run] = [known[0] + rows, max(known[1], newest)]
    ends = context.newest_ts()
    checked = behind = 0
    lines = []
    for run, (rows, newest) in runs.items():
        delays = {str(table): newest - ends[str(table), run] for table in check.values if (str(table), run) in ends}
        checked += rows if delays else 0
        late = {table: delay for table, delay in delays.items() if delay > limit * 1e6}
        behind += rows if late else 0
        lines += [f"{label(('run',), (run,))}: {table} ends {seconds(delay)} earlier" for table, delay in late.items()]
    if not checked:
        return WatchResult(unknown="no run of it writes to those tables")
    return WatchResult(
        checked, behind, join_lines(lines), f"{', '.join(map(str, check.values))} at most {limit:,.0f} s behind"
    )


FRESH = CheckKind(
    name="fresh",
    fault=lambda check: f"of a run that goes on, {' or '.join(map(str, check.values))} stands still",
    level="watch",
    needs=(("columns",), ("values",)),
    own_columns=True,
    types=frozenset({"timestamp"}),
    dimension="timeliness",
    watch=Watch(_summarize_fresh, _evaluate_fresh, extra_columns=("run",)),
)
"""``fresh``: while a run writes to this table, its rows in other tables are at most `max` seconds (1,800) older.

`values` names the other tables. A table to which the run never wrote is ignored. The check belongs to the table that
still gets rows, because a table without new rows is not checked again.
"""


_SILENCE_HOURS: Final = 20.0
_SILENCE_KNOWN: Final = 3
_SILENCE_MOSTLY: Final = 0.8


def _summarize_silence(check: Check, batch: "Batch") -> list[float]:
    """Return the number of rows, the number of rows with a value other than 0, and first and last time."""
    import numpy as np

    values, when = batch.values(check.columns[0]), batch.values("ts")
    return [len(values), int(np.count_nonzero(np.nan_to_num(values.astype(float)))), int(when.min()), int(when.max())]


def _evaluate_silence(check: Check, parts: Sequence[list[float]], context: WatchContext) -> WatchResult:
    rows, busy = (int(sum(part[at] for part in parts)) for at in (0, 1))
    hours = (max(part[3] for part in parts) - min(part[2] for part in parts)) / 3.6e9 if parts else 0.0
    measured = {"busy_rows": float(busy), "hours": hours}
    least = _SILENCE_HOURS if check.min is None else float(check.min)
    history = [figures for figures in context.earlier.values() if figures.get("hours", 0) >= least]
    expected = f"{check.columns[0]} above 0 at some time"
    if busy or hours < least:
        return WatchResult(rows, 0, f"{busy:,} of {rows:,} rows", expected, measured)
    active = sum(figures["busy_rows"] > 0 for figures in history)
    if len(history) < _SILENCE_KNOWN or active < _SILENCE_MOSTLY * len(history):
        return WatchResult(measured=measured, unknown=f"{len(history)} earlier dates are known, {active} of them busy")
    observed = f"all {rows:,} rows of {hours:.1f} h are 0 or NULL; {active} of {len(history)} dates before were not"
    return WatchResult(rows, rows, observed, expected, measured)


SILENCE = CheckKind(
    name="silence",
    fault=lambda check: f"{check.columns[0]} is 0 or NULL in all rows of the date: the recording may have been out",
    level="watch",
    types=NUMBERS - {"decimal"},
    dimension="completeness",
    watch=Watch(_summarize_silence, _evaluate_silence, extra_columns=("ts",), uses_history=True),
)
"""``silence``: a column is not 0 or NULL in all rows of a date if it had other values on most earlier dates.

A whole fleet is rarely idle for a day; more likely recording has failed. A date whose rows cover less than `min` hours
(20) is not checked, and no date is checked before three others are known.
"""
