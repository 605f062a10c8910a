"""Sampling: keeps a share of a metric's values, the same steps on every rank, and everything unusual.

Weights are those of Horvitz and Thompson ("A generalization of sampling without replacement from a finite universe",
JASA 47, 1952): 1 over the probability that the value was kept. So the sum of weight x value estimates the sum of all
values, and the sum of weights their number, without bias:

    NaN, infinite                               always kept                          weight 1
    in a step that was slow or failed           always kept                          weight 1
    otherwise, and the hash says so             kept with probability = ratio        weight 1/ratio
    otherwise                                   counted as "sampled out"

Whether a step is slow shows when it ends. Until then values that the hash refuses are held in memory, and chosen ones
are written at once, with weight 1/ratio, which is put right in their slot when the step proves slow. Where the slot's
file was sealed meanwhile, that is too late; then the values that the hash refused in that file's time are kept with
weight 0, for people to see, and the estimate rests on the chosen ones, as in any other step.
"""

import contextlib
import itertools
import math
import statistics
from collections import deque
from dataclasses import dataclass
from typing import Any, Final

from ranklake.capture.common.gaps import Gaps, RefusedError
from ranklake.capture.common.layouts import ABSENT, SCALARS
from ranklake.capture.common.monotonic import now
from ranklake.capture.common.ratios import is_sampled, parse_rules, ratio_of, seed_of, threshold_of
from ranklake.capture.common.run_like import RunLike
from ranklake.capture.common.settings import CaptureSettings
from ranklake.capture.common.values import number
from ranklake.capture.lanes.series import Series, check_name, word
from ranklake.capture.lanes.shards import AnyLane
from ranklake.capture.lanes.slots import SHUT, Place, is_released
from ranklake.capture.metrics.handles import Failed, step_of
from ranklake.capture.steps.progress import OpenStep, Progress
from ranklake.segments.segment import SAMPLED_OUT

MOST_HELD: Final = 10_000
MOST_NAMES: Final = 10_000
LAST_STEPS: Final = 32
FEWEST_STEPS: Final = 8
"""Before so many have ended nobody knows what is slow."""

_pack_scalar: Final = SCALARS.packer.pack_into
_SERIES_AT: Final = SCALARS.offset("series")


class SampledMetric:
    """One metric of which a share is kept."""

    def __init__(self, run: str, series: Series, name: str, kind: object, unit: object, ratio: float) -> None:
        self.name, self.ratio = name, ratio
        self._series, self._kind, self._unit = series, kind, unit
        self._seed, self._threshold = seed_of(run, name), threshold_of(ratio)
        self._unnumbered = itertools.count()

    def keeps_step(self, step: int) -> bool:
        """Whether values of a step are kept; values without one are counted from 0 instead."""
        return is_sampled(self._seed, next(self._unnumbered) if step == ABSENT else step, self._threshold)

    def series(self, weight: float) -> int:
        """Return the number of the series of values with a weight. Raises `RefusedError`."""
        return self._series.metric(self.name, self._kind, self._unit, weight=weight)


@dataclass(frozen=True, slots=True)
class _HeldValue:
    """A value whose step has not ended: one that was chosen, at its `place`, or one that was not."""

    step: OpenStep
    sampled: SampledMetric
    view: memoryview | None
    place: Place | None
    moment: int = 0
    at: int = 0
    value: float = 0.0


class ValueSampler:
    """Samples the values of one run.

    Parameters
    ----------
    run
        Its name seeds the choice, which is then the same on every rank.
    lane
        Of ``scalars``.
    failed
        See `handles`.
    """

    def __init__(
        self,
        run: RunLike,
        settings: CaptureSettings,
        gaps: Gaps,
        progress: Progress,
        series: Series,
        lane: AnyLane,
        failed: Failed,
    ) -> None:
        self._run, self._gaps, self._progress, self._series, self._failed = run, gaps, progress, series, failed
        self._rules = parse_rules(settings.sampling)
        self._slow_ratio = settings.slow_step_ratio
        self._lane = lane
        self._by_name: dict[object, SampledMetric | None] = {}
        self._held: deque[_HeldValue] = deque()
        self._lasted: deque[int] = deque(maxlen=LAST_STEPS)

    def of(
        self, name: object, kind: object = None, unit: object = None, keep: float | None = None
    ) -> SampledMetric | None:
        """Return how a metric is sampled, by `keep` or else by the rules; None if all of it is kept."""
        try:
            key = (name if type(name) is str else check_name(name)), word(kind), word(unit)
            if keep is None and key in self._by_name:
                return self._by_name[key]
            name = check_name(name)
        except RefusedError:  # is refused again, and counted, later
            return None
        ratio = ratio_of(self._rules, name) if keep is None else keep
        sampled = None if ratio >= 1.0 else SampledMetric(self._run.name, self._series, name, kind, unit, ratio)
        if keep is None and len(self._by_name) < MOST_NAMES:
            self._by_name[key] = sampled
        return sampled

    def add(self, sampled: SampledMetric, value: Any = None, step: Any = None) -> None:  # noqa: ANN401 - whatever training has
        """Record a value of a handle."""
        moment = now()
        try:
            at = step_of(step)
            self.take(sampled, number(value), at, moment)
        except Exception as error:  # noqa: BLE001 - telemetry never raises into training
            self._failed(sampled.name, value, error, lambda late: self.add(sampled, late, step))

    def take(self, sampled: SampledMetric, value: float, at: int, moment: int) -> None:
        """Keep a value, hold it, or count it as sampled out. Raises `RefusedError` if the name finds no number."""
        if not math.isfinite(value):
            self._put(sampled, 1.0, value, at, moment)
            return
        step = self._progress.current
        holds = step is not None and len(self._held) < MOST_HELD
        if sampled.keeps_step(at):
            place = self._put(sampled, 1.0 / sampled.ratio, value, at, moment)
            if step is not None and holds and place is not None:
                self._held.append(_HeldValue(step, sampled, place[0], place))
        elif step is not None and holds:
            pair = self._lane.pair
            view = None if pair is SHUT else pair[0]
            self._held.append(_HeldValue(step, sampled, view, None, moment, at, value))
        else:
            self._gaps.count("scalars", SAMPLED_OUT)

    def end_step(self, step: OpenStep, duration_ns: int, failed: bool) -> None:
        """Settle what was held in a step, and in steps that never ended."""
        keep = failed or self._is_slow(duration_ns)
        out = 0
        for _ in range(len(self._held)):
            try:
                held = self._held.popleft()
            except IndexError:  # another thread's step ended, too
                break
            if held.step is step and keep:
                self._keep(held)
            elif held.step is self._progress.current:
                self._held.append(held)
            else:
                out += held.place is None
        self._gaps.count("scalars", SAMPLED_OUT, out)

    def _is_slow(self, duration_ns: int) -> bool:
        lasted = self._lasted
        slow = len(lasted) >= FEWEST_STEPS and duration_ns > self._slow_ratio * statistics.median(lasted)
        lasted.append(duration_ns)
        return slow

    def _keep(self, held: _HeldValue) -> None:
        """Keep a value of a step that proved out of the ordinary."""
        sampled = held.sampled
        try:
            if held.place is None:
                weight = 1.0 if held.view is None or not is_released(held.view) else 0.0
                self._put(sampled, weight, held.value, held.at, held.moment)
                return
            view, offset = held.place
            series = sampled.series(1.0).to_bytes(4, "little")
            try:
                view[offset + _SERIES_AT : offset + _SERIES_AT + 4] = series  # one store: a kill finds either number
            except ValueError:  # released: sealed meanwhile
                return
        except Exception as error:  # noqa: BLE001 - telemetry never raises into training
            self._failed(sampled.name, held.value, error, lambda _: None)

    def _put(self, sampled: SampledMetric, weight: float, value: float, at: int, moment: int) -> Place | None:
        return self._lane.put(_pack_scalar, moment, at, value, sampled.series(weight))

    def close(self) -> None:
        """Count what is still held."""
        out = 0
        while self._held:  # another thread may still be adding
            with contextlib.suppress(IndexError):
                out += self._held.popleft().place is None
        self._gaps.count("scalars", SAMPLED_OUT, out)

    def after_fork(self) -> None:
        """In a forked child: what is held is the parent's."""
        self._held, self._lasted = deque(), deque(maxlen=LAST_STEPS)
