"""Makes retention plans: finds the partitions, rows and values that are past their periods.

If the same rules apply to all rows of a partition, or all of them are due anyway, the Delta log is enough to plan the
partition. Otherwise `ranklake.retention.policies.parts` reads the columns that rules select by.
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
    UNKNOWN_CLASS,
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
"""Action of the audit row with the account that made a plan."""

if TYPE_CHECKING:
    from ranklake.lake.contracts.model import Contract
    from ranklake.lake.store.lake import Lake
    from ranklake.lake.store.tables import Tables
    from ranklake.retention.policies.policies import Policies


def make_plan(
    lake: "Lake", contracts: "Mapping[str, Contract]", policies: "Policies", as_of: date, account: str | None = None
) -> RetentionPlan | None:
    """Find what is due and write it into the register as a plan; return the plan, or None if nothing is due.

    Parameters
    ----------
    contracts
        Contracts of all tables, by table. Tables that do not exist in the lake are skipped.
    as_of
        The day to plan for. A plan for a future day can only be applied from that day on.
    account
        Account for the audit row of a new plan; None writes no row. The account is not the plan's author, who may not
        approve it (`ranklake.retention.proposals.lifecycle.propose`).

    Equal items give the same plan, which is written once. Raises
    `ranklake.retention.policies.policies.PolicyError` if a rule needs more approvers than the lake's approvals require.
    """
    finish(lake, RETENTION, InProcess())  # an application that crashed
    items = tuple(partition.item for partition in due(lake, contracts, policies, as_of))
    if not items:
        return None
    plans = register(lake.tables)
    names = (plan_name(items, times) for times in range(MOST_TIMES))
    name = next(name for name in names if name not in plans or plans[name].cancelled is None)
    plan = RetentionPlan(name, items, policies.sha256)
    refuse_low_tier(lake, plan, policies)
    add_entry(lake.tables, plan, None, "plan")
    if account is not None:  # also for an existing plan: its process may have crashed before the audit row
        facts = {"as_of": as_of.isoformat(), "items": len(items), "rows": sum(item.rows for item in items)}
        record(lake, account, PLANNED, plan.name, None, facts, once=True)
    return RETENTION_PLANS.find(lake, plan.name)


def refuse_low_tier(lake: "Lake", plan: "RetentionPlan", policies: "Policies") -> None:
    """Raise `PolicyError` if a rule that decides needs more approvers than the lake's approvals require.

    An unsigned lake requires one approver, so a rule with a tier above 1 needs signed approvals.
    """
    names = {name for item in plan.items for name in (item.rule or "").split(", ")}
    approvers = approval_count(lake.config.approvals, RETENTION_PLANS.action, plan.risk).approvers
    for rule in policies.rules:
        if rule.name in names and rule.tier > approvers:
            message = f"rule {rule.name!r} asks for {rule.tier} approvers, and approvals here take {approvers}"
            hint = "sign approvals, and ask for as many under [[approvals.tiers]]; nothing was changed"
            raise PolicyError(message, where=str(rule.at), hint=hint)


def due(lake: "Lake", contracts: "Mapping[str, Contract]", policies: "Policies", as_of: date) -> Iterator[DuePartition]:
    """Yield what is due on a day, by table and date, minus what is on legal hold on that day.

    After the tables come archives, and raw bytes in quarantine, whose files are named by digests.
    """
    yield from due_under_holds(lake, contracts, policies, as_of, holds_of(lake, as_of))


def due_under_holds(
    lake: "Lake", contracts: "Mapping[str, Contract]", policies: "Policies", as_of: date, holds: Sequence[Hold]
) -> Iterator[DuePartition]:
    """Yield what is past its period, minus what the given legal holds cover; see `due`."""
    runs, applied = (
        run_facts(lake.tables, [*policies.rules, *(hold.rule for hold in holds)]),
        _masked_before(lake.tables, policies),
    )
    for contract in contracts.values():
        due_dates: set[date] = set()
        for stage in _stages(lake, contract, policies, as_of, holds, runs, applied):
            for partition in stage(due_dates):
                due_dates.add(partition.item.partition_date)
                yield partition
    yield from ended_archives(lake, contracts, policies, as_of, holds, runs)
    yield from _due_raw(lake, contracts, policies, as_of, holds)


Stage = Callable[[Collection[date]], Iterator[DuePartition]]
"""Yields the partitions of a table that are due for one action; takes the dates to skip."""


def _stages(
    lake: "Lake",
    contract: "Contract",
    policies: "Policies",
    as_of: date,
    holds: Sequence[Hold],
    runs: RunFacts,
    applied: Sequence[RetentionPlan],
) -> Iterator[Stage]:
    """Yield the stages of a table in order of priority: delete, downsample, mask, archive."""
    parts = Parts(lake, contract, policies.rules, (), runs)
    if parts.columns or parts.of_table().period_days is not None:
        yield lambda skip: (
            partition
            for partition in _due_in(lake.tables, contract, as_of, by_day(parts, holds))
            if partition.item.partition_date not in skip
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
    """Return the applied plans if a rule masks, since values that they masked are not due again."""
    masks_values = any(MASKING in rule.action_days for rule in policies.rules)
    return [plan for plan in register(tables).values() if plan.holds] if masks_values else []


def left_for_next(
    lake: "Lake", contracts: "Mapping[str, Contract]", policies: "Policies", as_of: date
) -> dict[str, list[date]]:
    """Return, by table, the dates with more than one action due. A plan does one action per date."""
    holds = holds_of(lake, as_of)
    runs, applied = (
        run_facts(lake.tables, [*policies.rules, *(hold.rule for hold in holds)]),
        _masked_before(lake.tables, policies),
    )
    dates: dict[str, set[date]] = {}
    for contract in contracts.values():
        due_dates: set[date] = set()
        removed_dates: set[date] = set()
        for stage in _stages(lake, contract, policies, as_of, holds, runs, applied):
            for partition in stage(removed_dates):
                day, item = partition.item.partition_date, partition.item
                if day in due_dates or partition.rows_left:
                    dates.setdefault(contract.table, set()).add(day)
                due_dates.add(day)
                if item.part_sha256 is None:  # all rows are removed
                    removed_dates.add(day)
    return {table: sorted(days) for table, days in dates.items()}


def held_rows(lake: "Lake", contracts: "Mapping[str, Contract]", policies: "Policies", as_of: date) -> dict[str, int]:
    """Return the number of rows that are past their period and on hold, by table."""
    if not holds_of(lake, as_of):
        return {}
    counts: Counter[str] = Counter()
    for partition in due_under_holds(lake, contracts, policies, as_of, ()):
        counts[partition.item.table] += partition.item.rows
    for partition in due(lake, contracts, policies, as_of):
        counts[partition.item.table] -= partition.item.rows
    return {table: rows for table, rows in counts.items() if rows}


def _due_in(
    tables: "Tables", contract: "Contract", as_of: date, parts_of: Callable[[date], Parts]
) -> Iterator[DuePartition]:
    """Yield the partitions of a table with rows to delete. `parts_of` returns the rules and holds of a date."""
    handle = latest(tables, contract.table)
    if handle is None:
        return
    live = files(handle)
    for day, age in sorted(ages(live).items()):
        parts = parts_of(day)
        shortest, longest = parts.periods()
        least, most = cutoff(shortest, as_of), cutoff(longest, as_of)
        if least is None or not age < least:  # rows before `least` may be due, rows before `most` are
            continue
        partition = of_day(live, day)
        if parts.columns and (most is None or not age < most):
            yield from _due_part(parts, day, age, partition, as_of)
        elif parts.of_table().period_days is not None:
            yield _whole_partition(parts, day, partition, as_of, [parts.of_table()])


def _due_part(parts: Parts, day: date, age: date, partition: pa.Table, as_of: date) -> Iterator[DuePartition]:
    """Yield the due rows of a partition whose rows have different rules."""

    def is_due(values: Values) -> bool:
        limit = parts.of(values).cutoff(as_of)
        return limit is not None and age < limit

    due_groups: dict[str, list[Group]] = {}
    for path, groups in parts.groups(partition, is_due):
        if groups_of_file := [group for group in groups if is_due(group.values)]:
            due_groups[path] = groups_of_file
    if not due_groups:
        return
    decisions = [parts.of(group.values) for groups in due_groups.values() for group in groups]
    rows = sum(group.rows for groups in due_groups.values() for group in groups)
    if rows == pc.sum(partition["num_records"]).as_py():
        yield _whole_partition(parts, day, partition, as_of, decisions)
        return
    files = partition.filter(pc.is_in(partition["path"], value_set=pa.array(list(due_groups))))
    facts = {"rows": rows, "bytes": share_of_bytes(files, due_groups), "part_sha256": part_digest(due_groups)}
    item = _item(parts, day, files, as_of, decisions, **facts)
    yield DuePartition(item, files, partition, lambda rows: parts.mask(rows, is_due))


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
    **facts: Any,  # noqa: ANN401 - as in `planned_item`
) -> Item:
    by_rule = {decision.decided_by: decision for decision in decisions}
    period_days = max(decision.period_days or 0 for decision in by_rule.values())
    ordered = [by_rule[name] for name in sorted(by_rule)]
    reasons = dict.fromkeys(decision.rule.reason for decision in ordered if decision.rule is not None)
    rule = ", ".join(sorted(by_rule))
    return planned_item(parts.contract, day, files, as_of, period_days, reason=" ".join(reasons), rule=rule, **facts)


def _due_raw(
    lake: "Lake", contracts: "Mapping[str, Contract]", policies: "Policies", as_of: date, holds: Sequence[Hold]
) -> Iterator[DuePartition]:
    """Yield the raw bytes in quarantine that are due, by the rules of their table and the date of their arrival.

    Their rows are unreadable, so a hold on any rows of the table covers them.
    """
    removed = pa.array(sorted(kept_raw(lake.tables)), pa.string())  # in days of grace
    for table, day, raw_files in raw_bytes(lake):
        contract = contracts.get(table)
        files = raw_files.filter(pc.invert(pc.is_in(raw_files["path"], value_set=removed)))
        if not files.num_rows:
            continue
        if any(contract is None or hold.rule.may_match(contract) for hold in holds):
            continue
        facts = {"class": frozenset({UNKNOWN_CLASS})} if contract is None else table_facts(contract)
        decision = decide(policies.rules, facts)
        limit = decision.cutoff(as_of)
        if limit is None or day >= limit or decision.rule is None:
            continue
        assert decision.period_days is not None
        item = Item(
            table=f"{RAW}{table}",
            partition_date=day,
            retention_class=UNKNOWN_CLASS if contract is None else contract.retention,
            period_days=decision.period_days,
            cutoff_date=limit,
            rows=0,
            bytes=int(pc.sum(files["size_bytes"]).as_py() or 0),
            files=files.num_rows,
            files_sha256=files_digest(files["path"].to_pylist()),
            reason=decision.rule.reason,
            rule=decision.rule.name,
        )
        yield DuePartition(item, files, files)
