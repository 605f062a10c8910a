"""Whether every removal of rows has what it must have: ledger, plan files, registers and audit trail held together."""

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
    """A way in which rows go for good.

    Attributes
    ----------
    plan, proposals
        Kinds of the lake's plans, and of the proposals that these apply.
    rows
        Returns how many rows of each table go by a proposal; of tables that may be computed again, any number.
    """

    plan: PlanKind
    proposals: AnyKind
    rows: Callable[["Lake", Any], Mapping[str, int | None]]


def _retention_removals(_lake: "Lake", plan: RetentionPlan) -> Mapping[str, int | None]:
    rows: Counter[str] = Counter()
    for item in plan.items:
        rows[item.table] += item.rows
    folds = {DOWNSAMPLED: None} if any(item.action == DOWNSAMPLE for item in plan.items) else {}
    return {**{table: count for table, count in rows.items() if count}, **folds}


def _erasure_removals(_lake: "Lake", erasure: Erasure) -> Mapping[str, int | None]:
    rows: dict[str, int | None] = {}
    for item in erasure.of(ROWS):
        before = rows.get(item.table or "", 0)
        rows[item.table or ""] = None if item.content_sha256 is None or before is None else before + item.rows
    return rows


_AGGREGATES: Final = {CANCELLATION.name: {DOWNSAMPLED}}
"""Tables of which a plan may take rows that stand for those which it brings back."""
_REMOVALS: Final = (
    Removal(RETENTION, RETENTION_PLANS, _retention_removals),
    Removal(ERASURE, ERASURES, _erasure_removals),
)


def removal_faults(lake: "Lake") -> list[str]:
    """Return what removals of rows lack, in lines; none if each has its plan, its approval, its begin and its end.

    Reads the ledger, the registers, the audit trail, and the plan files of removals. Raises what the store raises.
    """
    every = read(lake.tables, contract(LEDGER), ["plan", "kind", "tables"])
    # Of the plans of years, those that took something away: only a count below zero has a minus.
    own = [pc.equal(every["kind"], one.plan.name) for one in _REMOVALS]
    removals = every.filter(pc.or_kleene(pc.match_substring(every["tables"], "-"), pc.or_(*own)))
    ledger = {row["plan"]: row for row in removals.to_pylist()}
    removed = [line for one in _REMOVALS for line in _Removals(lake, one, ledger).lacking()]
    return [*_by_others(ledger), *removed, *_unproven_erasures(lake.tables)]


def _unproven_erasures(tables: "Tables") -> Iterator[str]:
    """Yield erasures that were applied, and that died before everything was searched again."""
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


def _by_others(ledger: Mapping[int, Mapping[str, Any]]) -> Iterator[str]:
    """Yield plans that removed rows though nobody answers for such."""
    known = {one.plan.name for one in _REMOVALS}
    for _, row in sorted(ledger.items()):
        if row["kind"] in known or not _removed_rows(row).keys() - _AGGREGATES.get(row["kind"], set()):
            continue
        if rows_effect(row["kind"]) in {Rows.BROUGHT, Rows.KEPT}:
            yield f"{_head(row)}, and such a plan removes none"
        elif rows_effect(row["kind"]) is Rows.RETIRED:  # what a check moves is in rejects, and the books know it
            yield f"{_head(row)}, and nothing says who approved that"


class _Removals:
    """Rows that went in one way, as ledger, register and trail tell it."""

    def __init__(self, lake: "Lake", way: Removal, ledger: Mapping[int, Mapping[str, Any]]) -> None:
        self.lake, self.way, self.ledger = lake, way, ledger
        self.kind = way.proposals
        self.proposals: Mapping[str, Proposal] = self.kind.register(lake)
        self.trail = recorded_actions(lake.tables, self.kind)

    def lacking(self) -> Iterator[str]:
        """Yield what removals lack."""
        applied = {proposal.plan: proposal for proposal in self.proposals.values() if proposal.plan is not None}
        for number, row in sorted(self.ledger.items()):
            if row["kind"] == self.way.plan.name:
                yield from (
                    f"{_head(row)}: {what}"
                    for what in self._missing_steps(number, _removed_rows(row), applied.get(number))
                )
        yield from self._by_register()
        for name, rows in sorted(self.trail.items()):
            if self.kind.applied in rows and name not in self.proposals:
                yield f"the audit trail tells that {name} was applied, and the register does not know it"

    def _missing_steps(self, number: int, gone: Mapping[str, int], proposal: Proposal | None) -> Iterator[str]:
        """Yield what a removal lacks that was carried out."""
        try:
            plan = read_plan(self.lake.store, number)
            if plan is None or plan.kind != self.way.plan.name:
                yield "its plan file is gone" if plan is None else f"its plan file is of kind {plan.kind}"
        except DamagedPlanError as error:
            yield str(error)
        if proposal is None:
            yield "the register has no plan that it applied, so nothing says who approved that"
            return
        expected = self.way.rows(self.lake, proposal)
        counted = {table: rows for table, rows in gone.items() if expected.get(table, 0) is not None}
        rows, again = self.trail.get(proposal.name, {}), f"run '{self.kind.to_apply(proposal.name)}' again"
        missing = missing_evidence(self.kind, proposal, self.trail)
        faults = {
            f"the items of {proposal.name} were altered": not proposal.intact,
            f"{proposal.name} names other rows": counted != {table: n for table, n in expected.items() if n},
            f"the register does not have the plan {proposal.name}": proposal.proposed is None,
            f"the register has no approval of {proposal.name}": proposal.approved is None,
            f"{proposal.name}: {missing}": bool(missing),
            f"the audit trail does not say that {proposal.name} was begun": self.kind.begin not in rows,
            f"the audit trail does not say that {proposal.name} was applied; {again}": self.kind.applied not in rows,
        }
        yield from (what for what, found in faults.items() if found)

    def _by_register(self) -> Iterator[str]:
        """Yield what the register says and the ledger does not."""
        finished = last_finished(self.lake.tables) if self.proposals else 0
        for proposal in self.proposals.values():
            kind = self.ledger.get(proposal.plan or 0, {}).get("kind")
            if proposal.plan is not None and proposal.plan <= finished and kind != self.way.plan.name:
                yield f"{proposal.name} says that plan {proposal.plan} applied it, and the ledger does not"
            elif not proposal.intact and proposal.plan is None:
                yield f"{proposal.name}: its items were altered; it cannot be applied"
