"""Rows that are due to be archived: whole partitions, or rows of them, that a rule has moved out once they are old.

What is due to be deleted, or has values that are due to be masked, is not archived by the same plan: by the next.
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
        Those that can be about the table; none where there is nothing to do.
    """

    def __init__(self, tables: "Tables", contract: "Contract", rules: "Sequence[Rule]") -> None:
        self.tables, self.contract = tables, contract
        deciding = () if contract.retention in KEPT else rules
        self.rules = tuple(one for one in deciding if one.destination is not None and one.may_match(contract))

    def due(self, as_of: date, parts_of: Callable[[date], Parts], skip: Collection[date]) -> Iterator[DuePartition]:
        """Yield the partitions that are due, or rows of them, except for some dates.

        Parameters
        ----------
        parts_of
            Tells rows of a date apart, by these rules and by legal holds.
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
        def goes_by(values: Values) -> "Rule | None":
            rule = archiving_rule(self.rules, parts.facts(values), parts.holds)
            until = None if rule is None else cutoff(rule.action_days[ACTION], as_of)
            return rule if until is not None and age < until else None

        groups = {path: some for path, some in _groups(parts, partition) if any(goes_by(one.values) for one in some)}
        rules = {rule.name: rule for some in groups.values() for one in some if (rule := goes_by(one.values))}
        if not rules:
            return None
        to = min(_place(rule) for rule in rules.values())  # what goes elsewhere goes by the next plan
        rules = {name: rule for name, rule in rules.items() if _place(rule) == to}

        def goes(values: Values) -> bool:
            rule = goes_by(values)
            return rule is not None and rule.name in rules

        every = sum(one.rows for some in groups.values() for one in some if goes_by(one.values) is not None)
        going = {
            path: due_groups
            for path, some in groups.items()
            if (due_groups := [one for one in some if goes(one.values)])
        }
        rows = sum(one.rows for some in going.values() for one in some)
        whole = rows == pc.sum(partition["num_records"]).as_py()
        touched = partition.filter(pc.is_in(partition["path"], value_set=pa.array(list(going))))
        part = {} if whole else {"part_sha256": part_digest(going)}
        ordered = [rules[name] for name in sorted(rules)]
        item = planned_item(
            self.contract,
            day,
            touched,
            as_of,
            max(one.action_days[ACTION] for one in ordered),
            reason=" ".join(dict.fromkeys(one.reason for one in ordered)),
            rule=", ".join(sorted(rules)),
            rows=rows,
            bytes=share_of_bytes(touched, going),
            archive_to=to[0],
            **part,
        )
        mask = None if whole else lambda rows: parts.mask(rows, goes)
        return DuePartition(item, touched, partition, mask, rows_left=every - rows)


def destination_of(item: Item, rules: "Sequence[Rule]") -> "Destination | None":
    """Return where an item goes, by the rules that it is due by; None where none of them says so any more."""
    names = set((item.rule or "").split(", "))
    places = [rule.destination for rule in rules if rule.name in names and rule.destination is not None]
    return next((place for place in places if place.to == item.archive_to), None)


def _groups(parts: Parts, partition: pa.Table) -> "Iterator[tuple[str, list[Group]]]":
    """Yield files with their rows as rules tell them apart; from the log where they do not."""
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
    """Yield the archives that are due, by table and date."""
    by_place: dict[tuple[str, date], list[Archive]] = {}
    for archive in archives(lake.tables):
        by_place.setdefault((archive.table, archive.partition_date), []).append(archive)
    for (table, day), group in sorted(by_place.items()):
        contract = contracts.get(table)
        if contract is None or any(hold.covers(day) and hold.rule.may_match(contract) for hold in holds):
            continue
        parts = Parts(lake, contract, policies.rules, (), runs)
        made = parts.of_table()
        longest = parts.periods()[1] if parts.columns else made.period_days
        until = cutoff(longest, as_of)
        if longest is not None and until is not None and day < until:
            yield _due(contract, day, group, made, longest, until)


def _due(
    contract: "Contract", day: date, ended: list[Archive], made: Decision, longest: int, until: date
) -> DuePartition:
    names = [one.archive for one in ended]
    item = Item(
        table=f"{ARCHIVED_ROWS}{contract.table}",
        partition_date=day,
        retention_class=contract.retention,
        period_days=longest,
        cutoff_date=until,
        rows=0,
        bytes=sum(one.bytes for one in ended),
        files=len(names),
        files_sha256=files_digest(names),
        reason="" if made.rule is None else made.rule.reason,
        rule=made.decided_by,
    )
    table = pa.table({"path": names, "date": pa.array([day] * len(names), pa.date32())})
    return DuePartition(item, table, table)
