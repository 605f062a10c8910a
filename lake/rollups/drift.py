"""Computes drift: how much the requests to a served model differ from those of the week before.

For each model and date, the distributions of feature buckets, predictions, confidence, latency and tokens are compared
with those of the seven days before:

- ``psi``: population stability index, the sum of (p - q) ln(p / q) over buckets, with half a request added to each
  bucket; 0.2 is a shift (Siddiqi, Credit Risk Scorecards, 2006: above 0.25 is major, below 0.1 none).
- ``js``: Jensen-Shannon distance, base 2 (Lin 1991): 0 for equal distributions, 1 without a common bucket.
- ``wasserstein``: for numbers, the area between the cumulative distributions, in standard deviations of the baseline.
- ``null_ratio_shift``: increase of the share of requests without the feature.

The statistics also change by chance (see `noise`). If the expected noise is more than half of a threshold, there are
too few data, and the value is NULL.
"""

import inspect
import json
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time, timedelta
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ranklake.lake.contracts.arrow import arrow_schema
from ranklake.lake.contracts.load import contract

if TYPE_CHECKING:
    from ranklake.lake.query.engine import SessionContext

BASELINE: Final = timedelta(days=7)
_ORDERED: Final = {
    "confidence_ratio": "floor(10 * least(greatest(nanvl(confidence_ratio, 0), 0), 1))",
    "latency_s": "floor(2 * log2(least(greatest(nanvl(latency_s, 1e6), 1e-6), 1e6)))",
    "input_tokens": "floor(2 * log2(CAST(greatest(input_tokens, 1) AS DOUBLE)))",
    "output_tokens": "floor(2 * log2(CAST(greatest(output_tokens, 1) AS DOUBLE)))",
}
"""SQL of the bucket of each number: ten buckets for a share, two buckets per doubling for the others."""
_MISSING: Final = "missing"
Numbers = npt.NDArray[np.float64]


@dataclass
class Side:
    """A distribution: weighted number of requests by bucket, and number of rows."""

    weights: dict[Any, float] = field(default_factory=lambda: defaultdict(float))
    rows: int = 0

    def add(self, bucket: object, rows: int, weight: float) -> None:
        """Add rows of a bucket, and the number of requests that they represent."""
        self.weights[bucket] += weight
        self.rows += rows


def shares(window: Side, baseline: Side) -> tuple[Numbers, Numbers]:
    """Return the shares of all buckets in both distributions, with half a request added to each bucket.

    The buckets are those of either distribution, in order.
    """
    buckets = sorted({*window.weights, *baseline.weights}, key=lambda bucket: (isinstance(bucket, str), bucket))
    sides = [np.array([side.weights.get(bucket, 0.0) + 0.5 for bucket in buckets]) for side in (window, baseline)]
    return sides[0] / sides[0].sum(), sides[1] / sides[1].sum()


def psi(p: Numbers, q: Numbers) -> float:
    """Return the population stability index of two distributions over the same buckets.

    >>> round(psi(np.array([0.5, 0.5]), np.array([0.25, 0.75])), 4)
    0.2747
    """
    return float(((p - q) * np.log(p / q)).sum())


def jensen_shannon(p: Numbers, q: Numbers) -> float:
    """Return the Jensen-Shannon distance, base 2.

    >>> round(jensen_shannon(np.array([0.5, 0.5]), np.array([0.25, 0.75])), 4)
    0.2209
    """
    middle = (p + q) / 2
    divergence = ((p * np.log2(p / middle)) + (q * np.log2(q / middle))).sum() / 2
    return float(np.sqrt(max(divergence, 0.0)))


def wasserstein(p: Numbers, q: Numbers, places: Numbers) -> float | None:
    """Return the Wasserstein distance of two distributions over increasing places, in standard deviations of `q`.

    None if the standard deviation of `q` is 0.

    >>> round(wasserstein(np.array([0.0, 1.0]), np.array([0.5, 0.5]), np.array([0.0, 1.0])), 4)
    1.0
    """
    deviation = float(np.sqrt((q * (places - (q * places).sum()) ** 2).sum()))
    if deviation == 0:
        return None
    return float((np.abs(np.cumsum(p - q))[:-1] * np.diff(places)).sum() / deviation)


def noise(statistic: str, buckets: int, window: int, baseline: int) -> float:
    """Return the approximate value of a statistic without drift, for a number of buckets and rows.

    The mean PSI is (B - 1) (1 / n + 1 / m) (Yurdakul 2018). The mean square of the Jensen-Shannon distance is the mean
    PSI divided by 8 ln 2, since both are chi-squared for large counts. For Wasserstein, it is the standard deviation of
    a difference of means; for a share, whose standard deviation is at most 0.5, likewise.

    >>> round(noise("psi", 10, 1000, 7000), 4)
    0.0103
    """
    unit = 1 / window + 1 / baseline
    mean_psi = (buckets - 1) * unit
    by_statistic = {
        "psi": mean_psi,
        "js": np.sqrt(mean_psi / (8 * np.log(2))),
        "wasserstein": np.sqrt(unit),
        "null_ratio_shift": 0.5 * np.sqrt(unit),
    }
    return float(by_statistic[statistic])


class Drift:
    """The body of the rollup ``drift``: computes the statistics of a date from ``inferences`` of eight days."""

    @property
    def source(self) -> str:
        """Text of this module."""
        return inspect.getsource(sys.modules[__name__])

    def rows(self, ctx: "SessionContext", values: Mapping[str, Any]) -> pa.Table:
        """Return the statistics of the date."""
        day: date = values["date"].as_py()
        rows = [
            row
            for (model, subject), (window, baseline) in sorted(_sides(ctx, day).items())
            for row in _drift_row(model, subject, window, baseline, day, values)
        ]
        return pa.Table.from_pylist(rows, schema=arrow_schema(contract("drift")))


def _sides(ctx: "SessionContext", day: date) -> dict[tuple[str, str], tuple[Side, Side]]:
    """Return the distribution of the day and of the week before, by model and subject."""
    sides: dict[tuple[str, str], tuple[Side, Side]] = defaultdict(lambda: (Side(), Side()))
    texts = {"prediction": "prediction_bucket", "": "feature_buckets"}
    numbers = {
        name: f"CASE WHEN {name} IS NOT NULL THEN CAST({bucket} AS BIGINT) END" for name, bucket in _ORDERED.items()
    }
    for subject, expression in {**texts, **numbers}.items():
        for row in _counts(ctx, expression, day):
            for name, bucket in _features(row["bucket"]) if not subject else ((subject, row["bucket"]),):
                side = sides[row["model"], name][0 if row["is_window"] else 1]
                side.add(bucket, row["rows"], row["weight"])
    return {key: pair for key, pair in sides.items() if pair[0].rows}


def _counts(ctx: "SessionContext", expression: str, day: date) -> list[dict[str, Any]]:
    weight = "CAST(CASE WHEN weight > 0 AND weight < 1e9 THEN weight ELSE 1 END AS DECIMAL(18, 6))"
    sql = f"""
    SELECT model, date = $day AS is_window, {expression} AS bucket, count(*) AS rows,
        CAST(sum({weight}) AS DOUBLE) AS weight
    FROM inferences
    WHERE date BETWEEN $first AND $day AND ({expression}) IS NOT NULL
    GROUP BY 1, 2, 3
    ORDER BY 1, 2, 3"""  # noqa: S608 - expressions are ours
    values = {"day": pa.scalar(day), "first": pa.scalar(day - BASELINE)}
    rows: list[dict[str, Any]] = ctx.sql(sql, param_values=values).to_arrow_table().to_pylist()
    return rows


def _features(text: str) -> Iterator[tuple[str, str]]:
    try:
        buckets = json.loads(text)
    except (ValueError, RecursionError):
        return
    for name, bucket in buckets.items() if isinstance(buckets, dict) else ():
        if isinstance(bucket, str):
            yield f"feature:{name}", bucket


def _drift_row(
    model: str, subject: str, window: Side, baseline: Side, day: date, thresholds: Mapping[str, Any]
) -> Iterator[dict[str, Any]]:
    start = datetime.combine(day, time(), UTC)
    buckets = len({*window.weights, *baseline.weights})
    for statistic, value in _statistics(subject, window, baseline).items() if baseline.rows else [("psi", None)]:
        threshold = float(thresholds[statistic])
        has_enough_rows = baseline.rows and noise(statistic, buckets, window.rows, baseline.rows) <= threshold / 2
        result = value if has_enough_rows else None
        status = "too_little_data" if result is None else "drifted" if abs(result) >= threshold else "steady"
        yield {
            "subject_table": "inferences",
            "subject": subject,
            "scope": f"model={model}",
            "window_start_ts": start,
            "window_end_ts": start + timedelta(days=1),
            "baseline_start_ts": start - BASELINE,
            "baseline_end_ts": start,
            "statistic": statistic,
            "value": result,
            "threshold": threshold,
            "window_count": window.rows,
            "baseline_count": baseline.rows,
            "status": status,
            "date": day,
        }


def _statistics(subject: str, window: Side, baseline: Side) -> dict[str, float | None]:
    p, q = shares(window, baseline)
    values: dict[str, float | None] = {"psi": psi(p, q), "js": jensen_shannon(p, q)}
    if subject in _ORDERED:
        places = np.array(sorted({*window.weights, *baseline.weights}), np.float64)
        values["wasserstein"] = wasserstein(p, q, places)
    if subject.startswith("feature:"):
        absent = [side.weights.get(_MISSING, 0.0) / sum(side.weights.values()) for side in (window, baseline)]
        values["null_ratio_shift"] = absent[0] - absent[1]
    return values
