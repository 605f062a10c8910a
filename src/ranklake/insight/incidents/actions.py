"""Actions and proposals of playbooks for incidents, read from the audit log."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any, Final

from ranklake.insight.runs.asking import Ask, QueriedFacts, Row, sql_text
from ranklake.lake.audit import clock
from ranklake.lake.contracts.json_text import facts_in
from ranklake.lake.query.literal import literal

CLAIM: Final = "playbook.claim"
OUTCOME: Final = "playbook.outcome"
PROPOSE: Final = "playbook.propose"
PROPOSED: Final = "proposed"
RUNNING: Final = "running"
UNKNOWN: Final = "unknown"
"""Claimed, without a recorded outcome: it may have run."""
_NAMES: Final = ("incident", "playbook", "step", "kind", "subject")
_MARGIN: Final = timedelta(minutes=1)


@dataclass(frozen=True, slots=True)
class Action:
    """One attempt at a step of a playbook, or a proposal.

    Attributes
    ----------
    seq
        Number of its first row in the audit log.
    outcome
        ``proposed``, ``running``, ``done``, ``failed``, ``timed out``, ``not met`` (by a query or checks), ``stopped``
        (by the switch), ``limited`` (by a rate), or ``unknown``.
    subject
        Its receiver, command or tables, without credentials.
    before, after
        Facts at the claim, and the result.
    actor, output
        Pseudonymous and personal data, which roles may not see; pages of a whole lake omit them.
    """

    seq: int
    ts: datetime
    incident: str
    playbook: str
    step: str
    kind: str
    attempt: int
    outcome: str
    subject: str = ""
    before: Mapping[str, Any] = field(default_factory=dict)
    after: Mapping[str, Any] = field(default_factory=dict)
    actor: str | None = None
    output: str | None = None


@dataclass(frozen=True, slots=True)
class Actions:
    """Actions in order, and the query's answer; its reason explains why a role sees none."""

    listed: tuple[Action, ...]
    answered: QueriedFacts


def actions(ask: Ask, incidents: Collection[str] = (), since: datetime | None = None) -> Actions:
    """Return the actions for some incidents, by any of their ids, or for all; since a day."""
    conditions = ["TRUE"] if since is None else [f"date >= DATE '{since:%Y-%m-%d}'"]
    if incidents:
        texts = (literal(f'%"incident": "{name}"%') for name in sorted(incidents))
        conditions.append(f"({' OR '.join(f'details LIKE {text}' for text in texts)})")
    answered = ask(sql_text(__package__, "actions").format(where=" AND ".join(conditions)))
    return Actions(tuple(_combine_rows(answered.rows).values()), answered)


def _combine_rows(rows: Collection[Row]) -> dict[int, Action]:
    result: dict[int, Action] = {}
    for row in rows:
        facts = facts_in(row["details"])
        if row["action"] == OUTCOME:
            claim = facts.get("claim")
            if isinstance(claim, int) and claim in result:
                after = _object(facts.get("after"))
                outcome = str(after.get("outcome", UNKNOWN))
                result[claim] = replace(result[claim], outcome=outcome, after=after, output=row["reason"])
            continue
        ends = row["ts"] + timedelta(seconds=_number(facts.get("timeout_s"))) + _MARGIN
        outcome = PROPOSED if row["action"] == PROPOSE else RUNNING if clock.now() < ends else UNKNOWN
        incident, playbook, step, kind, subject = (str(facts.get(name, "")) for name in _NAMES)
        result[row["seq"]] = Action(
            row["seq"], row["ts"], incident, playbook, step, kind, int(_number(facts.get("attempt"))), outcome,
            subject, _object(facts.get("before")), {}, row["actor"],
        )  # fmt: skip
    return result


def _object(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _number(value: object) -> float:
    return value if isinstance(value, int | float) else 0
