"""Endings: how a run ended, from the messages of its trainer, its launcher or the scheduler.

    the last step, "after training is done"        finished    run_end
    cancelled, time limit, an exit that was asked   preempted   preemption
    a node or a process that failed                 failed      failure

A log that says none of it ends where it ends: goodput then calls its run imported.
"""

import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

from ranklake.capture.importers.moments import moment_ns

if TYPE_CHECKING:
    from ranklake.capture.importers.imported_run import ImportedRun

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


def ending(text: str) -> Ending | None:
    """Return what a line says of its run's end; None if nothing."""
    found = _CANCELLED.search(text)
    if found:
        why = (found["why"] or "cancelled").strip().lower()
        how: How = "failed" if "failure" in why else "preempted"
        return Ending(how, f"scheduler: {why}", moment_ns(found["at"].rstrip(".")))
    for pattern, own, why in _SIGNS:
        if pattern.search(text):
            return Ending(own, why)
    return None


def surer(one: Ending | None, other: Ending | None) -> Ending | None:
    """Return which of two endings holds: a process that is told to end, or is done, may well print an error, too."""
    if one is None or other is None:
        return one or other
    return other if _WEIGHT[other.how] > _WEIGHT[one.how] else one


def tell_ending(recording: "ImportedRun", told: Ending, at_ns: int, step: int | None = None, rank: int = 0) -> None:
    """Add the events that say how an attempt ended, at the ending's own time, or else at `at_ns`."""
    when = at_ns if told.at_ns is None else max(at_ns, told.at_ns)
    why = json.dumps({"reason": told.why, "told_by": "log"}, separators=(",", ":"))
    severity = {"finished": "info", "preempted": "warning", "failed": "error"}[told.how]
    recording.row("events", when, rank, event=_EVENTS[told.how], severity=severity, step=step, attributes=why)
    recording.row("events", when, rank, event="rank_end", severity=severity, step=step, attributes=why)
