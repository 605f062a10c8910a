"""Runs all collectors in turn, within a time limit. Unknown values have a reason."""

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from ranklake.context import Context
from ranklake.doctor.examination import up_home
from ranklake.errors import RanklakeError
from ranklake.pipeline.health.collectors import COLLECTORS, NEEDS_LAKE, Collector, Look, lake, refuse_lost
from ranklake.pipeline.health.declaration import Sample
from ranklake.redaction.redact import redact

LIMIT_S: Final = 30.0
"""Time limit of a collection, for hanging stores."""


@dataclass(frozen=True, slots=True)
class Collected:
    """Result of a collector.

    Attributes
    ----------
    collector
        Its name.
    samples
        Its samples, in order.
    reason
        Why it failed; empty if it did not.
    duration_s
        Its duration.
    """

    collector: str
    samples: tuple[Sample, ...]
    reason: str
    duration_s: float


@dataclass(frozen=True, slots=True)
class PipelineHealth:
    """The pipeline's health at a time.

    Attributes
    ----------
    as_of
        Time of the collection.
    parts
        Results of the collectors.
    """

    as_of: datetime
    parts: Sequence[Collected]

    @property
    def samples(self) -> list[Sample]:
        """All samples, including those about the collectors themselves."""
        result = [sample for part in self.parts for sample in part.samples]
        for part in self.parts:
            label = {"collector": part.collector}
            result.append(Sample("collector_success", float(not part.reason), label, part.reason))
            result.append(Sample("collector_duration_seconds", part.duration_s, label))
        return result

    def values(self, metric: str) -> list[Sample]:
        """Return the known samples of a metric."""
        return [sample for sample in self.samples if sample.metric == metric and sample.value is not None]


def pipeline_health(context: Context, home: Path | None = None, limit_s: float = LIMIT_S) -> PipelineHealth:
    """Collect samples of lake, spool, disks and Prefect. Raises nothing; hanging calls stay in threads."""
    look = Look(context, datetime.now(UTC), home or up_home())
    parts: list[Collected] = []
    thread = threading.Thread(target=_collect, args=(look, parts), name="ranklake-health", daemon=True)
    thread.start()
    thread.join(limit_s)
    result = list(parts)
    late = [
        Collected(collector.__name__, _without(collector), f"no answer within {limit_s:g} s", 0.0)
        for collector in COLLECTORS[len(result) :]
    ]
    return PipelineHealth(look.now, [*result, *late])


def _without(collector: Collector) -> tuple[Sample, ...]:
    """Return the result for a collector that did not answer."""
    return (Sample("lake_up", 0),) if collector is lake else ()


def _collect(look: Look, parts: list[Collected]) -> None:
    lake_fault = ""
    for collector in COLLECTORS:
        began = time.monotonic()
        samples: list[Sample] = []
        reason = lake_fault if collector in NEEDS_LAKE else ""
        if not reason and (collector.__name__ != "spool" or look.context.has_spool):
            try:
                refuse_lost(look, NEEDS_LAKE.get(collector, ()))
                samples.extend(collector(look))  # samples before an error are kept
            except RanklakeError as error:
                reason = f"{error.where}: {error.what}" if error.where else error.what
            except Exception as error:  # noqa: BLE001 - a failed collector must not stop the others
                reason = f"{type(error).__name__}: {error}"
        reason = " ".join(str(redact(reason)).split())
        if collector is lake and reason:
            samples, lake_fault = [Sample("lake_up", 0)], f"the lake cannot be opened ({reason})"
        parts.append(Collected(collector.__name__, tuple(samples), reason, time.monotonic() - began))
