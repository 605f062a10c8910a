"""Checks of when the rows of series come: gaps, silence, delay."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from ranklake.lake.contracts.checks.kind import (
    CheckKind,
    Finding,
    Series,
    SeriesKind,
    Surroundings,
    Watch,
    facts_by_series,
)
from ranklake.lake.contracts.model import NUMBERS, Check

if TYPE_CHECKING:
    from ranklake.lake.contracts.checks.series import Batch


_COMPLETENESS_FEWEST: Final = 8
_COMPLETENESS_LEAST: Final = 0.95


def _completeness_part(check: Check, batch: "Batch") -> Series:
    """Return for each series: rows at different places, first, last, and the usual distance."""
    import numpy as np

    from ranklake.lake.contracts.checks.series import medians, steps_of, within

    keys, bounds, places, _ = batch.filled(check.by, check.columns[0], check.columns[0])
    steps, step_bounds = steps_of(places, bounds)
    real = steps > 0
    step_bounds = within(step_bounds, real)
    usual = np.nan_to_num(medians(steps[real], step_bounds))
    ends = (places[at].astype(float).tolist() for at in (bounds[:-1], bounds[1:] - 1))
    facts = zip((np.diff(step_bounds) + 1).tolist(), *ends, usual.tolist(), strict=True)
    return dict(zip(keys, map(list, facts), strict=True))


def _completeness_judge(check: Check, parts: Sequence[Series], about: Surroundings) -> Finding:
    from ranklake.lake.contracts.checks.series import first_of, label, usual_distance

    del about
    least = _COMPLETENESS_LEAST if check.min is None else float(check.min)
    due = lacking = 0
    lines = []
    for key, all_of in facts_by_series(parts).items():
        there = sum(facts[0] for facts in all_of)
        usual = usual_distance([(facts[0], facts[1], facts[3]) for facts in all_of])
        if there < _COMPLETENESS_FEWEST or not usual:
            continue
        implied = round((max(facts[2] for facts in all_of) - min(facts[1] for facts in all_of)) / usual) + 1
        due += max(implied, int(there))
        if there < least * implied:
            lacking += int(implied - there)
            lines.append(f"{label(check.by, key)}: {there:,.0f} of {implied:,} rows")
    return Finding(int(due), lacking, first_of(lines), f"at least {least:.4g} of the rows that each series implies")


COMPLETENESS = SeriesKind(
    name="completeness",
    wrong=lambda check: f"rows are missing from series along {check.columns[0]}",
    types=frozenset({"int32", "int64", "timestamp"}),
    dimension="completeness",
    watch=Watch(_completeness_part, _completeness_judge),
)
"""``completeness``: rows that are there, over rows that steps or intervals imply, are at least `min` (0.95) of them.

The column counts steps or is a time. A series, distinguished by `by`, implies a row for each of its usual distances
between its first and its last row; the usual distance is the median of those that it has.
"""


_GAPS_TIMES: Final = 10.0
_GAPS_SHORTEST_S: Final = 5.0
_GAPS_FEWEST: Final = 5

_Gap = tuple[float, float]


def _gaps_part(check: Check, batch: "Batch") -> dict[tuple[Any, ...], tuple[int, float, float, float, list[_Gap]]]:
    """Return for each series: rows, first, last, usual distance, and what may be gaps."""
    import numpy as np

    from ranklake.lake.contracts.checks.series import medians, steps_of, within

    floor = (_GAPS_SHORTEST_S if check.min is None else float(check.min)) * 1e6
    order = batch.order(check.by, check.columns[0])
    along = batch.ordered(order, check.columns[0])
    steps, step_bounds = steps_of(along, order.bounds)
    real = steps > 0
    usual = np.nan_to_num(medians(steps[real], within(step_bounds, real)))
    wide = np.flatnonzero(steps > np.repeat(np.maximum(usual, floor), np.diff(step_bounds)))
    series_of = np.searchsorted(step_bounds, wide, side="right") - 1
    spans: list[list[_Gap]] = [[] for _ in order.keys]
    for number, at in zip(series_of.tolist(), (wide + series_of).tolist(), strict=True):
        spans[number].append((float(along[at]), float(along[at + 1])))
    ends = (along[at].astype(float).tolist() for at in (order.bounds[:-1], order.bounds[1:] - 1))
    facts = zip(np.diff(order.bounds).tolist(), *ends, usual.tolist(), spans, strict=True)
    return dict(zip(order.keys, facts, strict=True))


def _gaps_judge(check: Check, parts: Sequence[dict[tuple[Any, ...], Any]], about: Surroundings) -> Finding:
    from ranklake.lake.contracts.checks.series import first_of, label, seconds, usual_distance

    del about
    times = _GAPS_TIMES if check.max is None else float(check.max)
    floor = (_GAPS_SHORTEST_S if check.min is None else float(check.min)) * 1e6
    rows = lacking = 0
    lines = []
    for key, all_of in facts_by_series(parts).items():
        count = sum(facts[0] for facts in all_of)
        rows += count
        usual = usual_distance([(facts[0], facts[1], facts[3]) for facts in all_of])
        if count < _GAPS_FEWEST or not usual:
            continue
        gaps = [span for span in _gaps_open(all_of) if span[1] - span[0] > max(floor, times * usual)]
        lost = sum(round((end - start) / usual) - 1 for start, end in gaps)
        rows += lost
        lacking += lost
        if gaps:
            longest = max(end - start for start, end in gaps)
            lines.append(
                f"{label(check.by, key)}: gaps: {len(gaps)}, the longest {seconds(longest)} (usual {seconds(usual)})"
            )
    return Finding(rows, lacking, first_of(lines), f"no gap above {times:.4g} times the usual distance")


def _gaps_open(all_of: Sequence[Any]) -> list[_Gap]:
    """Return what all batches of a series leave open between its first and its last row."""
    begin, end = min(facts[1] for facts in all_of), max(facts[2] for facts in all_of)
    left: list[_Gap] = [(begin, end)]
    for _, first, last, _, spans in all_of:
        free = [(begin, first), *spans, (last, end)]
        left = [(max(a, c), min(b, d)) for a, b in left for c, d in free if min(b, d) > max(a, c)]
    return left


GAPS = SeriesKind(
    name="gaps",
    wrong=lambda check: f"series have gaps along {check.columns[0]}",
    types=frozenset({"timestamp"}),
    dimension="completeness",
    watch=Watch(_gaps_part, _gaps_judge),
)
"""``gaps``: no series has a gap of more than `max` (10) times its usual distance between samples.

Gaps of less than `min` seconds (5) are none. What one file leaves open another may fill: only what all leave open is a
gap.
"""


_FLEET_GAP_LONGEST_S: Final = 600.0
_FLEET_GAP_FEWEST: Final = 3
_SECOND_US: Final = 1_000_000


def _fleet_gap_part(check: Check, batch: "Batch") -> tuple[Any, dict[tuple[Any, ...], tuple[int, int, int, float]]]:
    """Return seconds that have rows, as ranges, and of each series its rows, first, last and usual distance."""
    import numpy as np

    from ranklake.lake.contracts.checks.series import medians, steps_of

    when = np.unique(batch.values(check.columns[0]) // _SECOND_US)
    breaks = np.flatnonzero(np.diff(when) > 1)
    ranges = np.stack([when[np.r_[0, breaks + 1]], when[np.r_[breaks, len(when) - 1]]])
    order = batch.order(check.by, check.columns[0])
    along = batch.ordered(order, check.columns[0])
    usual = np.nan_to_num(medians(*steps_of(along, order.bounds)))
    ends = (along[at].astype(np.int64).tolist() for at in (order.bounds[:-1], order.bounds[1:] - 1))
    facts = zip(np.diff(order.bounds).tolist(), *ends, usual.tolist(), strict=True)
    return ranges, dict(zip(order.keys, facts, strict=True))


def _fleet_gap_judge(check: Check, parts: Sequence[Any], about: Surroundings) -> Finding:
    import numpy as np

    from ranklake.lake.contracts.checks.series import first_of, seconds

    del about
    limit = _FLEET_GAP_LONGEST_S if check.max is None else float(check.max)
    fewest = _FLEET_GAP_FEWEST if check.min is None else int(check.min)
    if not parts:
        return Finding(unknown="there are no rows")
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
    lost, lines = 0, []
    for begin, end in zip(reach[:-1].tolist(), starts[1:].tolist(), strict=True):
        if end - begin <= limit:
            continue
        open_us = (end - begin) * _SECOND_US
        across = [
            one for one in series.values() if one[1] <= begin * _SECOND_US + _SECOND_US and one[2] >= end * _SECOND_US
        ]
        distances = [one[3] or (one[2] - one[1]) / max(one[0] - 1, 1) for one in across]
        usual = [distance for distance in distances if 0 < distance * 10 < open_us]
        if len(usual) >= fewest:
            lost += sum(round(open_us / one) for one in usual)
            lines.append(f"{len(usual)} series at once for {seconds(open_us)}")
    return Finding(rows + lost, lost, first_of(lines), f"no {limit:,.0f} s in which all series are silent")


FLEET_GAP = SeriesKind(
    name="fleet_gap",
    wrong=lambda check: f"all series of {check.columns[0]} are silent at once: the recording may have been out",
    types=frozenset({"timestamp"}),
    dimension="completeness",
    watch=Watch(_fleet_gap_part, _fleet_gap_judge),
)
"""``fleet_gap``: there is no time of more than `max` seconds (600) in which all series are silent, and go on after.

One series that stops is its own trouble; all of them at once is the recording's. At least three series (`min`) have
rows before and after.
"""


_FRESH_LATEST_S: Final = 1800.0


def _fresh_part(check: Check, batch: "Batch") -> dict[Any, list[int]]:
    """Return rows and newest time of each run."""
    import numpy as np

    groups = batch.groups(("run",))
    newest = np.zeros(len(groups.keys), np.int64)
    np.maximum.at(newest, groups.of, batch.values(check.columns[0]))
    rows = np.bincount(groups.of, minlength=len(groups.keys))
    return {key[0]: list(facts) for key, *facts in zip(groups.keys, rows.tolist(), newest.tolist(), strict=True)}


def _fresh_judge(check: Check, parts: Sequence[dict[Any, list[int]]], about: Surroundings) -> Finding:
    from ranklake.lake.contracts.checks.series import first_of, label, seconds

    limit = _FRESH_LATEST_S if check.max is None else float(check.max)
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
        lines += [f"{label(('run',), (run,))}: {table} ends {seconds(by)} earlier" for table, by in worst.items()]
    if not judged:
        return Finding(unknown="no run of it writes to those tables")
    return Finding(
        judged, behind, first_of(lines), f"{', '.join(map(str, check.values))} at most {limit:,.0f} s behind"
    )


FRESH = CheckKind(
    name="fresh",
    wrong=lambda check: f"of a run that goes on, {' or '.join(map(str, check.values))} stands still",
    level="watch",
    needs=(("columns",), ("values",)),
    own_columns=True,
    types=frozenset({"timestamp"}),
    dimension="timeliness",
    watch=Watch(_fresh_part, _fresh_judge, also=("run",)),
)
"""``fresh``: of a run that goes on here, other tables are no more than `max` seconds (1800) behind.

`values` names those tables; of a run that never wrote to one, nothing is expected there. It stands at the table that
goes on, since one that gets no rows is not checked again.
"""


_SILENCE_HOURS: Final = 20.0
_SILENCE_KNOWN: Final = 3
_SILENCE_MOSTLY: Final = 0.8


def _silence_part(check: Check, batch: "Batch") -> list[float]:
    """Return rows, rows with another value than 0, first and last time."""
    import numpy as np

    values, when = batch.values(check.columns[0]), batch.values("ts")
    return [len(values), int(np.count_nonzero(np.nan_to_num(values.astype(float)))), int(when.min()), int(when.max())]


def _silence_judge(check: Check, parts: Sequence[list[float]], about: Surroundings) -> Finding:
    rows, busy = (int(sum(part[at] for part in parts)) for at in (0, 1))
    hours = (max(part[3] for part in parts) - min(part[2] for part in parts)) / 3.6e9 if parts else 0.0
    measured = {"busy_rows": float(busy), "hours": hours}
    least = _SILENCE_HOURS if check.min is None else float(check.min)
    before = [one for one in about.earlier.values() if one.get("hours", 0) >= least]
    expected = f"{check.columns[0]} above 0 at some time"
    if busy or hours < least:
        return Finding(rows, 0, f"{busy:,} of {rows:,} rows", expected, measured)
    alive = sum(one["busy_rows"] > 0 for one in before)
    if len(before) < _SILENCE_KNOWN or alive < _SILENCE_MOSTLY * len(before):
        return Finding(measured=measured, unknown=f"{len(before)} earlier dates are known, {alive} of them busy")
    observed = f"all {rows:,} rows of {hours:.1f} h are 0 or NULL; {alive} of {len(before)} dates before were not"
    return Finding(rows, rows, observed, expected, measured)


SILENCE = CheckKind(
    name="silence",
    wrong=lambda check: f"{check.columns[0]} is 0 or NULL in all rows of the date: the recording may have been out",
    level="watch",
    types=NUMBERS - {"decimal"},
    dimension="completeness",
    watch=Watch(_silence_part, _silence_judge, also=("ts",), remembers=True),
)
"""``silence``: a column is not 0 or NULL in all rows of a whole date, where it was otherwise on most earlier dates.

A fleet that does nothing at all is hardly a fleet: more likely the recording was out. Dates of which the rows cover
less than `min` hours (20) are not judged, nor is one before three others are known.
"""
