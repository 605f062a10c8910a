"""Archives whose own time is over: no rule keeps any of their rows longer, and no legal hold may be about one.

Which rows an archive has nobody looks up: that would ask for cold storage each day. So where rules tell rows of its
table apart, it stays as long as the longest of them keeps rows.
"""

from collections.abc import Iterator, Mapping, Sequence
from datetime import date
from typing import TYPE_CHECKING

import pyarrow as pa

from ranklake.lake.tables.live_files import files_digest
from ranklake.retention.archive.register import Archive, archives
from ranklake.retention.due import Due
from ranklake.retention.parts import Parts, RunFacts
from ranklake.retention.proposals.retention_plans import Item
from ranklake.retention.proposals.retired import ARCHIVED_ROWS
from ranklake.retention.rules.order import Decision, cutoff

if TYPE_CHECKING:
    from ranklake.lake.contracts.model import Contract
    from ranklake.lake.store.store import Lake
    from ranklake.retention.hold import Hold
    from ranklake.retention.rules.policies import Policies


def ended_archives(
    lake: "Lake",
    contracts: "Mapping[str, Contract]",
    policies: "Policies",
    as_of: date,
    holds: "Sequence[Hold]",
    runs: RunFacts,
) -> Iterator[Due]:
    """Yield the archives that are due, by table and date."""
    by_place: dict[tuple[str, date], list[Archive]] = {}
    for one in archives(lake):
        by_place.setdefault((one.table, one.partition_date), []).append(one)
    for (table, day), some in sorted(by_place.items()):
        contract = contracts.get(table)
        if contract is None or any(one.covers(day) and one.rule.may_match(contract) for one in holds):
            continue
        parts = Parts(lake, contract, policies.rules, (), runs)
        made = parts.of_table()
        longest = parts.periods()[1] if parts.columns else made.period_days
        until = cutoff(longest, as_of)
        if longest is not None and until is not None and day < until:
            yield _due(contract, day, some, made, longest, until)


def _due(contract: "Contract", day: date, some: list[Archive], made: Decision, longest: int, until: date) -> Due:
    names = [one.archive for one in some]
    item = Item(
        table=f"{ARCHIVED_ROWS}{contract.table}",
        partition_date=day,
        retention_class=contract.retention,
        period_days=longest,
        cutoff_date=until,
        rows=0,
        bytes=sum(one.bytes for one in some),
        files=len(names),
        files_sha256=files_digest(names),
        reason="" if made.rule is None else made.rule.reason,
        rule=made.said_by,
    )
    table = pa.table({"path": names, "date": pa.array([day] * len(names), pa.date32())})
    return Due(item, table, table)
