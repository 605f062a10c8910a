"""Check kinds for the values of series: sensors that stick, counters that fall, wrong units, clocks that differ."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from ranklake.lake.contracts.checks.kind import Series, SeriesKind, Watch, WatchContext, WatchResult, facts_by_series
from ranklake.lake.contracts.model import NUMBERS, Check

if TYPE_CHECKING:
    from ranklake.lake.contracts.checks.series import Batch


_STUCK_SAMPLES: Final = 30
_STUCK_MOVES: Final = 0.5
_STUCK_PEERS: Final = 2


def _summarize_stuck(check: Check, batch: "Batch") -> Series:
    """Return for each series: first time, number of values and of changes, and its first, last and longest stretch.

    A stretch is a sequence of equal values, given as (samples, value).
    """
    import numpy as np

    keys, bounds, moments, values = batch.filled(check.by, "ts", check.columns[0])
    if not keys:
        return {}
    begins = np.ones(len(values), bool)
    begins[1:] = values[1:] != values[:-1]
    begins[bounds[:-1]] = True
    starts = np.flatnonzero(begins)
    lengths = np.diff(starts, append=len(values))
    first = np.searchsorted(starts, bounds)  # each series' first stretch
    longest = np.maximum.reduceat(lengths, first[:-1])
    at_longest = np.flatnonzero(lengths == np.repeat(longest, np.diff(first)))
    at_longest = at_longest[np.searchsorted(at_longest, first[:-1])]
    stretches = [
        list(zip(lengths[at].tolist(), values[starts[at]].astype(float).tolist(), strict=True))
        for at in (first[:-1], first[1:] - 1, at_longest)
    ]
    times = moments[bounds[:-1]].astype(np.int64).tolist()
    counts, changes = np.diff(bounds).tolist(), (np.diff(first) - 1).tolist()
    return dict(zip(keys, map(list, zip(times, counts, changes, *stretches, strict=True)), strict=True))


def _join_stretches(parts: Sequence[Any]) -> tuple[int, int, int, float]:
    """Return the number of values and changes, the longest stretch and its value, from the summaries of a series."""
    count = changes = 0
    end: tuple[int, float] | None = None
    longest = (0, 0.0)
    for _, part_count, part_changes, head, tail, part_longest in sorted(parts, key=lambda part: part[0]):
        continues = end is not None and end[1] == head[1]
        changes += part_changes + (end is not None and not continues)
        count += part_count
        before = end[0] if end is not None and continues else 0
        end = (before + part_count if head[0] == part_count else tail[0], tail[1])
        longest = max(longest, part_longest, (before + head[0], head[1]), key=lambda stretch: stretch[0])
    return count, changes, *longest


def _evaluate_stuck(check: Check, parts: Sequence[Series], context: WatchContext) -> WatchResult:
    from ranklake.lake.contracts.checks.series import figure, join_lines, label

    del context
    least = _STUCK_SAMPLES if check.min is None else int(check.min)
    series = {key: _join_stretches(summaries) for key, summaries in facts_by_series(parts).items()}
    moving = {
        key for key, (count, changes, longest, _) in series.items() if changes > _STUCK_MOVES * max(1, count - longest)
    }
    rows = stuck = 0
    lines = []
    for key, (count, _, longest, value) in series.items():
        rows += count
        peers = len(moving - {key})
        if longest < least or value == 0:
            continue
        is_exception = longest == count and peers >= max(_STUCK_PEERS, (len(series) - 1) * _STUCK_MOVES)
        if is_exception or (longest < count and key in moving):
            stuck += longest
            lines.append(f"{label(check.by, key)}: {figure(value)} in {longest:,.0f} samples of {count:,.0f}")
    return WatchResult(rows, stuck, join_lines(lines), f"no value {least:,} times in a row of a sensor that moves")


STUCK = SeriesKind(
    name="stuck",
    fault=lambda check: f"a sensor of {check.columns[0]} stands still",
    types=NUMBERS - {"decimal"},
    dimension="accuracy",
    watch=Watch(_summarize_stuck, _evaluate_stuck, extra_columns=("ts",)),
)
"""``stuck``: a sensor does not repeat one value other than 0 for `min` samples (30) or more.

A repeated value fails if the rest of the series changes at most samples, or if the whole series has one value while the
series of most other devices change.
"""


_MONOTONIC_RESET: Final = 0.1


def _summarize_monotonic(check: Check, batch: "Batch") -> Series:
    """Return for each series: number of values, falls and resets; first time and value; last time and value."""
    import numpy as np

    from ranklake.lake.contracts.checks.series import select_bounds

    share = _MONOTONIC_RESET if check.max is None else float(check.max)
    if "kind" in batch:
        names = tuple(name for name in dict.fromkeys((*check.by, "ts", *check.columns)) if name in batch)
        batch = batch.where("kind", "counter", names)
    keys, bounds, moments, values = batch.filled(check.by, "ts", check.columns[0])
    down = np.zeros(len(values), bool)
    down[1:] = values[1:] < values[:-1]
    down[bounds[:-1]] = False  # the first of a series
    reset = down.copy()
    reset[1:] &= values[1:] <= share * values[:-1]
    resets = np.diff(select_bounds(bounds, reset))
    falls = np.diff(select_bounds(bounds, down)) - resets
    ends = [column[at].astype(float).tolist() for at in (bounds[:-1], bounds[1:] - 1) for column in (moments, values)]
    facts = zip(np.diff(bounds).tolist(), falls.tolist(), resets.tolist(), *ends, strict=True)
    return dict(zip(keys, map(list, facts), strict=True))


def _evaluate_monotonic(check: Check, parts: Sequence[Series], context: WatchContext) -> WatchResult:
    from itertools import pairwise

    from ranklake.lake.contracts.checks.series import join_lines, label

    del context
    share = _MONOTONIC_RESET if check.max is None else float(check.max)
    rows = failed = resets = 0
    lines = []
    for key, summaries in facts_by_series(parts).items():
        falls = int(sum(facts[1] for facts in summaries))
        for before, after in pairwise(sorted(summaries, key=lambda facts: facts[3])):
            if before[5] < after[3] and share * before[6] < after[4] < before[6]:
                falls += 1
        rows += int(sum(facts[0] for facts in summaries))
        resets += int(sum(facts[2] for facts in summaries))
        failed += falls
        if falls:
            lines.append(f"{label(check.by, key)}: falls: {falls:,}")
    if not rows:
        return WatchResult(unknown="there is no counter")
    return WatchResult(rows, failed, join_lines(lines), f"no fall (resets: {resets:,})")


MONOTONIC = SeriesKind(
    name="monotonic",
    fault=lambda check: f"the counter {check.columns[0]} falls without a reset",
    types=NUMBERS - {"decimal"},
    dimension="consistency",
    watch=Watch(_summarize_monotonic, _evaluate_monotonic, extra_columns=("ts", "kind")),
)
"""``monotonic``: a counter never falls, except to nearly 0 when it is reset.

A fall to at most the share `max` (0.1) of the previous value is a reset. If the table has a column ``kind``, only rows
with the kind ``counter`` are checked. A fall between two batches is detected if they do not overlap in time.
"""


_CAPACITY_JUMP_MOST: Final = 0.5
_CAPACITY_JUMP_KNOWN: Final = 3
_CAPACITY_JUMP_DATES: Final = 7
_CAPACITY_JUMP_SERIES: Final = 2_000  # more than any fleet has pools, less than one has devices


def _summarize_capacity_jump(check: Check, batch: "Batch") -> dict[str, tuple[int, float]]:
    """Return the number of rows and the median of each pool."""
    import numpy as np

    from ranklake.lake.contracts.checks.series import label

    pools = {}
    groups = batch.groups(check.by)
    values = batch.values(check.columns[0]).astype(float)
    for number, key in enumerate(groups.keys):
        own_values = values[groups.of == number]
        own_values = own_values[~np.isnan(own_values)]
        if len(own_values):
            pools[label(check.by, key)] = (len(own_values), float(np.median(own_values)))
    return pools


def _evaluate_capacity_jump(
    check: Check, parts: Sequence[dict[str, tuple[int, float]]], context: WatchContext
) -> WatchResult:
    import numpy as np

    from ranklake.lake.contracts.checks.series import figure, join_lines, weighted_median

    most = _CAPACITY_JUMP_MOST if check.max is None else float(check.max)
    pools = facts_by_series(parts)
    now = {name: weighted_median(medians) for name, medians in pools.items()}
    rows = {name: sum(count for count, _ in medians) for name, medians in pools.items()}
    if not now:
        return WatchResult(unknown="no capacity is recorded")
    if len(now) > _CAPACITY_JUMP_SERIES:
        return WatchResult(unknown=f"{len(now):,} series are too many to compare")
    history = [context.earlier[day] for day in sorted(context.earlier)[-_CAPACITY_JUMP_DATES:]]
    if len(history) < _CAPACITY_JUMP_KNOWN:
        return WatchResult(measured=now, unknown=f"{len(history)} earlier dates are known")
    usual = {name: float(np.median([day.get(name, 0.0) for day in history])) for name in {*now, *history[-1]}}
    changes = {name: now.get(name, 0.0) - capacity for name, capacity in usual.items()}
    total = max(sum(usual.values()), sum(now.values()))
    share = sum(map(abs, changes.values())) / total if total else 0.0
    changed = sorted((name for name, change in changes.items() if change), key=lambda name: -abs(changes[name]))
    lines = [f"{name} {figure(usual[name])} to {figure(now.get(name, 0.0))}" for name in changed]
    affected = sum(rows.get(name, 0) for name in changed) or 1
    count = max(sum(rows.values()), affected)
    observed = f"{share:.2f} of {figure(total)} moved: {join_lines(lines)}" if lines else "nothing moved"
    expected = f"at most {most:.4g} of the usual capacity moves"
    return WatchResult(count, affected if share > most else 0, observed, expected, now)


CAPACITY_JUMP = SeriesKind(
    name="capacity_jump",
    fault=lambda check: f"capacity ({check.columns[0]}) jumps between dates",
    types=NUMBERS - {"decimal"},
    dimension="consistency",
    watch=Watch(_summarize_capacity_jump, _evaluate_capacity_jump, uses_history=True),
)
"""``capacity_jump``: at most the share `max` (0.5) of a fleet's capacity is added, removed or moved between pools.

A pool's capacity on a date is the median of its rows. It is compared with the median of the last seven known dates. No
date is checked before three earlier dates are known.
"""


_UNIT_FACTORS: Final = (
    (1e2, "percent and ratio"),
    (1e3, "a factor of 1,000, as of ms and s"),
    (1024.0, "a factor of 1,024, as of KiB and bytes"),
    (1e6, "a factor of 1,000,000, as of us and s"),
    (1024.0**2, "a factor of 1,048,576, as of MiB and bytes"),
    (1e9, "a factor of 1,000,000,000, as of ns and s"),
    (1024.0**3, "a factor of 1,073,741,824, as of GiB and bytes"),
)
_UNIT_NEAR: Final = 0.2
_UNIT_PEERS: Final = 2
_UNIT_ALIKE: Final = 3.0
_UNIT_CLOCK: Final = 20.0
_UNIT_FEWEST: Final = 5


def _summarize_unit(check: Check, batch: "Batch") -> Series:
    """Return for each series: number and median of values above 0; sum of all values but the last; duration in s."""
    import numpy as np

    from ranklake.lake.contracts.checks.series import medians, select_bounds

    order = batch.order(check.by, "ts")
    when, values = batch.ordered(order, "ts"), batch.ordered(order, check.columns[0]).astype(float)
    is_above = values > 0
    if not is_above.any():
        return {}
    above = select_bounds(order.bounds, is_above)
    middle = medians(values[is_above], above)
    first, last = order.bounds[:-1], order.bounds[1:] - 1
    seconds = (when[last] - when[first]).astype(float) / 1e6
    summed = np.where(np.isnan(values), 0, values)
    summed[last] = 0
    facts = zip(np.diff(above).tolist(), middle.tolist(), np.add.reduceat(summed, first).tolist(), seconds.tolist(),
                strict=True)  # fmt: skip
    return {key: list(summary) for key, summary in zip(order.keys, facts, strict=True) if summary[0]}


def _evaluate_unit(check: Check, parts: Sequence[Series], context: WatchContext) -> WatchResult:
    from ranklake.lake.contracts.checks.series import figure, join_lines, label, quartiles_of_others, weighted_median

    del context
    series = {
        key: (sum(facts[0] for facts in summaries), weighted_median([facts[:2] for facts in summaries]),
              sum(facts[2] for facts in summaries), sum(facts[3] for facts in summaries))
        for key, summaries in facts_by_series(parts).items()
    }  # fmt: skip
    low = None if check.min is None else float(check.min)
    high = None if check.max is None else float(check.max)
    comparable = [key for key, facts in series.items() if facts[0] >= _UNIT_FEWEST]
    quartiles = quartiles_of_others([series[key][1] for key in comparable]) if len(comparable) > _UNIT_PEERS else ()
    peers = dict(zip(comparable, quartiles, strict=False))
    is_ratio = check.columns[0].endswith("_ratio")  # a low ratio means an idle device, not another unit
    rows = failed = 0
    lines = []
    for key, (count, middle, summed, elapsed_s) in series.items():
        rows += int(count)
        reason = ""
        if (low is not None and middle < low) or (high is not None and middle > high):
            reason = _other_units(check.columns[0])
        elif "ts" in check.values and count >= _UNIT_FEWEST and elapsed_s > 0 and summed > _UNIT_CLOCK * elapsed_s:
            reason = f"{figure(summed)} in {figure(elapsed_s)} s of the clock"
        elif key in peers and not is_ratio:
            low_quarter, usual, high_quarter = peers[key]
            if high_quarter <= _UNIT_ALIKE * low_quarter:
                reason = _unit_factor_between(middle, float(usual))
        if reason:
            failed += int(count)
            lines.append(f"{label(check.by, key)}: median {figure(middle)}, {reason}")
    if not rows:
        return WatchResult(unknown="there was no value to judge")
    range_ = "" if low is None and high is None else f"medians {_bound_text(low)} to {_bound_text(high)}, "
    return WatchResult(rows, failed, join_lines(lines), f"{range_}alike in all series")


def _bound_text(value: float | None) -> str:
    return "…" if value is None else f"{value:.4g}"


def _other_units(column: str) -> str:
    """Return a text that says from which other units such a magnitude usually comes."""
    families = {"_ratio": "as of percent", "_bytes": "as of KiB, MiB or GiB", "_s": "as of ms, us or ns"}
    return next((words for end, words in families.items() if column.endswith(end)), "as of another unit")


def _unit_factor_between(value: float, usual: float) -> str:
    ratio = max(value, usual) / min(value, usual)
    deviation, words = min((abs(ratio / factor - 1), words) for factor, words in _UNIT_FACTORS)
    return f"others {usual:.4g}: {words}" if deviation < _UNIT_NEAR else ""


UNIT = SeriesKind(
    name="unit",
    fault=lambda check: f"{check.columns[0]} seems to be in another unit",
    types=NUMBERS - {"decimal"},
    dimension="conformity",
    watch=Watch(_summarize_unit, _evaluate_unit, extra_columns=("ts",)),
)
"""``unit``: values have the magnitude of their unit. Finds percent in a ratio, MiB in bytes or ms in s.

A series fails on any of these:

- Its median lies outside `min` to `max`.
- Its median differs from the median of the other series by a factor between two units. Ratios (columns ending in
  ``_ratio``) are exempt, because an idle device has a low ratio.
- With `values: [ts]`: the sum of its durations is more than 20 times the time between its first and last row.
"""


_CLOCK_SKEW_MOST_S: Final = 60.0
_CLOCK_SKEW_STEPS: Final = 128
_FEWEST_SHARED: Final = 3
_CLOCK_SKEW_PAIR: Final = 2


def _summarize_clock_skew(check: Check, batch: "Batch") -> tuple[dict[tuple[Any, ...], tuple[Any, Any]], int, int]:
    """Return steps and times of each rank; the number of rows; and the newest time.

    A long series is thinned to steps divisible by a power of two, so that all batches keep the same steps.
    """
    import numpy as np

    from ranklake.lake.contracts.checks.series import select_bounds

    when, rank, step = check.columns
    order = batch.order((*check.by, rank), step)
    steps, times = batch.ordered(order, step), batch.ordered(order, when)
    lengths = np.diff(order.bounds)
    intervals = np.array([1 << (length // _CLOCK_SKEW_STEPS).bit_length() for length in lengths.tolist()], np.int64)
    chosen = steps % np.repeat(intervals, lengths) == 0
    cuts = select_bounds(order.bounds, chosen)[1:-1]
    parts = zip(np.split(steps[chosen], cuts), np.split(times[chosen], cuts), strict=True)
    series = dict(zip(order.keys, parts, strict=True))
    return series, len(batch), int(np.max(batch.values(when)))


def _evaluate_clock_skew(check: Check, parts: Sequence[Any], context: WatchContext) -> WatchResult:
    import numpy as np

    from ranklake.lake.contracts.checks.series import join_lines, label, seconds

    limit_us = (_CLOCK_SKEW_MOST_S if check.max is None else float(check.max)) * 1e6
    rows = sum(part[1] for part in parts)
    runs: dict[tuple[Any, ...], dict[int, list[Any]]] = {}
    for clocks, _, _ in parts:
        for (*run_key, rank), clock in clocks.items():
            runs.setdefault(tuple(run_key), {}).setdefault(rank, []).append(clock)
    lines, off_rows = [], 0
    for run, ranks in runs.items():
        if len(ranks) < _CLOCK_SKEW_PAIR:
            continue  # no other rank to compare with
        # with two ranks the median lies half-way between them
        allowed_us = limit_us / (2 if len(ranks) == _CLOCK_SKEW_PAIR else 1)
        clocks_by_rank = [_latest_times(pieces) for pieces in ranks.values()]
        lengths = np.array([len(steps) for steps, _ in clocks_by_rank])
        rank_numbers = np.repeat(np.arange(len(clocks_by_rank)), lengths)
        steps, times = (np.concatenate(arrays) for arrays in zip(*clocks_by_rank, strict=True))
        distinct_steps, middle, count = _medians_by_key(steps, times)
        place = np.searchsorted(distinct_steps, steps)
        is_shared = count[place] > 1
        numbers, offsets, count = _medians_by_key(rank_numbers[is_shared], (times - middle[place])[is_shared])
        names = list(ranks)
        is_enough = count >= _FEWEST_SHARED
        for number, offset in zip(numbers[is_enough].tolist(), offsets[is_enough].tolist(), strict=True):
            if abs(offset) > allowed_us:
                off_rows += int(lengths[number])
                lines.append(f"{label((*check.by, check.columns[1]), (*run, names[number]))}: off by {seconds(offset)}")
    ahead = max((part[2] for part in parts), default=0) - context.now_us
    if ahead > limit_us:
        off_rows = max(off_rows, 1)
        lines.append(f"newest row {seconds(ahead)} in the future")
    return WatchResult(rows, min(off_rows, rows), join_lines(lines), f"clocks within {limit_us / 1e6:,.4g} s")


def _latest_times(pieces: Sequence[tuple[Any, Any]]) -> tuple[Any, Any]:
    """Return the distinct steps of one rank, sorted, and the last time of each."""
    import numpy as np

    steps, times = (np.concatenate(arrays)[::-1] for arrays in zip(*pieces, strict=True))
    steps, first = np.unique(steps, return_index=True)
    return steps, times[first]


def _medians_by_key(keys: Any, values: Any) -> tuple[Any, Any, Any]:  # noqa: ANN401 - arrays
    """Return the distinct keys, sorted, with median and number of the values of each."""
    import numpy as np

    order = np.lexsort((values, keys))
    distinct, begin, count = np.unique(keys[order], return_index=True, return_counts=True)
    low, high = (values[order][begin + half] for half in ((count - 1) // 2, count // 2))
    return distinct, (low + high) / 2, count


CLOCK_SKEW = SeriesKind(
    name="clock_skew",
    fault=lambda _: "clocks of ranks disagree",
    dimension="accuracy",
    watch=Watch(_summarize_clock_skew, _evaluate_clock_skew),
)
"""``clock_skew``: ranks of a run begin the same step within `max` seconds (60), and no row has a time in the future.

Columns: time, rank and step. `by`: columns that identify a run. For each step that several ranks report, a rank's
offset is the difference of its time from the median of all ranks. The rank's skew is the median of its offsets, so a
single late step does not count as skew.
"""
