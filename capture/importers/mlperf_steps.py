"""MLPerf steps: computes steps from lines with the duration of one step, or the mean of several.

A line with ``train_step_time`` may instead be the mean of a finished block: it also has ``throughput``, or a count of
samples without a step. Such a line is no step, unless no earlier line has counts and exactly one step fits the time
since the last line.
"""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from ranklake.capture.importers.logged_steps import LoggedStep

_STEP_TIME: Final = re.compile(r"(?:train[_ ])?step[_ ]tim(?:e|ing)(?:[_ ](?:in[_ ])?(m?s))?")
_LOSSES: Final = ("reduced_train_loss", "train_loss", "loss")
_MAX_S: Final = 1 << 30
_TOLERANCE: Final = math.log(1.5)
"""Largest error of a line's steps times their mean duration, compared with the time since the previous line."""


@dataclass
class Progress:
    """State of a rank's training.

    Attributes
    ----------
    steps
        Number of steps so far.
    at_ms
        End of the last step, or begin of the block, ms since 1970.
    counts
        Values of ``step`` and ``samples_count`` in the last line.
    unit
        The count to use, and its increment per step. Kept from the first line that fits, because later steps may stall.
    """

    steps: int = 0
    at_ms: int | None = None
    counts: Mapping[str, float] | None = None
    unit: tuple[str, int] | None = None


def step_of(
    value: Mapping[str, Any], metadata: Mapping[str, Any], at_ms: int, progress: Progress, config: Mapping[str, Any]
) -> tuple[LoggedStep, str] | None:
    """Return the steps of a ``tracked_stats`` line, and the key of their duration; None if it has no steps."""
    match = next((match for name in value if (match := _STEP_TIME.fullmatch(name))), None)
    if match is None:
        return None
    name, number = match[0], value[match[0]]
    if not is_number(number) or not 0 <= number < _MAX_S:
        return None
    seconds = number / 1000 if match[1] == "ms" else float(number)
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
    """Return the number of steps that a line reports.

    Logs count steps, samples or tokens, from 0 or 1. The result is the number of steps that fits the time since the
    previous line best, or 1 if none fits.
    """
    elapsed = _elapsed_steps(at_ms, seconds, progress)
    if elapsed is None:
        return 1
    previous = progress.counts or {}
    units = {1, batch or 1, (batch or 1) * (length or 1)}
    candidates: dict[tuple[str, int], list[int]] = {}
    for name, count in counts.items():
        differences = [count - previous[name]] if name in previous else [count, count + 1]
        for unit in units:
            if steps_of_unit := [int(value // unit) for value in differences if value > 0 and value % unit == 0]:
                candidates[name, unit] = steps_of_unit
    if progress.unit in candidates:
        return candidates[progress.unit][0]
    errors = [(abs(math.log(steps / elapsed)), steps, key) for key, numbers in candidates.items() for steps in numbers]
    _, best, key = min(errors, default=(0.0, 1, None))
    if not _matches_elapsed(best, elapsed):
        return 1
    progress.unit = key
    return best


def _elapsed_steps(at_ms: int, seconds: float, progress: Progress) -> float | None:
    """Return the time since the last line in steps of `seconds`; None if it is unknown."""
    if progress.at_ms is None or seconds <= 0 or at_ms <= progress.at_ms:
        return None
    return (at_ms - progress.at_ms) / 1000 / seconds


def _matches_elapsed(steps: int, elapsed: float | None) -> bool:
    return elapsed is not None and abs(math.log(steps / elapsed)) <= _TOLERANCE


def is_number(value: Any) -> bool:  # noqa: ANN401 - JSON
    """Whether a JSON value is a number."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def _count(value: Any) -> int | None:  # noqa: ANN401 - JSON
    return int(value) if is_number(value) and float(value).is_integer() and 0 < value < 1 << 40 else None
