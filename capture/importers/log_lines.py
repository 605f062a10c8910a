"""Log lines: strips the prefixes of launchers and collectors, and recognizes how a run ended.

    2025-10-30T20:34:25.91Z stdout F [pod/w-0/torch] 0: [rank3]:[titan] 2025-10-30 20:34:24,804 - root - INFO - step: 1
    time of the collector            labels of several tools     text, which begins with the trainer's time

All importers of logs read their lines here. Prefixes of srun, torchrun, mpirun, pdsh, Ray, docker compose, kubectl, CRI
and syslog are supported.

    line of the log                                 ending      event
    the last step, "after training is done"         finished    run_end
    cancelled, time limit, a requested exit         preempted   preemption
    a node or a process failed                      failed      failure

A log without such a line gives no event of an ending. Goodput then calls the run imported.
"""

import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final, Literal

from ranklake.capture.importers.source import strip_colours
from ranklake.capture.importers.units import leading_time, moment_ns

if TYPE_CHECKING:
    from ranklake.capture.importers.imported_run import ImportedRun
    from ranklake.capture.importers.source import Source

Time = tuple[int, bool]
"""Ns since 1970, and whether in whole seconds."""

EndingKind = Literal["finished", "preempted", "failed"]


@dataclass(frozen=True, slots=True)
class Ending:
    """How a run ended.

    Attributes
    ----------
    reason
        A fixed text for each kind of line, without values of the log.
    at_ns
        Time, ns since 1970; None if the line has none.
    """

    kind: EndingKind
    reason: str
    at_ns: int | None = None


_SAMPLE_LINES: Final = 50
_CLOCK: Final = r"\d{4}[-/]\d\d[-/]\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d{1,9})?(?:Z|[+-]\d\d:?\d\d)?"
_STAMP: Final = re.compile(rf"(?P<at>{_CLOCK})(?: (?:stdout|stderr) [FP])?(?:[ \t]|$)")
_BRACKETED: Final = re.compile(rf"\[(?P<at>{_CLOCK})\] ?")
_MPI_STAMP: Final = re.compile(r"(?P<at>[A-Z][a-z]{2} [A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d \d{4}) ?(?=\[|<)")
_LABELS: Final = tuple(
    re.compile(pattern)
    for pattern in (
        r"(\d{1,6}):(?: |$|(?=[\[A-Za-z(:]))",  # srun --label
        r"(?:rank|default) ?(\d{1,6}): ?|\[[A-Za-z_ ]{0,30}(\d{1,6})\]:(?: (?=\S))?|\[(\d{1,6})\] ",  # torchrun
        r"\[(?:[\w.@-]+@)?\d+,(?:mpirank:)?(\d{1,6})(?:,[^\]\s]{0,80})?\]<std(?:out|err|diag)>:(?: (?=\S))?",  # mpirun
        r"(\([^()]{0,120}\bpid=\d+[^()]{0,120}\)) ?",  # Ray
        r"\[((?:pod|container)/[^\]\s]{1,250})\] ?",  # kubectl --prefix
        r"([a-z0-9][a-z0-9_.-]{0,80}) +\| ?",  # docker compose
        r"([a-z_]{1,30}/\d{1,6}) (?=\S)",  # torchx
        r"(?=[\w.-]{0,80}\d)([A-Za-z0-9][\w.-]{0,80}): ",  # pdsh: a host's name
        r"[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d (?:([\w.-]{1,80}) [\w./-]{1,80}(?:\[\d+\])?: )?",  # syslog: no year
    )
)

_CANCELLED: Final = re.compile(
    r"\*\*\* (?:JOB|STEP) \S+ (?:ON \S+ )?CANCELLED AT (?P<at>\d[\dT:.-]+)"
    r"(?: DUE TO (?P<reason>[A-Za-z ]*[A-Za-z]))?"
)
_ENDING_PATTERNS: Final[tuple[tuple["re.Pattern[str]", EndingKind, str], ...]] = (
    (
        re.compile(r"after training is done\b|\bTraining (?:successfully )?completed\b"),
        "finished",
        "the trainer reports completion",
    ),
    (
        re.compile(r"\bexiting program (?:at|after)\b"),
        "preempted",
        "the trainer stopped before its last step on request",
    ),
    (re.compile(r"\bDetected \d+ oom[-_]kill event"), "failed", "out of memory"),
    (re.compile(r"\bChildFailedError\b"), "failed", "a worker failed"),
    (re.compile(r"^srun: error: .*Exited with exit code [1-9]"), "failed", "a task ended with an error"),
    (re.compile(r"^Traceback \(most recent call last\)"), "failed", "an exception"),
)
_EVENTS: Final[dict[EndingKind, str]] = {"finished": "run_end", "preempted": "preemption", "failed": "failure"}
_LIKELIHOOD: Final[dict[EndingKind, int]] = {"failed": 0, "preempted": 1, "finished": 2}


@dataclass(frozen=True, slots=True)
class LogLine:
    """A line of a log.

    Attributes
    ----------
    number
        Line number in the file, from 1.
    labels
        Labels of launchers and collectors, the outermost first: numbers of ranks or tasks, names of pods or hosts.
    times
        Times at the beginning of the line: those of collectors, then the trainer's.
    text
        The line without labels and times of collectors.
    """

    number: int
    labels: tuple[str, ...]
    times: tuple[Time, ...]
    text: str

    def time(self, position: int) -> Time | None:
        """Return the time at a position of `trainer_time_position` (0: the last time); None if there is none."""
        if position == 0:
            return self.times[-1] if self.times else None
        return self.times[position - 1] if len(self.times) >= position else None


def log_lines(source: "Source") -> Iterator[LogLine]:
    """Yield the parsed lines of a log, without colours."""
    for line in source.lines():
        yield log_line(line.text, line.number)


def log_line(text: str, number: int = 0) -> LogLine:
    """Split a line into labels, times and text.

    >>> log_line("2025-10-30T20:34:25Z 0: [rank3]:[titan] 2025-10-30 20:34:24,804 - step: 1").labels
    ('0', '3')
    """
    times: list[Time | None] = []
    labels: list[str] = []
    text = strip_colours(text)
    if text.startswith('{"log":'):  # docker's json-file
        text = _unwrap_docker(text, times)
    end = 0
    while True:
        begin = end or len(text) - len(text.lstrip(" "))  # a quoted log may be indented
        if prefix := _stamp_at(text, begin):
            times.append(_time(prefix["at"]))
        elif prefix := next((label for pattern in _LABELS if (label := pattern.match(text, begin))), None):
            labels += [group for group in prefix.groups() if group]
        else:
            break
        end = prefix.end()
    text = text[end:]
    trainer_time = leading_time(text.lstrip(" "))
    return LogLine(number, tuple(labels), tuple(filter(None, (*times, trainer_time))), text)


def trainer_time_position(source: "Source", is_step: Callable[[str], object]) -> int:
    """Return the position of the trainer's time among a line's times, from 1; 0 if lines of steps have no time.

    It is the most frequent number of times in the first `_SAMPLE_LINES` lines of steps. So a single line with fewer
    times has only that of the collector, whose clock and zone may differ.
    """
    counts: Counter[int] = Counter()
    with source.first_look():
        for line in log_lines(source):
            if is_step(line.text):
                counts[len(line.times)] += 1
                if counts.total() == _SAMPLE_LINES:
                    break
    return max(counts, key=lambda count: counts[count], default=0)


def ranks_of(labels: Iterable[tuple[str, ...]]) -> dict[tuple[str, ...], int]:
    """Return a rank for each combination of labels: its last number, or the order of appearance if two are equal."""
    distinct = list(dict.fromkeys(labels))
    ranks = [next((int(label) for label in reversed(group) if label.isdecimal()), 0) for group in distinct]
    if len(set(ranks)) < len(distinct):
        ranks = list(range(len(distinct)))
    return dict(zip(distinct, ranks, strict=True))


def _stamp_at(text: str, at: int) -> "re.Match[str] | None":
    """Match a collector's time at a position.

    A time in brackets is the trainer's, and not matched, unless another time or label follows.
    """
    if (stamp := _STAMP.match(text, at) or _MPI_STAMP.match(text, at)) and _time(stamp["at"]):
        return stamp
    stamp = _BRACKETED.match(text, at)
    if stamp is None or not any(prefix.match(text, stamp.end()) for prefix in (_STAMP, _BRACKETED, *_LABELS)):
        return None
    return stamp if _time(stamp["at"]) else None


def _time(text: str) -> Time | None:
    if text[0].isalpha():
        try:
            moment = datetime.strptime(text, "%a %b %d %H:%M:%S %Y").replace(tzinfo=UTC)
        except ValueError:
            return None
        return round(moment.timestamp()) * 10**9, True
    at_ns = moment_ns(text.replace("/", "-"))
    return None if at_ns is None else (at_ns, "." not in text and "," not in text)


def _unwrap_docker(text: str, times: list[Time | None]) -> str:
    """Return the log line in a line of docker's json-file driver, and append its time to `times`."""
    try:
        entry = json.loads(text)
        at = _time(entry["time"])
        line = str(entry["log"]).rstrip("\n")
    except (ValueError, KeyError, TypeError, AttributeError, IndexError, RecursionError):
        return text
    times.append(at)
    return line


def ending(text: str) -> Ending | None:
    """Return the ending that a line reports; None if it reports none."""
    if cancelled := _CANCELLED.search(text):
        reason = (cancelled["reason"] or "cancelled").strip().lower()
        kind: EndingKind = "failed" if "failure" in reason else "preempted"
        return Ending(kind, f"scheduler: {reason}", moment_ns(cancelled["at"].rstrip(".")))
    return next((Ending(kind, reason) for pattern, kind, reason in _ENDING_PATTERNS if pattern.search(text)), None)


def likelier_ending(first: Ending | None, second: Ending | None) -> Ending | None:
    """Return the likelier of two endings.

    Finished is likelier than preempted, and preempted than failed: a process may print an error after either.
    """
    if first is None or second is None:
        return first or second
    return second if _LIKELIHOOD[second.kind] > _LIKELIHOOD[first.kind] else first


def add_ending(recording: "ImportedRun", end: Ending, at_ns: int, step: int | None = None, rank: int = 0) -> None:
    """Add the event of an ending and a `rank_end`, at the ending's time if it is later than `at_ns`, else `at_ns`."""
    ts_ns = at_ns if end.at_ns is None else max(at_ns, end.at_ns)
    attributes = json.dumps({"reason": end.reason, "told_by": "log"}, separators=(",", ":"))
    severity = {"finished": "info", "preempted": "warning", "failed": "error"}[end.kind]
    for event in (_EVENTS[end.kind], "rank_end"):
        recording.row("events", ts_ns, rank, event=event, severity=severity, step=step, attributes=attributes)
