"""Lines of an MLPerf log: parses the marked lines and their times.

:::MLLOG {"key": KEY, "time_ms": MS, "value": …}          since v0.7
:::MLL SECONDS KEY: {"value": VALUE, "metadata": {...}}   v0.6
:::MLPv0.5.0 BENCHMARK SECONDS (FILE:LINE) KEY: VALUE     many stand twice in a log: trainers told a logger, too

time_ms                 ms since 1970, but 0 is no time: some launchers write the submission's facts so
time_s                  seconds, in place of it
time_ms, off by 1000    seconds, or ms counted from a second: the log's other lines say which (`clock_of`)
"""

import json
import math
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final

from ranklake.capture.importers.log_lines import log_line
from ranklake.capture.importers.source import Line, strip_colours

MARKER: Final = ":::MLLOG"
_SYSTEM: Final = ":::SYSJSON"
_OLD_MARKERS: Final = (":::MLPv0.", ":::MLL ")
_LINE_06: Final = re.compile(r":::MLL (?P<seconds>\d{1,11}(?:\.\d+)?) (?P<key>\w+): (?P<value>\{.*\})")
_LINE_05: Final = re.compile(
    r":::MLPv0\.\d+\.\d+ (?P<benchmark>\S+) (?P<seconds>\d{9,11}(?:\.\d+)?) \((?P<place>[^)]*)\) (?P<key>\w+)"
    r"(?:: (?P<value>.*))?"
)
_DECODER: Final = json.JSONDecoder()
_LARGEST_MS: Final = 1 << 42
_LEAST_MS: Final = 10**11
"""Times below were ms in 1973; as seconds they are later than anybody will read this."""
_MS_PER_S: Final = 1000
NOT_WHOLE: Final = "an MLLOG line that is not whole"
OTHER_UNIT: Final = "a time that is not ms since 1970, as time_ms should be"

Clock = Callable[[int], int | None]
"""Takes a time as a line has it, and returns ms since 1970; None where nobody can tell."""


@dataclass(frozen=True, slots=True)
class BrokenLine:
    """A marked text that cannot be taken, and why."""

    reason: str
    text: str


def pieces(line: Line) -> Iterator[BrokenLine | tuple[int | None, dict[str, Any]]]:
    """Yield what a line holds: entries under their labels (-1: none), the system (None), and what is broken."""
    before, *marked = strip_colours(line.text).split(MARKER)
    label = -1
    if not marked and (system := _system(before)):
        yield None, system
    if not marked and line.flaw is None and any(marker in before for marker in _OLD_MARKERS):
        if old := _entry_05(before) or _entry_06(before):
            yield -1, old
        elif _OLD_MARKERS[1] in before:
            yield BrokenLine(NOT_WHOLE, before)
    for text in marked:
        ranks = [name for name in log_line(before.rpartition("\r")[2]).labels if name.isdecimal()]
        label = int(ranks[-1]) if ranks else label
        entry, before = _entry(text) if line.flaw is None else (line.flaw, "")
        yield BrokenLine(entry, MARKER + text) if isinstance(entry, str) else (label, entry)


def _entry(text: str) -> tuple[dict[str, Any] | str, str]:
    """Return a line's object, or what is wrong with it, and what stands behind it; `time_ms` is 0 for no time."""
    entry, end = _decode_prefix(text)
    if entry is None:
        return NOT_WHOLE, ""
    if not isinstance(entry.get("key"), str) or not entry["key"]:
        return "an MLLOG line without a key", ""
    at_ms = _time_ms(entry)
    return (at_ms, "") if isinstance(at_ms, str) else ({**entry, "time_ms": at_ms}, text[end:])


def _decode_prefix(text: str) -> tuple[dict[str, Any] | None, int]:
    """Return the JSON object that a text begins with, and where it ends."""
    try:
        value, end = _DECODER.raw_decode(text, len(text) - len(text.lstrip()))
    except (ValueError, RecursionError):
        return None, 0
    return (value, end) if isinstance(value, dict) else (None, 0)


def _entry_05(text: str) -> dict[str, Any] | None:
    """Return what a line of v0.5 says, as ``:::MLLOG`` lines do; None if it is none."""
    match = _LINE_05.search(text)
    if match is None:
        return None
    try:
        value = json.loads(match["value"]) if match["value"] else None
    except (ValueError, RecursionError):
        value = match["value"]
    key = "epoch_start" if match["key"] == "train_epoch" else match["key"]
    metadata: dict[str, Any] = {"file": match["place"]}
    if key == "epoch_start":
        metadata["epoch_num"] = value
    if isinstance(value, dict):
        if "success" in value:
            metadata["status"] = "success" if value["success"] else "aborted"
        metadata |= {"epoch_num": value["epoch"]} if "epoch" in value else {}
        value = value.get("value")
    entry = _old_entry(key, match["seconds"], value, metadata)
    return entry | {"text": match[0], "benchmark": match["benchmark"]}


def _entry_06(text: str) -> dict[str, Any] | None:
    match = _LINE_06.search(text)
    content, _ = _decode_prefix(match["value"]) if match else (None, 0)
    if match is None or content is None:
        return None
    metadata = content["metadata"] if isinstance(content.get("metadata"), dict) else {}
    return _old_entry(match["key"], match["seconds"], content.get("value"), metadata)


def _old_entry(key: str, seconds: str, value: Any, metadata: dict[str, Any]) -> dict[str, Any]:  # noqa: ANN401 - JSON
    kind = "INTERVAL" if key.endswith(("_start", "_stop")) else "POINT_IN_TIME"
    at_ms = round(float(seconds) * _MS_PER_S)
    return {"key": key, "time_ms": at_ms, "value": value, "event_type": kind, "metadata": metadata}


def _time_ms(entry: dict[str, Any]) -> int | str:
    """Return when a line was written as it says, or why that is no time."""
    in_s = entry.get("time_ms") is None
    at = entry.get("time_s" if in_s else "time_ms")
    if at is None:
        return "an MLLOG line without a time"
    if not isinstance(at, int | float) or isinstance(at, bool) or not math.isfinite(at):
        return "a time that is no number"
    at_ms = round(at * _MS_PER_S) if in_s else int(at)
    if not 0 <= at_ms < _LARGEST_MS or (in_s and 0 < at_ms < _LEAST_MS):
        return OTHER_UNIT
    return at_ms


def _system(text: str) -> dict[str, Any]:
    return _decode_prefix(text.partition(_SYSTEM)[2])[0] or {}


def clock_of(times: Iterable[int]) -> Clock:
    """Return what makes ms since 1970 of a log's times, though some of them were reported in another unit.

    Times that would be of the first days of 1970 are taken for seconds where they then lie among the others; for ms
    that were counted from a second where they then lie among the others, and fill at least half of what those leave
    behind their first. HugeCTR counts so. Else nobody can tell.
    """
    stated = list(times)
    early = [at for at in stated if 0 < at < _LEAST_MS]
    right = [at for at in stated if at >= _LEAST_MS]
    if not early or not right:
        return lambda at: at if at >= _LEAST_MS else None
    first, last, end = min(early), max(early), max(right) + _MS_PER_S
    begin_ms = first * _MS_PER_S
    if begin_ms >= min(right) - _MS_PER_S:
        if last * _MS_PER_S <= end:
            return lambda at: at if at >= _LEAST_MS else at * _MS_PER_S
        if (end - begin_ms) / 2 <= last - first <= end - begin_ms:
            return lambda at: at if at >= _LEAST_MS else begin_ms + at - first
    return lambda at: at if at >= _LEAST_MS else None
