"""Policy tests: what must become of some rows, written as data, and what the policies say of them."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ranklake.errors import did_you_mean
from ranklake.lake.contracts.document import Document
from ranklake.lake.contracts.errors import ContractError
from ranklake.lake.contracts.schema import problems
from ranklake.retention.policies.model import SEVERITIES, Facts, Place, maskable, table_facts
from ranklake.retention.policies.order import archiving_rule, cutoff, decide, masking_rule
from ranklake.retention.policies.parts import facts_of
from ranklake.retention.policies.policies import PolicyError
from ranklake.retention.policies.read import schema

if TYPE_CHECKING:
    from ranklake.lake.contracts.model import Contract
    from ranklake.retention.policies.policies import Policies

_DAY = date(2026, 6, 1)
"""Some day; cases speak of ages alone."""


@dataclass(frozen=True, slots=True)
class Case:
    """One test: rows, their age in days, what is to become of them, and perhaps by which rule.

    Rows are ``kept``, ``archived`` or ``deleted``; of a test that names a column, its values are also ``masked``.
    """

    name: str
    at: Place
    facts: Facts
    age_days: int
    expect: str
    by: str | None
    column: str | None = None


@dataclass(frozen=True, slots=True)
class Result:
    """What came of a case: ``kept``, ``archived``, ``deleted`` or ``masked``, and by which rule."""

    case: Case
    found: str
    by: str

    @property
    def passed(self) -> bool:
        """Whether it is as it must be."""
        return self.found == self.case.expect and self.case.by in {None, self.by}

    @property
    def line(self) -> str:
        """What to tell of it, in one line."""
        case = self.case
        wanted = case.expect if case.by is None else f"{case.expect} by {case.by}"
        return f"{case.at}: {case.name}: expected {wanted}, and it is {self.found} by {self.by}"

    def plain(self) -> dict[str, Any]:
        """Return plain JSON values."""
        case = self.case
        wanted = {"expected": case.expect, "expected_by": case.by}
        return {
            "name": case.name,
            "at": str(case.at),
            "passed": self.passed,
            **wanted,
            "found": self.found,
            "by": self.by,
        }


def case_files(place: Path) -> list[Path]:
    """Return the files of tests that lie with policies: in the folder ``tests`` of theirs."""
    folder = place / "tests" if place.is_dir() else place.parent / "tests"
    return sorted([*folder.glob("*.yaml"), *folder.glob("*.yml")])


def run_cases(files: Sequence[Path], policies: "Policies", contracts: "Mapping[str, Contract]") -> list[Result]:
    """Run all tests of some files. Raises `PolicyError`, with file and line, for what is no test."""
    return [_run(case, policies) for path in files for case in _cases(path, policies, contracts)]


def _run(case: Case, policies: "Policies") -> Result:
    made = decide(policies.rules, case.facts)
    day = _DAY - timedelta(days=case.age_days)
    until = made.cutoff(_DAY)
    if until is not None and day < until:
        return Result(case, "deleted", made.decided_by)
    rule, period_days = masking_rule(policies.rules, case.facts, case.column) if case.column else (None, None)
    until = cutoff(period_days, _DAY)
    if rule is not None and until is not None and day < until:
        return Result(case, "masked", rule.name)
    moving = archiving_rule(policies.rules, case.facts) if case.column is None else None
    until = None if moving is None else cutoff(moving.waiting["archive"], _DAY)
    if moving is not None and until is not None and day < until:
        return Result(case, "archived", moving.name)
    return Result(case, "kept", made.decided_by if rule is None else rule.name)


def _cases(path: Path, policies: "Policies", contracts: "Mapping[str, Contract]") -> Iterator[Case]:
    try:
        document = Document(path)
        for problem in problems(document.content, schema("tests")):
            document.fail(problem.at, problem.what, problem.hint)
        for place, row in enumerate(document.content["tests"]):
            yield _case(document, place, row, policies, contracts)
    except ContractError as error:
        raise PolicyError(error.what, where=error.where, hint=error.hint) from error


def _case(
    document: Document, place: int, row: Mapping[str, Any], policies: "Policies", contracts: "Mapping[str, Contract]"
) -> Case:
    given = row["given"]
    at = ("tests", place, "given")
    if given["table"] not in contracts:
        what = f"there is no table {given['table']!r}"
        document.fail((*at, "table"), what, did_you_mean(given["table"], contracts))
    if given.get("severity") not in {None, *SEVERITIES}:
        what = f"there is no severity {given['severity']!r}"
        document.fail((*at, "severity"), what, did_you_mean(given["severity"], SEVERITIES))
    column = given.get("column")
    known = maskable(contracts[given["table"]])
    if column is not None and column not in known:
        hint = did_you_mean(column, known) or "name a classified column of a table that ranks record"
        document.fail((*at, "column"), f"column {column!r} of {given['table']!r} is never masked", hint)
    if row["expect"] == "masked" and column is None:
        document.fail(("tests", place, "expect"), "values are masked, not rows", "add column: NAME to given")
    names = {rule.name for rule in policies.rules}
    if row.get("by") not in {None, *names}:
        document.fail(("tests", place, "by"), f"there is no rule {row['by']!r}", did_you_mean(row["by"], names))
    tags = {**given.get("tags", {}), **({"environment": given["environment"]} if "environment" in given else {})}
    facts = {**table_facts(contracts[given["table"]]), **facts_of(given.get("team"), tags)}
    facts |= {key: frozenset({given[key]}) for key in ("run", "metric", "severity") if key in given}
    name = row.get("name") or _words(given, row["expect"])
    where = Place(document.path, document.line(("tests", place)))
    return Case(name, where, facts, given["age_days"], row["expect"], row.get("by"), column)


def _words(given: Mapping[str, Any], expect: str) -> str:
    rest = ", ".join(f"{key} {value}" for key, value in given.items() if key not in {"table", "age_days"})
    return f"{given['table']}{f' ({rest})' if rest else ''}, {given['age_days']} days old: {expect}"
