"""Lines of logs, without what launchers and collectors put in front of them; and what they say of a run's end.

    2025-10-30T20:34:25.91Z stdout F [pod/w-0/torch] 0: [rank3]:[titan] 2025-10-30 20:34:24,804 - root - INFO - step: 1
    the collector's time             labels, one of each level   text, in front of which the trainer's own time stands

Every importer of logs reads its lines here, so that all know the same prefixes: of srun, torchrun, mpirun, pdsh, Ray,
docker compose, kubectl, CRI, syslog.

    the last step, "after training is done"        finished    run_end
    cancelled, time limit, an exit that was asked   preempted   preemption
    a node or a process that failed                 failed      failure

A log that says none of it ends where it ends: goodput then calls its run imported.
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

How = Literal["finished", "preempted", "failed"]


@dataclass(frozen=True, slots=True)
class Ending:
    """How a run ended.

    Attributes
    ----------
    why
        In words of the log's kind; no value of it.
    at_ns
        When, ns since 1970; None where the line bears no time.
    """

    how: How
    why: str
    at_ns: int | None = None


_SAMPLE_LINES: Final = 50
_CLOCK: Final = r"\d{4}[-/]\d\d[-/]\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d{1,9})?(?:Z|[+-]\d\d:?\d\d)?"
_STAMP: Final = re.compile(rf"(?P<at>{_CLOCK})(?: (?:stdout|stderr) [FP])?(?:[ \t]|$)")
_BRACKETED: Final = re.compile(rf"\[(?P<at>{_CLOCK})\] ?")
_OF_MPI: Final = re.compile(r"(?P<at>[A-Z][a-z]{2} [A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d \d{4}) ?(?=\[|<)")
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
    r"(?: DUE TO (?P<why>[A-Za-z ]*[A-Za-z]))?"
)
_SIGNS: Final[tuple[tuple["re.Pattern[str]", How, str], ...]] = (
    (
        re.compile(r"after training is done\b|\bTraining (?:successfully )?completed\b"),
        "finished",
        "the trainer says that it is done",
    ),
    (re.compile(r"\bexiting program (?:at|after)\b"), "preempted", "the trainer left before its last step, as asked"),
    (re.compile(r"\bDetected \d+ oom[-_]kill event"), "failed", "out of memory"),
    (re.compile(r"\bChildFailedError\b"), "failed", "a worker failed"),
    (re.compile(r"^srun: error: .*Exited with exit code [1-9]"), "failed", "a task ended with an error"),
    (re.compile(r"^Traceback \(most recent call last\)"), "failed", "an exception"),
)
_EVENTS: Final[dict[How, str]] = {"finished": "run_end", "preempted": "preemption", "failed": "failure"}
_WEIGHT: Final[dict[How, int]] = {"failed": 0, "preempted": 1, "finished": 2}


@dataclass(frozen=True, slots=True)
class LogLine:
    """A line of a log.

    Attributes
    ----------
    number
        In the file, from 1.
    labels
        What launchers and collectors say of who wrote it, the outermost first: numbers of ranks or tasks, names.
    times
        When it was written: the collector's time in front of the trainer's own.
    text
        The rest.
    """

    number: int
    labels: tuple[str, ...]
    times: tuple[Time, ...]
    text: str

    def time(self, place: int) -> Time | None:
        """Return the time at a place that `own_place` chose; None where the line has none there."""
        if place == 0:
            return self.times[-1] if self.times else None
        return self.times[place - 1] if len(self.times) >= place else None


def log_lines(source: "Source") -> Iterator[LogLine]:
    """Yield the lines of a log without colours, labels and the times of collectors."""
    for line in source.lines():
        yield log_line(line.text, line.number)


def log_line(text: str, number: int = 0) -> LogLine:
    """Take a line apart.

    >>> log_line("2025-10-30T20:34:25Z 0: [rank3]:[titan] 2025-10-30 20:34:24,804 - step: 1").labels
    ('0', '3')
    """
    times: list[Time | None] = []
    labels: list[str] = []
    text = strip_colours(text)
    if text.startswith('{"log":'):  # docker's json-file
        text = _of_docker(text, times)
    at = 0
    while True:
        begin = at or len(text) - len(text.lstrip(" "))  # logs are quoted with an indent
        if stamp := _stamp_at(text, begin):
            times.append(_time(stamp["at"]))
        elif stamp := next((label for pattern in _LABELS if (label := pattern.match(text, begin))), None):
            labels += [group for group in stamp.groups() if group]
        else:
            break
        at = stamp.end()
    text = text[at:]
    own = leading_time(text.lstrip(" "))
    return LogLine(number, tuple(labels), tuple(filter(None, (*times, own))), text)


def own_place(source: "Source", is_step: Callable[[str], object]) -> int:
    """Return where the trainer's own time stands among the times in front of its lines, from 1; 0 if steps have none.

    Most of a log's lines of steps say it: with two times the second is the trainer's, and a line with one bears the
    collector's alone, whose clock and zone may differ.
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
    """Return the rank of each combination of labels: the innermost number, unless two share it; then their order."""
    known = list(dict.fromkeys(labels))
    numbers = [next((int(label) for label in reversed(of) if label.isdecimal()), 0) for of in known]
    if len(set(numbers)) < len(known):
        numbers = list(range(len(known)))
    return dict(zip(known, numbers, strict=True))


def _stamp_at(text: str, at: int) -> "re.Match[str] | None":
    """Match a time; one in brackets is the trainer's own, unless more of a launcher or collector is behind it."""
    if (stamp := _STAMP.match(text, at) or _OF_MPI.match(text, at)) and _time(stamp["at"]):
        return stamp
    stamp = _BRACKETED.match(text, at)
    behind = stamp.end() if stamp else 0
    is_more = stamp and any(of.match(text, behind) for of in (_STAMP, _BRACKETED, *_LABELS))
    return stamp if stamp and is_more and _time(stamp["at"]) else None


def _time(text: str) -> Time | None:
    if text[0].isalpha():
        try:
            moment = datetime.strptime(text, "%a %b %d %H:%M:%S %Y").replace(tzinfo=UTC)
        except ValueError:
            return None
        return round(moment.timestamp()) * 10**9, True
    at_ns = moment_ns(text.replace("/", "-"))
    return None if at_ns is None else (at_ns, "." not in text and "," not in text)


def _of_docker(text: str, times: list[Time | None]) -> str:
    try:
        entry = json.loads(text)
        at = _time(entry["time"])
        line = str(entry["log"]).rstrip("\n")
    except (ValueError, KeyError, TypeError, AttributeError, IndexError, RecursionError):
        return text
    times.append(at)
    return line


def ending(text: str) -> Ending | None:
    """Return what a line says of its run's end; None if nothing."""
    if cancelled := _CANCELLED.search(text):
        why = (cancelled["why"] or "cancelled").strip().lower()
        how: How = "failed" if "failure" in why else "preempted"
        return Ending(how, f"scheduler: {why}", moment_ns(cancelled["at"].rstrip(".")))
    return next((Ending(how, why) for pattern, how, why in _SIGNS if pattern.search(text)), None)


def likelier_ending(first: Ending | None, second: Ending | None) -> Ending | None:
    """Return the likelier of two endings: a process that a signal ends, or that is done, may print an error, too."""
    if first is None or second is None:
        return first or second
    return second if _WEIGHT[second.how] > _WEIGHT[first.how] else first


def add_ending(recording: "ImportedRun", end: Ending, at_ns: int, step: int | None = None, rank: int = 0) -> None:
    """Add the events that say how an attempt ended, at the ending's own time, or else at `at_ns`."""
    when = at_ns if end.at_ns is None else max(at_ns, end.at_ns)
    why = json.dumps({"reason": end.why, "told_by": "log"}, separators=(",", ":"))
    severity = {"finished": "info", "preempted": "warning", "failed": "error"}[end.how]
    recording.row("events", when, rank, event=_EVENTS[end.how], severity=severity, step=step, attributes=why)
    recording.row("events", when, rank, event="rank_end", severity=severity, step=step, attributes=why)
