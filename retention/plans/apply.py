"""Approves and applies retention plans: exactly what was planned goes, once, and the audit log says who and why.

What every proposal asks for, and what audit log and register get, is `ranklake.retention.proposals.lifecycle`. Here
stands what is retention's: whether what was planned is still there and due, and the numbered plan that drops its files.
Where rows or values of a date go, it puts files in their place that lack them. It deletes the bytes at once, or keeps
them for the days of grace in which it can be cancelled (`ranklake.retention.plans.cancel`). Rows that are archived are
copied before.
"""

from datetime import UTC, date, datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from ranklake.lake.audit import clock
from ranklake.lake.plans import action_plan
from ranklake.lake.plans.action_plan import ARCHIVES, ENDED, FOLDED, MASKED, QUARANTINED
from ranklake.lake.plans.kinds import RETENTION
from ranklake.lake.plans.plan import row_files
from ranklake.lake.plans.rules import GRACE
from ranklake.lake.store.files import refuse_fast
from ranklake.lake.store.governance import RAW
from ranklake.lake.tables.parquet import append_files
from ranklake.lake.tables.table_schema import as_read
from ranklake.lake.tables.tables import latest
from ranklake.retention.archive.register import TABLE as ARCHIVES_TABLE
from ranklake.retention.archive.writing import ArchiveWriter, WrittenArchive, archived_rows, copy_anew, ended_rows
from ranklake.retention.plans.archiving import destination_of
from ranklake.retention.plans.downsample import write_aggregates
from ranklake.retention.plans.due import DuePartition
from ranklake.retention.plans.plan import due, refuse_low_tier
from ranklake.retention.proposals import lifecycle
from ranklake.retention.proposals.identities import NOT_SIGNING, Signing
from ranklake.retention.proposals.kept import ARCHIVED_ROWS, as_files, kept_plans
from ranklake.retention.proposals.proposals import VoidProposalError
from ranklake.retention.proposals.registers import with_time
from ranklake.retention.proposals.retention_plans import (
    RETENTION_PLANS,
    TABLE,
    Item,
    RetentionPlan,
    head_row,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from ranklake.lake.contracts.model import Contract
    from ranklake.lake.plans.plan import Plan
    from ranklake.lake.store.lake import Lake
    from ranklake.lake.tables.live_files import DataFile
    from ranklake.retention.policies.model import Destination
    from ranklake.retention.policies.policies import Policies
    from ranklake.retention.proposals.lifecycle import WritePlan


approve = lifecycle.approving(RETENTION_PLANS)
"""Approves one; see `ranklake.retention.proposals.lifecycle.approve`."""


def apply(
    lake: "Lake",
    name: str,
    by: str,
    contracts: "Mapping[str, Contract]",
    policies: "Policies",
    today: date | None = None,
    *,
    single_operator: bool = False,
    signing: Signing = NOT_SIGNING,
) -> tuple[RetentionPlan, bool]:
    """Remove what an approved plan names, bytes and all; return the plan, and whether this call did it.

    A plan that was applied already is left as it is. Raises what `ranklake.retention.proposals.lifecycle.apply` does;
    `VoidProposalError` where a partition has other files or other due rows than planned, or is not due (any more, or
    yet) under the policies of today, and `ranklake.lake.store.files.FastClockError`. Nothing was changed then.

    Parameters
    ----------
    single_operator
        Whether who approved the plan may apply it; the register and the trail then say so.
    signing
        What signs, where approvals are signed.
    """
    if today is None:
        refuse_fast(lake.store)
    day = today or datetime.now(UTC).date()
    copy_anew(lake)

    def check(plan: RetentionPlan) -> "WritePlan":
        partitions = _due(lake, plan, contracts, policies, day)
        places = [_destination(plan, partition.item, policies) for partition in partitions]
        return partial(_write, lake, plan, by, partitions, places, policies.grace_days)

    return lifecycle.apply(lake, RETENTION_PLANS, name, by, check, single_operator=single_operator, signing=signing)


def _due(
    lake: "Lake", plan: RetentionPlan, contracts: "Mapping[str, Contract]", policies: "Policies", today: date
) -> list[DuePartition]:
    """Return what the plan's items are now. Raises `VoidProposalError` where they are something else."""
    now = {
        (partition.item.table, partition.item.partition_date): partition
        for partition in due(lake, contracts, policies, today)
    }
    refuse_low_tier(lake, plan, policies)
    partitions = []
    for item in plan.items:
        current = now.get((item.table, item.partition_date))
        if current is None:
            raise _void(plan, item, "is not due under the policies of today, or is gone")
        if current.item.files_sha256 != item.files_sha256:
            raise _void(plan, item, "has other files than planned")
        if current.item.part_sha256 != item.part_sha256:
            raise _void(plan, item, "has other rows that are due than planned")
        if current.item.archive_to != item.archive_to:
            raise _void(plan, item, "is archived elsewhere under the policies of today")
        partitions.append(current)
    return partitions


def _destination(plan: RetentionPlan, item: Item, policies: "Policies") -> "Destination | None":
    """Return where an item is archived, by the policies of today; None where it is not."""
    destination = destination_of(item, policies.rules)
    if item.archive_to is not None and destination is None:
        raise _void(plan, item, "is archived by another rule under the policies of today")
    return destination


def _void(plan: RetentionPlan, item: Item, what: str) -> VoidProposalError:
    return VoidProposalError(RETENTION_PLANS, plan.name, what, f"{item.table} {item.partition_date}")


def _write(
    lake: "Lake",
    plan: RetentionPlan,
    by: str,
    partitions: list[DuePartition],
    places: "list[Destination | None]",
    grace_days: int,
    number: int,
    *,
    alone: bool,
) -> "Plan":
    drop: dict[str, list[pa.Table]] = {}
    live: dict[str, list[pa.Table]] = {}
    beside: dict[str, list[pa.Table]] = {}
    new: list[DataFile] = []
    masked: dict[str, list[str]] = {}
    folded: dict[str, list[str]] = {}
    aside: dict[str, list[DataFile]] = {}
    written: list[WrittenArchive] = []
    aggregates = iter(
        write_aggregates(lake, [partition for partition in partitions if partition.aggregates is not None], number)
    )
    for partition, place in zip(partitions, places, strict=True):
        table = partition.item.table
        if table.startswith((RAW, ARCHIVED_ROWS)):
            beside.setdefault(table, []).append(partition.files)
            continue
        drop.setdefault(table, []).append(partition.files)
        live.setdefault(table, []).append(partition.live)
        writer = None if place is None else ArchiveWriter(lake, partition.item, place, plan.name, number)
        if writer is not None and partition.goes is None:
            writer.copy(partition.files)
        if partition.goes is not None:
            new += _rewrite_partition(
                lake, plan, partition, number, writer, aside.setdefault(table, []) if grace_days else None
            )
        if partition.masked is not None:
            new += action_plan.change_rows(lake.tables, lake.contract(table), number, partition.files, partition.masked)
            masked.setdefault(table, []).append(partition.item.partition_date.isoformat())
        if partition.aggregates is not None:
            new += next(aggregates)
            folded.setdefault(table, []).append(partition.item.partition_date.isoformat())
        written += [] if writer is None else [writer.done()]
    until = clock.now() + timedelta(days=grace_days) if grace_days else None
    row = head_row(plan, "application", by, number, single_operator=alone, kept_until=until)
    new += row_files(lake.store, TABLE, with_time([row]), number)
    raw = _by_date(plan, {table: some for table, some in beside.items() if table.startswith(RAW)})
    ended = _by_date(plan, {table: some for table, some in beside.items() if table.startswith(ARCHIVED_ROWS)})
    if entries := [*archived_rows(written), *ended_rows(lake.tables, ended, plan.name, number)]:
        new += row_files(lake.store, ARCHIVES_TABLE, with_time(entries), number)
    archived: dict[str, dict[str, str]] = {}
    for made in written:
        archived.setdefault(made.manifest.table, {})[str(made.manifest.partition_date)] = made.manifest.sha256
    own = {QUARANTINED: raw, MASKED: masked, FOLDED: folded, ARCHIVES: archived, ENDED: ended}
    facts = {"retention_plan": plan.name, **own, **({} if until is None else {GRACE: _grace(lake, until, drop, aside)})}
    gone = {table: pa.concat_tables(some, promote_options="default") for table, some in drop.items()}
    others = [file for other in kept_plans(lake.tables) for file in other.files]  # which stay, too
    there = {
        table: pa.concat_tables(
            [*some, as_files(file for file in others if file.table == table)], promote_options="default"
        )
        for table, some in live.items()
    }
    keeps = until is not None
    return action_plan.compose(number, RETENTION.name, add=new, remove=gone, live=there, purge=not keeps, facts=facts)


def _grace(
    lake: "Lake", until: datetime, tables: "Iterable[str]", aside: "Mapping[str, list[DataFile]]"
) -> dict[str, Any]:
    """Return what a plan says of files that stay until a time; see `ranklake.lake.plans.rules`."""
    started = clock.uptime()
    return {
        "until": until.isoformat(),
        "uptime": None if started is None else [started[0], float(started[1])],
        "versions": {table: as_read(latest(lake.tables, table), lake.contract(table)).stamp for table in tables},
        "aside": {table: [_as_kept(file) for file in some] for table, some in aside.items()},
    }


def _as_kept(file: "DataFile") -> dict[str, Any]:
    facts = {"path": file.path, "size_bytes": file.size_bytes, "num_records": file.rows}
    return {**facts, "date": file.partition.isoformat()}


def _rewrite_partition(
    lake: "Lake",
    plan: RetentionPlan,
    partition: DuePartition,
    number: int,
    writer: ArchiveWriter | None,
    aside: "list[DataFile] | None",
) -> "list[DataFile]":
    """Write the files of a partition without the rows that go, which an archive gets if there is one.

    Where the plan can be cancelled, files of those rows are written, too, and added to `aside`.

    Raises `VoidProposalError` if those are not as planned. What was written then is named by no commit.
    """
    assert partition.goes is not None
    new: list[DataFile] = []
    taken = 0
    target = lake.contract(partition.item.table)
    for _, added, rows in action_plan.take_rows_out(lake.tables, target, number, partition.files, partition.goes):
        new += added
        taken += rows.num_rows
        if writer is not None:
            writer.add(rows)
        if aside is not None:
            aside += append_files(lake.store, target, rows, number)
    if taken != partition.item.rows:
        raise _void(
            plan, partition.item, f"holds {taken:,} rows that are due, and {partition.item.rows:,} were planned"
        )
    return new


def _by_date(plan: RetentionPlan, files: "Mapping[str, list[pa.Table]]") -> dict[str, dict[str, list[str]]]:
    """Return what goes beside rows of tables, by what it is of and date."""
    paths: dict[str, dict[str, list[str]]] = {}
    for item in plan.items:
        if item.table in files:
            rows = pa.concat_tables(files[item.table])
            mine = rows.filter(pc.equal(rows["date"], pa.scalar(item.partition_date, pa.date32())))
            paths.setdefault(item.table, {})[item.partition_date.isoformat()] = mine["path"].to_pylist()
    return paths
