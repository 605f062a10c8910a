"""Agent metrics: metrics of the agent, as telemetry rows and in Prometheus' text format."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from ranklake.capture.common.gaps import DELIBERATE, FOUND_WHEN_SEALING
from ranklake.capture.spool import frames
from ranklake.capture.spool.files import open_regular
from ranklake.capture.spool.stream import META_FILE


@dataclass(frozen=True, slots=True)
class PassResult:
    """Result of handling all streams of a local spool once.

    Attributes
    ----------
    streams
        Adopted streams of dead processes.
    segments, rows, packs
        Uploaded segments, their rows, and the objects that contain them.
    fallback
        Segments sent to the fallback spool.
    left
        Due segments that could not be uploaded.
    alive, foreign
        Streams of live processes, and skipped streams with another spool as destination.
    others
        Skipped streams of other users.
    failure
        Reason of the last failed upload; empty if none failed.
    troubles
        One line for each stream that could not be finished.
    """

    streams: int = 0
    segments: int = 0
    rows: int = 0
    packs: int = 0
    fallback: int = 0
    left: int = 0
    alive: int = 0
    foreign: int = 0
    others: int = 0
    troubles: tuple[str, ...] = ()
    failure: str = ""


CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"


@dataclass(slots=True)
class AgentMetrics:
    """The agent's metrics.

    Attributes
    ----------
    queue_segments, queue_bytes, lag_s
        Unsent segments: number, size, and age of the oldest.
    streams
        Streams of live processes.
    breaker_open
        1 while a circuit breaker is open.
    retries, packs, sent_segments, sent_bytes, fallback_segments
        Counters since the agent's start; `fallback_segments` are those sent to the fallback spool.
    gap_rows
        Rows that could not be recorded, in all streams read since the agent's start.
    gaps
        These rows by (table, reason).
    """

    queue_segments: int = 0
    queue_bytes: int = 0
    lag_s: float = 0.0
    streams: int = 0
    breaker_open: int = 0
    retries: int = 0
    packs: int = 0
    sent_segments: int = 0
    sent_bytes: int = 0
    fallback_segments: int = 0
    gap_rows: int = 0
    gaps: dict[tuple[str, str], int] = field(default_factory=dict)


GAUGES: Final = {
    "agent/queue_segments": ("queue_segments", "ranklake_agent_queue_segments", "Sealed segments that wait."),
    "agent/queue_bytes": ("queue_bytes", "ranklake_agent_queue_bytes", "Size of the sealed segments that wait."),
    "agent/lag": ("lag_s", "ranklake_agent_lag_seconds", "Age of the oldest segment that waits."),
    "agent/streams": ("streams", "ranklake_agent_streams", "Streams that living processes write."),
    "agent/breaker_open": ("breaker_open", "ranklake_agent_breaker_open", "1 while uploads are held back."),
}
COUNTERS: Final = {
    "agent/retries": ("retries", "ranklake_agent_retries_total", "Uploads that failed and are tried again."),
    "agent/packs": ("packs", "ranklake_agent_packs_total", "Packs uploaded."),
    "agent/sent_segments": ("sent_segments", "ranklake_agent_sent_segments_total", "Segments uploaded."),
    "agent/sent_bytes": ("sent_bytes", "ranklake_agent_sent_bytes_total", "Size of the segments uploaded."),
    "agent/fallback_segments": (
        "fallback_segments",
        "ranklake_agent_fallback_segments_total",
        "Segments uploaded to the fallback spool, since the first was away.",
    ),
    "agent/gap_rows": ("gap_rows", "", "Rows that the node's processes could not record."),
}
"""By metric: attribute of `AgentMetrics`, name for Prometheus, and help text."""


def prometheus(figures: AgentMetrics) -> str:
    """Return the metrics in Prometheus' text format, version 0.0.4."""
    lines: list[str] = []
    for kind, family in (("gauge", GAUGES), ("counter", COUNTERS)):
        for figure, name, doc in family.values():
            if name:
                lines += [f"# HELP {name} {doc}", f"# TYPE {name} {kind}", f"{name} {getattr(figures, figure):.17g}"]
    name = "ranklake_agent_gap_rows_total"
    lines += [f"# HELP {name} {COUNTERS['agent/gap_rows'][2]}", f"# TYPE {name} counter"]
    for (table, reason), rows in sorted(figures.gaps.items()):
        lines.append(f'{name}{{table="{_label(table)}",reason="{_label(reason)}"}} {rows}')
    return "\n".join(lines) + "\n"


def _label(value: str) -> str:
    return value.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")


class GapCount:
    """Counts the gaps that streams have recorded; reads only the new part of each meta.frames.

    Attributes
    ----------
    rows
        Gaps by (table, reason), without rows that were sampled out.
    read
        Position in bytes up to which each stream was read.
    """

    def __init__(self, read: Mapping[Path, int] | None = None) -> None:
        self.rows: Counter[tuple[str, str]] = Counter()
        self.read = dict(read or {})

    def look(self, folder: Path) -> None:
        """Add the gaps that a stream has recorded since the last call. Raises `OSError`."""
        at = self.read.get(folder, 0)
        with open(open_regular(folder / META_FILE), "rb") as file:  # noqa: PTH123 - a descriptor
            file.seek(at)
            raw = file.read()
        scan = frames.scan(raw)
        self.read[folder] = at + len(raw) - scan.torn_bytes
        for frame in scan.frames:
            self._count(frame)

    def _count(self, frame: frames.Frame) -> None:
        try:
            if frame.get("k") == "gaps":
                for table, reason, rows in frame["n"]:
                    if reason not in DELIBERATE:
                        self.rows[str(table), str(reason)] += int(rows)
            elif frame.get("k") == "sealed":
                for reason in FOUND_WHEN_SEALING.intersection(frame["g"]):
                    self.rows[str(frame["t"]), reason] += int(frame["g"][reason])
        except (KeyError, TypeError, ValueError):  # a frame of a later version
            return

    def forget(self, existing: Iterable[Path]) -> None:
        """Drop the positions of streams that no longer exist; their counts are kept."""
        folders = set(existing)
        self.read = {folder: at for folder, at in self.read.items() if folder in folders}
