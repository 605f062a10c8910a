"""Policy tests: expected outcomes of rows, written as data, and their comparison with the policies."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ranklake.errors import RanklakeError, did_you_mean
from ranklake.operator_files import KeyPath, OperatorFile, raise_all
from ranklake.retention.policies.model import Facts, Place, maskable, table_facts
from ranklake.retention.policies.order import archiving_rule, cutoff, decide, masking_rule
from ranklake.retention.policies.parts import facts_of
from ranklake.retention.policies.policies import PolicyError

if TYPE_CHECKING:
    from ranklake.lake.contracts.model import Contract
    from ranklake.retention.policies.file import CaseItem
    from ranklake.retention.policies.policies import Policies

_DAY = date(2026, 6, 1)
"""An arbitrary day: cases only give ages."""


@dataclass(frozen=True, slots=True)
class Case:
    """One test: rows, their age in days, the expected outcome, and optionally the rule that decides.

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
    """Result of a case: ``kept``, ``archived``, ``deleted`` or ``masked``, and by which rule."""

    case: Case
    outcome: str
    by: str

    @property
    def passed(self) -> bool:
        """Whether the outcome and the rule are those expected."""
        return self.outcome == self.case.expect and self.case.by in {None, self.by}

    @property
    def line(self) -> str:
        """The result in one line."""
        case = self.case
        wanted = case.expect if case.by is None else f"{case.expect} by {case.by}"
        return f"{case.at}: {case.name}: expected {wanted}, and it is {self.outcome} by {self.by}"

    def plain(self) -> dict[str, Any]:
        """Return plain JSON values."""
        case = self.case
        wanted = {"expected": case.expect, "expected_by": case.by}
        return {
            "name": case.name,
            "at": str(case.at),
            "passed": self.passed,
            **wanted,
            "found": self.outcome,
            "by": self.by,
        }


def case_files(place: Path) -> list[Path]:
    """Return the test files of policies, in the folder ``tests`` beside them."""
    folder = place / "tests" if place.is_dir() else place.parent / "tests"
    return sorted([*folder.glob("*.yaml"), *folder.glob("*.yml")])


def run_cases(files: Sequence[Path], policies: "Policies", contracts: "Mapping[str, Contract]") -> list[Result]:
    """Run all tests of some files. Raises `PolicyError` with all mistakes of a file."""
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
    # As in `read_policies`: pydantic is imported only when a file is read.
    from ranklake.retention.policies.file import CasesFile

    file = OperatorFile(path, error=PolicyError, noun="file of policy tests")
    tests = file.load(CasesFile).tests
    raise_all(
        error
        for index, test in enumerate(tests)
        for error in _unknown_names(file, ("tests", index), test, {rule.name for rule in policies.rules}, contracts)
    )
    for index, test in enumerate(tests):
        given = test.given
        tags = {**given.tags, **({"environment": given.environment} if given.environment else {})}
        facts = {**table_facts(contracts[given.table]), **facts_of(given.team, tags)}
        named = {"run": given.run, "metric": given.metric, "severity": given.severity}
        facts |= {key: frozenset({value}) for key, value in named.items() if value}
        name = test.name or _words(file.content["tests"][index]["given"], test.expect)
        place = Place(path, file.line(("tests", index)))
        yield Case(name, place, facts, given.age_days, test.expect, test.by, given.column)


def _unknown_names(
    file: OperatorFile, at: KeyPath, test: "CaseItem", rules: Collection[str], contracts: "Mapping[str, Contract]"
) -> Iterator[RanklakeError]:
    given, column = test.given, test.given.column
    if given.table not in contracts:
        hint = did_you_mean(given.table, contracts)
        yield file.error((*at, "given", "table"), f"there is no table {given.table!r}", hint)
    elif column is not None and column not in (known := maskable(contracts[given.table])):
        hint = did_you_mean(column, known) or "name a classified column of a table that ranks record"
        yield file.error((*at, "given", "column"), f"column {column!r} of {given.table!r} is never masked", hint)
    if test.expect == "masked" and column is None:
        yield file.error((*at, "expect"), "values are masked, not rows", "add column: NAME to given")
    if test.by is not None and test.by not in rules:
        yield file.error((*at, "by"), f"there is no rule {test.by!r}", did_you_mean(test.by, rules))


def _words(given: Mapping[str, Any], expect: str) -> str:
    rest = ", ".join(f"{key} {value}" for key, value in given.items() if key not in {"table", "age_days"})
    return f"{given['table']}{f' ({rest})' if rest else ''}, {given['age_days']} days old: {expect}"
