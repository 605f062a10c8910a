"""Explains which rule decides how long rows are kept, and why other rules do not."""

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
    """The question names a table, key or severity that does not exist."""


@dataclass(frozen=True, slots=True)
class RowSelection:
    """The rows of the question: a table and a date, and optionally a run, a metric and a severity."""

    table: str
    day: date
    run: str | None = None
    metric: str | None = None
    severity: str | None = None


@dataclass(frozen=True, slots=True)
class MaskedColumn:
    """A column whose stored values a rule masks from a day on."""

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
        Facts about the rows that rules select by.
    decision, steps
        The decision, and a step for each matching rule.
    due
        First day on which the rows are due to be deleted; None if never.
    others
        Rules that select some rows of the table, and may select these rows if more were known about them.
    note
        Which facts about the run are unknown; empty if none.
    masks
        Columns whose values are masked.
    moving
        The rule that archives the rows, and the first day on which they are due; None if no rule does.
    archives
        Existing archives of rows of the table's date.
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
    """Return which rule decides about rows. Raises `UnexplainedError` for a table, key or severity that does not exist.

    Parameters
    ----------
    lake
        The lake with the facts about runs; None to explain without a lake.
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
        runs = {} if lake is None else all_run_facts(lake.tables)
        if asked.run in runs:
            facts |= runs[asked.run]
        else:
            note = f"no row of 'runs' is of {asked.run!r}, so rules by {', '.join(sorted(RUN_KEYS - {'run'}))} are not"
            note = f"{note} about it; {did_you_mean(asked.run, runs)}" if runs else f"{note} about it"
    decision = decide(policies.rules, facts, holds)
    others = [
        rule
        for rule in (*holds, *policies.rules)
        if rule.row_keys and rule.may_match(contract) and not rule.matches(facts) and not _contradicts(rule, facts)
    ]
    archiver = None if contract.retention in KEPT else archiving_rule(policies.rules, facts, holds)
    archive_day = None if archiver is None else _due(archiver.action_days["archive"], asked.day)
    return Explanation(
        asked,
        facts,
        decision,
        tuple(steps(policies.rules, facts, decision, holds)),
        _due(decision.period_days, asked.day),
        tuple(others),
        note.rstrip("; "),
        tuple(_masks(contract, policies.rules, facts, holds, asked.day)),
        None if archiver is None or archive_day is None else (archiver, archive_day),
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


def _contradicts(rule: Rule, facts: Facts) -> bool:
    """Return whether known facts exclude that a rule matches."""
    known_keys = [key for key in rule.row_keys if key in facts]
    by_known_keys = Rule(rule.name, {key: rule.where[key] for key in known_keys}, "", "", "", rule.at)
    return not by_known_keys.matches(facts)


def _due(period_days: int | None, day: date) -> date | None:
    if period_days is None:
        return None
    try:
        return day + timedelta(days=period_days + 1)
    except OverflowError:
        return None
