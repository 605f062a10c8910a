"""Steps of an MLPerf log: from lines for one step or the mean of several, with their samples and tokens.

``train_step_time`` beside ``throughput``, or with samples counted and no step, is the mean of the block that just
ended, whose steps the lines before it told, if any did: a figure, and no step, unless just one step fits the time.
"""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from ranklake.capture.importers.logged_steps import LoggedStep

_STEP_TIME: Final = re.compile(r"(?:train[_ ])?step[_ ]tim(?:e|ing)(?:[_ ](?:in[_ ])?(m?s))?")
_LOSSES: Final = ("reduced_train_loss", "train_loss", "loss")
_MOST_S: Final = 1 << 30
_FITS: Final = math.log(1.5)
"""How far a line's number of steps, times their mean, may be off the time since the line before."""


@dataclass
class Progress:
    """Where a rank's training stands.

    Attributes
    ----------
    steps
        Steps told so far.
    at_ms
        When the last one ended, or the block began.
    counts
        What the last line counted: ``step`` and ``samples_count``.
    unit
        Which of them counts, and how much of it is a step: as the first line showed, for one line may have stalled.
    """

    steps: int = 0
    at_ms: int | None = None
    counts: Mapping[str, float] | None = None
    unit: tuple[str, int] | None = None


def step_of(
    value: Mapping[str, Any], metadata: Mapping[str, Any], at_ms: int, progress: Progress, config: Mapping[str, Any]
) -> tuple[LoggedStep, str] | None:
    """Return the step, or steps, that a ``tracked_stats`` tells, and under which key; None if it tells none."""
    timed = next((match for name in value if (match := _STEP_TIME.fullmatch(name))), None)
    if timed is None:
        return None
    name, number = timed[0], value[timed[0]]
    if not is_number(number) or not 0 <= number < _MOST_S:
        return None
    seconds = number / 1000 if timed[1] == "ms" else float(number)
    is_mean = "throughput" in value or ("step" not in metadata and "samples_count" in metadata)
    if is_mean and (progress.counts or not _matches_elapsed(1, _elapsed_steps(at_ms, seconds, progress))):
        return None
    counts = {key: float(metadata[key]) for key in ("step", "samples_count") if is_number(metadata.get(key))}
    batch, length = _count(config.get("global_batch_size")), _count(config.get("max_sequence_length"))
    steps = _covered_steps(counts, at_ms, seconds, progress, batch, length)
    loss = next((float(value[key]) for key in _LOSSES if is_number(value.get(key))), None)
    step = LoggedStep(progress.steps + steps - 1, steps, seconds, at_ms * 10**6 - round(steps * seconds * 1e9))
    step.samples = batch * steps if batch else None
    step.tokens = step.samples * length if step.samples and length else None
    step.columns = {} if loss is None else {"loss": loss}
    progress.steps, progress.at_ms, progress.counts = progress.steps + steps, at_ms, counts
    return step, name


def _covered_steps(
    counts: Mapping[str, float], at_ms: int, seconds: float, progress: Progress, batch: int | None, length: int | None
) -> int:
    """Return for how many steps a line stands.

    Logs count steps, samples or tokens, from 0 or 1: the number of steps is the count that fits the time since the last
    line best. One, where none does.
    """
    elapsed = _elapsed_steps(at_ms, seconds, progress)
    if elapsed is None:
        return 1
    before = progress.counts or {}
    units = {1, batch or 1, (batch or 1) * (length or 1)}
    candidates: dict[tuple[str, int], list[int]] = {}
    for name, count in counts.items():
        gaps = [count - before[name]] if name in before else [count, count + 1]
        for unit in units:
            if whole := [int(gap // unit) for gap in gaps if gap > 0 and gap % unit == 0]:
                candidates[name, unit] = whole
    if progress.unit in candidates:
        return candidates[progress.unit][0]
    errors = [(abs(math.log(steps / elapsed)), steps, key) for key, several in candidates.items() for steps in several]
    _, best, key = min(errors, default=(0.0, 1, None))
    if not _matches_elapsed(best, elapsed):
        return 1
    progress.unit = key
    return best


def _elapsed_steps(at_ms: int, seconds: float, progress: Progress) -> float | None:
    """Return how many steps of a length went into the time since the last line; None if it is not known."""
    if progress.at_ms is None or seconds <= 0 or at_ms <= progress.at_ms:
        return None
    return (at_ms - progress.at_ms) / 1000 / seconds


def _matches_elapsed(steps: int, elapsed: float | None) -> bool:
    return elapsed is not None and abs(math.log(steps / elapsed)) <= _FITS


def is_number(value: Any) -> bool:  # noqa: ANN401 - JSON
    """Whether a value of JSON is a number."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def _count(value: Any) -> int | None:  # noqa: ANN401 - JSON
    return int(value) if is_number(value) and float(value).is_integer() and 0 < value < 1 << 40 else None
