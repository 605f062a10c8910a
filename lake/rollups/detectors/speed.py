"""Detectors of slow steps, stalls and growing memory, from the steps of all attempts of a run in ``step_rollup``."""

import math
from collections.abc import Iterator, Mapping
from typing import Any, Final

import numpy as np

from ranklake.detection.baseline import episodes, recent_medians, trailing
from ranklake.detection.declaration import MIN_EFFECT, Detection, Detector, Series
from ranklake.detection.shifts import Shift, ShiftLimits, growth, shifts
from ranklake.lake.rollups.detectors.steps import SHARED, at_steps, attempts, evidence
from ranklake.printable import duration

Thresholds = Mapping[str, float]
_GIB: Final = 2**30
_US: Final = 1e6
_KNOWN_WAITS: Final = 2
_LONGER: Final = 2


def own_times(series: Series) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Return each step's time in s without saving and evaluating; NaN for steps without a time."""
    saving, evaluating = (np.nan_to_num(series[f"mean_{name}_time_s"]) for name in ("checkpoint", "evaluation"))
    times: np.ndarray[Any, np.dtype[np.float64]] = series["median_step_time_s"] - saving - evaluating
    times[~(times > 0)] = np.nan
    return times


def throughput_drop(series: Series, thresholds: Thresholds) -> Iterator[Detection]:
    """Find steps from which on steps take longer, until they take as long as before."""
    for places, changes in _levels(series, own_times(series), thresholds):
        lasting: Shift | None = None
        for change in changes:
            if lasting is not None and change.after <= lasting.before * (1 + thresholds[MIN_EFFECT] / 2):
                yield _drop(series, lasting, places, change.place - 1)
                lasting = None
            elif lasting is None and change.after > change.before:
                lasting = change
        if lasting is not None:
            yield _drop(series, lasting, places, None)


def _drop(series: Series, change: Shift, places: np.ndarray[Any, Any], last: int | None) -> Detection:
    ratio, first = change.after / change.before, int(places[change.place])
    return at_steps(
        series,
        first,
        _end(series, places, last),
        f"Steps take {100 * (ratio - 1):.0f} % longer from step {series['step'][first]} on: "
        f"{change.after:.3g} s, {change.before:.3g} s before",
        value=change.after,
        baseline=change.before,
        effect=ratio - 1,
        severity="error" if ratio >= 1.5 else None,  # noqa: PLR2004 - a third of the throughput is gone
    )


def step_time_shift(series: Series, thresholds: Thresholds) -> Iterator[Detection]:
    """Find steps from which on steps take less time than ever before, which may be unintended."""
    for places, changes in _levels(series, own_times(series), thresholds):
        fastest = np.inf
        for change in changes:
            fastest = min(fastest, change.before)
            if change.after < fastest * (1 - thresholds[MIN_EFFECT]):
                first = int(places[change.place])
                yield at_steps(
                    series,
                    first,
                    first,
                    f"Steps take {100 * (1 - change.after / change.before):.0f} % less from step "
                    f"{series['step'][first]} on: {change.after:.3g} s, {change.before:.3g} s before",
                    value=change.after,
                    baseline=change.before,
                    effect=1 - change.after / change.before,
                )


def collective_share(series: Series, thresholds: Thresholds) -> Iterator[Detection]:
    """Find steps from which on a larger share of the step is spent in collectives."""
    shares = series["mean_collective_time_s"] / series["mean_step_time_s"]
    yield from _risen_share(series, shares, thresholds, "collectives")


def _risen_share(
    series: Series, shares: np.ndarray[Any, Any], thresholds: Thresholds, name: str
) -> Iterator[Detection]:
    for places, changes in _levels(series, shares, thresholds, is_share=True):
        for change in changes:
            if change.after <= change.before:
                continue
            first = int(places[change.place])
            back = next((each for each in changes if each.place > change.place and each.after < change.after), None)
            yield at_steps(
                series,
                first,
                _end(series, places, None if back is None else back.place - 1),
                f"{100 * change.after:.0f} % of the step goes into {name} from step {series['step'][first]} on, "
                f"{100 * change.before:.0f} % before",
                value=change.after,
                baseline=change.before,
                effect=change.after - change.before,
            )


def _levels(
    series: Series, values: np.ndarray[Any, Any], thresholds: Thresholds, *, is_share: bool = False
) -> Iterator[tuple[np.ndarray[Any, Any], list[Shift]]]:
    """Yield for each attempt the indexes of its timed steps after the warm-up, and the changes of level among these."""
    least = thresholds[MIN_EFFECT]
    for begin, end in attempts(series):
        places = begin + np.flatnonzero(np.isfinite(values[begin:end]))
        places = places[int(thresholds["warmup_steps"]) :]
        window = _window(series, places, thresholds)
        limits = ShiftLimits(
            min_change=0.0 if is_share else least,
            min_amount=least if is_share else 0.0,
            window=window,
            memory=max(int(thresholds["memory"]), 10 * window),
        )
        yield places, shifts(values[places], limits)


def _window(series: Series, places: np.ndarray[Any, Any], thresholds: Thresholds) -> int:
    """Return the number of steps over which a level is measured: those of at least `min_s` seconds.

    On a shared machine, another process may slow down forty steps of 5 ms, which take only 0.2 s.
    """
    window = int(thresholds["window"])
    if len(places) <= window:
        return window
    pace_s = float(np.median(np.diff(series["ts"][places]))) / _US
    return max(window, math.ceil(thresholds["min_s"] / pace_s)) if pace_s > 0 else window


def _end(series: Series, places: np.ndarray[Any, Any], last: int | None) -> int | None:
    """Return the index in the series at which a detection ends; None if it lasts until the last step of the run."""
    if last is not None:
        return int(places[last])
    return None if int(places[-1]) == len(series) - 1 or _is_last(series, int(places[-1])) else int(places[-1])


def _is_last(series: Series, place: int) -> bool:
    return bool(series["attempt"][place] == series["attempt"][-1])


def data_stall(series: Series, thresholds: Thresholds) -> Iterator[Detection]:
    """Find steps in which a rank waited for input many times longer than a step takes.

    A loader may wait regularly, for example for the first batch of each epoch. Such waits that take little time in
    total are reported twice, and later only if they are twice as long.
    """
    waits = series["max_data_time_s"]
    times = np.where(np.isfinite(series["median_step_time_s"]), series["median_step_time_s"], np.nan)
    places = np.flatnonzero(np.isfinite(waits) & np.isfinite(times))
    # the first steps of an attempt always wait for input
    places = places[np.isin(places, [n for begin, _ in attempts(series) for n in range(begin, begin + 3)], invert=True)]
    usual = trailing(times[places], 64, 8, 20).median
    usual_wait = trailing(waits[places], 64, 8, 20).median
    least = np.maximum(thresholds[MIN_EFFECT], thresholds["min_step_ratio"] * usual)
    ts = series["ts"]
    earlier: list[float] = []
    since = 0 if not places.size else int(ts[places[0]])
    for first, last, length in episodes(waits[places] - usual_wait > least, gap=int(thresholds["gap"])):
        longest = float(waits[places[first : last + 1]].max())
        total = float(np.sum(waits[places[first : last + 1]]))
        is_known = len(earlier) >= _KNOWN_WAITS and longest < _LONGER * float(np.median(earlier))
        costs_little = total * _US < thresholds["min_share"] * (int(ts[places[first]]) - since)
        earlier.append(longest)
        since = int(ts[places[first]])
        if is_known and costs_little:
            continue
        yield at_steps(
            series,
            int(places[first]),
            int(places[last]),
            f"Input stalls at step {series['step'][places[first]]}: {duration(total)} of waiting in {length} "
            f"step{'' if length == 1 else 's'}, where a step takes {duration(float(usual[first]))}",
            value=longest,
            baseline=float(usual_wait[first]),
            effect=total,
            steps=length,
        )


def loader_share(series: Series, thresholds: Thresholds) -> Iterator[Detection]:
    """Find intervals in which a large share of the step is waiting for input."""
    shares = series["mean_data_time_s"] / series["mean_step_time_s"]
    for begin, end in attempts(series):
        places = begin + np.flatnonzero(np.isfinite(shares[begin:end]))
        places = places[int(thresholds["warmup_steps"]) :]
        window = _window(series, places, thresholds)
        ends, medians = recent_medians(shares[places], window, max(1, window // 4))
        above = np.where(shares[places] > thresholds[MIN_EFFECT], 1, -1)
        for first, last, _ in episodes(medians > thresholds[MIN_EFFECT]):
            # A window's median is above the threshold if half of its steps are. So the interval begins within the
            # first such window and ends within the last one.
            start = int(ends[first]) - 1 - _last_above(above[ends[first] - window : ends[first]][::-1])
            stop = int(ends[last]) - window + _last_above(above[ends[last] - window : ends[last]])
            share = float(np.median(medians[first : last + 1]))
            before = shares[places[:start]]
            yield at_steps(
                series,
                int(places[start]),
                _end(series, places, None if last == len(medians) - 1 else stop),
                f"{100 * share:.0f} % of the step is waiting for input from step {series['step'][places[start]]} on",
                value=share,
                baseline=float(np.median(before)) if before.size else None,
                effect=share,
            )


def _last_above(above: np.ndarray[Any, Any]) -> int:
    """Return the last index of the prefix with the largest sum; steps above the threshold are 1, others -1."""
    return int(np.argmax(np.cumsum(above)))


def memory_growth(series: Series, thresholds: Thresholds) -> Iterator[Detection]:
    """Find device memory that grows until the end of an attempt, and estimate when it is full."""
    held = series["max_memory_allocated_bytes"].astype(np.float64)
    reserved = series["max_memory_reserved_bytes"].astype(np.float64)
    for begin, end in attempts(series):
        places = begin + np.flatnonzero(np.isfinite(held[begin:end]) & (held[begin:end] > 0))
        places = places[int(thresholds["warmup_steps"]) :]
        rise = growth(held[places], series["ts"][places] / _US, int(thresholds["block"]))
        if rise is None or rise.explained_ratio < thresholds["min_explained"]:
            continue
        if len(places) - rise.place < thresholds["min_steps"]:
            continue
        effect = rise.last / rise.first - 1
        limit = thresholds["device_gib"] * _GIB or None
        left_s = None if limit is None else rise.seconds_to(limit)
        first = int(places[rise.place])
        ahead = "" if left_s is None else f"; {thresholds['device_gib']:g} GiB are used up in {duration(left_s)}"
        yield at_steps(
            series,
            first,
            _end(series, places, None),
            f"Device memory grows by {rise.per_s * 3600 / _GIB:.2g} GiB an hour from step {series['step'][first]} on, "
            f"from {rise.first / _GIB:.3g} to {rise.last / _GIB:.3g} GiB{ahead}",
            value=rise.last,
            baseline=rise.first,
            effect=effect,
            severity="error" if left_s is not None and left_s < thresholds["soon_s"] else None,
            bytes_per_s=rise.per_s,
            seconds_to_full=left_s,
            seconds_to_double=rise.seconds_to(2 * rise.last),
            reserved_bytes=float(reserved[places[-1]]),
        )


def stall(series: Series, thresholds: Thresholds) -> Iterator[Detection]:
    """Find gaps between the steps of an attempt that are many times longer than a step."""
    times = own_times(series)
    spent = np.nan_to_num(series["median_step_time_s"]) * _US
    for begin, end in attempts(series):
        ts = series["ts"][begin:end]
        idle_s = (np.diff(ts) - spent[begin : end - 1]) / _US
        usual = float(np.nanmedian(times[begin:end])) if np.isfinite(times[begin:end]).any() else 0.0
        pace = float(np.median(np.diff(ts))) / _US if len(ts) > 1 else 0.0
        least = max(thresholds[MIN_EFFECT], thresholds["min_step_ratio"] * max(usual, pace))
        for place in np.flatnonzero(idle_s > least).tolist():
            yield at_steps(
                series,
                begin + place,
                begin + place + 1,
                f"Nothing happens for {duration(float(idle_s[place]))} after step {series['step'][begin + place]}",
                value=float(idle_s[place]),
                baseline=max(usual, pace),
                effect=float(idle_s[place]),
            )


_TIMES: Final = ("ts", "median_step_time_s", "mean_checkpoint_time_s", "mean_evaluation_time_s")
_SHIFTS: Final = {"window": 40, "min_s": 40, "memory": 400, "warmup_steps": 10}
DETECTORS: Final = (
    Detector(
        name="throughput_drop",
        watches="step time without saving and evaluating",
        finds="steps take longer than before, for many steps",
        columns=_TIMES,
        find=throughput_drop,
        effect="step time over the one before, less 1",
        severity="warning",
        runbook="throughput-drop",
        evidence_sql=evidence("median_step_time_s", "mean_data_time_s", "mean_collective_time_s", "slowest_rank"),
        min_effect=0.15,
        cooldown_s=60,
        parameters=_SHIFTS,
        **SHARED,
    ),
    Detector(
        name="step_time_shift",
        watches="step time without saving and evaluating",
        finds="steps take less time than ever before, for many steps",
        columns=_TIMES,
        find=step_time_shift,
        effect="1 less step time over the one before",
        severity="info",
        runbook="throughput-drop",
        evidence_sql=evidence("median_step_time_s", "tokens", "mean_data_time_s"),
        min_effect=0.15,
        cooldown_s=60,
        parameters=_SHIFTS,
        **SHARED,
    ),
    Detector(
        name="collective_share",
        watches="share of the step in collectives",
        finds="a larger share of the step goes into collectives than before",
        columns=("ts", "mean_collective_time_s", "mean_step_time_s"),
        find=collective_share,
        effect="rise of the share",
        severity="warning",
        runbook="slow-collectives",
        evidence_sql=evidence("mean_collective_time_s", "mean_step_time_s", "slowest_rank"),
        min_effect=0.15,
        cooldown_s=600,
        parameters=_SHIFTS,
        **SHARED,
    ),
    Detector(
        name="data_stall",
        watches="longest wait for input of each step",
        finds="a rank waits for input many times longer than a step takes",
        columns=("ts", "max_data_time_s", "median_step_time_s"),
        find=data_stall,
        effect="seconds of waiting",
        severity="warning",
        runbook="data-loading",
        evidence_sql=evidence("max_data_time_s", "median_step_time_s"),
        min_effect=2.0,
        cooldown_s=600,
        parameters={"min_step_ratio": 5, "gap": 5, "min_share": 0.02},
        **SHARED,
    ),
    Detector(
        name="loader_share",
        watches="share of the step that is waiting for input",
        finds="much of the step is waiting for input, for many steps",
        columns=("ts", "mean_data_time_s", "mean_step_time_s"),
        find=loader_share,
        effect="share of the step",
        severity="warning",
        runbook="data-loading",
        evidence_sql=evidence("mean_data_time_s", "max_data_time_s", "mean_step_time_s"),
        min_effect=0.3,
        cooldown_s=600,
        parameters={"window": 40, "min_s": 40, "warmup_steps": 10},
        **SHARED,
    ),
    Detector(
        name="memory_growth",
        watches="device memory that tensors hold",
        finds="memory grows block by block to the end of the attempt",
        columns=("ts", "max_memory_allocated_bytes", "max_memory_reserved_bytes"),
        find=memory_growth,
        effect="growth over the level at its begin",
        severity="warning",
        runbook="memory-growth",
        evidence_sql=evidence("max_memory_allocated_bytes", "max_memory_reserved_bytes"),
        min_effect=0.05,
        cooldown_s=3600,
        # step tables do not have the device's memory size; with 0, no time until it is full is reported
        parameters={
            "block": 32,
            "min_steps": 200,
            "min_explained": 0.8,
            "warmup_steps": 32,
            "device_gib": 0,
            "soon_s": 86400,
        },
        **SHARED,
    ),
    Detector(
        name="stall",
        watches="time between steps",
        finds="nothing happens between two steps, many times as long as steps take",
        columns=_TIMES,
        find=stall,
        effect="seconds",
        severity="warning",
        runbook="collective-timeout",
        evidence_sql=evidence("median_step_time_s", "max_collective_time_s", "slowest_rank"),
        min_effect=300.0,
        cooldown_s=600,
        parameters={"min_step_ratio": 20},
        **SHARED,
    ),
)
