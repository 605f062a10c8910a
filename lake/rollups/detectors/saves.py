"""Detectors of faults in checkpoints, from the rows of a run in ``artifacts`` in order of time."""

from collections.abc import Iterator, Mapping
from typing import Any, Final

import numpy as np

from ranklake.detection.baseline import episodes
from ranklake.detection.declaration import MIN_EFFECT, Detection, Detector, Series
from ranklake.printable import duration

Thresholds = Mapping[str, float]
_S: Final = 1e9
_US: Final = 1_000_000
_MOST_BEFORE: Final = 20


def _detection(series: Series, place: int, message: str, **more: Any) -> Detection:  # noqa: ANN401 - a detection's fields
    step = series["step"][place]
    number = None if np.isnan(step) else int(step)
    moment = int(series["ts"][place])
    subject = {"attempt": int(series["attempt"][place])}
    return Detection(moment, moment, message, step=number, end_step=number, subject=subject, **more)


def checkpoint_failure(series: Series, thresholds: Thresholds) -> Iterator[Detection]:
    """Find saves and loads that failed."""
    del thresholds
    actions = series["action"]
    for place in np.flatnonzero(np.isin(actions, ["save_failed", "load_failed"])).tolist():
        kind = series["exception_type"][place]
        which = "saved" if actions[place] == "save_failed" else "loaded"
        reason = f": {kind}" if kind else ""
        yield _detection(series, place, f"A checkpoint could not be {which}{reason}", effect=1.0, severity="error")


def checkpoint_corruption(series: Series, thresholds: Thresholds) -> Iterator[Detection]:
    """Find checkpoints whose digest differed when they were verified or loaded."""
    del thresholds
    for place in np.flatnonzero(np.equal(series["verified"], 0)).tolist():
        step = series["step"][place]
        of_step = "A checkpoint" if np.isnan(step) else f"The checkpoint of step {int(step)}"
        yield _detection(series, place, f"{of_step} is not what was written: its digest differs", effect=1.0)


def _saves(series: Series) -> np.ndarray[Any, Any]:
    return np.flatnonzero((series["action"] == "created") & (series["kind"] == "checkpoint"))


def checkpoint_duration(series: Series, thresholds: Thresholds) -> Iterator[Detection]:
    """Find saves that take much longer than previous ones, whether training waits for them or not."""
    places = _saves(series)
    times = series["duration_ns"][places] / _S
    places, times = places[np.isfinite(times)], times[np.isfinite(times)]
    usual = np.full(len(times), np.nan)
    for n in range(int(thresholds["least"]), len(times)):
        usual[n] = np.median(times[max(0, n - _MOST_BEFORE) : n])
    is_slow = (times > thresholds[MIN_EFFECT] * usual) & (times - usual > thresholds["min_s"])
    for first, last, length in episodes(is_slow):
        longest = float(times[first : last + 1].max())
        yield _detection(
            series,
            int(places[first]),
            f"Saving a checkpoint takes {duration(longest)}, {duration(float(usual[first]))} was normal",
            value=longest,
            baseline=float(usual[first]),
            effect=longest / max(float(usual[first]), 1e-9),
            evidence={"saves": length},
        )


def checkpoint_age(series: Series, thresholds: Thresholds) -> Iterator[Detection]:
    """Find times between checkpoints of an attempt that are much longer than previous ones."""
    places = _saves(series)
    same = np.diff(series["attempt"][places]) == 0
    apart = np.diff(series["ts"][places]) / _US
    for n in range(int(thresholds["least"]), len(apart)):
        usual = float(np.median(apart[max(0, n - _MOST_BEFORE) : n]))
        if same[n] and apart[n] > max(thresholds[MIN_EFFECT] * usual, usual + thresholds["min_s"]):
            start = int(series["ts"][places[n]])
            yield Detection(
                start + int(usual * _US),
                int(series["ts"][places[n + 1]]),
                f"No checkpoint for {duration(float(apart[n]))}, where one came every {duration(usual)}",
                value=float(apart[n]),
                baseline=usual,
                effect=float(apart[n]) / max(usual, 1e-9),
                subject={"attempt": int(series["attempt"][places[n]])},
            )


_SHARED: Final[Mapping[str, Any]] = {
    "table": "artifacts",
    "grain": ("run",),
    "order": ("attempt", "ts"),
    "severity": "warning",
    "evidence_sql": """SELECT attempt, step, ts, name, action, duration_ns, bytes, verified, exception_type
FROM artifacts WHERE run = {run} AND date BETWEEN {date} - INTERVAL '1' DAY AND {end_date} ORDER BY attempt, ts""",
}
DETECTORS: Final = (
    Detector(
        name="checkpoint_failure",
        watches="saves and loads of checkpoints",
        finds="one failed",
        columns=("ts", "action", "exception_type", "step"),
        find=checkpoint_failure,
        effect="failures",
        runbook="checkpoint-failure",
        min_effect=0,
        cooldown_s=600,
        false_positive_target=0,
        where="kind IN ('checkpoint', 'model')",
        **_SHARED,
    ),
    Detector(
        name="checkpoint_corruption",
        watches="digests of checkpoints that are verified or loaded",
        finds="one is not what was recorded",
        columns=("ts", "verified", "step"),
        find=checkpoint_corruption,
        effect="checkpoints",
        runbook="checkpoint-corruption",
        min_effect=0,
        cooldown_s=600,
        false_positive_target=0,
        where="kind IN ('checkpoint', 'model')",
        **{**_SHARED, "severity": "critical"},
    ),
    Detector(
        name="checkpoint_duration",
        watches="time that saving a checkpoint takes",
        finds="a save takes many times as long as those before",
        columns=("ts", "action", "kind", "duration_ns", "step"),
        find=checkpoint_duration,
        effect="duration over the one before",
        runbook="checkpoint-failure",
        min_effect=3,
        cooldown_s=3600,
        parameters={"least": 3, "min_s": 5},
        where="kind = 'checkpoint' AND rank = 0",
        **_SHARED,
    ),
    Detector(
        name="checkpoint_age",
        watches="time between checkpoints",
        finds="the next one comes many times later than before",
        columns=("ts", "action", "kind", "step"),
        find=checkpoint_age,
        effect="time over the one before",
        runbook="checkpoint-failure",
        min_effect=4,
        cooldown_s=3600,
        parameters={"least": 3, "min_s": 600},
        where="kind = 'checkpoint' AND rank = 0",
        **_SHARED,
    ),
)
