"""Detectors of faults in loss and gradients, from the steps of all attempts of a run in ``step_rollup``."""

from collections.abc import Iterator, Mapping
from typing import Any, Final

import numpy as np

from ranklake.detection.baseline import episodes, recent_medians, trailing
from ranklake.detection.declaration import MIN_EFFECT, Detection, Detector, Series
from ranklake.lake.rollups.detectors.steps import SHARED, at_steps, evidence, number

_STRIDE: Final = 8
_FLAGS: Final = {"nan": "NaN", "+inf": "infinite", "-inf": "minus infinity"}
Thresholds = Mapping[str, float]
Vector = np.ndarray[Any, Any]


def non_finite(series: Series, thresholds: Thresholds) -> Iterator[Detection]:
    """Find steps with a loss or gradients that are NaN or infinite.

    A loss that is not finite is always reported. Gradients may overflow occasionally while a loss scale is adjusted, so
    they are reported only from `min_steps` consecutive steps on.
    """
    flags, ranks = series["loss_flag"], series["non_finite_ranks"]
    is_loss = np.array([flag is not None for flag in flags], bool)
    for holds, least, name in ((is_loss, 1, "loss"), ((ranks > 0) & ~is_loss, thresholds["min_steps"], "gradient")):
        for first, last, length in episodes(holds):
            if length < least:
                continue
            lasts = last == len(series) - 1
            kind = _FLAGS.get(str(flags[first]), "not finite")
            steps = f"{length} step{'' if length == 1 else 's'}"
            yield at_steps(
                series,
                first,
                None if lasts else last,
                f"The {name} is {kind} from step {series['step'][first]} on, in {steps}",
                effect=float(length),
                severity="critical" if lasts and length >= thresholds["min_steps"] else None,
                steps=length,
                ranks=int(ranks[first]),
                flag=kind,
            )


def loss_spike(series: Series, thresholds: Thresholds) -> Iterator[Detection]:
    """Find losses far above previous ones that return to normal. `divergence` finds those that do not.

    A single step with a high loss is usually a difficult batch, and is only a note unless it is extreme. After a bad
    update, the following steps have a high loss, too.
    """
    places, losses = _finite(series["mean_loss"])
    window = int(thresholds["window"])
    base = trailing(losses, window, _STRIDE, int(thresholds["least"]))
    size = np.abs(base.median)
    limit = base.median + np.maximum(thresholds["deviations"] * base.deviation, thresholds[MIN_EFFECT] * size)
    for first, last, length in episodes(losses > limit, gap=int(thresholds["gap"])):
        after = losses[last + 1 : last + 1 + window // 4]
        stays = len(after) >= thresholds["gap"] and float(np.median(after)) > limit[first]
        if stays or last - first >= thresholds["most_steps"]:
            continue
        top = first + int(np.argmax(losses[first : last + 1]))
        usual = float(base.median[first])
        effect = (float(losses[top]) - usual) / max(abs(usual), 1e-9)
        yield at_steps(
            series,
            int(places[first]),
            int(places[last]),
            f"The loss jumps to {number(losses[top])} at step {series['step'][places[top]]}, "
            f"where {number(usual)} was normal",
            value=float(losses[top]),
            baseline=usual,
            effect=effect,
            severity="info" if last == first and effect < thresholds["single_effect"] else None,
            deviation=float(base.deviation[first]),
            steps=length,
        )


def divergence(series: Series, thresholds: Thresholds) -> Iterator[Detection]:
    """Find losses that rise and stay high: the medians of some windows are far above the best previous median."""
    places, losses = _finite(series["mean_loss"])
    window = int(thresholds["window"])
    ends, medians = recent_medians(losses, window, _STRIDE)
    if len(ends) < 4:  # noqa: PLR2004 - nothing to compare with
        return
    best = np.minimum.accumulate(medians)
    best_at = np.maximum.accumulate(np.where(medians <= best, np.arange(len(best)), 0))
    spread = trailing(losses, window, _STRIDE, window // 2).deviation
    noise = spread[np.minimum(ends[best_at], len(spread) - 1)]
    noise = np.where(np.isfinite(noise), noise, 0.0)
    limit = best + np.maximum(thresholds["deviations"] * noise, thresholds[MIN_EFFECT] * np.abs(best))
    for first, last, _ in episodes(medians > limit, gap=2):
        if (last - first + 1) * _STRIDE < thresholds["min_steps"]:
            continue
        usual = float(best[first])
        start = _rise(losses, ends, medians, first, (usual, float(limit[first])))
        level = float(medians[first : last + 1].max())
        lasts = last == len(medians) - 1
        yield at_steps(
            series,
            int(places[start]),
            None if lasts else int(places[ends[last] - 1]),
            f"The loss {'diverges' if lasts else 'rises'} from step {series['step'][places[start]]} on, from "
            f"{number(usual)} to {number(level)}"
            + ("" if lasts else f", and is back by step {series['step'][places[ends[last] - 1]]}"),
            value=level,
            baseline=usual,
            effect=(level - usual) / max(abs(usual), 1e-9),
            deviation=float(noise[first]),
        )


def _rise(losses: Vector, ends: Vector, medians: Vector, first: int, levels: tuple[float, float]) -> int:
    """Return the index at which the loss begins to rise: by a jump within a window, or over several windows.

    The first tenth of the rise from the usual level to the limit is treated as noise.
    """
    usual, limit = levels
    window, lowest = int(ends[0]), first
    while lowest and medians[lowest - 1] < medians[lowest] and medians[lowest] > usual + 0.1 * (limit - usual):
        lowest -= 1
    if (first - lowest) * _STRIDE > window:
        return int(ends[lowest])
    begin = int(ends[first]) - window
    above = np.flatnonzero(losses[begin : ends[first]] > limit)
    return begin + (int(above[0]) if above.size else 0)


def loss_plateau(series: Series, thresholds: Thresholds) -> Iterator[Detection]:
    """Find a loss that had improved before, but has not for a long time."""
    places, losses = _finite(series["mean_loss"])
    ends, medians = recent_medians(losses, int(thresholds["window"]), _STRIDE)
    if len(ends) < 4:  # noqa: PLR2004 - nothing to compare with
        return
    total = float(medians[0] - medians.min())
    if total <= 0.1 * abs(float(medians[0])):
        return
    # compared with the best median at the last improvement, so that many small improvements count, too
    best, since = np.inf, 0
    for place, median in enumerate(medians.tolist()):
        if median < best - thresholds[MIN_EFFECT] * total:
            best, since = median, place
    quiet = int(ends[-1] - ends[since])
    if quiet < max(thresholds["min_steps"], thresholds["min_run_ratio"] * len(losses)):
        return
    start = int(ends[since]) - 1
    yield at_steps(
        series,
        int(places[start]),
        None,
        f"The loss has not improved since step {series['step'][places[start]]}, for {quiet:,} steps",
        value=float(medians[-1]),
        baseline=float(best),
        effect=quiet / len(losses),
        steps=quiet,
    )


def gradient_spike(series: Series, thresholds: Thresholds) -> Iterator[Detection]:
    """Find gradient norms many times above previous ones, on a logarithmic scale, since their tail is long."""
    norms = series["max_grad_norm"]
    places = np.flatnonzero(np.isfinite(norms) & (norms > 0))
    logs = np.log10(norms[places])
    base = trailing(logs, int(thresholds["window"]), _STRIDE, int(thresholds["least"]))
    limit = base.median + np.maximum(thresholds["deviations"] * base.deviation, np.log10(thresholds[MIN_EFFECT]))
    for first, last, length in episodes(logs > limit, gap=int(thresholds["gap"])):
        top = first + int(np.argmax(logs[first : last + 1]))
        value, usual = float(norms[places[top]]), float(10 ** base.median[first])
        yield at_steps(
            series,
            int(places[first]),
            int(places[last]),
            f"The gradient norm is {number(value)} at step {series['step'][places[top]]}, "
            f"where {number(usual)} was normal",
            value=value,
            baseline=usual,
            effect=value / usual,
            steps=length,
        )


def zero_gradients(series: Series, thresholds: Thresholds) -> Iterator[Detection]:
    """Find consecutive steps with gradients of exactly zero.

    Some frameworks write 0 for an unknown norm. So attempts with only zeros and a falling loss are not reported.
    """
    norms = series["max_grad_norm"]
    places = np.flatnonzero(np.isfinite(norms))
    numbers = series["attempt"][places]
    is_all_zero = ~np.isin(numbers, numbers[norms[places] != 0])
    is_unknown = is_all_zero & _falls(series["mean_loss"][places[is_all_zero]])
    for first, last, length in episodes((norms[places] == 0) & ~is_unknown):
        if length < thresholds[MIN_EFFECT]:
            continue
        lasts = last == len(places) - 1
        yield at_steps(
            series,
            int(places[first]),
            None if lasts else int(places[last]),
            f"The gradient norm is zero from step {series['step'][places[first]]} on, for {length:,} steps",
            value=0.0,
            effect=float(length),
        )


def _falls(losses: Vector) -> bool:
    """Whether losses fall: 90 % of the last quarter are below 90 % of the first quarter."""
    losses = losses[np.isfinite(losses)]
    quarter = len(losses) // 4
    if not quarter:
        return False
    first, last = losses[:quarter], losses[-quarter:]
    return bool(np.quantile(last, 0.9) < np.quantile(first, 0.1))


def _finite(values: np.ndarray[Any, Any]) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    places = np.flatnonzero(np.isfinite(values))
    return places, values[places].astype(np.float64)


DETECTORS: Final = (
    Detector(
        name="non_finite",
        watches="loss and gradients of each step",
        finds="the loss is NaN or infinite, or gradients are for several steps in a row",
        columns=("ts", "loss_flag", "non_finite_ranks"),
        find=non_finite,
        effect="steps",
        severity="error",
        runbook="non-finite",
        evidence_sql=evidence("mean_loss", "loss_flag", "non_finite_ranks"),
        min_effect=1,
        cooldown_s=600,
        parameters={"min_steps": 3},
        false_positive_target=0,
        **SHARED,
    ),
    Detector(
        name="loss_spike",
        watches="mean loss of each step",
        finds="the loss is far above what it was shortly before, and comes back",
        columns=("ts", "mean_loss"),
        find=loss_spike,
        effect="rise over the loss before",
        severity="warning",
        runbook="loss-spike",
        evidence_sql=evidence("mean_loss", "lr", "max_grad_norm"),
        min_effect=0.5,
        cooldown_s=300,
        # losses of batches have long tails: of a Laplace distribution, one value in 60,000 is further out
        parameters={"deviations": 10, "window": 64, "least": 20, "gap": 5, "most_steps": 48, "single_effect": 1.5},
        **SHARED,
    ),
    Detector(
        name="divergence",
        watches="mean loss of windows of steps",
        finds="the loss rises far above its best, and stays there",
        columns=("ts", "mean_loss"),
        find=divergence,
        effect="rise over the best loss",
        severity="error",
        runbook="divergence",
        evidence_sql=evidence("mean_loss", "lr", "max_grad_norm"),
        min_effect=0.3,
        cooldown_s=1800,
        parameters={"deviations": 5, "window": 32, "min_steps": 32},
        **SHARED,
    ),
    Detector(
        name="loss_plateau",
        watches="mean loss of windows of steps",
        finds="the loss had improved, and has not for a long part of the run",
        columns=("ts", "mean_loss"),
        find=loss_plateau,
        effect="share of the run's steps",
        severity="info",
        runbook="loss-plateau",
        evidence_sql=evidence("mean_loss", "lr"),
        min_effect=0.01,
        cooldown_s=3600,
        parameters={"window": 64, "min_steps": 1000, "min_run_ratio": 0.4},
        **SHARED,
    ),
    Detector(
        name="gradient_spike",
        watches="greatest gradient norm of each step",
        finds="a gradient norm is many times those before",
        columns=("ts", "max_grad_norm"),
        find=gradient_spike,
        effect="norm over the norm before",
        severity="warning",
        runbook="gradient-spike",
        evidence_sql=evidence("max_grad_norm", "mean_loss", "lr"),
        min_effect=8,
        cooldown_s=600,
        parameters={"deviations": 8, "window": 128, "least": 50, "gap": 5},
        **SHARED,
    ),
    Detector(
        name="zero_gradients",
        watches="greatest gradient norm of each step",
        finds="gradients are exactly zero for many steps in a row",
        columns=("ts", "max_grad_norm", "mean_loss"),
        find=zero_gradients,
        effect="steps",
        severity="error",
        runbook="zero-gradients",
        evidence_sql=evidence("max_grad_norm", "mean_loss", "lr"),
        min_effect=20,
        cooldown_s=600,
        false_positive_target=0,
        **SHARED,
    ),
)
