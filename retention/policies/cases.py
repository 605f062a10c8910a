"""Policy tests: files with expected outcomes for rows, and their comparison with the policies."""

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
"""Any day, since cases have only ages."""


@dataclass(frozen=True, slots=True)
class Case:
    """A test: rows, their age in days, the expected outcome, and optionally the rule that must decide.

    The outcome is ``kept``, ``archived`` or ``deleted``, or ``masked`` for a test with a column.
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
    """Result of a case: the outcome, and the rule that decided."""

    case: Case
    outcome: str
    by: str

    @property
    def passed(self) -> bool:
        """Whether the outcome and the rule are as expected."""
        return self.outcome == self.case.expect and self.case.by in {None, self.by}

    @property
    def line(self) -> str:
        """The result in one line."""
        case = self.case
        expected = case.expect if case.by is None else f"{case.expect} by {case.by}"
        return f"{case.at}: {case.name}: expected {expected}, and it is {self.outcome} by {self.by}"

    def plain(self) -> dict[str, Any]:
        """Return plain JSON values."""
        case = self.case
        return {
            "name": case.name,
            "at": str(case.at),
            "passed": self.passed,
            "expected": case.expect,
            "expected_by": case.by,
            "found": self.outcome,
            "by": self.by,
        }


def case_files(place: Path) -> list[Path]:
    """Return the test files of policies: those in the folder ``tests`` next to them."""
    folder = place / "tests" if place.is_dir() else place.parent / "tests"
    return sorted([*folder.glob("*.yaml"), *folder.glob("*.yml")])


def run_cases(files: Sequence[Path], policies: "Policies", contracts: "Mapping[str, Contract]") -> list[Result]:
    """Run all tests of these files. Raises `PolicyError` with all mistakes of a file."""
    return [_run(case, policies) for path in files for case in _cases(path, policies, contracts)]


def _run(case: Case, policies: "Policies") -> Result:
    decision = decide(policies.rules, case.facts)
    day = _DAY - timedelta(days=case.age_days)
    limit = decision.cutoff(_DAY)
    if limit is not None and day < limit:
        return Result(case, "deleted", decision.decided_by)
    mask, period_days = masking_rule(policies.rules, case.facts, case.column) if case.column else (None, None)
    limit = cutoff(period_days, _DAY)
    if mask is not None and limit is not None and day < limit:
        return Result(case, "masked", mask.name)
    archive = archiving_rule(policies.rules, case.facts) if case.column is None else None
    limit = None if archive is None else cutoff(archive.action_days["archive"], _DAY)
    if archive is not None and limit is not None and day < limit:
        return Result(case, "archived", archive.name)
    return Result(case, "kept", decision.decided_by if mask is None else mask.name)


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
        values = {"run": given.run, "metric": given.metric, "severity": given.severity}
        facts |= {key: frozenset({value}) for key, value in values.items() if value}
        name = test.name or _case_name(file.content["tests"][index]["given"], test.expect)
        place = Place(path, file.line(("tests", index)))
        yield Case(name, place, facts, given.age_days, test.expect, test.by, given.column)


def _unknown_names(
    file: OperatorFile, at: KeyPath, test: "CaseItem", rules: Collection[str], contracts: "Mapping[str, Contract]"
) -> Iterator[RanklakeError]:
    given, column = test.given, test.given.column
    if given.table not in contracts:
        hint = did_you_mean(given.table, contracts)
        yield file.error((*at, "given", "table"), f"there is no table {given.table!r}", hint)
    elif column is not None and column not in (masks := maskable(contracts[given.table])):
        hint = did_you_mean(column, masks) or "name a classified column of a table that ranks record"
        yield file.error((*at, "given", "column"), f"column {column!r} of {given.table!r} is never masked", hint)
    if test.expect == "masked" and column is None:
        yield file.error((*at, "expect"), "values are masked, not rows", "add column: NAME to given")
    if test.by is not None and test.by not in rules:
        yield file.error((*at, "by"), f"there is no rule {test.by!r}", did_you_mean(test.by, rules))


def _case_name(given: Mapping[str, Any], expect: str) -> str:
    rest = ", ".join(f"{key} {value}" for key, value in given.items() if key not in {"table", "age_days"})
    return f"{given['table']}{f' ({rest})' if rest else ''}, {given['age_days']} days old: {expect}"
