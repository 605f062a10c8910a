"""Which rule decides how long rows are kept, and why no other does."""

from dataclasses import dataclass
from datetime import date, timedelta
from typing import TYPE_CHECKING, Any

from ranklake.errors import RanklakeError, did_you_mean
from ranklake.redaction.redact import redact_uri
from ranklake.retention.archive.register import Archive, archives
from ranklake.retention.policies.model import (
    KEPT,
    RUN_KEYS,
    SEVERITIES,
    Facts,
    Rule,
    maskable,
    row_keys_of,
    table_facts,
)
from ranklake.retention.policies.order import Decision, Step, archiving_rule, decide, masking_rule, steps
from ranklake.retention.policies.parts import all_run_facts

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from ranklake.lake.contracts.model import Contract
    from ranklake.lake.store.lake import Lake
    from ranklake.retention.policies.policies import Policies


class UnexplainedError(RanklakeError):
    """A table, key or severity that does not exist."""


@dataclass(frozen=True, slots=True)
class RowSelection:
    """Which rows are asked about: of a table's date, those of a run, a metric, a severity; None for any."""

    table: str
    day: date
    run: str | None = None
    metric: str | None = None
    severity: str | None = None


@dataclass(frozen=True, slots=True)
class MaskedColumn:
    """A column that is masked where it is stored, from a day on, by a rule."""

    column: str
    mask: str
    rule: Rule
    due: date


@dataclass(frozen=True, slots=True)
class Explanation:
    """Why rows are kept or deleted.

    Attributes
    ----------
    facts
        What is known of the rows.
    decision, steps
        The decision, and what each matching rule says.
    due
        First day on which they are due; None if never.
    others
        Rules about some rows of the table that these are not known to be among.
    note
        What is not known of the run; empty if nothing is missing.
    masks
        Columns whose values are masked, each with the mask, the rule, and the first day on which they are due.
    moving
        The rule that archives the rows, and the first day on which they are due; None where none does.
    archives
        What of the table's date is archived already.
    """

    asked: RowSelection
    facts: Facts
    decision: Decision
    steps: tuple[Step, ...]
    due: date | None
    others: tuple[Rule, ...]
    note: str
    masks: tuple["MaskedColumn", ...] = ()
    moving: tuple[Rule, date] | None = None
    archives: tuple[Archive, ...] = ()

    def plain(self, today: date) -> dict[str, Any]:
        """Return plain JSON values."""
        rule = self.decision.rule
        return {
            "table": self.asked.table,
            "date": self.asked.day.isoformat(),
            "facts": {key: sorted(texts) for key, texts in self.facts.items()},
            "decided_by": self.decision.level.name.lower(),
            "rule": None if rule is None else rule.name,
            "period_days": self.decision.period_days,
            "due_from": None if self.due is None else self.due.isoformat(),
            "is_due": self.due is not None and self.due <= today,
            "reason": None if rule is None else rule.reason,
            "owner": None if rule is None else rule.owner,
            "basis": None if rule is None else rule.basis,
            "at": None if rule is None else str(rule.at),
            "rules": [
                {
                    "rule": step.rule.name,
                    "says": step.says,
                    "decides": step.decides,
                    "why": step.why,
                    "at": str(step.rule.at),
                }
                for step in self.steps
            ],
            "rules_on_other_rows": [other.name for other in self.others],
            "note": self.note,
            "masks": [
                {"column": mask.column, "mask": mask.mask, "rule": mask.rule.name, "due_from": mask.due.isoformat()}
                for mask in self.masks
            ],
            "archive": None
            if self.moving is None or self.moving[0].destination is None
            else {
                "rule": self.moving[0].name,
                "to": redact_uri(self.moving[0].destination.to),
                "due_from": self.moving[1].isoformat(),
            },
            "archives": [archive.plain() for archive in self.archives],
        }


def explain(
    lake: "Lake | None",
    contracts: "Mapping[str, Contract]",
    policies: "Policies",
    asked: RowSelection,
    holds: tuple[Rule, ...] = (),
) -> Explanation:
    """Return which rule decides about rows. Raises `UnexplainedError` for a table or a severity that does not exist.

    Parameters
    ----------
    lake
        Where runs are looked up; None if there is none.
    """
    if asked.table not in contracts:
        raise UnexplainedError(f"there is no table {asked.table!r}", hint=did_you_mean(asked.table, contracts))
    if asked.severity is not None and asked.severity not in SEVERITIES:
        hint = did_you_mean(asked.severity, SEVERITIES)
        raise UnexplainedError(f"there is no severity {asked.severity!r}", hint=hint)
    contract = contracts[asked.table]
    keys = row_keys_of(contract)
    facts: dict[str, frozenset[str]] = dict(table_facts(contract))
    note = ""
    for key in ("run", "metric", "severity"):
        text = getattr(asked, key)
        if text is not None and key not in keys:
            raise UnexplainedError(f"rows of {asked.table!r} are not told apart by {key}", hint=f"leave --{key} out")
        if text is not None:
            facts[key] = frozenset({text})
    if asked.run is not None:
        known = {} if lake is None else all_run_facts(lake.tables)
        if asked.run in known:
            facts |= known[asked.run]
        else:
            note = f"no row of 'runs' is of {asked.run!r}, so rules by {', '.join(sorted(RUN_KEYS - {'run'}))} are not"
            note = f"{note} about it; {did_you_mean(asked.run, known)}" if known else f"{note} about it"
    made = decide(policies.rules, facts, holds)
    decisions = tuple(steps(policies.rules, facts, made, holds))
    others = [
        rule
        for rule in (*holds, *policies.rules)
        if rule.row_keys and rule.may_match(contract) and not rule.matches(facts) and not _is_about_others(rule, facts)
    ]
    shown = tuple(_masks(contract, policies.rules, facts, holds, asked.day))
    moving = None if contract.retention in KEPT else archiving_rule(policies.rules, facts, holds)
    when = None if moving is None else _due(moving.action_days["archive"], asked.day)
    return Explanation(
        asked,
        facts,
        made,
        decisions,
        _due(made.period_days, asked.day),
        tuple(others),
        note.rstrip("; "),
        shown,
        None if moving is None or when is None else (moving, when),
        () if lake is None else tuple(archives(lake.tables, asked.table, asked.day)),
    )


def _masks(
    contract: "Contract", rules: "Sequence[Rule]", facts: Facts, holds: tuple[Rule, ...], day: date
) -> "Iterator[MaskedColumn]":
    for column, mask in maskable(contract).items():
        rule, period_days = masking_rule(rules, facts, column, holds)
        due = _due(period_days, day)
        if rule is not None and due is not None:
            yield MaskedColumn(column, mask.spec, rule, due)


def _is_about_others(rule: Rule, facts: Facts) -> bool:
    """Return whether a rule cannot match rows with these facts."""
    known = [key for key in rule.row_keys if key in facts]
    only = Rule(rule.name, {key: rule.where[key] for key in known}, "", "", "", rule.at)
    return not only.matches(facts)


def _due(period_days: int | None, day: date) -> date | None:
    if period_days is None:
        return None
    try:
        return day + timedelta(days=period_days + 1)
    except OverflowError:
        return None
