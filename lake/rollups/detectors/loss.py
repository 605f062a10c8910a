"""Detectors over loss and gradients of a run: rows of ``step_rollup``, all attempts in order."""

from collections.abc import Iterator, Mapping
from typing import Final

from ranklake.detection.declaration import Detection, Detector, Series
from ranklake.detection.episodes import episodes

OF_STEPS: Final = """SELECT attempt, step, ts, mean_loss, loss_flag, lr, max_grad_norm, non_finite_ranks
FROM step_rollup WHERE run = {run} AND date BETWEEN {date} - INTERVAL '1' DAY AND {end_date}
  AND step BETWEEN {step} - 20 AND {end_step} + 20 ORDER BY attempt, step"""


def non_finite(series: Series, thresholds: Mapping[str, float]) -> Iterator[Detection]:
    """Find steps on which loss or gradients were NaN or infinite.

    A loss that is not finite is an error each time. Gradients alone may overflow now and then under a loss scale that
    is being found; so they count from so many steps in a row on.
    """
    flags, ranks = series["loss_flag"], series["non_finite_ranks"]
    is_loss = flags != None  # noqa: E711 - element by element
    for holds, least, name in ((is_loss, 1, "loss"), ((ranks > 0) & ~is_loss, thresholds["min_steps"], "gradients")):
        for episode in episodes(holds):
            if episode.length < least:
                continue
            first, last = episode.first, episode.last
            lasts = last == len(series) - 1
            kind = flags[first] if name == "loss" else "not finite"
            step, steps = int(series["step"][first]), f"{episode.length} step{'' if episode.length == 1 else 's'}"
            yield Detection(
                start=int(series["ts"][first]),
                end=None if lasts else int(series["ts"][last]),
                message=f"The {name} is {kind} from step {step} on, in {steps}",
                value=None,
                effect=float(episode.length),
                step=step,
                end_step=int(series["step"][last]),
                subject={"attempt": int(series["attempt"][first])},
                severity="critical" if lasts and episode.length >= thresholds["min_steps"] else "",
                evidence={"steps": episode.length, "ranks": int(ranks[first]), "flag": kind, "of": name},
            )


DETECTORS: Final = (
    Detector(
        name="non_finite",
        watches="loss and gradients of each step",
        finds="the loss is NaN or infinite, or gradients are for several steps in a row",
        table="step_rollup",
        columns=("ts", "loss_flag", "non_finite_ranks"),
        grain=("run",),
        order=("attempt", "step"),
        find=non_finite,
        effect="steps",
        severity="error",
        runbook="non-finite",
        evidence_sql=OF_STEPS,
        min_effect=1,
        cooldown_s=600,
        parameters={"min_steps": 3},
        false_positive_target=0,
    ),
)
