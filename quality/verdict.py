"""What the tally of an expectation says of a partition: its status, and the row of ``quality_results``."""

import json
from typing import TYPE_CHECKING, Any, Final

from ranklake.quality.results import AGAIN, CheckResult

if TYPE_CHECKING:
    from ranklake.quality.partition import Tally
    from ranklake.quality.suite import Expectation

_MOST_ROWS: Final = 2**63 - 1
"""What a column of counts holds; a step of that number, say, implies as many rows in each series that has it."""


MOST_RUNS: Final = 1_000
"""Runs that a result names."""


def result_of(one: "Expectation", tally: "Tally", moved: int, facts: dict[str, Any]) -> CheckResult:
    """Return the result of an expectation on a partition, `moved` of whose rows were taken out for it."""
    status, message = _status(one, tally)
    known = status in {"passed", "failed"}
    return CheckResult(
        **facts,
        expectation=one.kind,
        column=one.about,
        check_id=one.check.id,
        severity=one.check.severity,
        status=status,
        rows_checked=min(tally.checked, _MOST_ROWS) if known else None,
        rows_failed=min(tally.failed, _MOST_ROWS) if known else None,
        failed_ratio=tally.failed / tally.checked if known and tally.checked else None,
        observed=", ".join(tally.seen) or None,
        message=f"{message or 'what is young was not judged'}{AGAIN}" if tally.again else message,
        quarantined_rows=moved,
        expected=(tally.expected or one.expected) if known else None,
        measured=None if tally.measured is None else json.dumps(tally.measured),
        duration_s=tally.seconds,
        on_fail=one.on_fail,
        runs=json.dumps(sorted(tally.runs)[:MOST_RUNS]) if known and tally.failed and tally.runs else None,
    )


def status_of(one: "Expectation", tally: "Tally") -> str:
    """Return passed, failed, errored or skipped."""
    return _status(one, tally)[0]


def _status(one: "Expectation", tally: "Tally") -> tuple[str, str | None]:
    if tally.absent:
        return "skipped", "the table has no such column yet"
    if tally.error:
        return "errored", tally.error
    if tally.unknown:
        return "skipped", tally.unknown
    if not tally.checked and not one.judges_nothing:
        return "skipped", "there was no value to judge"
    passed = not tally.failed if tally.passed is None else tally.passed
    if one.level == "share":
        passed = 1 - tally.failed / tally.checked >= float(one.check.min or 0)
    elif one.mostly < 1 and tally.passed is None:
        passed = (tally.checked - tally.failed) / tally.checked >= one.mostly
    return ("passed", None) if passed else ("failed", one.wrong)
