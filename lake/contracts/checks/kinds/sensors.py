"""Checks of the values of series: of sensors, counters and clocks."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from ranklake.lake.contracts.checks.kind import Finding, Series, SeriesKind, Surroundings, Watch, facts_by_series
from ranklake.lake.contracts.model import NUMBERS, Check

if TYPE_CHECKING:
    from ranklake.lake.contracts.checks.series import Batch


_STUCK_SAMPLES: Final = 30
_STUCK_MOVES: Final = 0.5
_STUCK_PEERS: Final = 2


def _stuck_part(check: Check, batch: "Batch") -> Series:
    """Return for each series: its first time, values and how often they change, and three stretches of one value.

    A stretch is (samples, value): that at the beginning, that at the end, and the longest.
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


def _stuck_joined(parts: Sequence[Any]) -> tuple[int, int, int, float]:
    """Return values, changes, the longest stretch and its value of a series, from its parts in order of time."""
    count = changes = 0
    end: tuple[int, float] | None = None
    longest = (0, 0.0)
    for _, more, more_changes, head, tail, own in sorted(parts, key=lambda part: part[0]):
        goes_on = end is not None and end[1] == head[1]
        changes += more_changes + (end is not None and not goes_on)
        count += more
        before = end[0] if end is not None and goes_on else 0
        end = (before + more if head[0] == more else tail[0], tail[1])
        longest = max(longest, own, (before + head[0], head[1]), key=lambda stretch: stretch[0])
    return count, changes, *longest


def _stuck_judge(check: Check, parts: Sequence[Series], about: Surroundings) -> Finding:
    from ranklake.lake.contracts.checks.series import figure, first_of, label

    del about
    least = _STUCK_SAMPLES if check.min is None else int(check.min)
    series = {key: _stuck_joined(all_of) for key, all_of in facts_by_series(parts).items()}
    moving = {
        key for key, (count, changes, longest, _) in series.items() if changes > _STUCK_MOVES * max(1, count - longest)
    }
    rows = still = 0
    lines = []
    for key, (count, _, longest, value) in series.items():
        rows += count
        peers = len(moving - {key})
        if longest < least or value == 0:
            continue
        alone = longest == count and peers >= max(_STUCK_PEERS, (len(series) - 1) * _STUCK_MOVES)
        if alone or (longest < count and key in moving):
            still += longest
            lines.append(f"{label(check.by, key)}: {figure(value)} in {longest:,.0f} samples of {count:,.0f}")
    return Finding(rows, still, first_of(lines), f"no value {least:,} times in a row of a sensor that moves")


STUCK = SeriesKind(
    name="stuck",
    wrong=lambda check: f"a sensor of {check.columns[0]} stands still",
    types=NUMBERS - {"decimal"},
    dimension="accuracy",
    watch=Watch(_stuck_part, _stuck_judge, also=("ts",)),
)
"""``stuck``: a sensor that moves does not stand still at the same value for `min` samples (30) or more.

Standing still is wrong where the rest of the series moves at most samples, or where the whole series stands still and
those of most other devices move.
"""


_MONOTONIC_RESET: Final = 0.1


def _monotonic_part(check: Check, batch: "Batch") -> Series:
    """Return for each series: values, falls, resets, and its first and last time and value."""
    import numpy as np

    from ranklake.lake.contracts.checks.series import within

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
    resets = np.diff(within(bounds, reset))
    falls = np.diff(within(bounds, down)) - resets
    ends = [of[at].astype(float).tolist() for at in (bounds[:-1], bounds[1:] - 1) for of in (moments, values)]
    facts = zip(np.diff(bounds).tolist(), falls.tolist(), resets.tolist(), *ends, strict=True)
    return dict(zip(keys, map(list, facts), strict=True))


def _monotonic_judge(check: Check, parts: Sequence[Series], about: Surroundings) -> Finding:
    from itertools import pairwise

    from ranklake.lake.contracts.checks.series import first_of, label

    del about
    share = _MONOTONIC_RESET if check.max is None else float(check.max)
    rows = wrong = resets = 0
    lines = []
    for key, all_of in facts_by_series(parts).items():
        falls = int(sum(facts[1] for facts in all_of))
        for before, after in pairwise(sorted(all_of, key=lambda facts: facts[3])):
            if before[5] < after[3] and share * before[6] < after[4] < before[6]:
                falls += 1
        rows += int(sum(facts[0] for facts in all_of))
        resets += int(sum(facts[2] for facts in all_of))
        wrong += falls
        if falls:
            lines.append(f"{label(check.by, key)}: falls: {falls:,}")
    if not rows:
        return Finding(unknown="there is no counter")
    return Finding(rows, wrong, first_of(lines), f"no fall (resets: {resets:,})")


MONOTONIC = SeriesKind(
    name="monotonic",
    wrong=lambda check: f"the counter {check.columns[0]} falls without a reset",
    types=NUMBERS - {"decimal"},
    dimension="consistency",
    watch=Watch(_monotonic_part, _monotonic_judge, also=("ts", "kind")),
)
"""``monotonic``: a counter never falls, but to nearly 0 where it was reset.

A fall to no more than `max` (0.1) of the value before is a reset. Of a table with a column ``kind`` only counters are
judged. Falls between two batches are seen where their series do not overlap in time.
"""


_CAPACITY_JUMP_MOST: Final = 0.5
_CAPACITY_JUMP_KNOWN: Final = 3
_CAPACITY_JUMP_DATES: Final = 7
_CAPACITY_JUMP_SERIES: Final = 2_000  # whose figures are kept: pools, not devices


def _capacity_jump_part(check: Check, batch: "Batch") -> dict[str, tuple[int, float]]:
    """Return rows and median of each pool."""
    import numpy as np

    from ranklake.lake.contracts.checks.series import label

    pools = {}
    of = batch.groups(check.by)
    values = batch.values(check.columns[0]).astype(float)
    for number, key in enumerate(of.keys):
        own = values[of.of == number]
        own = own[~np.isnan(own)]
        if len(own):
            pools[label(check.by, key)] = (len(own), float(np.median(own)))
    return pools


def _capacity_jump_judge(check: Check, parts: Sequence[dict[str, tuple[int, float]]], about: Surroundings) -> Finding:
    import numpy as np

    from ranklake.lake.contracts.checks.series import figure, first_of, weighted_median

    most = _CAPACITY_JUMP_MOST if check.max is None else float(check.max)
    pools = facts_by_series(parts)
    now = {name: weighted_median(medians) for name, medians in pools.items()}
    rows = {name: sum(count for count, _ in medians) for name, medians in pools.items()}
    if not now:
        return Finding(unknown="no capacity is told")
    if len(now) > _CAPACITY_JUMP_SERIES:
        return Finding(unknown=f"{len(now):,} series are too many to compare")
    before = [about.earlier[day] for day in sorted(about.earlier)[-_CAPACITY_JUMP_DATES:]]
    if len(before) < _CAPACITY_JUMP_KNOWN:
        return Finding(measured=now, unknown=f"{len(before)} earlier dates are known")
    usual = {name: float(np.median([one.get(name, 0.0) for one in before])) for name in {*now, *before[-1]}}
    moved = {name: now.get(name, 0.0) - was for name, was in usual.items()}
    total = max(sum(usual.values()), sum(now.values()))
    share = sum(map(abs, moved.values())) / total if total else 0.0
    jumps = sorted(((name, by) for name, by in moved.items() if by), key=lambda jump: -abs(jump[1]))
    lines = [f"{name} {figure(usual[name])} to {figure(now.get(name, 0.0))}" for name, _ in jumps]
    hit = sum(rows.get(name, 0) for name, _ in jumps) or 1
    count = max(sum(rows.values()), hit)
    observed = f"{share:.2f} of {figure(total)} moved: {first_of(lines)}" if lines else "nothing moved"
    return Finding(count, hit if share > most else 0, observed, f"at most {most:.4g} of the usual capacity moves", now)


CAPACITY_JUMP = SeriesKind(
    name="capacity_jump",
    wrong=lambda check: f"capacity ({check.columns[0]}) jumps between dates",
    types=NUMBERS - {"decimal"},
    dimension="consistency",
    watch=Watch(_capacity_jump_part, _capacity_jump_judge, remembers=True),
)
"""``capacity_jump``: no more than `max` (0.5) of a fleet's capacity moves, comes or goes from one date to the next.

A date's capacity of each pool is the median of its rows; it is compared with the median of the last seven dates that
are known, and with nothing before three are.
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


def _unit_part(check: Check, batch: "Batch") -> Series:
    """Return for each series: values above 0, their median, their sum without the last, time between first and last."""
    import numpy as np

    from ranklake.lake.contracts.checks.series import medians, within

    order = batch.order(check.by, "ts")
    when, values = batch.ordered(order, "ts"), batch.ordered(order, check.columns[0]).astype(float)
    is_above = values > 0
    if not is_above.any():
        return {}
    above = within(order.bounds, is_above)
    middle = medians(values[is_above], above)
    first, last = order.bounds[:-1], order.bounds[1:] - 1
    seconds = (when[last] - when[first]).astype(float) / 1e6
    summed = np.where(np.isnan(values), 0, values)
    summed[last] = 0
    facts = zip(np.diff(above).tolist(), middle.tolist(), np.add.reduceat(summed, first).tolist(), seconds.tolist(),
                strict=True)  # fmt: skip
    return {key: list(of_key) for key, of_key in zip(order.keys, facts, strict=True) if of_key[0]}


def _unit_judge(check: Check, parts: Sequence[Series], about: Surroundings) -> Finding:
    from ranklake.lake.contracts.checks.series import figure, first_of, label, quartiles_of_others, weighted_median

    del about
    series = {
        key: (sum(facts[0] for facts in all_of), weighted_median([facts[:2] for facts in all_of]),
              sum(facts[2] for facts in all_of), sum(facts[3] for facts in all_of))
        for key, all_of in facts_by_series(parts).items()
    }  # fmt: skip
    low = None if check.min is None else float(check.min)
    high = None if check.max is None else float(check.max)
    judged = [key for key, facts in series.items() if facts[0] >= _UNIT_FEWEST]
    others = quartiles_of_others([series[key][1] for key in judged]) if len(judged) > _UNIT_PEERS else ()
    of_others = dict(zip(judged, others, strict=False))
    is_share = check.columns[0].endswith("_ratio")  # low ratios are idle devices, not another unit
    rows = wrong = 0
    lines = []
    for key, (count, middle, summed, passed) in series.items():
        rows += int(count)
        why = ""
        if (low is not None and middle < low) or (high is not None and middle > high):
            why = _unit_other_units(check.columns[0])
        elif "ts" in check.values and count >= _UNIT_FEWEST and passed > 0 and summed > _UNIT_CLOCK * passed:
            why = f"{figure(summed)} in {figure(passed)} s of the clock"
        elif key in of_others and not is_share:
            low_quarter, usual, high_quarter = of_others[key]
            if high_quarter <= _UNIT_ALIKE * low_quarter:
                why = _unit_factor_between(middle, float(usual))
        if why:
            wrong += int(count)
            lines.append(f"{label(check.by, key)}: median {figure(middle)}, {why}")
    if not rows:
        return Finding(unknown="there was no value to judge")
    range_ = "" if low is None and high is None else f"medians {_unit_end(low)} to {_unit_end(high)}, "
    return Finding(rows, wrong, first_of(lines), f"{range_}alike in all series")


def _unit_end(value: float | None) -> str:
    return "…" if value is None else f"{value:.4g}"


def _unit_other_units(column: str) -> str:
    """Return in words which other units a magnitude may come from."""
    families = {"_ratio": "as of percent", "_bytes": "as of KiB, MiB or GiB", "_s": "as of ms, us or ns"}
    return next((words for end, words in families.items() if column.endswith(end)), "as of another unit")


def _unit_factor_between(value: float, usual: float) -> str:
    ratio = max(value, usual) / min(value, usual)
    near = [(abs(ratio / factor - 1), words) for factor, words in _UNIT_FACTORS]
    off, words = min(near)
    return f"others {usual:.4g}: {words}" if off < _UNIT_NEAR else ""


UNIT = SeriesKind(
    name="unit",
    wrong=lambda check: f"{check.columns[0]} seems to be in another unit",
    types=NUMBERS - {"decimal"},
    dimension="conformity",
    watch=Watch(_unit_part, _unit_judge, also=("ts",)),
)
"""``unit``: a column is in its unit, by magnitude: not percent in a ratio, MiB for bytes or ms for s.

Three witnesses, of which each is enough. The median of a series lies from `min` to `max`. No series is off from the
median of the others by a factor between units; shares (``_ratio``) may be, as of an idle device. Lengths of time in
`values: [ts]` are together no more than 20 times what the clock says between their starts.
"""


_CLOCK_SKEW_MOST_S: Final = 60.0
_CLOCK_SKEW_STEPS: Final = 128
_FEWEST_SHARED: Final = 3
_CLOCK_SKEW_PAIR: Final = 2


def _clock_skew_part(check: Check, batch: "Batch") -> tuple[dict[tuple[Any, ...], tuple[Any, Any]], int, int]:
    """Return steps and times of each rank, thinned to some at numbers that all batches agree on; rows; newest time."""
    import numpy as np

    when, rank, step = check.columns
    from ranklake.lake.contracts.checks.series import within

    order = batch.order((*check.by, rank), step)
    steps, times = batch.ordered(order, step), batch.ordered(order, when)
    lengths = np.diff(order.bounds)
    every = np.array([1 << (length // _CLOCK_SKEW_STEPS).bit_length() for length in lengths.tolist()], np.int64)
    chosen = steps % np.repeat(every, lengths) == 0
    cuts = within(order.bounds, chosen)[1:-1]
    parts = zip(np.split(steps[chosen], cuts), np.split(times[chosen], cuts), strict=True)
    series = dict(zip(order.keys, parts, strict=True))
    return series, len(batch), int(np.max(batch.values(when)))


def _clock_skew_judge(check: Check, parts: Sequence[Any], about: Surroundings) -> Finding:
    import numpy as np

    from ranklake.lake.contracts.checks.series import first_of, label, seconds

    limit_us = (_CLOCK_SKEW_MOST_S if check.max is None else float(check.max)) * 1e6
    rows = sum(part[1] for part in parts)
    runs: dict[tuple[Any, ...], dict[int, list[Any]]] = {}
    for clocks, _, _ in parts:
        for (*owner, rank), at in clocks.items():
            runs.setdefault(tuple(owner), {}).setdefault(rank, []).append(at)
    lines, off_rows = [], 0
    for run, ranks in runs.items():
        if len(ranks) < _CLOCK_SKEW_PAIR:
            continue  # nobody to compare with
        room_us = limit_us / (2 if len(ranks) == _CLOCK_SKEW_PAIR else 1)  # of two the median is half-way between
        own = [_clock_skew_latest(pieces) for pieces in ranks.values()]
        seen = np.array([len(steps) for steps, _ in own])
        owner = np.repeat(np.arange(len(own)), seen)
        steps, times = (np.concatenate(some) for some in zip(*own, strict=True))
        at, middle, count = _clock_skew_medians(steps, times)
        place = np.searchsorted(at, steps)
        shared = count[place] > 1
        who, offs, count = _clock_skew_medians(owner[shared], (times - middle[place])[shared])
        names = list(ranks)
        for number, off in zip(
            who[count >= _FEWEST_SHARED].tolist(), offs[count >= _FEWEST_SHARED].tolist(), strict=True
        ):
            if abs(off) > room_us:
                off_rows += int(seen[number])
                lines.append(f"{label((*check.by, check.columns[1]), (*run, names[number]))}: off by {seconds(off)}")
    ahead = max((part[2] for part in parts), default=0) - about.now_us
    if ahead > limit_us:
        off_rows = max(off_rows, 1)
        lines.append(f"newest row {seconds(ahead)} in the future")
    return Finding(rows, min(off_rows, rows), first_of(lines), f"clocks within {limit_us / 1e6:,.4g} s")


def _clock_skew_latest(pieces: Sequence[tuple[Any, Any]]) -> tuple[Any, Any]:
    """Return steps, in order, and their times of one rank; of a step that comes twice, the last."""
    import numpy as np

    steps, times = (np.concatenate(some)[::-1] for some in zip(*pieces, strict=True))
    steps, first = np.unique(steps, return_index=True)
    return steps, times[first]


def _clock_skew_medians(keys: Any, values: Any) -> tuple[Any, Any, Any]:  # noqa: ANN401 - arrays
    """Return distinct keys in order, the median of each one's values, and how many those are."""
    import numpy as np

    order = np.lexsort((values, keys))
    distinct, begin, count = np.unique(keys[order], return_index=True, return_counts=True)
    low, high = (values[order][begin + half] for half in ((count - 1) // 2, count // 2))
    return distinct, (low + high) / 2, count


CLOCK_SKEW = SeriesKind(
    name="clock_skew",
    wrong=lambda _: "clocks of ranks disagree",
    dimension="accuracy",
    watch=Watch(_clock_skew_part, _clock_skew_judge),
)
"""``clock_skew``: ranks of a run begin the same step within `max` seconds (60), and nothing is of the future.

Columns: time, rank and step; `by`: what a run is. A rank is off by the median, over steps that it shares with the
others, of its distance from their median. A single late step is no skew.
"""
