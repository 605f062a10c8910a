"""MLPerf lines: parses the marked lines of an MLPerf log, and their times.

:::MLLOG {"key": KEY, "time_ms": MS, "value": …}          since v0.7
:::MLL SECONDS KEY: {"value": VALUE, "metadata": {...}}   v0.6
:::MLPv0.5.0 BENCHMARK SECONDS (FILE:LINE) KEY: VALUE     often twice, printed and through a logger

time_ms                    ms since 1970. 0 means no time: some launchers write facts of the submission so
time_s                     seconds since 1970, in place of time_ms
time_ms in a wrong unit    seconds, or seconds for the start and ms from there on (`clock_of`)
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
_MAX_MS: Final = 1 << 42
_MIN_MS: Final = 10**11
"""Least plausible time in ms: the year 1973. Smaller numbers are times in another unit."""
_MS_PER_S: Final = 1000
INCOMPLETE: Final = "the MLLOG line is incomplete"
OTHER_UNIT: Final = "the time is not ms since 1970, as time_ms should be"

Clock = Callable[[int], int | None]
"""Converts a line's time to ms since 1970; None if its unit is unknown."""


@dataclass(frozen=True, slots=True)
class BrokenLine:
    """A marked text that cannot be read, and the reason."""

    reason: str
    text: str


def entries(line: Line) -> Iterator[BrokenLine | tuple[int | None, dict[str, Any]]]:
    """Yield the entries of a line, each with its label: a rank, -1 without a label, None for ``:::SYSJSON``."""
    prefix, *marked = strip_colours(line.text).split(MARKER)
    label = -1
    if not marked and (system := _system(prefix)):
        yield None, system
    if not marked and line.flaw is None and any(marker in prefix for marker in _OLD_MARKERS):
        if old := _entry_05(prefix) or _entry_06(prefix):
            yield -1, old
        elif _OLD_MARKERS[1] in prefix:
            yield BrokenLine(INCOMPLETE, prefix)
    for text in marked:
        ranks = [name for name in log_line(prefix.rpartition("\r")[2]).labels if name.isdecimal()]
        label = int(ranks[-1]) if ranks else label
        entry, prefix = _entry(text) if line.flaw is None else (line.flaw, "")
        yield BrokenLine(entry, MARKER + text) if isinstance(entry, str) else (label, entry)


def _entry(text: str) -> tuple[dict[str, Any] | str, str]:
    """Parse the text after a marker: return the entry or the reason of its refusal, and the text after the entry.

    `time_ms` of the entry is 0 if it has no time.
    """
    entry, end = _decode_prefix(text)
    if entry is None:
        return INCOMPLETE, ""
    if not isinstance(entry.get("key"), str) or not entry["key"]:
        return "the MLLOG line has no key", ""
    at_ms = _time_ms(entry)
    return (at_ms, "") if isinstance(at_ms, str) else ({**entry, "time_ms": at_ms}, text[end:])


def _decode_prefix(text: str) -> tuple[dict[str, Any] | None, int]:
    """Return the JSON object at the beginning of a text, and the position of its end; None and 0 if there is none."""
    try:
        value, end = _DECODER.raw_decode(text, len(text) - len(text.lstrip()))
    except (ValueError, RecursionError):
        return None, 0
    return (value, end) if isinstance(value, dict) else (None, 0)


def _entry_05(text: str) -> dict[str, Any] | None:
    """Return the entry of a line of v0.5, in the form of ``:::MLLOG``; None for other lines."""
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
    """Return an entry's time as a number of ms, in whatever unit it was written; or the reason of its refusal."""
    is_in_s = entry.get("time_ms") is None
    at = entry.get("time_s" if is_in_s else "time_ms")
    if at is None:
        return "the MLLOG line has no time"
    if not isinstance(at, int | float) or isinstance(at, bool) or not math.isfinite(at):
        return "the time is not a number"
    at_ms = round(at * _MS_PER_S) if is_in_s else int(at)
    if not 0 <= at_ms < _MAX_MS or (is_in_s and 0 < at_ms < _MIN_MS):
        return OTHER_UNIT
    return at_ms


def _system(text: str) -> dict[str, Any]:
    return _decode_prefix(text.partition(_SYSTEM)[2])[0] or {}


def clock_of(times: Iterable[int]) -> Clock:
    """Return a function that converts a log's times to ms since 1970, though some are in another unit.

    Times below `_MIN_MS` are read as seconds if they then lie within the log's other times. Otherwise the first of them
    is read as seconds, and the differences to it as ms, as HugeCTR writes them. For that, they must then lie within the
    other times, and span at least half of the time from the first of them to the last other time. If neither holds, the
    function returns None for such times.
    """
    all_times = list(times)
    small = [at for at in all_times if 0 < at < _MIN_MS]
    valid = [at for at in all_times if at >= _MIN_MS]
    if not small or not valid:
        return lambda at: at if at >= _MIN_MS else None
    first, last, end = min(small), max(small), max(valid) + _MS_PER_S
    begin_ms = first * _MS_PER_S
    if begin_ms >= min(valid) - _MS_PER_S:
        if last * _MS_PER_S <= end:
            return lambda at: at if at >= _MIN_MS else at * _MS_PER_S
        if (end - begin_ms) / 2 <= last - first <= end - begin_ms:
            return lambda at: at if at >= _MIN_MS else begin_ms + at - first
    return lambda at: at if at >= _MIN_MS else None
