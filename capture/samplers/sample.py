"""Sample: the interface of samplers, and the rows that they return."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from ranklake.capture.common.values import json_text
from ranklake.capture.spool.stream_files import StreamName


class Row(NamedTuple):
    """One row of a table of frames, by its contract's columns; `at_ns` is monotonic."""

    table: str
    columns: Mapping[str, Any]
    at_ns: int


class Value(NamedTuple):
    """One value of a metric, as of now."""

    metric: str
    kind: str
    value: float


Sample = Row | Value
Holders = Callable[[], Mapping[int, StreamName]]
"""Gives the processes of this host that record, by pid."""


class Sampler(Protocol):
    """One source. All its methods are called by one thread."""

    def sample(self, now_ns: int) -> Iterable[Sample]:
        """Return what is due now, a monotonic time; what cannot be had is said in the rows, or in events. No raise."""

    def close(self) -> None:
        """Let go of all that is open, and wait for nothing."""


@dataclass(slots=True)
class Told:
    """Which troubles of a source have become events; each does once, and once more after it was mended."""

    source: str
    told: set[str]

    @classmethod
    def of(cls, source: str) -> "Told":
        """Return one to which nothing was told."""
        return cls(source, set())

    def trouble(self, why: str, now_ns: int, **attributes: object) -> list[Row]:
        """Return an event for a trouble that is new, else nothing."""
        if why in self.told:
            return []
        self.told.add(why)
        message = f"{self.source} cannot be sampled: {why}"
        return [event("sampler_unavailable", now_ns, "warning", message, {"source": self.source, **attributes})]

    def mended(self, now_ns: int) -> list[Row]:
        """Return an event if there was a trouble that is over."""
        if not self.told:
            return []
        self.told.clear()
        return [event("sampler_available", now_ns, "info", f"{self.source} is sampled", {"source": self.source})]


def event(name: str, now_ns: int, severity: str, message: str, attributes: Mapping[str, object]) -> Row:
    """Return a row of ``events``."""
    columns = {"event": name, "severity": severity, "message": message, "attributes": json_text(dict(attributes))}
    return Row("events", columns, now_ns)
