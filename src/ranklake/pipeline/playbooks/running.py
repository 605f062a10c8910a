"""Runs playbooks: plans steps, claims each in the audit log, runs it, and records its outcome.

    incidents ──matching──▶ steps ──history──▶ due? ──switch, rates──▶ claim (once, by compare-and-swap)
        ──switch, rates again──▶ act ──▶ outcome

A step is claimed before it runs, so that of several processes only one runs it. A process that dies in between leaves a
claim without an outcome: the step may have run, so it is not repeated unless somebody asks for it (`again`).
"""

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from ranklake.errors import RanklakeError
from ranklake.insight.incidents.actions import CLAIM, OUTCOME, PROPOSE, PROPOSED, RUNNING, Action, actions
from ranklake.insight.incidents.incidents import Incident, find_incident, incidents, names_in
from ranklake.insight.runs.asking import Ask, Row, asking
from ranklake.insight.runs.checkpoints import last_good_checkpoint
from ranklake.insight.runs.statements import run_condition
from ranklake.lake.audit import clock
from ranklake.lake.audit.trail import record
from ranklake.lake.contracts.json_text import facts_in
from ranklake.lake.query.literal import literal
from ranklake.lake.rollups.failures import causes_of
from ranklake.pipeline.playbooks.file import Case, Facts, Playbook, Playbooks, Receiver, Step
from ranklake.pipeline.playbooks.programs import ProgramResult, post_webhook, run_program
from ranklake.printable import counted, printable
from ranklake.redaction.redact import redact, redact_arguments, redact_uri
from ranklake.retention.policies.parts import facts_of
from ranklake.segments.references import display_text, is_reference, read_reference

if TYPE_CHECKING:
    from ranklake.lake.store.lake import Lake


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


def incident_facts(ask: Ask, chosen: Iterable[Incident]) -> dict[str, Facts]:
    """Return the facts that ``where`` of playbooks matches, by incident id. A run's facts are of its last attempt."""
    chosen = list(chosen)
    runs = tuple(sorted({str(incident.facts["run"]) for incident in chosen if incident.facts["run"]}))
    rows = {str(row["run"]): row for row in ask(_RUNS.format(where=run_condition(runs))).rows} if runs else {}
    return {incident.id: _facts(incident.facts, rows.get(str(incident.facts["run"]), {})) for incident in chosen}


def _facts(facts: Row, run: Row) -> Facts:
    labels = facts_in(run.get("labels"))
    values = {"severity": facts["severity"], "run": facts["run"], "job": facts["job"], "model": labels.get("model")}
    return {
        **facts_of(run.get("team"), labels, run.get("deployment_environment")),
        **{key: frozenset({str(value)}) for key, value in values.items() if value},
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
        """Whether the steps are the expected ones, in order."""
        return self.steps == self.case.expect

    @property
    def line(self) -> str:
        """Expected and actual steps, in one line."""
        name = self.case.name or self.case.given.detector
        expected, steps = (", ".join(each) or "nothing" for each in (self.case.expect, self.steps))
        return f"{self.at}: {name}: expected {expected}, and it leads to {steps}"

    def plain(self) -> dict[str, Any]:
        """Return plain JSON values."""
        steps = {"expected": list(self.case.expect), "steps": list(self.steps)}
        return {"at": self.at, "name": self.case.name, "passed": self.passed, **steps}


def run_cases(playbooks: Playbooks) -> list[CaseResult]:
    """Run the tests in the files of playbooks."""
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


STOPPED: Final = "playbooks/stopped"
"""File of a lake: while it exists, playbooks run no steps."""
DUE: Final = "due"
WAITS: Final = "waits"
LIMITED: Final = "limited"
_HOUR: Final = timedelta(hours=1)
_LOOK_BACK: Final = timedelta(days=8)
"""How far before the first incident actions are looked up: a week and a day."""
_RETRIED_OUTCOMES: Final = frozenset({"stopped", LIMITED})
_CONTINUING_OUTCOMES: Final = frozenset({"done", PROPOSED})
_MOST_ROWS: Final = 1000
_LONGEST_VALUE: Final = 4096
RunChecks = Callable[[tuple[str, ...]], tuple[bool, str]]
"""Runs the checks of tables; returns whether all passed, and counts in words."""


class StoppedError(RanklakeError):
    """Playbooks are stopped. No step was run."""


@dataclass(frozen=True, slots=True)
class StepState:
    """State of a playbook's step for an incident.

    Attributes
    ----------
    outcome
        `DUE`, `WAITS` for an earlier step, or an outcome of `ranklake.insight.incidents.actions.Action`.
    attempt
        Number of the attempt, from 1.
    note
        Reason or result, for people.
    """

    incident: Incident
    match: Match
    outcome: str
    attempt: int = 1
    note: str = ""

    def plain(self) -> dict[str, Any]:
        """Return plain JSON values."""
        step = self.match.step
        return {
            "incident": self.incident.id, "title": self.incident.facts["title"], "playbook": self.match.name,
            "step": step.name, "kind": step.kind, "acts": step.acts, "outcome": self.outcome, "attempt": self.attempt,
            "subject": subject_of(step), "note": self.note or None,
        }  # fmt: skip


@dataclass(frozen=True, slots=True)
class Runner:
    """Runs playbooks on a lake.

    Attributes
    ----------
    actor
        Who runs them, for the audit log.
    per_hour
        Most steps of all playbooks in an hour, including proposals.
    max_age
        Incidents whose last finding is older are ignored.
    is_off
        Whether the configuration switches playbooks off.
    """

    lake: "Lake"
    playbooks: Playbooks
    actor: str
    run_checks: RunChecks
    per_hour: int = 20
    max_age: timedelta = timedelta(hours=24)
    is_off: bool = False

    def plan(self, names: Iterable[str] = (), *, again: bool = False) -> list[StepState]:
        """Return the steps of all incidents, the worst incident first. Runs and writes nothing.

        Parameters
        ----------
        names
            Incidents, by id; by default those that nobody has marked, and that are not older than `max_age`.
        again
            Whether steps that failed, or that have no recorded outcome, are due again.
        """
        ask, now = asking(self.lake), clock.now()
        since = now - self.max_age
        chosen = [find_incident(ask, name) for name in names] or [
            incident for incident in incidents(ask, since=since).listed
            if incident.state in {"open", "closed"} and incident.facts["last_ts"] >= since
        ]  # fmt: skip
        facts = incident_facts(ask, chosen)
        begin = min((incident.facts["start_ts"] for incident in chosen), default=now)
        # Actions are ordered by time, so the last attempt at a step replaces earlier ones.
        history = {
            (action.incident, action.playbook, action.step): action
            for action in actions(ask, (), min(begin, now) - _LOOK_BACK).listed
        }
        return [
            state
            for incident in chosen
            for state in _states(incident, matching_steps(self.playbooks, facts[incident.id]), history, again)
        ]

    def stop_reason(self) -> str:
        """Return why playbooks are stopped, or an empty text. Errors of the store are raised; then no step runs."""
        if self.is_off:
            return "off is set under [playbooks]"
        try:
            text = bytes(self.lake.store.fs.cat_file(self.lake.store.path(STOPPED)))
        except FileNotFoundError:
            return ""
        return f"somebody ran 'ranklake playbooks stop': {printable(text.decode(errors='replace'))}"

    def run(self, states: Iterable[StepState], *, act: bool) -> Iterator[StepState]:
        """Run the steps that are due, or, unless `act`, record them as proposed; yield the new state of each step.

        If a step fails, later steps of its playbook wait. Errors of the audit log are raised.
        """
        failed: set[tuple[str, str]] = set()
        limits: dict[str, str] = {}  # rate limits are queried once per playbook: thousands of incidents may wait
        for state in states:
            key = (state.incident.id, state.match.name)
            result = state
            if state.outcome == DUE and key in failed:
                result = replace(state, outcome=WAITS)
            elif state.outcome == DUE and state.match.name in limits:
                result = replace(state, outcome=LIMITED, note=limits[state.match.name])
            elif state.outcome == DUE:
                result = self._run_step(state, acts=act and state.match.step.acts)
            yield result
            if result.outcome == LIMITED:
                limits[state.match.name] = result.note
            if result.outcome not in _CONTINUING_OUTCOMES and state.match.step.kind != "tell":
                failed.add(key)

    def _run_step(self, state: StepState, *, acts: bool) -> StepState:
        if acts and (reason := self.stop_reason()):
            return replace(state, outcome="stopped", note=reason)
        if reason := self._rate_limit(state.match):
            return replace(state, outcome=LIMITED, note=reason)
        if not acts:
            self._record(state, PROPOSE, None, _details(state))
            return replace(state, outcome=PROPOSED)
        checkpoint = last_good_checkpoint(
            asking(self.lake), state.incident.facts["run"], state.incident.facts["start_ts"]
        )
        facts = state.incident.facts
        before = {"severity": facts["severity"], "state": state.incident.state, "findings": facts["findings"],
                  "checkpoint": checkpoint.name or None}  # fmt: skip
        claim = self._record(state, CLAIM, state.match.playbook.reason, {**_details(state), "before": before})
        if claim is None:
            return replace(state, outcome=RUNNING, note="another process has claimed it")
        if reason := self._rate_limit(state.match, claim):
            result = ProgramResult(LIMITED, None, 0.0, reason)
        elif reason := self.stop_reason():
            result = ProgramResult("stopped", None, 0.0, reason)
        else:
            result = self._run_guarded(state, checkpoint.plain())
        after = {"outcome": result.outcome, "exit_code": result.exit_code, "seconds": result.seconds}
        details = {**_details(state), "claim": claim, "after": after}
        record(self.lake, self.actor, OUTCOME, state.incident.id, result.output or None, details)
        return replace(state, outcome=result.outcome, note=result.output)

    def _record(self, state: StepState, action: str, reason: str | None, details: Mapping[str, Any]) -> int | None:
        """Append a row for an incident, step and attempt; return its number, or None if the row exists already."""
        once_for = f"{state.match.name}/{state.match.step.name}/{state.attempt}"
        return record(self.lake, self.actor, action, state.incident.id, reason, details, once=True, once_for=once_for)

    def _rate_limit(self, match: Match, claim: int | None = None) -> str:
        """Return the rate limit that a step exceeds; empty for none. Counts rows before the claim, of all processes."""
        now = clock.now()
        counts = Counter(
            action.playbook for action in actions(asking(self.lake), (), now - _HOUR).listed
            if action.ts > now - _HOUR and (claim is None or action.seq < claim)
        )  # fmt: skip
        if counts[match.name] >= match.playbook.per_hour:
            return f"{match.name} has taken {counted(match.playbook.per_hour, 'step')} within the hour"
        if counts.total() >= self.per_hour:
            return f"playbooks have taken {counted(self.per_hour, 'step')} within the hour"
        return ""

    def _run_guarded(self, state: StepState, checkpoint: Mapping[str, Any]) -> ProgramResult:
        try:
            return self._act(state, checkpoint)
        except Exception as error:  # noqa: BLE001 - a failing step must not stop the others
            return ProgramResult("failed", None, 0.0, redact(str(error) or type(error).__name__))

    def _act(self, state: StepState, checkpoint: Mapping[str, Any]) -> ProgramResult:
        step = state.match.step
        began = clock.now()
        if step.check is not None:
            passed, counts = self.run_checks(step.check)
        elif step.query is not None:
            rows = _rows(asking(self.lake), state.incident, step.query)
            passed, counts = step.expect in {None, "rows" if rows else "no rows"}, counted(rows, "row")
        else:
            target = self.playbooks.receivers[step.tell] if step.tell is not None else step
            return _perform(target, state, checkpoint, self.playbooks.folder, step.timeout_s)
        outcome = "done" if passed else "not met"
        return ProgramResult(outcome, None, round((clock.now() - began).total_seconds(), 3), counts)


def _states(
    incident: Incident, steps: Iterable[Match], history: Mapping[tuple[str, str, str], Action], again: bool
) -> Iterator[StepState]:
    """Yield the state of each step; after a failed step, later steps of its playbook wait."""
    waiting: set[str] = set()
    for match in steps:
        past = [history[key] for name in incident.ids if (key := (name, match.name, match.step.name)) in history]
        last = max(past, key=lambda action: (action.attempt, action.seq), default=None)
        if last is None:
            state = StepState(incident, match, DUE)
        elif last.outcome in _RETRIED_OUTCOMES or (again and last.outcome not in {*_CONTINUING_OUTCOMES, RUNNING}):
            state = StepState(incident, match, DUE, last.attempt + 1)
        elif last.outcome == PROPOSED and match.step.acts:
            state = StepState(incident, match, DUE, last.attempt)
        else:
            state = StepState(incident, match, last.outcome, last.attempt, f"at {last.ts:%Y-%m-%d %H:%M:%S} UTC")
        if match.name in waiting and state.outcome == DUE:
            state = replace(state, outcome=WAITS)
        yield state
        if state.outcome not in {DUE, *_CONTINUING_OUTCOMES} and match.step.kind != "tell":
            waiting.add(match.name)


def subject_of(step: Step) -> str:
    """Return the command, URL, query, proposal or tables of a step, without credentials."""
    if step.command is not None:
        return " ".join(redact_arguments(step.command))
    if step.webhook is not None:
        return display_text(step.webhook) if is_reference(step.webhook) else redact_uri(step.webhook)
    return " ".join((step.tell or step.query or step.propose or ", ".join(step.check or ())).split())


def _details(state: StepState) -> dict[str, Any]:
    step = state.match.step
    return {
        "incident": state.incident.id, "playbook": state.match.name, "step": step.name, "kind": step.kind,
        "attempt": state.attempt, "subject": subject_of(step)[:_LONGEST_VALUE], "timeout_s": step.timeout_s,
        **({"propose": step.propose} if step.propose else {}),
    }  # fmt: skip


def _rows(ask: Ask, incident: Incident, query: str) -> int:
    """Count the rows of a query, up to `_MOST_ROWS`; it can select the incident's row from ``incident``."""
    row = f"SELECT * FROM incidents WHERE incident_id = {literal(incident.id)}"  # noqa: S608 - quoted
    inner = f"SELECT * FROM (\n{query.rstrip().rstrip(';')}\n) LIMIT {_MOST_ROWS}"  # noqa: S608 - the operator's own
    return int(ask(f"WITH incident AS ({row}) SELECT count(*) AS n FROM ({inner})").first_row["n"])  # noqa: S608 - likewise


def _perform(
    target: Step | Receiver, state: StepState, checkpoint: Mapping[str, Any], folder: Path, timeout_s: float
) -> ProgramResult:
    """Run a command or post to a webhook. For a receiver with neither, only the audit log gets a row."""
    facts, step = state.incident.facts, state.match.step
    body = {
        "text": f"{facts['severity']}: {printable(str(facts['title']))}", "playbook": state.match.name,
        "step": step.name, "attempt": state.attempt, "reason": state.match.playbook.reason,
        "incident": state.incident.plain(), "last_good_checkpoint": checkpoint,
    }  # fmt: skip
    raw = json.dumps(body, default=str).encode()
    if target.webhook is not None:
        url = read_reference(target.webhook, "webhook")[0].strip() if is_reference(target.webhook) else target.webhook
        if not url.startswith(("https://", "http://")):
            raise RanklakeError(
                "the webhook does not begin with https:// or http://", where=display_text(target.webhook)
            )
        return post_webhook(url, raw, timeout_s=timeout_s, folder=folder)
    if target.command is None:
        return ProgramResult("done", None, 0.0, "")
    values = {
        "INCIDENT_ID": state.incident.id, "PLAYBOOK": state.match.name, "PLAYBOOK_STEP": step.name,
        **{f"INCIDENT_{key.upper()}": facts.get(key) for key in _ENVIRONMENT_FACTS},
        **{f"CHECKPOINT_{key.upper()}": checkpoint[key] for key in ("name", "uri", "step")},
    }  # fmt: skip
    texts = {key: printable(str(value))[:_LONGEST_VALUE] for key, value in values.items() if value is not None}
    return run_program(target.command, texts, raw, timeout_s=timeout_s, folder=folder, pass_env=target.pass_env)


_ENVIRONMENT_FACTS: Final = ("kind", "severity", "title", "run", "attempt", "job", "rank", "host", "device_uuid",
                             "step", "start_ts")  # fmt: skip
