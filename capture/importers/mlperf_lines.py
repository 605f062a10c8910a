"""Lines of an MLPerf log: parses the marked lines and their times.

time_ms                 ms since 1970, but 0 is no time: some launchers write the submission's facts so
time_s                  seconds, in place of it
time_ms, off by 1000    seconds, or ms counted from a second: the log's other lines say which (`clock_of`)
"""

import json
import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final

from ranklake.capture.importers import mlperf_v05
from ranklake.capture.importers.decoding import Line
from ranklake.capture.importers.log_lines import log_line
from ranklake.capture.importers.source import uncoloured

MARKER: Final = ":::MLLOG"
_SYSTEM: Final = ":::SYSJSON"
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
class Broken:
    """A marked text that cannot be taken, and why."""

    reason: str
    text: str


def pieces(line: Line) -> Iterator[Broken | tuple[int | None, dict[str, Any]]]:
    """Yield what a line holds: entries under their labels (-1: none), the system (None), and what is broken."""
    before, *marked = uncoloured(line.text).split(MARKER)
    label = -1
    if not marked and (system := _system(before)):
        yield None, system
    if not marked and line.flaw is None and any(marker in before for marker in mlperf_v05.MARKERS):
        if old := mlperf_v05.entry(before):
            yield -1, old
        elif mlperf_v05.MARKERS[1] in before:
            yield Broken(NOT_WHOLE, before)
    for text in marked:
        ranks = [name for name in log_line(before.rpartition("\r")[2]).labels if name.isdecimal()]
        label = int(ranks[-1]) if ranks else label
        entry, before = _entry(text) if line.flaw is None else (line.flaw, "")
        yield Broken(entry, MARKER + text) if isinstance(entry, str) else (label, entry)


def _entry(text: str) -> tuple[dict[str, Any] | str, str]:
    """Return a line's object, or what is wrong with it, and what stands behind it; `time_ms` is 0 for no time."""
    try:
        found, end = _DECODER.raw_decode(text, len(text) - len(text.lstrip()))
    except (ValueError, RecursionError):
        found, end = None, 0
    if not isinstance(found, dict):
        return NOT_WHOLE, ""
    if not isinstance(found.get("key"), str) or not found["key"]:
        return "an MLLOG line without a key", ""
    at_ms = _time_ms(found)
    return (at_ms, "") if isinstance(at_ms, str) else ({**found, "time_ms": at_ms}, text[end:])


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
    _, marker, after = text.partition(_SYSTEM)
    try:
        found, _ = _DECODER.raw_decode(after.lstrip()) if marker else ({}, 0)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def clock_of(times: Iterable[int]) -> Clock:
    """Return what makes ms since 1970 of a log's times, though some of them were told in another unit.

    Times that would be of the first days of 1970 are taken for seconds where they then lie among the others; for ms
    that were counted from a second where they then lie among the others, and fill at least half of what those leave
    behind their first. HugeCTR counts so. Else nobody can tell.
    """
    told = list(times)
    early = [at for at in told if 0 < at < _LEAST_MS]
    right = [at for at in told if at >= _LEAST_MS]
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
