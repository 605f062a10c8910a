"""Problems: samples of the pipeline's health that need attention, and since when."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from ranklake.pipeline.health.declaration import Sample

LOOK: Final = "look"
"""Name of the check for collectors that failed."""


@dataclass(frozen=True, slots=True)
class Problem:
    """A problem that keeps rows from being ingested, checked and shown.

    Attributes
    ----------
    check
        Its area, such as ``lake`` or ``disk``.
    message
        The problem, in a clause.
    since_s
        Its duration; None if unknown.
    unknown
        For the check `LOOK`, the area whose state is unknown.
    """

    check: str
    message: str
    since_s: float | None = None
    unknown: str = ""


def problems(samples: Iterable[Sample], disk_free_ratio: float) -> list[Problem]:
    """Return the problems in the samples of one collection. Unknown samples are not problems, except for the lake.

    Parameters
    ----------
    disk_free_ratio
        Free share of a disk below which it is a problem.
    """
    known: dict[str, list[Sample]] = {}
    for sample in samples:
        known.setdefault(sample.metric, []).append(sample)
    return [problem for find in _FINDERS for problem in find(known, disk_free_ratio)]


Known = dict[str, list[Sample]]


def _lake(known: Known, _: float) -> Iterator[Problem]:
    if not any(sample.value for sample in known.get("lake_up", ())):
        parts = known.get("collector_success", ())
        reason = next((part.reason for part in parts if part.labels["collector"] == "lake" and part.reason), "")
        yield Problem("lake", reason or "the lake cannot be opened")


def _disks(known: Known, ratio: float) -> Iterator[Problem]:
    sizes = {sample.labels["place"]: sample.value for sample in known.get("disk_size_bytes", ())}
    for free in known.get("disk_free_bytes", ()):
        size = sizes.get(free.labels["place"])
        if free.value is not None and size and free.value / size < ratio:
            place = free.labels["place"].replace("_", " ")
            yield Problem("disk", f"the disk of the {place} is nearly full: {free.value / size:.1%} is free")


def _stages(known: Known, _: float) -> Iterator[Problem]:
    ages = {sample.labels["stage"]: sample.value for sample in known.get("stage_waiting_seconds", ())}
    for overdue in known.get("stage_overdue", ()):
        if overdue.value:
            stage = overdue.labels["stage"]
            yield Problem("stage", f"{stage} is overdue", ages.get(stage))


def _prefect(known: Known, _: float) -> Iterator[Problem]:
    if any(sample.value == 0 for sample in known.get("prefect_up", ())):
        yield Problem("prefect", "the Prefect server does not answer")
    for polled in known.get("pool_polled", ()):
        if polled.value == 0:
            yield Problem("pool", f"no worker polls the pool {polled.labels['pool']}: its runs wait")


_FINDERS: Final = (_lake, _disks, _prefect, _stages)
