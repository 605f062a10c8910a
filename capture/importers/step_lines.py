"""Step lines: reads logs of trainers that print each step as names and values.

A `Dialect` describes the log of one trainer: the pattern of a step's line, the fields that become columns of ``steps``,
and the field with the step's duration. Without such a field, the duration is the time since the previous step's line.
All other fields become metrics.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from ranklake.capture.importers.formats import Format
from ranklake.capture.importers.log_lines import add_ending, ending, likelier_ending, log_lines, trainer_time_position
from ranklake.capture.importers.logged_steps import next_recording
from ranklake.capture.importers.units import moment_ns

if TYPE_CHECKING:
    from ranklake.capture.importers.imported_run import ImportedRun
    from ranklake.capture.importers.log_lines import Ending
    from ranklake.capture.importers.source import Source

NUMBER: Final = r"[-+]?(?:\d[\d,]*\.?\d*(?:[eE][-+]?\d+)?|nan|inf)"
_SCALES: Final = MappingProxyType({"": 1, "K": 1e3, "M": 1e6, "G": 1e9, "B": 1e9, "T": 1e12, "P": 1e15})


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialect:
    """How a trainer prints a step.

    Attributes
    ----------
    name
        Name of the trainer, and prefix of its metrics.
    line
        Matches a step's line. Groups: ``step``; ``rest`` with fields in the same line; ``at`` with the line's time.
    fields
        Matches a field. Groups: ``name``, ``value``, and ``unit`` if values have suffixes such as K or M.
    below
        Whether fields are in the lines after the step's line.
    at_form
        Format of ``at`` for `datetime.strptime`.
    seconds, scale
        Field with the step's duration, and its factor to seconds; empty if there is no such field.
    columns
        Columns of ``steps`` by field.
    """

    name: str
    line: re.Pattern[str]
    fields: re.Pattern[str]
    below: bool = False
    at_form: str = ""
    seconds: str = ""
    scale: float = 1.0
    columns: Mapping[str, str]


@dataclass(slots=True)
class _Step:
    number: int
    at_ns: int | None
    text: str
    values: dict[str, float] = field(default_factory=dict)


def read_steps(dialect: Dialect, source: "Source", recording: "ImportedRun") -> None:
    """Import a log, ignoring lines of other programs.

    A step without a known duration is refused, and so is a step that an attempt has twice. If no line has a time, the
    last step is assumed to end at the file's last change, and each step at the beginning of the next.
    """
    position = trainer_time_position(source, dialect.line.search)
    is_untimed, total_s = True, 0.0
    with source.first_look():
        for step in _steps(dialect, source, position, [None]):
            is_untimed &= step.at_ns is None
            total_s += step.values.get(dialect.seconds, 0.0) * dialect.scale
    is_untimed &= bool(dialect.seconds and total_s)
    at_ns = source.changed_ms() * 10**6 - round(total_s * 1e9) if is_untimed else 0
    end: list[Ending | None] = [None]
    attempts = [recording]
    previous: _Step | None = None
    for step in _steps(dialect, source, position, end):
        if is_untimed:
            at_ns += round(step.values.get(dialect.seconds, 0.0) * dialect.scale * 1e9)
            step.at_ns = at_ns
        if previous is not None and step.number == previous.number:
            attempts[-1].refuse("steps", "the step is in the log twice", step.text)
            continue
        if previous is not None and step.number < previous.number:
            attempts.append(next_recording(attempts, is_earlier=False))
            previous = None
        _add(dialect, attempts[-1], step, previous)
        previous = step
    if end[0] is not None and previous is not None and previous.at_ns is not None:
        add_ending(attempts[-1], end[0], previous.at_ns, previous.number)
    for attempt in attempts:
        attempt.labels |= {"times": "the file's last change" if is_untimed else "zone not stated, taken as UTC"}
        attempt.facts = {"job": attempt.run, "framework": dialect.name}


def _steps(dialect: Dialect, source: "Source", position: int, end: "list[Ending | None]") -> "Iterator[_Step]":
    """Yield the steps of a log in order; ``end[0]`` is set to the ending that follows the last of them."""
    step: _Step | None = None
    for line in log_lines(source):
        if match := dialect.line.search(line.text):
            if step is not None:
                yield step
            groups = match.groupdict()
            stamp = line.time(position)
            at_ns = None if stamp is None else stamp[0]
            if groups.get("at"):
                at_ns = moment_ns(groups["at"], dialect.at_form)
            step, end[0] = _Step(int(match["step"].replace(",", "")), at_ns, match[0]), None
            step.values |= _values(dialect, groups.get("rest") or "")
        elif step is not None and dialect.below and (values := _values(dialect, line.text)):
            step.values |= values
        else:
            if step is not None:
                yield step
            step, end[0] = None, likelier_ending(end[0], ending(line.text))
    if step is not None:
        yield step


def _values(dialect: Dialect, text: str) -> dict[str, float]:
    return {
        match["name"].strip(): float(match["value"].replace(",", "")) * _SCALES[match.groupdict().get("unit") or ""]
        for match in dialect.fields.finditer(text)
    }


def _add(dialect: Dialect, recording: "ImportedRun", step: _Step, previous: _Step | None) -> None:
    values = dict(step.values)
    seconds = values.pop(dialect.seconds) * dialect.scale if dialect.seconds in values else None
    at_ns = step.at_ns
    begin_ns = previous.at_ns if previous is not None and step.number == previous.number + 1 else None
    if seconds is None and at_ns is not None and begin_ns is not None:
        seconds = (at_ns - begin_ns) / 1e9
    if at_ns is None or seconds is None or seconds < 0:
        recording.refuse("steps", "the step's begin is not known", step.text)
        return
    columns: dict[str, Any] = {column: values.pop(name) for name, column in dialect.columns.items() if name in values}
    recording.step(step.number, seconds, at_ns - round(seconds * 1e9), **columns)
    for name, value in values.items():
        recording.unregistered(f"{dialect.name.lower()}/{name}"[:512], value, at_ns, step=step.number)


def log_format(dialect: Dialect, mark: bytes, example: str) -> Format:
    """Return the format of a dialect. `mark` is a pattern of bytes that its files begin with."""
    return Format(
        summary=f"standard output of {dialect.name}",
        recognises=f"lines such as {example!r}",
        read=lambda source, recording: read_steps(dialect, source, recording),
        table="steps",
        mark=re.compile(mark),
        nothing=(f"the file has no step of {dialect.name}", "name the run's standard output"),
        among=True,
    )
