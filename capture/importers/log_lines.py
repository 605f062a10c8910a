"""Lines of logs, without what launchers and collectors put in front of them.

    2025-10-30T20:34:25.91Z stdout F [pod/w-0/torch] 0: [rank3]:[titan] 2025-10-30 20:34:24,804 - root - INFO - step: 1
    the collector's time             labels, one of each level   text, in front of which the trainer's own time stands

Every importer of logs reads its lines here, so that all know the same prefixes: of srun, torchrun, mpirun, pdsh, Ray,
docker compose, kubectl, CRI, syslog.
"""

import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

from ranklake.capture.importers.moments import moment_ns, told_ns
from ranklake.capture.importers.source import uncoloured

if TYPE_CHECKING:
    from ranklake.capture.importers.source import Source

Time = tuple[int, bool]
"""Ns since 1970, and whether in whole seconds."""

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
    text = uncoloured(text)
    if text.startswith('{"log":'):  # docker's json-file
        text = _of_docker(text, times)
    at = 0
    while True:
        begin = at or len(text) - len(text.lstrip(" "))  # logs are quoted with an indent
        if stamp := _stamp_at(text, begin):
            times.append(_time(stamp["at"]))
        elif stamp := next((found for of in _LABELS if (found := of.match(text, begin))), None):
            labels += [group for group in stamp.groups() if group]
        else:
            break
        at = stamp.end()
    text = text[at:]
    own = told_ns(text.lstrip(" "))
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
