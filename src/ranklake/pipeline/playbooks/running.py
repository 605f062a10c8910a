"""Carrying out playbooks: planned first, then claimed in the audit trail, done, and what came of it recorded.

    incidents ──matching──▶ steps ──history──▶ due? ──switch, rates──▶ claim (once, by compare-and-swap)
        ──switch, rates again──▶ act ──▶ outcome

A claim stands before its action. Of two processes one claims; a process that dies in between leaves a claim without an
outcome: the step may have run, so it is not run again until somebody says so (`again`).
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


STOPPED: Final = "playbooks/stopped"
"""File of a lake: while it is there, nothing acts."""
DUE: Final = "due"
WAITS: Final = "waits"
LIMITED: Final = "limited"
_HOUR: Final = timedelta(hours=1)
_WEEK: Final = timedelta(days=8)
"""How long an incident may last, and a day."""
_RETRIED: Final = frozenset({"stopped", LIMITED})
_GOES_ON: Final = frozenset({"done", PROPOSED})
_MOST_ROWS: Final = 1000
_LONGEST_VALUE: Final = 4096
RunChecks = Callable[[tuple[str, ...]], tuple[bool, str]]
"""Runs the checks of tables; returns whether all passed, and counts in words."""


class StoppedError(RanklakeError):
    """The switch is off. Nothing was done."""


@dataclass(frozen=True, slots=True)
class StepState:
    """A step of a playbook for an incident, and how it stands.

    Attributes
    ----------
    outcome
        `DUE`, `WAITS` for a step before it, or as of `ranklake.insight.incidents.actions.Action`.
    attempt
        Number of the attempt, from 1.
    note
        What there is to say of it.
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
    """What carries out playbooks on a lake.

    Attributes
    ----------
    actor
        Who does it, for the audit trail.
    per_hour
        Steps of all playbooks in an hour at most, proposals among them.
    most_age
        How long ago an incident may have ended, or last been seen to go on.
    is_off
        Whether the configuration says that nothing acts.
    """

    lake: "Lake"
    playbooks: Playbooks
    actor: str
    run_checks: RunChecks
    per_hour: int = 20
    most_age: timedelta = timedelta(hours=24)
    is_off: bool = False

    def plan(self, names: Iterable[str] = (), *, again: bool = False) -> list[StepState]:
        """Return all steps that incidents lead to, those of the worst incident first; nothing is done or written.

        Parameters
        ----------
        names
            Incidents, by id; by default those that nobody has marked, and that are not older than `most_age`.
        again
            Whether steps that failed, or whose end nobody recorded, are due once more.
        """
        ask, now = asking(self.lake), clock.now()
        since = now - self.most_age
        listed = [find_incident(ask, name) for name in names] or [
            one for one in incidents(ask, since=since).listed
            if one.state in {"open", "closed"} and one.facts["last_ts"] >= since
        ]  # fmt: skip
        facts = incident_facts(ask, listed)
        begin = min((one.facts["start_ts"] for one in listed), default=now)
        acted = actions(ask, (), min(begin, now) - _WEEK).listed  # in order: of attempts at a step the last one stays
        history = {(action.incident, action.playbook, action.step): action for action in acted}
        return [
            state
            for one in listed
            for state in _states(one, matching_steps(self.playbooks, facts[one.id]), history, again)
        ]

    def stop_reason(self) -> str:
        """Return why nothing acts; empty where the switch is on. Raises what the store raises: then nothing acts."""
        if self.is_off:
            return "off is set under [playbooks]"
        try:
            text = bytes(self.lake.store.fs.cat_file(self.lake.store.path(STOPPED)))
        except FileNotFoundError:
            return ""
        return f"somebody ran 'ranklake playbooks stop': {printable(text.decode(errors='replace'))}"

    def run(self, states: Iterable[StepState], *, act: bool) -> Iterator[StepState]:
        """Carry out what is due, or, unless it is to `act`, record it as proposed; yield what became of each step.

        Whatever goes wrong with one is its outcome, and the steps after it wait. Raises what the audit trail raises.
        """
        ended: set[tuple[str, str]] = set()
        limited: dict[str, str] = {}  # asked once: thousands of incidents may wait
        for state in states:
            key = (state.incident.id, state.match.name)
            result = state
            if state.outcome == DUE and key in ended:
                result = replace(state, outcome=WAITS)
            elif state.outcome == DUE and state.match.name in limited:
                result = replace(state, outcome=LIMITED, note=limited[state.match.name])
            elif state.outcome == DUE:
                result = self._step(state, acts=act and state.match.step.acts)
            yield result
            if result.outcome == LIMITED:
                limited[state.match.name] = result.note
            if result.outcome not in _GOES_ON and state.match.step.kind != "tell":
                ended.add(key)

    def _step(self, state: StepState, *, acts: bool) -> StepState:
        if acts and (why := self.stop_reason()):
            return replace(state, outcome="stopped", note=why)
        if why := self._over_rate(state.match):
            return replace(state, outcome=LIMITED, note=why)
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
        if why := self._over_rate(state.match, claim):
            ended = ProgramResult(LIMITED, None, 0.0, why)
        elif why := self.stop_reason():
            ended = ProgramResult("stopped", None, 0.0, why)
        else:
            ended = self._run_guarded(state, checkpoint.plain())
        after = {"outcome": ended.outcome, "exit_code": ended.exit_code, "seconds": ended.seconds}
        details = {**_details(state), "claim": claim, "after": after}
        record(self.lake, self.actor, OUTCOME, state.incident.id, ended.output or None, details)
        return replace(state, outcome=ended.outcome, note=ended.output)

    def _record(self, state: StepState, action: str, reason: str | None, details: Mapping[str, Any]) -> int | None:
        """Append the one row of an incident, step and attempt; None where it exists."""
        once_for = f"{state.match.name}/{state.match.step.name}/{state.attempt}"
        return record(self.lake, self.actor, action, state.incident.id, reason, details, once=True, once_for=once_for)

    def _over_rate(self, match: Match, claim: int | None = None) -> str:
        """Return which rate limit a step exceeds; empty for none. Rows before the claim count, in every process."""
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
        except Exception as error:  # noqa: BLE001 - a step that cannot be taken is no reason to lose the others
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
            doer = self.playbooks.receivers[step.tell] if step.tell is not None else step
            return _perform(doer, state, checkpoint, self.playbooks.folder, step.timeout_s)
        outcome = "done" if passed else "not met"
        return ProgramResult(outcome, None, round((clock.now() - began).total_seconds(), 3), counts)


def _states(
    incident: Incident, steps: Iterable[Match], history: Mapping[tuple[str, str, str], Action], again: bool
) -> Iterator[StepState]:
    """Yield how each step stands; after one that failed, those of its playbook wait."""
    waiting: set[str] = set()
    for match in steps:
        past = [history[key] for one in incident.ids if (key := (one, match.name, match.step.name)) in history]
        last = max(past, key=lambda action: (action.attempt, action.seq), default=None)
        if last is None:
            state = StepState(incident, match, DUE)
        elif last.outcome in _RETRIED or (again and last.outcome not in {*_GOES_ON, RUNNING}):
            state = StepState(incident, match, DUE, last.attempt + 1)
        elif last.outcome == PROPOSED and match.step.acts:
            state = StepState(incident, match, DUE, last.attempt)
        else:
            state = StepState(incident, match, last.outcome, last.attempt, f"at {last.ts:%Y-%m-%d %H:%M:%S} UTC")
        if match.name in waiting and state.outcome == DUE:
            state = replace(state, outcome=WAITS)
        yield state
        if state.outcome not in {DUE, *_GOES_ON} and match.step.kind != "tell":
            waiting.add(match.name)


def subject_of(step: Step) -> str:
    """Return what a step is about, without credentials."""
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
    """Return how many rows a query gives, at most `_MOST_ROWS`; it may read the incident's row as ``incident``."""
    row = f"SELECT * FROM incidents WHERE incident_id = {literal(incident.id)}"  # noqa: S608 - quoted
    inner = f"SELECT * FROM (\n{query.rstrip().rstrip(';')}\n) LIMIT {_MOST_ROWS}"  # noqa: S608 - the operator's own
    return int(ask(f"WITH incident AS ({row}) SELECT count(*) AS n FROM ({inner})").first_row["n"])  # noqa: S608 - likewise


def _perform(
    doer: Step | Receiver, state: StepState, checkpoint: Mapping[str, Any], folder: Path, timeout_s: float
) -> ProgramResult:
    """Run a command or post to a webhook; a receiver with neither is only written down."""
    facts, step = state.incident.facts, state.match.step
    body = {
        "text": f"{facts['severity']}: {printable(str(facts['title']))}", "playbook": state.match.name,
        "step": step.name, "attempt": state.attempt, "reason": state.match.playbook.reason,
        "incident": state.incident.plain(), "last_good_checkpoint": checkpoint,
    }  # fmt: skip
    given = json.dumps(body, default=str).encode()
    if doer.webhook is not None:
        url = read_reference(doer.webhook, "webhook")[0].strip() if is_reference(doer.webhook) else doer.webhook
        if not url.startswith(("https://", "http://")):
            raise RanklakeError("the webhook does not begin with https:// or http://", where=display_text(doer.webhook))
        return post_webhook(url, given, timeout_s=timeout_s, folder=folder)
    if doer.command is None:
        return ProgramResult("done", None, 0.0, "")
    values = {
        "INCIDENT_ID": state.incident.id, "PLAYBOOK": state.match.name, "PLAYBOOK_STEP": step.name,
        **{f"INCIDENT_{key.upper()}": facts.get(key) for key in _PASSED},
        **{f"CHECKPOINT_{key.upper()}": checkpoint[key] for key in ("name", "uri", "step")},
    }  # fmt: skip
    texts = {key: printable(str(value))[:_LONGEST_VALUE] for key, value in values.items() if value is not None}
    return run_program(doer.command, texts, given, timeout_s=timeout_s, folder=folder, pass_env=doer.pass_env)


_PASSED: Final = ("kind", "severity", "title", "run", "attempt", "job", "rank", "host", "device_uuid", "step",
                  "start_ts")  # fmt: skip
