"""A partition as a check reads it, the tally of each expectation on it, and the result that a tally gives."""

import json
from dataclasses import dataclass, field, replace
from datetime import date
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from ranklake.lake.tables.live_files import FILE_SCHEMA
from ranklake.quality.results import AGAIN, CheckResult

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from ranklake.quality.suite import Expectation


@dataclass(slots=True)
class Tally:
    """Running result of an expectation.

    Attributes
    ----------
    checked, failed
        Rows judged, rows that failed.
    seen
        A few failing values (operational numbers), or what a check of the whole partition observed.
    error
        Why it could not be computed; empty if it could.
    absent
        The table does not have a column of it yet.
    parts
        What a watch summed up of each batch, until it is judged.
    expected, measured, unknown
        What a watch expected, measured, or why it could say nothing (`ranklake.lake.contracts.checks.kind.Finding`).
    again
        Whether a watch left out what is too young to be judged.
    passed
        The verdict, where the counts alone do not give it.
    seconds
        Time that the scan of the partition took.
    runs
        Runs of rows that failed, where a failure alarms.
    """

    checked: int = 0
    failed: int = 0
    seen: list[str] = field(default_factory=list)
    error: str = ""
    absent: bool = False
    parts: list[Any] = field(default_factory=list)
    expected: str = ""
    measured: "Mapping[str, float] | None" = None
    unknown: str = ""
    again: bool = False
    passed: bool | None = None
    seconds: float | None = None
    runs: set[str] = field(default_factory=set)

    def add(self, other: "Tally") -> None:
        """Take in the tally of the same expectation on further rows."""
        self.checked += other.checked
        self.failed += other.failed
        self.seen += other.seen[: SHOWN - len(self.seen)]
        self.error = self.error or other.error
        self.parts += other.parts
        self.runs |= other.runs


SHOWN: Final = 3
"""Failing values that a result shows."""


@dataclass(frozen=True, slots=True)
class Partition:
    """A partition as it was found: its files (rows of `lake.delta.live_files.files`) at a version of its table."""

    day: date
    version: int
    files: pa.Table

    @property
    def rows(self) -> int:
        """Return its rows, by the Delta log."""
        return int(pc.sum(self.files["num_records"]).as_py() or 0)

    def slim(self, keys: "Collection[str]" = ()) -> "Partition":
        """Return it without the log's statistics but those of some columns: they are most of what a task weighs."""
        wanted = {*FILE_SCHEMA.names, *(f"{side}.{name}" for name in keys for side in ("min", "max"))}
        names = [name for name in self.files.column_names if name in wanted]
        return replace(self, files=self.files.select(names).combine_chunks())


_MOST_ROWS: Final = 2**63 - 1
"""What a column of counts holds; a step of that number, say, implies as many rows in each series that has it."""


MOST_RUNS: Final = 1_000
"""Runs that a result names."""


def result_of(expectation: "Expectation", tally: "Tally", moved: int, facts: dict[str, Any]) -> CheckResult:
    """Return the result of an expectation on a partition, `moved` of whose rows were taken out for it."""
    status, message = _status(expectation, tally)
    known = status in {"passed", "failed"}
    return CheckResult(
        **facts,
        expectation=expectation.kind,
        column=expectation.about,
        check_id=expectation.check.id,
        severity=expectation.check.severity,
        status=status,
        rows_checked=min(tally.checked, _MOST_ROWS) if known else None,
        rows_failed=min(tally.failed, _MOST_ROWS) if known else None,
        failed_ratio=tally.failed / tally.checked if known and tally.checked else None,
        observed=", ".join(tally.seen) or None,
        message=f"{message or 'what is young was not judged'}{AGAIN}" if tally.again else message,
        quarantined_rows=moved,
        expected=(tally.expected or expectation.expected) if known else None,
        measured=None if tally.measured is None else json.dumps(tally.measured),
        duration_s=tally.seconds,
        on_fail=expectation.on_fail,
        runs=json.dumps(sorted(tally.runs)[:MOST_RUNS]) if known and tally.failed and tally.runs else None,
    )


def status_of(expectation: "Expectation", tally: "Tally") -> str:
    """Return passed, failed, errored or skipped."""
    return _status(expectation, tally)[0]


def _status(expectation: "Expectation", tally: "Tally") -> tuple[str, str | None]:
    if tally.absent:
        return "skipped", "the table has no such column yet"
    if tally.error:
        return "errored", tally.error
    if tally.unknown:
        return "skipped", tally.unknown
    if not tally.checked and not expectation.judges_nothing:
        return "skipped", "there was no value to judge"
    passed = not tally.failed if tally.passed is None else tally.passed
    if expectation.level == "share":
        passed = 1 - tally.failed / tally.checked >= float(expectation.check.min or 0)
    elif expectation.mostly < 1 and tally.passed is None:
        passed = (tally.checked - tally.failed) / tally.checked >= expectation.mostly
    return ("passed", None) if passed else ("failed", expectation.wrong)
