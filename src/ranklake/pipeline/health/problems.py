"""Problems: which samples of the pipeline's health mean that somebody has to look, and since when."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from ranklake.pipeline.health.declaration import Sample

LOOK: Final = "look"
"""Check of a problem that something could not be looked at."""


@dataclass(frozen=True, slots=True)
class Problem:
    """Something that keeps rows from being brought in, checked and seen.

    Attributes
    ----------
    check
        What was looked at, such as ``lake`` or ``disk``.
    message
        What is wrong, in a clause.
    since_s
        For how long; None where nobody knows.
    unknown
        Where the check is `LOOK`, what could not be looked at: whether that is wrong is not known.
    """

    check: str
    message: str
    since_s: float | None = None
    unknown: str = ""


def problems(samples: Iterable[Sample], disk_free_ratio: float) -> list[Problem]:
    """Return what is wrong by the samples of one look. What is not known is no problem of its own, but for the lake.

    Parameters
    ----------
    disk_free_ratio
        Share of a disk below which it is nearly full.
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
