"""Detector of faults in the learning rate, from the steps of all attempts of a run in ``step_rollup``.

Schedules are not recorded, so only rates that no usual schedule has are reported. Valid are warm-ups, constant rates,
decays of any form, steps, cycles and warm restarts.
"""

from collections.abc import Iterator, Mapping
from itertools import chain
from typing import Any, Final

import numpy as np

from ranklake.detection.baseline import episodes
from ranklake.detection.declaration import MIN_EFFECT, Detection, Detector, Series
from ranklake.lake.rollups.detectors.steps import SHARED, at_steps, attempts, evidence, number

Thresholds = Mapping[str, float]
Vector = np.ndarray[Any, Any]
_GLITCH_STEPS: Final = 5
"""Longest time for which a different rate is a glitch."""
_LEAST_AMOUNT: Final = 0.05
"""Least change that is reported, as a share of the highest rate so far."""


def learning_rate(series: Series, thresholds: Thresholds) -> Iterator[Detection]:
    """Find learning rates that no usual schedule has.

    The rate is stuck in the middle of a decay, is zero during training, differs for a few steps, increases again after
    its decay, or differs after a restart. A constant rate at the highest value, as after a warm-up, or at the lowest,
    as after a decay, is not stuck.
    """
    places = np.flatnonzero(np.isfinite(series["lr"]))
    yield from chain(
        _stuck(series, places, thresholds),
        _off_schedule(series, places, thresholds),
        _zero(series, places, thresholds),
    )
    for first, behind in attempts(series):
        of_attempt = places[slice(*np.searchsorted(places, (first, behind)))]
        yield from _glitches(series, of_attempt, thresholds)
        yield from _rises_again(series, of_attempt, thresholds)


def _stuck(series: Series, places: np.ndarray[Any, Any], thresholds: Thresholds) -> Iterator[Detection]:
    rates = series["lr"][places]
    least = int(thresholds["min_steps"])
    if len(rates) <= 2 * least:
        return
    is_same = np.r_[False, np.abs(np.diff(rates)) <= 1e-9 * np.abs(rates[1:])]
    for first, last, length in episodes(is_same):
        rate, highest = float(rates[first]), float(rates[: first + 1].max())
        before = is_same[max(0, first - least) : first - 1]
        moved = len(before) >= least // 2 and float(before.mean()) < 0.5  # noqa: PLR2004 - most steps
        in_decay = thresholds["lowest_ratio"] * highest < rate < 0.98 * highest
        if length >= least and moved and in_decay:
            lasts = last == len(rates) - 1
            yield at_steps(
                series,
                int(places[first]),
                None if lasts else int(places[last]),
                f"The learning rate is stuck at {number(rate)} from step {series['step'][places[first]]} on, "
                f"for {length:,} steps, in the middle of its decay",
                value=rate,
                baseline=highest,
                effect=float(length),
            )


def _off_schedule(series: Series, places: np.ndarray[Any, Any], thresholds: Thresholds) -> Iterator[Detection]:
    """Yield restarts after which the rate differs from the rate of the previous attempt at the same step."""
    rates, steps, numbers = series["lr"][places], series["step"][places], series["attempt"][places]
    highest = np.maximum.accumulate(rates) if len(rates) else rates
    cuts = [0, *(np.flatnonzero(np.diff(numbers)) + 1).tolist(), len(rates)]
    earlier: dict[int, float] = {}
    # each attempt is read only once, since a run may have thousands of restarts
    for before, cut, end in zip(cuts, cuts[1:-1], cuts[2:], strict=False):
        earlier.update(zip(steps[before:cut].tolist(), rates[before:cut].tolist(), strict=True))
        later = [(n, earlier[step]) for n, step in enumerate(steps[cut:end].tolist(), cut) if step in earlier]
        if not later:
            later = [(cut, float(rates[cut - 1]))] if steps[cut] - steps[cut - 1] <= thresholds["min_steps"] else []
        for place, expected in later[:1]:
            rate = float(rates[place])
            ratio = max(rate, expected) / max(min(rate, expected), 1e-12)
            is_much = abs(rate - expected) >= _LEAST_AMOUNT * float(highest[place])
            last = float(rates[cut - 1])
            continues = max(rate, last) < thresholds["min_jump_ratio"] * min(rate, last)
            is_renumbered = continues and steps[cut] == min(earlier)  # resumed with steps numbered from the start
            if ratio >= thresholds["min_jump_ratio"] and is_much and not is_renumbered:
                yield at_steps(
                    series,
                    int(places[place]),
                    int(places[place]),
                    f"The learning rate is {number(rate)} at step {steps[place]} after a restart, "
                    f"where it was {number(expected)} before",
                    value=rate,
                    baseline=expected,
                    effect=max(ratio, thresholds[MIN_EFFECT]),
                )


def _zero(series: Series, places: Vector, thresholds: Thresholds) -> Iterator[Detection]:
    """Yield intervals in which the rate is zero."""
    rates = series["lr"][places]
    least = max(thresholds["min_steps"], thresholds["zero_ratio"] * len(rates))
    for first, last, length in episodes(rates == 0):
        if length >= least:
            step = series["step"][places[first]]
            highest = float(rates[:first].max()) if first else 0.0
            yield at_steps(
                series,
                int(places[first]),
                None if last == len(rates) - 1 else int(places[last]),
                f"The learning rate is 0 from step {step} on, for {length:,} steps: nothing is learned",
                value=0.0,
                baseline=highest,
                effect=float(length),
            )


def _glitches(series: Series, places: Vector, thresholds: Thresholds) -> Iterator[Detection]:
    """Yield intervals of a few steps in which the rate differs from the rate before and after."""
    rates = series["lr"][places]
    sound = np.maximum(np.abs(rates), 1e-12)
    highest = np.maximum.accumulate(rates) if len(rates) else rates
    jumps = np.flatnonzero(np.abs(np.diff(np.log(sound))) >= np.log(thresholds["min_jump_ratio"])) + 1
    for first, behind in zip(jumps[:-1].tolist(), jumps[1:].tolist(), strict=True):
        before, after = rates[first - 1], rates[behind]
        least = _LEAST_AMOUNT * float(highest[first])  # near zero small changes are large ratios
        is_back = abs(after - before) <= 0.1 * abs(before) and abs(rates[first] - before) >= least
        if first >= thresholds["min_steps"] and behind - first <= _GLITCH_STEPS and is_back:
            rate = float(rates[first])
            yield at_steps(
                series,
                int(places[first]),
                int(places[behind - 1]),
                f"The learning rate is {number(rate)} at step {series['step'][places[first]]}, "
                f"and {number(float(before))} before and after",
                value=rate,
                baseline=float(before),
                effect=float(max(sound[first], sound[first - 1]) / min(sound[first], sound[first - 1])),
            )


def _rises_again(series: Series, places: Vector, thresholds: Thresholds) -> Iterator[Detection]:
    """Yield a decay after which the rate increases again, such as a cosine after its last step.

    This is not a fault in linear cycles, which turn abruptly, after a warm-up, which is much shorter than the decay, or
    in warm restarts, which jump.
    """
    rates = series["lr"][places]
    least = int(thresholds["min_steps"])
    if len(rates) <= 4 * least:
        return
    top = int(np.argmax(rates))
    low = top + int(np.argmin(rates[top:]))
    decay, rise = low - top, len(rates) - 1 - low
    if decay < 2 * least or rise < least or top > 0.25 * decay:
        return
    later = np.diff(rates[low:])
    is_smooth = float(later.max()) <= 0.1 * (float(rates[top]) - float(rates[low]))
    # a cosine turns slowly, a linear cycle abruptly
    begin = later[: max(1, len(later) // 5)]
    is_round = float(begin.mean()) <= 0.7 * float(later.mean())
    is_low = rates[low] <= thresholds["lowest_ratio"] * rates[top]
    has_risen = float(rates[-1]) >= 2 * max(float(rates[low]), 0.01 * float(rates[top]))
    if is_low and is_smooth and is_round and has_risen and float((later > 0).mean()) > 0.9:  # noqa: PLR2004 - nearly all steps
        yield at_steps(
            series,
            int(places[low]),
            None,
            f"The learning rate rises again from step {series['step'][places[low]]} on, where its decay was over: "
            f"{number(float(rates[low]))} to {number(float(rates[-1]))}",
            value=float(rates[-1]),
            baseline=float(rates[low]),
            effect=float(rise),
        )


DETECTORS: Final = (
    Detector(
        name="learning_rate",
        watches="learning rate of each step",
        finds="the rate is stuck in its decay, zero, another one for a few steps or after a restart, or rises again",
        columns=("ts", "lr"),
        find=learning_rate,
        effect="steps that it is stuck, zero or rising, or ratio to the rate before",
        severity="warning",
        runbook="learning-rate",
        evidence_sql=evidence("lr", "mean_loss"),
        min_effect=1,
        cooldown_s=600,
        parameters={"min_steps": 50, "lowest_ratio": 0.12, "min_jump_ratio": 1.2, "zero_ratio": 0.02},
        **SHARED,
    ),
)
"""Detectors of learning rates."""
