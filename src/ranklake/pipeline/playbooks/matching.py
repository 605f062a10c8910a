"""Matches incidents to the steps of playbooks, and runs the tests that playbook files contain."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from ranklake.insight.incidents.incidents import Incident, names_in
from ranklake.insight.runs.asking import Ask, Row
from ranklake.insight.runs.statements import run_condition
from ranklake.lake.contracts.json_text import facts_in
from ranklake.lake.rollups.failures import causes_of
from ranklake.pipeline.playbooks.file import Case, Facts, Playbook, Playbooks, Step
from ranklake.retention.policies.parts import facts_of

_RUNS: Final = """SELECT run, last_value(team ORDER BY ts) AS team, last_value(labels ORDER BY ts) AS labels,
  last_value(deployment_environment ORDER BY ts) AS deployment_environment
FROM runs
WHERE {where}
GROUP BY run
"""


@dataclass(frozen=True, slots=True)
class Match:
    """A step that an incident leads to."""

    name: str
    playbook: Playbook
    step: Step


def incident_facts(ask: Ask, listed: Iterable[Incident]) -> dict[str, Facts]:
    """Return the facts of incidents that selections match, by id; facts of runs are those of their last attempt."""
    every = list(listed)
    runs = tuple(sorted({str(one.facts["run"]) for one in every if one.facts["run"]}))
    known = {str(row["run"]): row for row in ask(_RUNS.format(where=run_condition(runs))).rows} if runs else {}
    return {one.id: _facts(one.facts, known.get(str(one.facts["run"]), {})) for one in every}


def _facts(facts: Row, run: Row) -> Facts:
    labels = facts_in(run.get("labels"))
    named = {"severity": facts["severity"], "run": facts["run"], "job": facts["job"], "model": labels.get("model")}
    return {
        **facts_of(run.get("team"), labels, run.get("deployment_environment")),
        **{key: frozenset({str(value)}) for key, value in named.items() if value},
        "detector": frozenset(facts_in(facts["detectors"])),
        "cause": frozenset(names_in(facts["causes"])),
    }


def matching_steps(playbooks: Playbooks, facts: Facts) -> list[Match]:
    """Return the steps that an incident leads to, in the order of the files."""
    return [
        Match(name, playbook, step)
        for name, playbook in playbooks.playbooks.items() if playbook.where.matches(facts)
        for step in playbook.steps if step.where.matches(facts)
    ]  # fmt: skip


@dataclass(frozen=True, slots=True)
class CaseResult:
    """Result of a test: the steps that its incident leads to."""

    at: str
    case: Case
    steps: tuple[str, ...]

    @property
    def passed(self) -> bool:
        """Whether they are those that it expects, in that order."""
        return self.steps == self.case.expect

    @property
    def line(self) -> str:
        """Both, in one line."""
        name = self.case.name or self.case.given.detector
        expected, steps = (", ".join(each) or "nothing" for each in (self.case.expect, self.steps))
        return f"{self.at}: {name}: expected {expected}, and it leads to {steps}"

    def plain(self) -> dict[str, Any]:
        """Return plain JSON values."""
        steps = {"expected": list(self.case.expect), "steps": list(self.steps)}
        return {"at": self.at, "name": self.case.name, "passed": self.passed, **steps}


def run_cases(playbooks: Playbooks) -> list[CaseResult]:
    """Run the tests that stand beside playbooks."""
    return [
        CaseResult(
            at, case, tuple(f"{match.name}.{match.step.name}" for match in matching_steps(playbooks, _case_facts(case)))
        )
        for at, case in playbooks.cases
    ]


def _case_facts(case: Case) -> Facts:
    given = case.given
    causes = [given.cause] if given.cause else causes_of({given.detector: 1}, [])
    row = {**vars(given), "detectors": f'{{"{given.detector}": 1}}', "causes": "[]"}
    facts: Mapping[str, frozenset[str]] = _facts(row, {"team": given.team, "deployment_environment": given.environment})
    tags = facts_of(None, given.tags)
    model = {"model": frozenset({str(given.tags["model"])})} if "model" in given.tags else {}
    return {**facts, **tags, **model, "cause": frozenset(causes)}
