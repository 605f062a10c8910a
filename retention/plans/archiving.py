"""Rows that are due to be archived, and archives that are due to be deleted.

A plan does one action per date: rows that are due to be deleted or masked are archived by a later plan.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from datetime import date
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.compute as pc

from ranklake.lake.tables.live_files import files, files_digest
from ranklake.lake.tables.tables import latest
from ranklake.retention.archive.register import Archive, archives
from ranklake.retention.plans.due import DuePartition, ages, of_day, planned_item, share_of_bytes
from ranklake.retention.policies.model import KEPT
from ranklake.retention.policies.order import Decision, archiving_rule, cutoff
from ranklake.retention.policies.parts import Group, Parts, RunFacts, Values, part_digest
from ranklake.retention.proposals.kept import ARCHIVED_ROWS
from ranklake.retention.proposals.retention_plans import Item

if TYPE_CHECKING:
    from ranklake.lake.contracts.model import Contract
    from ranklake.lake.store.lake import Lake
    from ranklake.lake.store.tables import Tables
    from ranklake.retention.holds.hold import Hold
    from ranklake.retention.policies.model import Destination, Rule
    from ranklake.retention.policies.policies import Policies


ACTION: Final = "archive"


class Archiving:
    """The rules that archive rows of one table, and the rows that are due.

    Attributes
    ----------
    rules
        The archiving rules that can select rows of the table; empty if there is nothing to do.
    """

    def __init__(self, tables: "Tables", contract: "Contract", rules: "Sequence[Rule]") -> None:
        self.tables, self.contract = tables, contract
        candidates = () if contract.retention in KEPT else rules
        self.rules = tuple(rule for rule in candidates if rule.destination is not None and rule.may_match(contract))

    def due(self, as_of: date, parts_of: Callable[[date], Parts], skip: Collection[date]) -> Iterator[DuePartition]:
        """Yield the partitions with rows to archive, except for the dates to skip.

        Parameters
        ----------
        parts_of
            Returns these rules, with the legal holds of a date.
        """
        handle = latest(self.tables, self.contract.table) if self.rules else None
        if handle is None:
            return
        live = files(handle)
        least = cutoff(min(rule.action_days[ACTION] for rule in self.rules), as_of)
        for day, age in sorted(ages(live).items()):
            if day in skip or least is None or not age < least:
                continue
            partition = of_day(live, day)
            partition_due = self._of_day(parts_of(day), day, age, partition, as_of)
            if partition_due is not None:
                yield partition_due

    def _of_day(self, parts: Parts, day: date, age: date, partition: pa.Table, as_of: date) -> DuePartition | None:
        """Return the rows of a date for one destination, the first in order; None if no row is due."""

        def due_rule(values: Values) -> "Rule | None":
            rule = archiving_rule(self.rules, parts.facts(values), parts.holds)
            limit = None if rule is None else cutoff(rule.action_days[ACTION], as_of)
            return rule if limit is not None and age < limit else None

        groups_by_path = dict(_groups(parts, partition))
        due_groups = [group for groups in groups_by_path.values() for group in groups if due_rule(group.values)]
        rules = {rule.name: rule for group in due_groups if (rule := due_rule(group.values))}
        if not rules:
            return None
        to = min(_place(rule) for rule in rules.values())  # later plans archive to the other destinations
        rules = {name: rule for name, rule in rules.items() if _place(rule) == to}

        def is_selected(values: Values) -> bool:
            rule = due_rule(values)
            return rule is not None and rule.name in rules

        selected = {
            path: selected_groups
            for path, groups in groups_by_path.items()
            if (selected_groups := [group for group in groups if is_selected(group.values)])
        }
        rows = sum(group.rows for groups in selected.values() for group in groups)
        is_whole = rows == pc.sum(partition["num_records"]).as_py()
        files = partition.filter(pc.is_in(partition["path"], value_set=pa.array(list(selected))))
        part = {} if is_whole else {"part_sha256": part_digest(selected)}
        ordered = [rules[name] for name in sorted(rules)]
        item = planned_item(
            self.contract,
            day,
            files,
            as_of,
            max(rule.action_days[ACTION] for rule in ordered),
            reason=" ".join(dict.fromkeys(rule.reason for rule in ordered)),
            rule=", ".join(sorted(rules)),
            rows=rows,
            bytes=share_of_bytes(files, selected),
            archive_to=to[0],
            **part,
        )
        select_rows = None if is_whole else lambda rows: parts.mask(rows, is_selected)
        rows_left = sum(group.rows for group in due_groups) - rows
        return DuePartition(item, files, partition, select_rows, rows_left=rows_left)


def destination_of(item: Item, rules: "Sequence[Rule]") -> "Destination | None":
    """Return the destination of an item, from the rules that it names; None if no rule has its destination any more."""
    names = set((item.rule or "").split(", "))
    places = [rule.destination for rule in rules if rule.name in names and rule.destination is not None]
    return next((place for place in places if place.to == item.archive_to), None)


def _groups(parts: Parts, partition: pa.Table) -> "Iterator[tuple[str, list[Group]]]":
    """Yield path and groups of rows for each file; one group per file, from the Delta log, if rules select all rows."""
    if parts.columns:
        yield from parts.groups(partition)
        return
    for row in partition.select(["path", "num_records"]).to_pylist():
        yield row["path"], [Group((), row["num_records"])]


def _place(rule: "Rule") -> tuple[str, str, str, bool]:
    place = rule.destination
    assert place is not None
    return (place.to, place.storage_class or "", place.tag or "", place.free)


def ended_archives(
    lake: "Lake",
    contracts: "Mapping[str, Contract]",
    policies: "Policies",
    as_of: date,
    holds: "Sequence[Hold]",
    runs: RunFacts,
) -> Iterator[DuePartition]:
    """Yield the archives that are due to be deleted, by table and date."""
    by_place: dict[tuple[str, date], list[Archive]] = {}
    for archive in archives(lake.tables):
        by_place.setdefault((archive.table, archive.partition_date), []).append(archive)
    for (table, day), group in sorted(by_place.items()):
        contract = contracts.get(table)
        if contract is None or any(hold.covers(day) and hold.rule.may_match(contract) for hold in holds):
            continue
        parts = Parts(lake, contract, policies.rules, (), runs)
        decision = parts.of_table()
        longest_days = parts.periods()[1] if parts.columns else decision.period_days
        limit = cutoff(longest_days, as_of)
        if longest_days is not None and limit is not None and day < limit:
            yield _due(contract, day, group, decision, longest_days, limit)


def _due(
    contract: "Contract", day: date, ended: list[Archive], decision: Decision, period_days: int, limit: date
) -> DuePartition:
    names = [archive.archive for archive in ended]
    item = Item(
        table=f"{ARCHIVED_ROWS}{contract.table}",
        partition_date=day,
        retention_class=contract.retention,
        period_days=period_days,
        cutoff_date=limit,
        rows=0,
        bytes=sum(archive.bytes for archive in ended),
        files=len(names),
        files_sha256=files_digest(names),
        reason="" if decision.rule is None else decision.rule.reason,
        rule=decision.decided_by,
    )
    table = pa.table({"path": names, "date": pa.array([day] * len(names), pa.date32())})
    return DuePartition(item, table, table)
