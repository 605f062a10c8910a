"""Anomalies of metrics without a detector of their own: found where planted, and not in sound series of many kinds."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import pytest
from rollup_inputs import computed, context

from ranklake.detection.declaration import Series, of_detector, thresholds_of
from ranklake.lake.rollups.detectors.metrics import DETECTORS, MOST_VALUES, series_anomaly
from ranklake.lake.rollups.findings import _detections, finding

PAGE = Path(__file__).resolve().parents[3] / "docs/detectors.md"
COUNT = 1_000
SEEDS = 5
THRESHOLDS = of_detector("series_anomaly", thresholds_of(DETECTORS))


def series(values, metric="data/queue_depth", attempt=0, **columns):
    """Return values of a metric, one a second."""
    count = len(values)
    columns = {
        "attempt": np.full(count, attempt), "ts": np.arange(count) * 1_000_000, "step": np.arange(count, dtype=float),
        "value": np.asarray(values, float), "agg_mean": np.full(count, np.nan),
    } | columns  # fmt: skip
    return Series({"run": "r", "metric": metric}, columns)


def autoregressive(rng):
    """Return values that depend on the one before."""
    values = np.zeros(COUNT)
    for number, noise in enumerate(rng.normal(0, 1, COUNT - 1), 1):
        values[number] = 0.9 * values[number - 1] + noise
    return values


SOUND = {
    "white": lambda rng: rng.normal(10, 1, COUNT),
    "lognormal": lambda rng: rng.lognormal(0, 1, COUNT),
    "heavy tails": lambda rng: rng.standard_t(3, COUNT),
    "autoregressive": autoregressive,
    "walk": lambda rng: np.cumsum(rng.normal(0, 1, COUNT)),
    "decay": lambda rng: 2 + 8 * np.exp(-np.arange(COUNT) / 300) + rng.normal(0, 0.05, COUNT),
    "growth": lambda rng: np.sqrt(np.arange(COUNT)) + rng.normal(0, 0.05, COUNT),
    "counts": lambda rng: rng.poisson(4, COUNT).astype(float),
    "full": lambda rng: np.minimum(8, rng.poisson(9, COUNT)).astype(float),
    "seldom": lambda rng: (rng.random(COUNT) < 0.02) * rng.random(COUNT),
    "teeth": lambda rng: np.arange(COUNT) % 97 / 97 + rng.normal(0, 0.01, COUNT),
    "constant": lambda _: np.full(COUNT, 7.0),
    "none": lambda _: np.full(COUNT, np.nan),
}


@pytest.mark.parametrize("kind", list(SOUND))
def test_a_sound_series_gives_nothing(kind):
    """Whatever its distribution, trend or memory."""
    for seed in range(SEEDS):
        values = SOUND[kind](np.random.default_rng(seed))
        assert _detections(DETECTORS[0], series(values), THRESHOLDS) == []


@pytest.mark.parametrize("kind", ["white", "decay", "counts", "growth", "autoregressive"])
@pytest.mark.parametrize("length", [30, COUNT])
def test_a_level_that_stays_away_is_found(kind, length):
    """A burst and a shift, at its step, with the level before and after."""
    values = SOUND[kind](np.random.default_rng(1))
    past = values[600:700]
    values[700 : 700 + length] += 20 * 1.4826 * np.median(np.abs(past - np.median(past)))
    (detection,) = _detections(DETECTORS[0], series(values, attempt=2), THRESHOLDS)[:1]
    assert 695 <= detection.step <= 712
    assert detection.value > detection.baseline
    assert detection.subject == {"attempt": 2}
    assert detection.message.startswith("data/queue_depth went from ")


def test_a_single_peak_is_none():
    """Nor are few values, or values that are not finite."""
    values = SOUND["white"](np.random.default_rng(1))
    peak = values.copy()
    peak[700] = 1e6
    assert _detections(DETECTORS[0], series(peak), THRESHOLDS) == []
    shifted = np.r_[values[:100], values[:60] + 50]
    assert _detections(DETECTORS[0], series(shifted), THRESHOLDS) == []
    values[700:] += 30
    values[650:690] = np.nan
    assert len(_detections(DETECTORS[0], series(values), THRESHOLDS)) == 1


def test_a_long_series_is_scored_by_means():
    """Its cost is bounded; the place is that of the stretch."""
    rng = np.random.default_rng(2)
    values = rng.normal(0, 1, 40 * MOST_VALUES)
    values[60_000:] += 20
    (detection,) = _detections(DETECTORS[0], series(values), THRESHOLDS)
    assert abs(detection.step - 60_000) <= 40 * 12


def test_two_metrics_of_a_run_are_two_findings():
    """Their ids differ, and each query of the evidence names its metric."""
    values = np.r_[np.random.default_rng(1).normal(0, 1, 500), np.random.default_rng(2).normal(40, 1, 100)]
    rows = []
    for metric in ("data/queue_depth", "it's mine"):
        detections = _detections(DETECTORS[0], series(values, metric), THRESHOLDS)
        rows += [finding(DETECTORS[0], series(values, metric), each, None) for each in detections]
    assert len({row["finding_id"] for row in rows}) == 2
    assert "metric = 'it''s mine'" in rows[1]["evidence_sql"]
    assert list(series_anomaly(series([]), THRESHOLDS)) == []


def test_which_rows_are_looked_at():
    """Gauges of rank 0 that a registry knows; not what is planned, counted, unknown, or another detector's."""
    levels = np.r_[np.random.default_rng(1).normal(0, 1, 500), np.random.default_rng(2).normal(40, 1, 100)]
    begin = datetime(2026, 3, 1, 12, tzinfo=UTC)

    def rows(metric, **more):
        return [
            {"run": "r1", "attempt": 0, "rank": 0, "ts": begin + timedelta(seconds=number), "step": number,
             "metric": metric, "kind": "gauge", "value": float(value), "date": begin.date()} | more
            for number, value in enumerate(levels)
        ]  # fmt: skip

    others = [
        *rows("data/queue_depth", rank=1), *rows("train/batch_size"), *rows("data/bytes_read", kind="counter"),
        *rows("agent/lag"), *rows("mine/x", edge_flag="unregistered"), *rows("train/loss"),
    ]  # fmt: skip
    tables = context(scalars=[*rows("data/queue_depth"), *others])
    (row,) = computed(tables, "run_findings").to_pylist()
    assert row["message"].startswith("data/queue_depth went from")
    assert (row["detector"], row["severity"], row["attempt"]) == ("series_anomaly", "warning", 0)
    assert tables.sql(row["evidence_sql"]).count() == 600


def test_the_page_has_these_counts():
    """Sound series, their kinds, and what a finding asks."""
    text = " ".join(PAGE.read_text(encoding="utf-8").split())
    assert f"{SEEDS * len(SOUND)} made-up sound series of {len(SOUND)} kinds" in text
    (detector,) = DETECTORS
    lasting, score = detector.parameters["lasting_values"], detector.parameters["min_score"]
    assert f"with a score of {score}," in text
    assert f"({lasting} in a row, {detector.min_effect} robust deviations)" in text
    assert f"It scores {MOST_VALUES:,} values" in text
