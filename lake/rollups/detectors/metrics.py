"""Detector of anomalies in registered gauges and ratios that no other detector watches.

A value is an anomaly if `ranklake.detection.anomaly` finds it improbable by the series' own past, and if the following
values differ from the previous ones, too. Single peaks are not reported, since they may be normal for a metric. Metrics
that follow a schedule (batch size, loss scale) are left out.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

import numpy as np

from ranklake.detection.anomaly import ScorerSettings, scores
from ranklake.detection.baseline import TO_DEVIATION, row_medians
from ranklake.detection.declaration import MIN_EFFECT, Detection, Detector, Series
from ranklake.lake.contracts.load import load_metrics
from ranklake.lake.rollups.detectors.steps import number

Vector = np.ndarray[Any, np.dtype[np.float64]]
MOST_VALUES: Final = 2_048
"""Most values of a series that are scored, since a score takes 0.1 ms. Longer series are averaged over intervals."""
_SETTINGS: Final = ScorerSettings(memory=1_024)
_PLANNED: Final = frozenset({
    "train/epoch", "train/loss_scale", "train/weight_decay", "train/momentum", "train/batch_size",
    "train/sequence_length",
})  # fmt: skip
"""Metrics that follow a schedule."""
_LEAST_RATIO: Final = 1e-3
"""Least deviation, as a share of the level; a smaller one is replaced by it."""


def series_anomaly(series: Series, thresholds: Mapping[str, float]) -> Iterator[Detection]:
    """Find values that are improbable by the series' past, if later values differ, too. Short series are skipped."""
    values = np.where(np.isfinite(series["agg_mean"]), series["agg_mean"], series["value"])
    places = np.flatnonzero(np.isfinite(values))
    before, after = int(thresholds["baseline_values"]), int(thresholds["lasting_values"])
    if len(places) < thresholds["min_values"]:
        return
    levels, starts = _averaged(values[places])
    moves = _moves(levels, before, after)
    moves.effect[: int(thresholds["min_values"])] = 0
    if not (moves.effect >= thresholds[MIN_EFFECT]).any():  # true for most series, and much faster than a score
        return
    for at in np.flatnonzero(scores(levels, 0, _SETTINGS) >= thresholds["min_score"]).tolist():
        effect, level, now = (float(column[at]) for column in moves)
        if effect < thresholds[MIN_EFFECT]:
            continue
        place = int(places[starts[at]])
        step, metric = series["step"][place], str(series.subject["metric"])
        at_step = "" if np.isnan(step) else f" at step {step:,.0f}"
        yield Detection(
            start=int(series["ts"][place]),
            end=int(series["ts"][place]),
            message=f"{metric} went from {number(level)} to {number(now)}{at_step}",
            value=now,
            baseline=level,
            effect=effect,
            step=None if np.isnan(step) else int(step),
            subject={"attempt": int(series["attempt"][place])},
            evidence={"metric": metric, "values": len(places)},
        )


class _Moves(NamedTuple):
    """For each value, the difference between later and earlier values in deviations, and the medians of both.

    Attributes
    ----------
    effect
        The difference in robust deviations of the earlier values.
    level, now
        Median of the earlier values, and of the later ones including the value.
    """

    effect: Vector
    level: Vector
    now: Vector


def _moves(levels: Vector, before: int, after: int) -> _Moves:
    moves = _Moves(*(np.zeros(len(levels)) for _ in range(3)))
    if len(levels) < before + after:
        return moves
    past = np.lib.stride_tricks.sliding_window_view(levels, before)[: len(levels) - before - after + 1]
    inner = slice(before, len(levels) - after + 1)
    moves.level[inner] = row_medians(past.copy())
    moves.now[inner] = row_medians(np.lib.stride_tricks.sliding_window_view(levels, after)[before:].copy())
    level = moves.level[inner]
    usual = TO_DEVIATION * row_medians(np.abs(past - level[:, None]))
    # for a series that rarely changes, the robust deviation is 0, so the standard deviation is used
    for at in np.flatnonzero(usual == 0).tolist():
        usual[at] = np.std(levels[: at + before])
    least = np.maximum(usual, _LEAST_RATIO * np.abs(level))
    moves.effect[inner] = np.where(usual > 0, np.abs(moves.now[inner] - level) / np.where(usual > 0, least, 1), 0)
    return moves


def _averaged(values: Vector) -> tuple[Vector, np.ndarray[Any, np.dtype[np.int64]]]:
    """Return at most `MOST_VALUES` means of equal intervals of a series, and the start index of each interval."""
    length = -(-len(values) // MOST_VALUES)
    starts = np.arange(0, len(values), length)
    counts = np.diff(np.r_[starts, len(values)])
    return np.add.reduceat(values, starts) / counts, starts


def _without_detector() -> str:
    """Return the SQL condition for the rows of metrics that no other detector watches."""
    watched = sorted(
        {metric.name for metric in load_metrics().values() if metric.stored_in.startswith("steps.")} | _PLANNED
    )
    names = ", ".join(f"'{name}'" for name in watched)
    return (
        "rank = 0 AND value IS NOT NULL AND (kind IS NULL OR kind IN ('gauge', 'ratio')) "
        "AND (edge_flag IS NULL OR edge_flag NOT LIKE '%unregistered%') AND metric NOT LIKE 'agent/%' "
        f"AND metric NOT IN ({names})"
    )


DETECTORS: Final = (
    Detector(
        name="series_anomaly",
        watches="gauges and ratios of rank 0 that the registry knows and no other detector watches",
        finds="a value is improbable by the series' own past, and those behind it stay away from it",
        table="scalars",
        columns=("ts", "step", "value", "agg_mean"),
        where=_without_detector(),
        grain=("run", "metric"),
        order=("attempt", "ts"),
        find=series_anomaly,
        effect="robust deviations from the level before",
        severity="warning",
        runbook="series-anomaly",
        evidence_sql="""SELECT attempt, step, ts, coalesce(agg_mean, value) AS value FROM scalars
WHERE run = {run} AND rank = 0 AND metric = {metric}
  AND date BETWEEN {date} - INTERVAL '1' DAY AND {end_date} + INTERVAL '1' DAY ORDER BY attempt, ts""",
        min_effect=5,
        cooldown_s=3_600,
        parameters={"min_score": 4.5, "min_values": 200, "baseline_values": 64, "lasting_values": 5},
        false_positive_target=0.001,
    ),
)
"""Detectors of metrics."""
