"""The pipeline's health in Prometheus' text format."""

from collections.abc import Iterable, Iterator

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from ranklake.pipeline.health.declaration import METRICS, Sample


class _Samples(Collector):
    """Samples as the library collects them, each metric once, in the order of the declaration."""

    def __init__(self, samples: Iterable[Sample]) -> None:
        self._samples = [sample for sample in samples if sample.value is not None]

    def collect(self) -> Iterator[Metric]:
        for metric in METRICS:
            kind = CounterMetricFamily if metric.kind == "counter" else GaugeMetricFamily
            family = kind(metric.full_name, metric.doc, labels=metric.labels)
            for sample in self._samples:
                if sample.metric == metric.name and sample.value is not None:
                    family.add_metric([sample.labels[label] for label in metric.labels], sample.value)
            if family.samples:
                yield family


def exposition(samples: Iterable[Sample]) -> str:
    """Return samples in the text format 0.0.4, without unknown ones."""
    registry = CollectorRegistry()
    registry.register(_Samples(samples))
    return generate_latest(registry).decode()
