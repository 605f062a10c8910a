"""The anomaly score on 28 labelled series, by the benchmark's own scoring."""

import csv
import importlib.util
import json
from datetime import UTC, datetime

import numpy as np
import pytest

from ranklake.detection.anomaly import THRESHOLD, AnomalyScorer, ScorerSettings, period_of, scores
from ranklake.detection.declaration import Series, of_detector, thresholds_of
from ranklake.lake.rollups.detectors.metrics import DETECTORS, series_anomaly


@pytest.mark.slow
def test_the_score_of_the_benchmark(published, capsys):
    """65 or more with one setting for all; a random cut forest has 53.7, the best published one here 72.3.

    So has the fixed threshold, and, in the mean of halves drawn anew, one that the other half chose.
    """
    folder = published("anomalies") / "anomalies"
    spec = importlib.util.spec_from_file_location("score", folder / "score.py")
    benchmark = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(benchmark)
    windows = json.loads((folder / "windows.json").read_text())
    detected = {}
    for name in windows:
        with (folder / "series" / name).open() as file:
            rows = list(csv.DictReader(file))
        stamps = [row["timestamp"] for row in rows]
        times = [int(datetime.fromisoformat(each[:19]).replace(tzinfo=UTC).timestamp() * 1e6) for each in stamps[:600]]
        values = [float(row["value"]) for row in rows]
        detected[name] = (stamps, scores(values, period_of(times)).tolist())
    result, threshold, _ = benchmark.score(windows, detected.get)

    def score_at(least, names):
        """Return the score of some series at a threshold."""
        above = {name: (stamps, [float(each >= least) for each in given]) for name, (stamps, given) in detected.items()}
        return benchmark.score({name: windows[name] for name in names}, above.get)[::2]

    held_out = []
    for seed in range(8):
        names = np.random.default_rng(seed).permutation(sorted(windows)).tolist()
        halves = [names[::2], names[1::2]]
        thresholds = [benchmark.score({name: windows[name] for name in half}, detected.get)[1] for half in halves]
        parts = [score_at(least, half) for least, half in zip(reversed(thresholds), halves, strict=True)]
        held_out.append(sum(score * count for score, count in parts) / sum(count for _, count in parts))
    fixed = score_at(THRESHOLD, windows)[0]
    with capsys.disabled():
        print(f"\nscore {result:.1f} at threshold {threshold:.2f}; {fixed:.1f} at {THRESHOLD}; held out "
              f"{np.mean(held_out):.1f} ({min(held_out):.1f} to {max(held_out):.1f})")  # fmt: skip
    assert result >= 65
    assert fixed >= 65
    assert np.mean(held_out) >= 65


def test_a_score_is_made_of_what_came_before():
    """Other values later change nothing; memory and time are bounded by the setting."""
    rng = np.random.default_rng(0)
    values = np.sin(np.arange(900) / 20) + rng.normal(0, 0.1, 900)
    settings = ScorerSettings(memory=300)
    whole = scores(values, 100, settings)
    assert np.array_equal(whole[:600], scores(np.r_[values[:600], rng.normal(50, 1, 300)], 100, settings)[:600])
    scorer = AnomalyScorer(100, settings)
    for value in values:
        scorer.add(value)
    assert scorer._values.size == 301
    assert max(len(tail._sorted) for tail in scorer._tails) == 300


def test_what_is_unlike_all_before_scores_most():
    """A jump, and what is no number, which is taken as the value before it."""
    rng = np.random.default_rng(1)
    values = rng.normal(0, 1, 700)
    values[600] = 12
    values[300:303] = np.nan
    found = scores(values)
    assert int(np.argmax(found)) in range(600, 604)
    assert np.isfinite(found).all()
    assert (found >= 0).all()
    assert (scores(np.full(500, 7.0)) == 0).all()
    assert (scores(np.full(50, np.nan)) == 0).all()
    assert scores([1.0, 2.0, 3.0]).tolist() == [0, 0, 0]


@pytest.mark.parametrize(("interval_s", "count"), [(300, 288), (3600, 24), (86400, 0)])
def test_values_of_a_day(interval_s, count):
    """By the median interval; of one a day there is no time of day."""
    times = np.arange(100) * interval_s * 1_000_000
    times[50:] += 7  # a late start moves nothing
    assert period_of(times) == count


@pytest.mark.slow
def test_a_detector_of_any_metric_says_little(published):
    """On the same series, 392 days of them: five of the labelled windows, and nothing outside of any."""
    folder = published("anomalies") / "anomalies"
    windows = json.loads((folder / "windows.json").read_text())
    limits = of_detector("series_anomaly", thresholds_of(DETECTORS))
    hits, outside = 0, []
    for name, spans in windows.items():
        with (folder / "series" / name).open() as file:
            rows = list(csv.DictReader(file))
        count = len(rows)
        columns = {name: np.zeros(count) for name in ("attempt", "ts")}
        columns |= {"step": np.arange(count, dtype=float), "agg_mean": np.full(count, np.nan)}
        columns["value"] = np.array([float(row["value"]) for row in rows])
        for detection in series_anomaly(Series({"run": "r", "metric": name}, columns), limits):
            stamp = rows[detection.step]["timestamp"][:19]
            is_hit = any(begin[:19] <= stamp <= end[:19] for begin, end in spans)
            hits += is_hit
            outside += [] if is_hit else [(name, stamp)]
    assert outside == []
    assert hits >= 5
