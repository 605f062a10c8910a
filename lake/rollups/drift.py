"""Drift: how far the distributions of a served model's requests are from those of the week before.

Per model and date, each distribution (of a feature's buckets, of predictions, of confidence, latency and tokens) is
compared with the same of the seven days before:

- ``psi``: population stability index, sum of (p - q) ln(p / q) over buckets, with half a request added to each bucket;
  0.2 is a shift (Siddiqi, Credit Risk Scorecards, 2006: above 0.25 is major, below 0.1 none).
- ``js``: Jensen-Shannon distance, base 2 (Lin 1991): 0 for the same, 1 for no bucket in common.
- ``wasserstein``: for what has an order, the area between the cumulative shares, in deviations of the baseline.
- ``null_ratio_shift``: by how much the share of requests without the feature grew.

Chance alone moves them, too: see `noise`. Where that is more than half of a threshold, there is too little data, and no
value.
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
"""Numbers and the buckets that they go into: tenths of a share, halves of a doubling."""
_MISSING: Final = "missing"
Numbers = npt.NDArray[np.float64]


@dataclass
class Side:
    """One distribution: requests by bucket, and rows in all."""

    weights: dict[Any, float] = field(default_factory=lambda: defaultdict(float))
    rows: int = 0

    def add(self, bucket: object, rows: int, weight: float) -> None:
        """Count rows of a bucket, and the requests that they stand for."""
        self.weights[bucket] += weight
        self.rows += rows


def shares(window: Side, baseline: Side) -> tuple[Numbers, Numbers]:
    """Return the shares of all buckets of either side, in order, half a request added to each."""
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
    """Return the distance of two distributions over rising places, in standard deviations of the second.

    None where the second has none.

    >>> round(wasserstein(np.array([0.0, 1.0]), np.array([0.5, 0.5]), np.array([0.0, 1.0])), 4)
    1.0
    """
    deviation = float(np.sqrt((q * (places - (q * places).sum()) ** 2).sum()))
    if deviation == 0:
        return None
    return float((np.abs(np.cumsum(p - q))[:-1] * np.diff(places)).sum() / deviation)


def noise(statistic: str, buckets: int, window: int, baseline: int) -> float:
    """Return about how large a statistic is without any drift, for so many buckets and rows.

    PSI is (B - 1) (1 / n + 1 / m) on average (Yurdakul 2018), and the square of Jensen-Shannon's distance that over
    8 ln 2, since both are chi-squared for large counts. Wasserstein compares means of deviation one; the deviation of
    a share is half at most.

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
    """The body of the rollup ``drift``: eight days of ``inferences`` in, statistics of the last one out."""

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
    """Return the day's distribution and the week's before it, by model and subject."""
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
    return {key: both for key, both in sides.items() if both[0].rows}


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
        is_enough = baseline.rows and noise(statistic, buckets, window.rows, baseline.rows) <= threshold / 2
        shown = value if is_enough else None
        status = "too_little_data" if shown is None else "drifted" if abs(shown) >= threshold else "steady"
        yield {
            "subject_table": "inferences",
            "subject": subject,
            "scope": f"model={model}",
            "window_start_ts": start,
            "window_end_ts": start + timedelta(days=1),
            "baseline_start_ts": start - BASELINE,
            "baseline_end_ts": start,
            "statistic": statistic,
            "value": shown,
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
