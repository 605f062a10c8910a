"""Checks that every removal of rows is in the ledger, the plan files, the registers and the audit log."""

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import pyarrow.compute as pc

from ranklake.lake.contracts.load import contract
from ranklake.lake.plans.kinds import CANCELLATION, ERASURE, RETENTION, PlanKind, Rows, rows_effect
from ranklake.lake.plans.plan import LEDGER, DamagedPlanError, last_finished, read_plan
from ranklake.lake.tables.read import read
from ranklake.retention.proposals.approvals import missing_evidence
from ranklake.retention.proposals.erasures import CERTIFIED, ERASURES, REGISTER, ROWS, Erasure
from ranklake.retention.proposals.proposals import AnyKind, Proposal, recorded_actions
from ranklake.retention.proposals.retention_plans import DOWNSAMPLE, DOWNSAMPLED, RETENTION_PLANS, RetentionPlan

if TYPE_CHECKING:
    from ranklake.lake.store.lake import Lake
    from ranklake.lake.store.tables import Tables


@dataclass(frozen=True, slots=True)
class Removal:
    """A kind of plan that removes rows for good.

    Attributes
    ----------
    plan, proposals
        Kind of the lake's plans, and kind of the proposals that they apply.
    rows
        Returns the number of rows that a proposal removes, by table; None for tables that may be computed again, of
        which any number is accepted.
    """

    plan: PlanKind
    proposals: AnyKind
    rows: Callable[["Lake", Any], Mapping[str, int | None]]


def _retention_removals(_lake: "Lake", plan: RetentionPlan) -> Mapping[str, int | None]:
    rows: Counter[str] = Counter()
    for item in plan.items:
        rows[item.table] += item.rows
    aggregates = {DOWNSAMPLED: None} if any(item.action == DOWNSAMPLE for item in plan.items) else {}
    return {**{table: count for table, count in rows.items() if count}, **aggregates}


def _erasure_removals(_lake: "Lake", erasure: Erasure) -> Mapping[str, int | None]:
    rows: dict[str, int | None] = {}
    for item in erasure.of(ROWS):
        before = rows.get(item.table or "", 0)
        rows[item.table or ""] = None if item.content_sha256 is None or before is None else before + item.rows
    return rows


_AGGREGATES: Final = {CANCELLATION.name: {DOWNSAMPLED}}
"""Tables from which a kind of plan may remove rows: a cancellation removes the aggregates of the rows it restores."""
_REMOVALS: Final = (
    Removal(RETENTION, RETENTION_PLANS, _retention_removals),
    Removal(ERASURE, ERASURES, _erasure_removals),
)


def removal_faults(lake: "Lake") -> list[str]:
    """Return a line for each record that a removal of rows lacks: its plan file, approval, begin or end.

    Reads the ledger, the registers, the audit log, and the plan files of removals. Raises the errors of the store.
    """
    plans = read(lake.tables, contract(LEDGER), ["plan", "kind", "tables"])
    is_removal_kind = [pc.equal(plans["kind"], removal.plan.name) for removal in _REMOVALS]
    has_minus = pc.match_substring(plans["tables"], "-")  # a negative row count: the plan removed rows
    ledger = {row["plan"]: row for row in plans.filter(pc.or_kleene(has_minus, pc.or_(*is_removal_kind))).to_pylist()}
    faults = [line for removal in _REMOVALS for line in _Removals(lake, removal, ledger).faults()]
    return [*_unexpected_removals(ledger), *faults, *_unproven_erasures(lake.tables)]


def _unproven_erasures(tables: "Tables") -> Iterator[str]:
    """Yield applied erasures without a certificate: they crashed before the final search."""
    names = [erasure.name for erasure in REGISTER.applied(tables)]
    rows = read(tables, contract("audit"), ["action", "subject"]) if names else None
    proven = set() if rows is None else set(rows.filter(pc.equal(rows["action"], CERTIFIED))["subject"].to_pylist())
    for name in names:
        if name not in proven:
            yield f"{name} was applied, and nothing proves it: run 'ranklake erase apply {name} -' again"


def _removed_rows(row: Mapping[str, Any]) -> dict[str, int]:
    return {table: -rows for table, rows in json.loads(row["tables"]).items() if rows < 0}


def _head(row: Mapping[str, Any]) -> str:
    return f"plan {row['plan']} ({row['kind']}) removed {sum(_removed_rows(row).values())} rows"


def _unexpected_removals(ledger: Mapping[int, Mapping[str, Any]]) -> Iterator[str]:
    """Yield plans that removed rows although plans of their kind may not."""
    removal_kinds = {removal.plan.name for removal in _REMOVALS}
    for _, row in sorted(ledger.items()):
        if row["kind"] in removal_kinds or not _removed_rows(row).keys() - _AGGREGATES.get(row["kind"], set()):
            continue
        if rows_effect(row["kind"]) in {Rows.BROUGHT, Rows.KEPT}:
            yield f"{_head(row)}, and such a plan removes none"
        elif rows_effect(row["kind"]) is Rows.RETIRED:  # rows that checks moved to rejects are reconciled elsewhere
            yield f"{_head(row)}, and nothing says who approved that"


class _Removals:
    """The removals of one kind, in ledger, register and audit log."""

    def __init__(self, lake: "Lake", removal: Removal, ledger: Mapping[int, Mapping[str, Any]]) -> None:
        self.lake, self.removal, self.ledger = lake, removal, ledger
        self.kind = removal.proposals
        self.proposals: Mapping[str, Proposal] = self.kind.register(lake)
        self.trail = recorded_actions(lake.tables, self.kind)

    def faults(self) -> Iterator[str]:
        """Yield a line for each missing record."""
        applied = {proposal.plan: proposal for proposal in self.proposals.values() if proposal.plan is not None}
        for number, row in sorted(self.ledger.items()):
            if row["kind"] == self.removal.plan.name:
                steps = self._missing_steps(number, _removed_rows(row), applied.get(number))
                yield from (f"{_head(row)}: {step}" for step in steps)
        yield from self._register_faults()
        for name, rows in sorted(self.trail.items()):
            if self.kind.applied in rows and name not in self.proposals:
                yield f"the audit log tells that {name} was applied, and the register does not know it"

    def _missing_steps(self, number: int, removed: Mapping[str, int], proposal: Proposal | None) -> Iterator[str]:
        """Yield the records that a finished removal lacks."""
        try:
            plan = read_plan(self.lake.store, number)
            if plan is None or plan.kind != self.removal.plan.name:
                yield "its plan file is gone" if plan is None else f"its plan file is of kind {plan.kind}"
        except DamagedPlanError as error:
            yield str(error)
        if proposal is None:
            yield "the register has no plan that it applied, so nothing says who approved that"
            return
        expected = self.removal.rows(self.lake, proposal)
        counted = {table: rows for table, rows in removed.items() if expected.get(table, 0) is not None}
        rows, hint = self.trail.get(proposal.name, {}), f"run '{self.kind.to_apply(proposal.name)}' again"
        missing = missing_evidence(self.kind, proposal, self.trail)
        rules = {
            f"the items of {proposal.name} were altered": not proposal.intact,
            f"{proposal.name} names other rows": counted != {table: n for table, n in expected.items() if n},
            f"the register does not have the plan {proposal.name}": proposal.proposed is None,
            f"the register has no approval of {proposal.name}": proposal.approved is None,
            f"{proposal.name}: {missing}": bool(missing),
            f"the audit log does not say that {proposal.name} was begun": self.kind.begin not in rows,
            f"the audit log does not say that {proposal.name} was applied; {hint}": self.kind.applied not in rows,
        }
        yield from (text for text, is_broken in rules.items() if is_broken)

    def _register_faults(self) -> Iterator[str]:
        """Yield proposals that are applied by the register and not by the ledger, and altered proposals."""
        finished = last_finished(self.lake.tables) if self.proposals else 0
        for proposal in self.proposals.values():
            kind = self.ledger.get(proposal.plan or 0, {}).get("kind")
            if proposal.plan is not None and proposal.plan <= finished and kind != self.removal.plan.name:
                yield f"{proposal.name} says that plan {proposal.plan} applied it, and the ledger does not"
            elif not proposal.intact and proposal.plan is None:
                yield f"{proposal.name}: its items were altered; it cannot be applied"
