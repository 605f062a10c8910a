"""Rollups of served models, against plain loops: requests by hour, and drift against the week before."""

import json
import math
import random
from collections import defaultdict
from datetime import timedelta

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rollup_inputs import NOON, computed, context
from scipy.spatial.distance import jensenshannon
from scipy.stats import wasserstein_distance

from ranklake.lake.rollups.drift import jensen_shannon, psi, wasserstein


def requests(count, day=0, seed=0, **more):
    """Return requests of one day, as many as asked for; later values win."""
    rng = random.Random(f"{seed} {day}")
    return [
        {
            "ts": NOON + timedelta(days=day, seconds=rng.randrange(7200)), "model": "ranker", "model_version": "3",
            "latency_s": rng.lognormvariate(-3, 0.5), "confidence_ratio": rng.random(), "status": "ok",
            "input_tokens": rng.randrange(10, 500), "prediction_bucket": rng.choice(["cat", "dog"]),
            "feature_buckets": json.dumps({"age": rng.choice(["<18", "[18,65)", ">=65"])}),
            **{name: value(rng) if callable(value) else value for name, value in more.items()},
        }
        for _ in range(count)
    ]  # fmt: skip


def week(count=500, **more):
    """Return requests of the seven days before the date."""
    return [row for day in range(-7, 0) for row in requests(count, day, **more)]


def drift(rows):
    """Return the statistics of the date, by subject and statistic."""
    result = computed(context(inferences=rows), "drift").to_pylist()
    return {(row["scope"], row["subject"], row["statistic"]): row for row in result}


def quantile(values, share):
    """Return the least value at which the weights up to it are that share."""
    whole, up_to = sum(weight for _, weight in values), 0.0
    for value, weight in sorted(values):
        up_to += weight
        if up_to >= share * whole - 1e-9:
            return value
    return None


def test_hours_are_those_of_a_loop():
    """Weights, statuses that are missing, latencies that are, and two versions."""
    rows = requests(
        400,
        weight=lambda rng: rng.choice([None, 1.0, 10.0]),
        status=lambda rng: rng.choice(["ok", "ok", "error", None]),
        latency_s=lambda rng: rng.choice([None, rng.random()]),
        model_version=lambda rng: rng.choice(["3", None]),
    )
    by_group = defaultdict(list)
    for row in rows:
        by_group[row["model_version"], row["ts"].replace(minute=0, second=0)].append(row)
    result = computed(context(inferences=rows), "inference_hourly").to_pylist()
    assert len(result) == len(by_group)
    for row in result:
        group = by_group[row["model_version"], row["hour"]]
        weights = [item["weight"] or 1 for item in group]
        timed = [
            (float(np.float32(item["latency_s"])), weight)
            for item, weight in zip(group, weights, strict=True)
            if item["latency_s"] is not None
        ]
        failed = sum(w for item, w in zip(group, weights, strict=True) if item["status"] not in ("ok", None))
        judged = sum(w for item, w in zip(group, weights, strict=True) if item["status"] is not None)
        assert (row["rows"], row["requests"], row["failed_requests"]) == (len(group), sum(weights), failed)
        assert row["requests_with_status"] == judged
        assert row["error_ratio"] == pytest.approx(failed / judged)
        mean = sum(value * weight for value, weight in timed) / sum(weight for _, weight in timed)
        assert row["latency_mean_s"] == pytest.approx(mean, rel=1e-6)
        for name, share in (("latency_p50_s", 0.5), ("latency_p95_s", 0.95), ("latency_p99_s", 0.99)):
            assert row[name] == pytest.approx(quantile(timed, share))
        assert row["input_tokens"] == sum(
            item["input_tokens"] * weight for item, weight in zip(group, weights, strict=True)
        )


def test_the_same_distribution_is_steady():
    """Of every kind; features' names are subjects of their own."""
    result = drift([*week(), *requests(2000)])
    assert {row["status"] for row in result.values()} == {"steady"}
    subjects = {(subject, statistic) for _, subject, statistic in result}
    assert {("feature:age", "null_ratio_shift"), ("prediction", "js"), ("latency_s", "wasserstein")} <= subjects
    assert not any(subject == "output_tokens" for _, subject, _ in result), "no request has any"
    assert all(row["window_count"] == 2000 and row["baseline_count"] == 3500 for row in result.values())


@pytest.mark.parametrize(
    ("more", "subject", "statistic"),
    [
        ({"prediction_bucket": "dog"}, "prediction", "psi"),
        ({"latency_s": lambda rng: rng.lognormvariate(-2, 0.5)}, "latency_s", "wasserstein"),
        ({"confidence_ratio": lambda rng: rng.random() ** 3}, "confidence_ratio", "js"),
        ({"feature_buckets": json.dumps({"age": "missing"})}, "feature:age", "null_ratio_shift"),
        ({"feature_buckets": json.dumps({"age": "[100,"})}, "feature:age", "psi"),
    ],
)
def test_what_shifts_has_drifted_and_nothing_else(more, subject, statistic):
    """One planted shift each; the other subjects stay steady."""
    result = drift([*week(), *requests(2000, **more)])
    assert result["model=ranker", subject, statistic]["status"] == "drifted"
    assert {row["subject"] for row in result.values() if row["status"] == "drifted"} == {subject}


def test_too_little_data_has_no_value():
    """Few rows, and no baseline at all; a model that is not asked any more has no row."""
    result = drift([*week(2), *requests(20), *requests(2000, model="new"), *week(30, model="old")])
    assert {row["statistic"] for row in result.values()} >= {"psi", "js"}
    assert {row["status"] for row in result.values()} == {"too_little_data"}
    assert {row["value"] for row in result.values()} == {None}
    assert {scope for scope, _, _ in result} == {"model=ranker", "model=new"}


@pytest.mark.parametrize("text", ["", "[1]", "{", '{"age": 3}', '{"age": null}', "[" * 5000])
def test_features_that_are_none_are_left_out(text):
    """What no recorder of ours writes does not stop the others."""
    result = drift([*week(feature_buckets=text), *requests(2000, feature_buckets=text)])
    assert not any(subject.startswith("feature:") for _, subject, _ in result)


@given(st.lists(st.tuples(st.floats(0.01, 100), st.floats(0.01, 100)), min_size=2, max_size=12))
def test_statistics_are_those_of_scipy(pairs):
    """Jensen-Shannon and Wasserstein; PSI is the sum of both Kullback-Leibler divergences."""
    p, q = (np.array(side) / sum(side) for side in zip(*pairs, strict=True))
    # scipy takes the root of a rounding error: of near-equal distributions its distance may be NaN, or 1e-7.
    with np.errstate(invalid="ignore"):
        expected = np.nan_to_num(jensenshannon(p, q, base=2))
    assert jensen_shannon(p, q) == pytest.approx(expected, rel=1e-6, abs=1e-6)
    assert psi(p, q) == pytest.approx(float((p * np.log(p / q)).sum() + (q * np.log(q / p)).sum()), abs=1e-9)
    places = np.arange(len(p), dtype=float)
    deviation = math.sqrt(float(np.average((places - np.average(places, weights=q)) ** 2, weights=q)))
    expected = wasserstein_distance(places, places, p, q) / deviation
    assert wasserstein(p, q, places) == pytest.approx(expected, rel=1e-6, abs=1e-9)


def test_a_date_depends_on_the_week_before_it():
    """Rows of the eighth day before, and of the day after, change nothing."""
    inside = [*week(), *requests(2000)]
    outside = [*requests(2000, -8, prediction_bucket="dog"), *requests(2000, 1, prediction_bucket="dog")]
    assert drift(inside) == drift([*outside, *inside])


def test_numbers_that_are_none_stop_nothing():
    """NaN, infinities and zero are in the outermost buckets."""
    odd = {"latency_s": lambda rng: rng.choice([math.nan, math.inf, 0.0]), "confidence_ratio": math.nan}
    result = drift([*week(**odd), *requests(2000, **odd)])
    assert result["model=ranker", "latency_s", "psi"]["status"] == "steady"
