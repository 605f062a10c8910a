"""What is due: partitions, rows and values of them that are older than their rules allow, as a plan named by a digest.

A partition of which all rows have the same rules, or are due by any of them, is reported from the log alone; else
`ranklake.retention.policies.parts` tells its rows apart.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from datetime import date
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from ranklake.lake.audit.trail import record
from ranklake.lake.plans.driver import finish
from ranklake.lake.plans.kinds import RETENTION
from ranklake.lake.plans.workers import InProcess
from ranklake.lake.store.governance import RAW
from ranklake.lake.tables.live_files import files, files_digest
from ranklake.lake.tables.tables import latest
from ranklake.retention.holds.hold import Hold
from ranklake.retention.holds.holds import holds_of
from ranklake.retention.plans.archiving import Archiving, ended_archives
from ranklake.retention.plans.downsample import due_partitions
from ranklake.retention.plans.due import (
    OF_NOBODY,
    DuePartition,
    ages,
    by_day,
    of_day,
    planned_item,
    raw_bytes,
    share_of_bytes,
)
from ranklake.retention.plans.masks import MASKING, Masks
from ranklake.retention.policies.model import table_facts
from ranklake.retention.policies.order import Decision, cutoff, decide
from ranklake.retention.policies.parts import Group, Parts, RunFacts, Values, part_digest, run_facts
from ranklake.retention.policies.policies import PolicyError
from ranklake.retention.proposals.approvals import approval_count
from ranklake.retention.proposals.kept import kept_raw
from ranklake.retention.proposals.retention_plans import (
    MOST_TIMES,
    RETENTION_PLANS,
    Item,
    RetentionPlan,
    add_entry,
    plan_name,
    register,
)

PLANNED: Final = "retention.plan"
"""Action of the audit log's row that says which account made a plan."""

if TYPE_CHECKING:
    from ranklake.lake.contracts.model import Contract
    from ranklake.lake.store.lake import Lake
    from ranklake.lake.store.tables import Tables
    from ranklake.retention.policies.policies import Policies


def make_plan(
    lake: "Lake", contracts: "Mapping[str, Contract]", policies: "Policies", as_of: date, account: str | None = None
) -> RetentionPlan | None:
    """Plan what is due and write the plan down; None if nothing is.

    Parameters
    ----------
    contracts
        All tables; those that the lake does not have are passed over.
    as_of
        The day to plan for. A day to come shows what will be due then; such a plan cannot be applied before.
    account
        Account that runs this: a new plan gets a row of the audit log with it. It is not the plan's author, who may
        not approve it (`ranklake.retention.proposals.lifecycle.propose`). None leaves no row.

    Equal items make the same plan, which is written once; what is returned says what became of it so far. Raises
    `ranklake.retention.policies.policies.PolicyError` where a rule asks for more approvers than approvals take.
    """
    finish(lake, RETENTION, InProcess())  # what an application that died left half done
    items = tuple(one.item for one in due(lake, contracts, policies, as_of))
    if not items:
        return None
    known = register(lake.tables)
    names = (plan_name(items, times) for times in range(MOST_TIMES))
    name = next(one for one in names if one not in known or known[one].cancelled is None)
    plan = RetentionPlan(name, items, policies.sha256)
    refuse_low_tier(lake, plan, policies)
    add_entry(lake.tables, plan, None, "plan")
    if account is not None:  # also where the plan was there: who planned before may have died in between
        facts = {"as_of": as_of.isoformat(), "items": len(items), "rows": sum(item.rows for item in items)}
        record(lake, account, PLANNED, plan.name, None, facts, once=True)
    return RETENTION_PLANS.find(lake, plan.name)


def refuse_low_tier(lake: "Lake", plan: "RetentionPlan", policies: "Policies") -> None:
    """Raise `PolicyError` where a rule that decides asks for more approvers than the lake's approvals take.

    Names that nobody checks are not counted, so a rule of a tier above 1 needs signed approvals.
    """
    names = {name for item in plan.items for name in (item.rule or "").split(", ")}
    takes = approval_count(lake.config.approvals, RETENTION_PLANS.action, plan.risk).approvers
    for rule in policies.rules:
        if rule.name in names and rule.tier > takes:
            message = f"rule {rule.name!r} asks for {rule.tier} approvers, and approvals here take {takes}"
            hint = "sign approvals, and ask for as many under [[approvals.tiers]]; nothing was changed"
            raise PolicyError(message, where=str(rule.at), hint=hint)


def due(lake: "Lake", contracts: "Mapping[str, Contract]", policies: "Policies", as_of: date) -> Iterator[DuePartition]:
    """Yield what is due, by table and date. After the tables come raw bytes in quarantine, whose files are digests.

    What a legal hold is about on that day is not due.
    """
    yield from due_but_for(lake, contracts, policies, as_of, holds_of(lake, as_of))


def due_but_for(
    lake: "Lake", contracts: "Mapping[str, Contract]", policies: "Policies", as_of: date, holds: Sequence[Hold]
) -> Iterator[DuePartition]:
    """Yield what is past its period, minus what some legal holds are about; see `due`."""
    runs, applied = (
        run_facts(lake.tables, [*policies.rules, *(hold.rule for hold in holds)]),
        _masked_before(lake.tables, policies),
    )
    for contract in contracts.values():
        going: set[date] = set()
        for stage in _stages(lake, contract, policies, as_of, holds, runs, applied):
            for partition in stage(going):
                going.add(partition.item.partition_date)
                yield partition
    yield from ended_archives(lake, contracts, policies, as_of, holds, runs)
    yield from _due_raw(lake, contracts, policies, as_of, holds)


Stage = Callable[[Collection[date]], Iterator[DuePartition]]
"""Given dates to pass over, yields what is due of a table in one way."""


def _stages(
    lake: "Lake",
    contract: "Contract",
    policies: "Policies",
    as_of: date,
    holds: Sequence[Hold],
    runs: RunFacts,
    applied: Sequence[RetentionPlan],
) -> Iterator[Stage]:
    """Yield what deletes rows of a table, downsamples, masks and archives them, in the order of what comes first."""
    unheld = Parts(lake, contract, policies.rules, (), runs)
    if unheld.columns or unheld.of_table().period_days is not None:
        yield lambda skip: (
            one
            for one in _due_in(lake.tables, contract, as_of, by_day(unheld, holds))
            if one.item.partition_date not in skip
        )
    yield lambda skip: due_partitions(lake.tables, contract, policies.rules, holds, as_of, skip)
    masks = Masks(lake, contract, policies.rules, applied)
    if masks.columns:
        of_masks = Parts(lake, contract, masks.rules, (), runs)
        yield lambda skip: masks.due(as_of, by_day(of_masks, holds), skip)
    archiving = Archiving(lake.tables, contract, policies.rules)
    if archiving.rules:
        of_archives = Parts(lake, contract, archiving.rules, (), runs)
        yield lambda skip: archiving.due(as_of, by_day(of_archives, holds), skip)


def _masked_before(tables: "Tables", policies: "Policies") -> list[RetentionPlan]:
    """Return the applied plans where policies mask: what one masked is not due again."""
    masking = any(MASKING in rule.action_days for rule in policies.rules)
    return [one for one in register(tables).values() if one.holds] if masking else []


def left_for_next(
    lake: "Lake", contracts: "Mapping[str, Contract]", policies: "Policies", as_of: date
) -> dict[str, list[date]]:
    """Return by table the dates of which more is due than one plan takes: it does one thing to a date."""
    holds = holds_of(lake, as_of)
    runs, applied = (
        run_facts(lake.tables, [*policies.rules, *(hold.rule for hold in holds)]),
        _masked_before(lake.tables, policies),
    )
    left: dict[str, set[date]] = {}
    for contract in contracts.values():
        going: set[date] = set()
        gone: set[date] = set()
        for stage in _stages(lake, contract, policies, as_of, holds, runs, applied):
            for partition in stage(gone):
                day, item = partition.item.partition_date, partition.item
                if day in going or partition.rows_left:
                    left.setdefault(contract.table, set()).add(day)
                going.add(day)
                if item.part_sha256 is None:  # all rows go
                    gone.add(day)
    return {table: sorted(days) for table, days in left.items()}


def held_rows(lake: "Lake", contracts: "Mapping[str, Contract]", policies: "Policies", as_of: date) -> dict[str, int]:
    """Return how many rows of each table are past their period and on hold; empty where nothing is."""
    if not holds_of(lake, as_of):
        return {}
    counts: Counter[str] = Counter()
    for partition in due_but_for(lake, contracts, policies, as_of, ()):
        counts[partition.item.table] += partition.item.rows
    for partition in due(lake, contracts, policies, as_of):
        counts[partition.item.table] -= partition.item.rows
    return {table: rows for table, rows in counts.items() if rows}


def _due_in(
    tables: "Tables", contract: "Contract", as_of: date, parts_of: Callable[[date], Parts]
) -> Iterator[DuePartition]:
    """Yield what is due of a table, whose dates may have other holds, and so other `Parts`, each."""
    handle = latest(tables, contract.table)
    if handle is None:
        return
    live = files(handle)
    for day, age in sorted(ages(live).items()):
        parts = parts_of(day)
        shortest, longest = parts.periods()
        least, most = cutoff(shortest, as_of), cutoff(longest, as_of)
        if least is None or not age < least:  # before the one rows may be due, before the other all are
            continue
        partition = of_day(live, day)
        if parts.columns and (most is None or not age < most):
            yield from _part(parts, day, age, partition, as_of)
        elif parts.of_table().period_days is not None:
            yield _whole_partition(parts, day, partition, as_of, [parts.of_table()])


def _part(parts: Parts, day: date, age: date, partition: pa.Table, as_of: date) -> Iterator[DuePartition]:
    """Yield what is due of a partition whose rows have to be distinguished."""

    def goes(values: Values) -> bool:
        until = parts.of(values).cutoff(as_of)
        return until is not None and age < until

    going: dict[str, list[Group]] = {}
    for path, groups in parts.groups(partition, goes):
        if due_groups := [group for group in groups if goes(group.values)]:
            going[path] = due_groups
    if not going:
        return
    decisions = [parts.of(group.values) for some in going.values() for group in some]
    rows = sum(group.rows for some in going.values() for group in some)
    if rows == pc.sum(partition["num_records"]).as_py():
        yield _whole_partition(parts, day, partition, as_of, decisions)
        return
    touched = partition.filter(pc.is_in(partition["path"], value_set=pa.array(list(going))))
    part = {"rows": rows, "bytes": share_of_bytes(touched, going), "part_sha256": part_digest(going)}
    yield DuePartition(
        _item(parts, day, touched, as_of, decisions, **part),
        touched,
        partition,
        lambda rows: parts.mask(rows, goes),
    )


def _whole_partition(
    parts: Parts, day: date, partition: pa.Table, as_of: date, decisions: list[Decision]
) -> DuePartition:
    return DuePartition(_item(parts, day, partition, as_of, decisions), partition, partition)


def _item(
    parts: Parts,
    day: date,
    files: pa.Table,
    as_of: date,
    decisions: list[Decision],
    **part: Any,  # noqa: ANN401 - as of `planned_item`
) -> Item:
    by_rule = {decision.decided_by: decision for decision in decisions}
    period_days = max(one.period_days or 0 for one in by_rule.values())
    reasons = dict.fromkeys(one.rule.reason for _, one in sorted(by_rule.items()) if one.rule is not None)
    rule = ", ".join(sorted(by_rule))
    return planned_item(parts.contract, day, files, as_of, period_days, reason=" ".join(reasons), rule=rule, **part)


def _due_raw(
    lake: "Lake", contracts: "Mapping[str, Contract]", policies: "Policies", as_of: date, holds: Sequence[Hold]
) -> Iterator[DuePartition]:
    """Yield the raw bytes in quarantine that are due, by the rules of their table and the date they came.

    Whose rows they hold nobody can read: a hold on any rows of a table holds them.
    """
    waiting = pa.array(sorted(kept_raw(lake.tables)), pa.string())  # which went already, and can be cancelled yet
    for table, day, every in raw_bytes(lake):
        contract = contracts.get(table)
        files = every.filter(pc.invert(pc.is_in(every["path"], value_set=waiting)))
        if not files.num_rows:
            continue
        if any(contract is None or hold.rule.may_match(contract) for hold in holds):
            continue
        facts = {"class": frozenset({OF_NOBODY})} if contract is None else table_facts(contract)
        made = decide(policies.rules, facts)
        until = made.cutoff(as_of)
        if until is None or day >= until or made.rule is None:
            continue
        assert made.period_days is not None
        item = Item(
            table=f"{RAW}{table}",
            partition_date=day,
            retention_class=OF_NOBODY if contract is None else contract.retention,
            period_days=made.period_days,
            cutoff_date=until,
            rows=0,
            bytes=int(pc.sum(files["size_bytes"]).as_py() or 0),
            files=files.num_rows,
            files_sha256=files_digest(files["path"].to_pylist()),
            reason=made.rule.reason,
            rule=made.rule.name,
        )
        yield DuePartition(item, files, files)
