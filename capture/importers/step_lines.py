"""Logs of trainers that print each step as names and values: what such a log looks like, as data, and its reader.

A `Dialect` says how a step's line is known, which of its fields are columns of ``steps``, and how long a step took:
by a field, or by the time since the line before. All other fields are metrics, under the trainer's names.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from ranklake.capture.importers.formats import Format
from ranklake.capture.importers.log_lines import add_ending, ending, likelier_ending, log_lines, own_place
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
        The trainer, in front of its metrics.
    line
        Matches a step's line: groups ``step``, ``rest`` where its fields stand in the line, and ``at`` where it bears a
        time of its own.
    fields
        Finds names and values, and a suffix of a thousand where values have one.
    below
        Whether fields stand in lines of their own below it.
    at_form
        Form of ``at``, as of `datetime.strptime`.
    seconds, scale
        Field that tells how long a step took, and what it is multiplied by to be seconds; empty where none does.
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
    """Import a log; lines of other programs are passed over.

    A step is refused where nothing tells how long it took, and where the log has it twice in one attempt. Where no line
    bears a time, steps end one after the other, the last when the file was last changed.
    """
    place = own_place(source, dialect.line.search)
    untimed, left_s = True, 0.0
    with source.first_look():
        for step in _steps(dialect, source, place, [None]):
            untimed &= step.at_ns is None
            left_s += step.values.get(dialect.seconds, 0.0) * dialect.scale
    untimed &= bool(dialect.seconds and left_s)
    at_ns = source.changed_ms() * 10**6 - round(left_s * 1e9) if untimed else 0
    end: list[Ending | None] = [None]
    attempts = [recording]
    before: _Step | None = None
    for step in _steps(dialect, source, place, end):
        if untimed:
            at_ns += round(step.values.get(dialect.seconds, 0.0) * dialect.scale * 1e9)
            step.at_ns = at_ns
        if before is not None and step.number == before.number:
            attempts[-1].refuse("steps", "a step that stands in the log twice", step.text)
            continue
        if before is not None and step.number < before.number:
            attempts.append(next_recording(attempts, is_earlier=False))
            before = None
        _add(dialect, attempts[-1], step, before)
        before = step
    if end[0] is not None and before is not None and before.at_ns is not None:
        add_ending(attempts[-1], end[0], before.at_ns, before.number)
    for attempt in attempts:
        attempt.labels |= {"times": "the file's last change" if untimed else "zone not stated, taken as UTC"}
        attempt.facts = {"job": attempt.run, "framework": dialect.name}


def _steps(dialect: Dialect, source: "Source", place: int, end: "list[Ending | None]") -> "Iterator[_Step]":
    """Yield what lines say of steps, in their order; note how the log ends."""
    step: _Step | None = None
    for line in log_lines(source):
        if match := dialect.line.search(line.text):
            if step is not None:
                yield step
            groups = match.groupdict()
            stamp = line.time(place)
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


def _add(dialect: Dialect, recording: "ImportedRun", step: _Step, before: _Step | None) -> None:
    values = dict(step.values)
    seconds = values.pop(dialect.seconds) * dialect.scale if dialect.seconds in values else None
    at_ns = step.at_ns
    began_ns = before.at_ns if before is not None and step.number == before.number + 1 else None
    if seconds is None and at_ns is not None and began_ns is not None:
        seconds = (at_ns - began_ns) / 1e9
    if at_ns is None or seconds is None or seconds < 0:
        recording.refuse("steps", "a step of which nothing tells when it began", step.text)
        return
    columns: dict[str, Any] = {column: values.pop(name) for name, column in dialect.columns.items() if name in values}
    recording.step(step.number, seconds, at_ns - round(seconds * 1e9), **columns)
    for name, value in values.items():
        recording.unregistered(f"{dialect.name.lower()}/{name}"[:512], value, at_ns, step=step.number)


def log_format(dialect: Dialect, mark: bytes, example: str) -> Format:
    """Return the format of a dialect, whose files a pattern of bytes tells."""
    return Format(
        summary=f"standard output of {dialect.name}",
        recognises=f"lines such as {example!r}",
        read=lambda source, recording: read_steps(dialect, source, recording),
        table="steps",
        mark=re.compile(mark),
        nothing=(f"nothing of {dialect.name} is in the file", "name the run's standard output"),
        among=True,
    )
