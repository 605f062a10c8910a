"""Sampling: keep a share of a metric's values, the same steps on every rank, and all unusual values.

Weights follow Horvitz and Thompson ("A generalization of sampling without replacement from a finite universe", JASA 47,
1952): 1 over the probability that the value was kept. So the sum of weight x value estimates the sum of all values, and
the sum of weights their number, without bias:

    NaN, infinite                               always kept                          weight 1
    in a step that was slow or failed           always kept                          weight 1
    otherwise, if the hash selects the step     kept with probability = ratio        weight 1/ratio
    otherwise                                   counted as "sampled out"

Whether a step is slow is known only when it ends. Until then, values that are not selected are held in memory. Selected
values are written immediately with weight 1/ratio; if the step is slow, the weight in the slot is corrected. This is
not possible if the slot's file was sealed meanwhile. Values held since before that sealing then get weight 0, so that
people can see them, and the estimate uses only the selected values, as in any other step.
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
"""Steps that must have ended before any step counts as slow."""

_pack_scalar: Final = SCALARS.packer.pack_into
_SERIES_AT: Final = SCALARS.offset("series")


class SampledMetric:
    """One sampled metric."""

    def __init__(self, run: str, series: Series, name: str, kind: object, unit: object, ratio: float) -> None:
        self.name, self.ratio = name, ratio
        self._series, self._kind, self._unit = series, kind, unit
        self._seed, self._threshold = seed_of(run, name), threshold_of(ratio)
        self._unnumbered = itertools.count()

    def keeps_step(self, step: int) -> bool:
        """Whether values of a step are selected. Values without a step use a counter from 0 in its place."""
        return is_sampled(self._seed, next(self._unnumbered) if step == ABSENT else step, self._threshold)

    def series(self, weight: float) -> int:
        """Return the series number for values with a weight. Raises `RefusedError`."""
        return self._series.metric(self.name, self._kind, self._unit, weight=weight)


@dataclass(frozen=True, slots=True)
class _HeldValue:
    """A value whose step has not ended. `place` is the slot of a selected value; None for others."""

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
        The run; its name seeds the selection, so that all ranks select the same steps.
    lane
        Lane of ``scalars``.
    failed
        See `ranklake.capture.metrics.handles`.
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
        self._durations_ns: deque[int] = deque(maxlen=LAST_STEPS)

    def of(
        self, name: object, kind: object = None, unit: object = None, keep: float | None = None
    ) -> SampledMetric | None:
        """Return the sampled metric, by `keep` or else by the rules; None if all its values are kept."""
        try:
            key = (name if type(name) is str else check_name(name)), word(kind), word(unit)
            if keep is None and key in self._by_name:
                return self._by_name[key]
            name = check_name(name)
        except RefusedError:  # the writer refuses it again, and counts it
            return None
        ratio = ratio_of(self._rules, name) if keep is None else keep
        sampled = None if ratio >= 1.0 else SampledMetric(self._run.name, self._series, name, kind, unit, ratio)
        if keep is None and len(self._by_name) < MOST_NAMES:
            self._by_name[key] = sampled
        return sampled

    def add(self, sampled: SampledMetric, value: Any = None, step: Any = None) -> None:  # noqa: ANN401 - any value
        """Record a value of a handle."""
        moment = now()
        try:
            at = step_of(step)
            self.take(sampled, number(value), at, moment)
        except Exception as error:  # noqa: BLE001 - telemetry never raises into training
            self._failed(sampled.name, value, error, lambda late: self.add(sampled, late, step))

    def take(self, sampled: SampledMetric, value: float, at: int, moment: int) -> None:
        """Write a value, hold it, or count it as sampled out. Raises `RefusedError` if the name gets no number."""
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
        """Write or drop the held values of a step, and drop those of steps that never ended."""
        keep = failed or self._is_slow(duration_ns)
        sampled_out = 0
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
                sampled_out += held.place is None
        self._gaps.count("scalars", SAMPLED_OUT, sampled_out)

    def _is_slow(self, duration_ns: int) -> bool:
        durations_ns = self._durations_ns
        slow = len(durations_ns) >= FEWEST_STEPS and duration_ns > self._slow_ratio * statistics.median(durations_ns)
        durations_ns.append(duration_ns)
        return slow

    def _keep(self, held: _HeldValue) -> None:
        """Write a held value of a slow or failed step, or correct its weight."""
        sampled = held.sampled
        try:
            if held.place is None:
                weight = 1.0 if held.view is None or not is_released(held.view) else 0.0
                self._put(sampled, weight, held.value, held.at, held.moment)
                return
            view, offset = held.place
            series = sampled.series(1.0).to_bytes(4, "little")
            try:
                view[offset + _SERIES_AT : offset + _SERIES_AT + 4] = (
                    series  # one store: after a kill it is either number
                )
            except ValueError:  # released: sealed meanwhile
                return
        except Exception as error:  # noqa: BLE001 - telemetry never raises into training
            self._failed(sampled.name, held.value, error, lambda _: None)

    def _put(self, sampled: SampledMetric, weight: float, value: float, at: int, moment: int) -> Place | None:
        return self._lane.put(_pack_scalar, moment, at, value, sampled.series(weight))

    def close(self) -> None:
        """Count the held values as sampled out."""
        sampled_out = 0
        while self._held:  # another thread may still be adding
            with contextlib.suppress(IndexError):
                sampled_out += self._held.popleft().place is None
        self._gaps.count("scalars", SAMPLED_OUT, sampled_out)

    def after_fork(self) -> None:
        """Drop held values in a forked child, because they belong to the parent."""
        self._held, self._durations_ns = deque(), deque(maxlen=LAST_STEPS)
