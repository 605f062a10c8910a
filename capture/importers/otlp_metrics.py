"""OTLP metrics: points become scalars, histograms distributions, under the metric's name with attributes as labels."""

import math
from typing import TYPE_CHECKING, Final

import numpy as np

from ranklake.capture.common.values import redacted_name
from ranklake.capture.histogram import Buckets, Histogram, histogram_of_bins
from ranklake.capture.importers.otlp_values import LONGEST_NAME, FlawError, Message, take_own, values

if TYPE_CHECKING:
    from ranklake.capture.importers.imported_run import ImportedRun

_MOST_BUCKETS: Final = 1 << 12
_SCALES: Final = range(-10, 21)
_OWN_COLUMNS: Final = frozenset({"step", "weight"})
_NO_VALUE: Final = 1
"""Flag of a point that says that nothing was measured."""
_CUMULATIVE: Final = frozenset({2, "AGGREGATION_TEMPORALITY_CUMULATIVE"})


def add_metric(item: Message, scope: str | None, rank: int, recording: "ImportedRun") -> int:  # noqa: ARG001 - as others
    """Add a metric's points, and return the time of the last. Raises `FlawError`, or as `values` does."""
    name, at_ns = str(item.get("name") or ""), 0
    for kind, add in _POINTS.items():
        of_kind = item.get(kind) or {}
        is_counter = bool(of_kind.get("isMonotonic")) and of_kind.get("aggregationTemporality") in _CUMULATIVE
        for point in of_kind.get("dataPoints") or ():
            if int(point.get("flags") or 0) & _NO_VALUE:
                recording.left_out += 1
                continue
            at_ns = int(point.get("timeUnixNano") or 0)
            if at_ns <= 0:
                raise FlawError("a point without a time")
            attributes = values(point.get("attributes"))
            columns = {"rank": rank} | take_own(attributes, _OWN_COLUMNS) | ({"kind": "counter"} if is_counter else {})
            labels = ",".join(f'{key}="{value}"' for key, value in sorted(attributes.items()) if value is not None)
            full = redacted_name(f"{name}{{{labels}}}" if labels else name, LONGEST_NAME)
            add(recording, full, point, at_ns, columns)
    return at_ns


def _add_number(recording: "ImportedRun", name: str, point: Message, at_ns: int, columns: Message) -> None:
    value = point["asInt"] if "asInt" in point else point["asDouble"]
    recording.unregistered(name, float(value), at_ns, **columns)


def _add_bins(recording: "ImportedRun", name: str, point: Message, at_ns: int, columns: Message) -> None:
    bounds = [float(bound) for bound in point.get("explicitBounds") or ()]
    counts = np.array([int(count) for count in point.get("bucketCounts") or [point.get("count") or 0]], np.float64)
    total, low, high = (None if point.get(key) is None else float(point[key]) for key in ("sum", "min", "max"))
    if not bounds:
        mean = (total or 0.0) / max(1, int(point.get("count") or 0))
        bounds, counts = [mean], np.array([counts.sum(), 0.0])
    lows = [min(bounds[0], bounds[0] if low is None else low), *bounds]
    highs = [*bounds, max(bounds[-1], bounds[-1] if high is None else high)]
    _add_distribution(
        recording, name, point, at_ns, histogram_of_bins(np.array(lows), np.array(highs), counts), columns
    )


def _add_exponential(recording: "ImportedRun", name: str, point: Message, at_ns: int, columns: Message) -> None:
    scale, sides = int(point.get("scale") or 0), []
    for side in ("positive", "negative"):
        buckets = point.get(side) or {}
        counts = np.array([int(count) for count in buckets.get("bucketCounts") or ()], np.int64)
        filled = np.flatnonzero(counts)
        first, last = (int(filled[0]), int(filled[-1]) + 1) if len(filled) else (0, 0)
        sides.append(Buckets(int(buckets.get("offset") or 0) + first if last else 0, counts[first:last]))
    is_valid = scale in _SCALES and all(
        len(side.counts) <= _MOST_BUCKETS and (side.counts >= 0).all() for side in sides
    )
    histogram = Histogram(scale, int(point.get("zeroCount") or 0), positive=sides[0], negative=sides[1])
    _add_distribution(recording, name, point, at_ns, histogram if is_valid else None, columns)


def _add_distribution(
    recording: "ImportedRun", name: str, point: Message, at_ns: int, histogram: Histogram | None, columns: Message
) -> None:
    if not int(point.get("count") or 0):
        recording.left_out += 1
        return
    if histogram is None:
        raise FlawError("a histogram whose buckets are none")
    since_ns = int(point.get("startTimeUnixNano") or 0)
    known = {key: None if point.get(key) is None else float(point[key]) for key in ("sum", "min", "max")}
    finite: Message = {
        key: None if value is None or not math.isfinite(value) else value for key, value in known.items()
    }
    interval = {"interval_ns": at_ns - since_ns} if 0 < since_ns <= at_ns else {}
    columns = {key: value for key, value in columns.items() if key != "kind"}
    threshold = {"zero_threshold": float(point.get("zeroThreshold") or 0.0)}
    recording.distribution(name, histogram, at_ns, **finite | interval | threshold | columns)


def _add_summary(recording: "ImportedRun", name: str, point: Message, at_ns: int, columns: Message) -> None:
    for part in ("count", "sum"):
        if point.get(part) is not None:
            recording.unregistered(f"{name}_{part}", float(point[part]), at_ns, **columns | {"kind": "counter"})
    for item in point.get("quantileValues") or ():
        quantile, value = float(item.get("quantile") or 0.0), float(item.get("value") or 0.0)
        recording.unregistered(f'{name}{{quantile="{quantile:g}"}}', value, at_ns, **columns)


_POINTS: Final = {
    "gauge": _add_number, "sum": _add_number, "histogram": _add_bins, "exponentialHistogram": _add_exponential,
    "summary": _add_summary,
}  # fmt: skip
