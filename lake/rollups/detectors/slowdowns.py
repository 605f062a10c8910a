"""Detector of ranks that become slow during a run, or are slow for a while. `straggler` finds ranks slow all day.

``step_rollup`` has the slowest rank of each step. In normal operation, the slowest rank varies. A stretch is a sequence
of steps in which the same few ranks are the slowest, by far more than the slowest rank was before. Steps are examined
in windows, and consecutive windows with a common slowest rank form a stretch. Its exact ends maximize the number of
slow steps minus the number of other steps (maximum subarray, Bentley 1984).
"""

import math
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple

import numpy as np

from ranklake.detection.declaration import MIN_EFFECT, Detection, Detector, Series
from ranklake.lake.rollups.detectors.steps import SHARED, at_steps, attempts, evidence
from ranklake.lake.rollups.thresholds import WARMUP_STEPS

Thresholds = Mapping[str, float]
Vector = np.ndarray[Any, np.dtype[np.float64]]
_US: Final = 1e6
_MAX_WINDOW_CHANCE: Final = 0.05
_MEMORY: Final = 400
"""Steps before a stretch that are its baseline."""


class Stretch(NamedTuple):
    """Steps from `first` to before `end` in which `ranks` are the slowest, with an excess of at least `floor`."""

    ranks: frozenset[int]
    first: int
    end: int
    floor: float = 0.0


@dataclass(frozen=True)
class Steps:
    """Steps of one attempt with times of several ranks, without steps that warm up, save or evaluate.

    Attributes
    ----------
    places
        Indexes of the steps in the series.
    slowest
        Slowest rank of each step; -1 if its excess is less than half of the least effect.
    excess
        The slowest rank's self time divided by the mean of the others', minus 1.
    ranks
        Median number of ranks with a time.
    """

    places: np.ndarray[Any, np.dtype[np.int64]]
    slowest: np.ndarray[Any, np.dtype[np.int64]]
    excess: Vector
    ranks: int

    def slowest_ranks(self, first: int, end: int, thresholds: Thresholds) -> frozenset[int]:
        """Return the smallest set of ranks that are the slowest in most steps; empty if it would be too large."""
        counts = Counter(self.slowest[first:end][self.slowest[first:end] >= 0].tolist())
        least, covered = thresholds["min_share"] * (end - first), 0
        few: list[int] = []
        for rank, count in sorted(counts.items(), key=lambda item: (-item[1], item[0])):
            if len(few) == min(thresholds["max_ranks"], self.ranks // 2):
                break
            few.append(rank)
            covered += count
            if covered >= least:
                return frozenset(few)
        return frozenset()

    def chance(self, stretch: Stretch, usual_share: float = 0.0) -> float:
        """Return an upper bound of the probability of the stretch by chance.

        It is Chernoff's bound (1952) that given ranks are the slowest as often, times the number of sets of ranks.
        """
        count = stretch.end - stretch.first
        share = float(self.is_slow(stretch).mean())
        expected = max(len(stretch.ranks) / self.ranks, usual_share)
        if share <= expected:
            return 1.0
        rest = 0.0 if share == 1 else (1 - share) * math.log((1 - share) / (1 - expected))
        ways = math.comb(self.ranks, len(stretch.ranks))
        return math.exp(min(0.0, math.log(ways) - count * (share * math.log(share / expected) + rest)))

    def is_slow(self, stretch: Stretch) -> np.ndarray[Any, np.dtype[np.bool_]]:
        """Return a mask of the steps in which one of the stretch's ranks is the slowest, by at least its floor."""
        among = _is_any(self.slowest[stretch.first : stretch.end], stretch.ranks)
        return among & (self.excess[stretch.first : stretch.end] >= stretch.floor)


def _is_any(slowest: np.ndarray[Any, np.dtype[np.int64]], ranks: frozenset[int]) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """Return a mask of the steps with one of a few ranks; much faster than `numpy.isin` for windows."""
    mask = np.zeros(len(slowest), bool)
    for rank in ranks:
        mask |= slowest == rank
    return mask


def rank_slowdown(series: Series, thresholds: Thresholds) -> Iterator[Detection]:
    """Find intervals in which one or a few ranks slow down the others; not ranks that are slow for a whole attempt."""
    for begin, end in attempts(series):
        steps = _timed_steps(series, begin, end, thresholds)
        window = _window(series, steps, thresholds)
        stretches, quiet = _stretches(steps, window, thresholds)
        for stretch in stretches:
            yield from _detections(series, steps, stretch, quiet, thresholds)


def _timed_steps(series: Series, begin: int, end: int, thresholds: Thresholds) -> Steps:
    part = {name: series[name][begin:end] for name in ("slowest_rank", "slowest_excess_s", "max_self_time_s", "ranks")}
    others_s = part["max_self_time_s"] - part["slowest_excess_s"]
    excess = part["slowest_excess_s"] / np.where(others_s > 0, others_s, np.nan)
    is_other_work = np.isfinite(series["mean_checkpoint_time_s"][begin:end]) | np.isfinite(
        series["mean_evaluation_time_s"][begin:end]
    )
    places = np.flatnonzero(np.isfinite(excess) & np.isfinite(part["slowest_rank"]) & ~is_other_work)
    places = places[places >= WARMUP_STEPS]
    slowest = part["slowest_rank"][places].astype(np.int64)
    slowest[excess[places] < thresholds[MIN_EFFECT] / 2] = -1
    ranks = int(np.median(part["ranks"][places])) if len(places) else 0
    return Steps(begin + places, slowest, excess[places], ranks)


def _window(series: Series, steps: Steps, thresholds: Thresholds) -> int:
    """Return the number of steps in a window: those of at least half of `min_s`, for noise of a shared machine."""
    window = int(thresholds["window"])
    times = np.diff(series["ts"][steps.places])
    pace_s = float(np.median(times)) / _US if len(times) else 0.0
    return max(window, math.ceil(thresholds["min_s"] / 2 / pace_s)) if pace_s > 0 else window


def _stretches(
    steps: Steps, window: int, thresholds: Thresholds
) -> tuple[list[Stretch], np.ndarray[Any, np.dtype[np.bool_]]]:
    """Return stretches of consecutive windows with a common slowest rank, and a mask of the other steps.

    A single window with several ranks is no stretch, since one rank may recover and another become slow within it.
    """
    count = len(steps.places)
    quiet = np.ones(count, bool)
    stretches: list[Stretch] = []
    firsts = np.arange(count // window) * window
    ends = np.append(firsts[1:], count)[: len(firsts)]
    uneven = np.add.reduceat((steps.slowest >= 0).astype(np.int64), firsts)  # steps with a rank that is far slower
    is_candidate = uneven >= thresholds["min_share"] * (ends - firsts)
    for first, end in zip(firsts[is_candidate].tolist(), ends[is_candidate].tolist(), strict=True):
        here = Stretch(steps.slowest_ranks(first, end, thresholds), first, end)
        if not here.ranks or steps.chance(here) > _MAX_WINDOW_CHANCE:
            continue
        quiet[first:end] = False
        before = stretches[-1] if stretches else None
        is_next = before is not None and before.end == first and before.ranks & here.ranks
        if before is not None and is_next and (len(before.ranks) == 1) == (len(here.ranks) == 1):
            stretches[-1] = Stretch(before.ranks | here.ranks, before.first, end)
        else:
            stretches.append(here)
    whole = (each for each in stretches if len(each.ranks) == 1 or each.end - each.first >= 2 * window)
    return [_trim(steps, each, window, thresholds) for each in whole], quiet


def _trim(steps: Steps, stretch: Stretch, window: int, thresholds: Thresholds) -> Stretch:
    """Return a stretch with exact ends, and the ranks that are the slowest in it.

    Only steps with at least half of the median excess count as slow, so that noise around the stretch is excluded.
    """
    ranks = steps.slowest_ranks(stretch.first, stretch.end, thresholds)
    is_slow = steps.is_slow(Stretch(ranks, stretch.first, stretch.end))
    floor = float(np.median(steps.excess[stretch.first : stretch.end][is_slow])) / 2 if is_slow.any() else 0.0
    around = Stretch(ranks, max(0, stretch.first - window), min(len(steps.places), stretch.end + window), floor)
    sums = np.concatenate([[0], np.cumsum(np.where(steps.is_slow(around), 1, -1))])
    end = int(np.argmax(sums - np.minimum.accumulate(sums)))
    first = end - int(np.argmin(sums[: end + 1][::-1]))
    return Stretch(ranks, around.first + first, around.first + end, floor)


def _detections(
    series: Series, steps: Steps, stretch: Stretch, quiet: np.ndarray[Any, np.dtype[np.bool_]], thresholds: Thresholds
) -> Iterator[Detection]:
    """Yield a detection for each rank of a stretch, if it differs enough from the steps before it.

    Without enough steps before it, it is compared with the steps after it.
    """
    if stretch.end <= stretch.first:
        return
    usual = np.flatnonzero(quiet[: stretch.first])[-_MEMORY:]
    if len(usual) < thresholds["window"]:
        usual = stretch.end + np.flatnonzero(quiet[stretch.end :])[:_MEMORY]
    if len(usual) < thresholds["window"]:
        return  # slow for the whole attempt, which `straggler` reports
    places = steps.places[stretch.first : stretch.end]
    lasted_s = float(series["ts"][places[-1]] - series["ts"][places[0]]) / _US
    is_slow = steps.is_slow(stretch)
    if is_slow.mean() < thresholds["min_share"] or not _is_even(steps, stretch, is_slow):
        return
    self_s = float(np.median(series["max_self_time_s"][places][is_slow]))
    excess_s = float(np.median(series["slowest_excess_s"][places][is_slow]))
    # the mean of the other ranks includes other slow ranks
    slow, well = len(stretch.ranks), steps.ranks - len(stretch.ranks)
    peers_s = ((steps.ranks - 1) * (self_s - excess_s) - (slow - 1) * self_s) / well
    effect = self_s / peers_s - 1 if peers_s > 0 else math.inf
    was_slow = _is_any(steps.slowest[usual], stretch.ranks) & (steps.excess[usual] >= stretch.floor)
    usual_share = float(was_slow.mean())
    chance = steps.chance(stretch, usual_share)
    stands_out = effect >= thresholds["min_usual_ratio"] * float(np.median(steps.excess[usual]))
    stands_out = stands_out and is_slow.mean() - usual_share >= thresholds["min_share_rise"]
    if lasted_s < thresholds["min_s"] or chance > thresholds["max_p_value"] or not stands_out:
        return
    lasts = stretch.end == len(steps.places) and series["attempt"][places[0]] == series["attempt"][-1]
    cause = _cause(series, places[is_slow], excess_s)
    until = "on" if lasts else f"to {series['step'][places[-1]]}"
    for rank in sorted(stretch.ranks):
        others = ", ".join(str(each) for each in sorted(stretch.ranks - {rank}))
        detection = at_steps(
            series,
            int(places[0]),
            None if lasts else int(places[-1]),
            f"Rank {rank} is {100 * effect:.0f} % slower than its peers from step {series['step'][places[0]]} {until}"
            f"{f', as ranks {others} are' if others else ''}, by {cause}",
            value=self_s,
            baseline=peers_s,
            effect=effect,
            severity="error" if effect >= thresholds["severe"] and lasted_s >= thresholds["page_s"] else None,
            ranks=sorted(stretch.ranks),
            cause=cause,
            share=float(is_slow.mean()),
            seconds=lasted_s,
            p_value=chance,
        )
        yield replace(detection, subject={**detection.subject, "rank": rank})


def _is_even(steps: Steps, stretch: Stretch, is_slow: np.ndarray[Any, np.dtype[np.bool_]]) -> bool:
    """Whether each rank of a stretch is the slowest in at least half of its equal share of the slow steps."""
    _, counts = np.unique(steps.slowest[stretch.first : stretch.end][is_slow], return_counts=True)
    return len(counts) == len(stretch.ranks) and 2 * int(counts.min()) * len(counts) >= int(counts.sum())


def _cause(series: Series, places: np.ndarray[Any, Any], excess_s: float) -> str:
    """Return the cause of most of the excess: "input" if the wait for input exceeds the others' mean, or "compute"."""
    ranks = series["ranks"][places]
    waits_s = (series["max_data_time_s"][places] - series["mean_data_time_s"][places]) * ranks / (ranks - 1)
    return "input" if 2 * float(np.median(np.nan_to_num(waits_s))) > excess_s else "compute"


DETECTORS: Final = (
    Detector(
        name="rank_slowdown",
        watches="the slowest rank of each step, by its self time",
        finds="a rank turns slow, or is slow for a while, and alone holds the others up",
        columns=(
            *("ts", "ranks", "slowest_rank", "slowest_excess_s", "max_self_time_s"),
            *("mean_data_time_s", "max_data_time_s", "mean_checkpoint_time_s", "mean_evaluation_time_s"),
        ),
        find=rank_slowdown,
        effect="self time over the peers', less 1",
        severity="warning",
        runbook="straggler",
        evidence_sql=evidence("slowest_rank", "slowest_excess_s", "max_self_time_s", "max_data_time_s", "ranks"),
        min_effect=0.1,
        cooldown_s=300,
        parameters={
            "window": 16,
            "min_s": 20,
            "min_share": 0.8,
            "min_share_rise": 0.3,
            "min_usual_ratio": 1.5,
            "max_p_value": 1e-6,
            "max_ranks": 8,
            "severe": 0.5,
            "page_s": 60,
        },
        **SHARED,
    ),
)
