"""Fault traces of clusters: when which node broke, of what, and when it was repaired.

    [{"node_id": "6f24e2b2…", "event_time": 3.8955, "event_type": "fault_start",
      "fault_type": {"Level": "Hardware Failure", "Class": "GPU", "Desc": "GPU xid Error"}}, …]

As InfiniteHBD's trace (github.com/stepfun-ai/InfiniteHBD-Trace, SIGCOMM 2025). A time is a moment in ISO 8601, or days
since the trace began; those are counted from 2000-01-01. Each node is a rank, numbered by its first fault, whose row in
``ranks`` names it as the host; each start and end is an event ``fault_start`` or ``fault_end``. A start whose end is in
the file says when that was; an end says how long the fault lasted. Of a node's equal faults the first to start is the
first to end.
"""

import json
import math
import re
from collections import defaultdict, deque
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from ranklake.capture.importers.formats import Format
from ranklake.capture.importers.source import SourceError
from ranklake.capture.importers.units import moment_ns

if TYPE_CHECKING:
    from ranklake.capture.importers.imported_run import ImportedRun
    from ranklake.capture.importers.source import Source

DAY_ZERO: Final = "2000-01-01"
"""What days are counted from: the file names no date."""
_MOST_BYTES: Final = 1 << 28
_DAY_NS: Final = 86_400 * 10**9
_MOST_DAYS: Final = 36_500
_KINDS: Final = ("fault_start", "fault_end")
_PARTS: Final = {"Level": "level", "Class": "class", "Desc": "description"}


class FaultEdge(NamedTuple):
    """A start or an end of a fault: when, which, of which node, and of what kind. Starts sort before ends."""

    at_ns: int
    is_end: bool
    place: int
    node: str
    kind: tuple[tuple[str, str], ...]


def read(source: "Source", recording: "ImportedRun") -> None:
    """Import a trace. Raises `SourceError` where the file is no JSON array."""
    try:
        items = json.loads(source.read_all(_MOST_BYTES))
    except (ValueError, RecursionError):
        raise SourceError("it is no JSON", where=source.name, hint="give a JSON array of starts and ends") from None
    if not isinstance(items, list):
        raise SourceError("it is no JSON array", where=source.name, hint="give a JSON array of starts and ends")
    edges, days = [], False
    for place, item in enumerate(items):
        edge = _edge(place, item)
        if isinstance(edge, str):
            recording.refuse("events", edge, json.dumps(item))
        else:
            edges.append(edge)
            days |= not isinstance(item["event_time"], str)
    edges.sort()
    if days:
        recording.labels["times"] = f"of an unknown start, taken as {DAY_ZERO}"
    recording.world_size = max(1, len({edge.node for edge in edges}))
    ends = match_edges(edges)
    numbers: dict[str, int] = {}
    for edge in edges:
        if edge.node not in numbers:
            numbers[edge.node] = len(numbers)
            recording.row("ranks", edge.at_ns, numbers[edge.node], host=edge.node)
        other = ends.get(edge.place)
        _add(recording, edge, numbers[edge.node], other)


def match_edges(edges: list[FaultEdge]) -> dict[int, int]:
    """Return {place of a start or an end: the other's time}, of edges in order of time."""
    opened: defaultdict[tuple[str, Any], deque[FaultEdge]] = defaultdict(deque)
    others: dict[int, int] = {}
    for edge in edges:
        waiting = opened[edge.node, edge.kind]
        if not edge.is_end:
            waiting.append(edge)
        elif waiting:
            start = waiting.popleft()
            others |= {start.place: edge.at_ns, edge.place: start.at_ns}
    return others


def _edge(place: int, item: Any) -> FaultEdge | str:  # noqa: ANN401 - JSON
    """Return a start or an end, or why it is none."""
    if not isinstance(item, dict):
        return "not an object"
    at_ns, node, kind = _moment(item.get("event_time")), item.get("node_id"), item.get("fault_type")
    if at_ns is None:
        return "event_time: neither days nor a moment"
    if not isinstance(node, str) or not node:
        return "node_id: no name"
    if item.get("event_type") not in _KINDS:
        return "event_type: neither fault_start nor fault_end"
    if not isinstance(kind, dict) or not isinstance(kind.get("Class"), str):
        return "fault_type: no Class"
    parts = tuple((name, str(kind[key])) for key, name in _PARTS.items() if isinstance(kind.get(key), str))
    return FaultEdge(at_ns, item["event_type"] == "fault_end", place, node, parts)


def _moment(time: Any) -> int | None:  # noqa: ANN401 - JSON
    if isinstance(time, str):
        return moment_ns(time)
    if isinstance(time, bool) or not isinstance(time, int | float) or not math.isfinite(time) or abs(time) > _MOST_DAYS:
        return None
    return (moment_ns(DAY_ZERO) or 0) + round(time * _DAY_NS)


def _add(recording: "ImportedRun", edge: FaultEdge, number: int, other_ns: int | None) -> None:
    attributes = dict(edge.kind)
    columns: dict[str, Any] = {"event": _KINDS[edge.is_end], "severity": "info" if edge.is_end else "error"}
    if other_ns is not None and edge.is_end:
        columns["duration_ns"] = edge.at_ns - other_ns
    elif other_ns is not None:
        attributes["end_ts"] = datetime.fromtimestamp(other_ns / 1e9, UTC).isoformat()
    recording.row("events", edge.at_ns, number, attributes=json.dumps(attributes), **columns)


FORMAT: Final = Format(
    summary="traces of nodes' faults, a JSON array of starts and ends",
    recognises="objects with node_id, event_time, event_type and fault_type",
    read=read,
    table="events",
    mark=re.compile(rb'"event_type"\s*:\s*"fault_(?:start|end)"'),
    nothing=("no fault is in it", "give a JSON array of starts and ends"),
)
