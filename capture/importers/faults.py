"""Faults: reads fault traces of clusters, with the start, the end and the kind of each node's faults.

    [{"node_id": "6f24e2b2…", "event_time": 3.8955, "event_type": "fault_start",
      "fault_type": {"Level": "Hardware Failure", "Class": "GPU", "Desc": "GPU xid Error"}}, …]

The format is that of InfiniteHBD's trace (github.com/stepfun-ai/InfiniteHBD-Trace, SIGCOMM 2025). A time is in ISO
8601, or in days since the trace began, which are counted from 2000-01-01. Each node becomes a rank, in the order of
first faults, and gets a row in ``ranks``. Each start and end becomes an event ``fault_start`` or ``fault_end``. A start
has the time of its end if the file has it, an end the duration of the fault. Of equal faults of a node, the first to
start ends first.
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
"""Assumed start of times in days, since the file has no date."""
_MAX_BYTES: Final = 1 << 28
_DAY_NS: Final = 86_400 * 10**9
_MAX_DAYS: Final = 36_500
_KINDS: Final = ("fault_start", "fault_end")
_PARTS: Final = {"Level": "level", "Class": "class", "Desc": "description"}


class FaultEdge(NamedTuple):
    """The start or the end of a node's fault; starts sort before ends of the same time.

    `position` is that in the file, `kind` the fault's level, class and description.
    """

    at_ns: int
    is_end: bool
    position: int
    node: str
    kind: tuple[tuple[str, str], ...]


def read(source: "Source", recording: "ImportedRun") -> None:
    """Import a trace. Raises `SourceError` if the file is not a JSON array."""
    try:
        items = json.loads(source.read_all(_MAX_BYTES))
    except (ValueError, RecursionError):
        raise SourceError("not JSON", where=source.name, hint="name a JSON array of starts and ends") from None
    if not isinstance(items, list):
        raise SourceError("not a JSON array", where=source.name, hint="name a JSON array of starts and ends")
    edges, has_days = [], False
    for position, item in enumerate(items):
        edge = _edge(position, item)
        if isinstance(edge, str):
            recording.refuse("events", edge, json.dumps(item))
        else:
            edges.append(edge)
            has_days |= not isinstance(item["event_time"], str)
    edges.sort()
    if has_days:
        recording.labels["times"] = f"of an unknown start, taken as {DAY_ZERO}"
    recording.world_size = max(1, len({edge.node for edge in edges}))
    counterparts = match_edges(edges)
    ranks: dict[str, int] = {}
    for edge in edges:
        if edge.node not in ranks:
            ranks[edge.node] = len(ranks)
            recording.row("ranks", edge.at_ns, ranks[edge.node], host=edge.node)
        _add_event(recording, edge, ranks[edge.node], counterparts.get(edge.position))


def match_edges(edges: list[FaultEdge]) -> dict[int, int]:
    """Return, by the position of a start, its end's time, and by that of an end, its start's time.

    `edges` are in the order of time.
    """
    open_faults: defaultdict[tuple[str, Any], deque[FaultEdge]] = defaultdict(deque)
    times: dict[int, int] = {}
    for edge in edges:
        starts = open_faults[edge.node, edge.kind]
        if not edge.is_end:
            starts.append(edge)
        elif starts:
            start = starts.popleft()
            times |= {start.position: edge.at_ns, edge.position: start.at_ns}
    return times


def _edge(position: int, item: Any) -> FaultEdge | str:  # noqa: ANN401 - JSON
    """Parse a start or an end; return the reason if it is refused."""
    if not isinstance(item, dict):
        return "not an object"
    at_ns, node, kind = _time_ns(item.get("event_time")), item.get("node_id"), item.get("fault_type")
    if at_ns is None:
        return "event_time: neither days nor a time"
    if not isinstance(node, str) or not node:
        return "node_id: no name"
    if item.get("event_type") not in _KINDS:
        return "event_type: neither fault_start nor fault_end"
    if not isinstance(kind, dict) or not isinstance(kind.get("Class"), str):
        return "fault_type: no Class"
    parts = tuple((name, str(kind[key])) for key, name in _PARTS.items() if isinstance(kind.get(key), str))
    return FaultEdge(at_ns, item["event_type"] == "fault_end", position, node, parts)


def _time_ns(time: Any) -> int | None:  # noqa: ANN401 - JSON
    if isinstance(time, str):
        return moment_ns(time)
    if isinstance(time, bool) or not isinstance(time, int | float) or not math.isfinite(time) or abs(time) > _MAX_DAYS:
        return None
    return (moment_ns(DAY_ZERO) or 0) + round(time * _DAY_NS)


def _add_event(recording: "ImportedRun", edge: FaultEdge, rank: int, counterpart_ns: int | None) -> None:
    attributes = dict(edge.kind)
    columns: dict[str, Any] = {"event": _KINDS[edge.is_end], "severity": "info" if edge.is_end else "error"}
    if counterpart_ns is not None and edge.is_end:
        columns["duration_ns"] = edge.at_ns - counterpart_ns
    elif counterpart_ns is not None:
        attributes["end_ts"] = datetime.fromtimestamp(counterpart_ns / 1e9, UTC).isoformat()
    recording.row("events", edge.at_ns, rank, attributes=json.dumps(attributes), **columns)


FORMAT: Final = Format(
    summary="traces of nodes' faults, a JSON array of starts and ends",
    recognises="objects with node_id, event_time, event_type and fault_type",
    read=read,
    table="events",
    mark=re.compile(rb'"event_type"\s*:\s*"fault_(?:start|end)"'),
    nothing=("the file has no faults", "name a JSON array of starts and ends"),
)
