"""A run's values in OpenMetrics text with timestamps, as ``promtool tsdb create-blocks-from openmetrics`` reads it."""

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric, Timestamp
from prometheus_client.openmetrics.exposition import generate_latest
from prometheus_client.registry import Collector

from ranklake.insight.runs.otlp import TelemetryPage
from ranklake.lake.contracts.model import Metric as RegisteredMetric

_PREFIX: Final = "ranklake_run_"
_NOT_ALLOWED: Final = re.compile(r"[^a-zA-Z0-9_]")
_LABELS: Final = ("run", "attempt", "rank", "metric")
_VALUE_BY_FLAG: Final = {"nan": float("nan"), "+inf": float("inf"), "-inf": float("-inf")}
_NS_PER_S: Final = 1_000_000_000

_Series = dict[tuple[str, ...], dict[int, float]]


class RunValues(Collector):
    """Values of steps and metrics by metric, rank and time. Of values at the same time the last stays; no histograms.

    Parameters
    ----------
    metrics
        Registered metrics by name, for their descriptions and units.
    step_columns
        Metrics by the column of ``steps`` that holds them.
    """

    def __init__(self, metrics: Mapping[str, RegisteredMetric], step_columns: Mapping[str, RegisteredMetric]) -> None:
        self._metrics, self._step_columns = metrics, step_columns
        self._families: dict[tuple[str, bool], _Series] = {}

    def add(self, page: TelemetryPage) -> None:
        """Add the values of a page."""
        facts = page.rank_facts
        for row in page.rows:
            for name, kind, value in self._values(page.table, row):
                family = self._families.setdefault((_PREFIX + _NOT_ALLOWED.sub("_", name), kind == "counter"), {})
                family.setdefault((facts.run, str(facts.attempt), str(facts.rank), name), {})[row["at_ns"]] = value

    def collect(self) -> Iterator[Metric]:
        """Yield the families. If a name has gauges and counters, the counter's family ends in ``_counter``."""
        gauges = {name for name, is_counter in self._families if not is_counter}
        for (name, is_counter), series in sorted(self._families.items()):
            registered = self._metrics.get(next(iter(series))[-1])
            doc = f"{registered.doc} Unit: {registered.unit}" if registered else "Not registered."
            has_gauge = is_counter and name in gauges
            family = (CounterMetricFamily if is_counter and not has_gauge else GaugeMetricFamily)(
                f"{name}_counter" if has_gauge else name, doc, labels=_LABELS
            )
            for labels, points in series.items():
                for at_ns, value in sorted(points.items()):
                    family.add_metric(labels, value, timestamp=Timestamp(at_ns // _NS_PER_S, at_ns % _NS_PER_S))
            yield family

    def text(self) -> str:
        """Return the OpenMetrics text."""
        registry = CollectorRegistry(auto_describe=False)
        registry.register(self)
        generate: Any = generate_latest  # untyped
        return str(generate(registry).decode())

    def _values(self, table: str, row: Mapping[str, Any]) -> Iterator[tuple[str, str, float]]:
        """Yield the values of a row: name, kind and value of each."""
        if table == "steps":
            for column, metric in self._step_columns.items():
                if row[column] is not None:
                    yield metric.name, "gauge", float(row[column])
        elif table == "scalars":
            value = row["value"] if row["value_flag"] is None else _VALUE_BY_FLAG.get(row["value_flag"])
            if value is not None:
                yield row["metric"], str(row["kind"]), float(value)
