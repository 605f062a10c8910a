"""Applies retention plans: removes exactly the planned rows, once.

`ranklake.retention.proposals.lifecycle` checks approvals and writes audit log and register, as for every proposal. This
module checks that the planned rows still exist and are due, and writes the numbered plan that drops their files. If
only some rows or values of a date are removed, rewritten files take the place of the old ones. The bytes are deleted
immediately, or kept for the days of grace (`ranklake.retention.plans.cancel`). Archived rows are copied first.
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
from ranklake.lake.store.files import check_clock
from ranklake.lake.store.governance import RAW
from ranklake.lake.tables.parquet import append_files
from ranklake.lake.tables.table_schema import as_read
from ranklake.lake.tables.tables import latest
from ranklake.retention.archive.register import TABLE as ARCHIVES_TABLE
from ranklake.retention.archive.writing import ArchiveWriter, WrittenArchive, archived_rows, ended_rows, repair_copies
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
"""Approves a retention plan; see `ranklake.retention.proposals.lifecycle.approve`."""


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
    """Apply an approved plan. Return the plan, and whether this call applied it.

    Nothing changes if the plan is applied already. Raises the errors of
    `ranklake.retention.proposals.lifecycle.apply` and `ranklake.lake.store.files.FastClockError`. Raises
    `VoidProposalError` if a partition has other files or other due rows than planned, or is not due under today's
    policies. Nothing is changed then.

    Parameters
    ----------
    single_operator
        Whether the approver may apply the plan; register and audit log then record it.
    signing
        The key or signed statement, if the lake requires signatures.
    """
    if today is None:
        check_clock(lake.store)
    day = today or datetime.now(UTC).date()
    repair_copies(lake)

    def check(plan: RetentionPlan) -> "WritePlan":
        partitions = _due(lake, plan, contracts, policies, day)
        places = [_destination(plan, partition.item, policies) for partition in partitions]
        return partial(_write, lake, plan, by, partitions, places, policies.grace_days)

    return lifecycle.apply(lake, RETENTION_PLANS, name, by, check, single_operator=single_operator, signing=signing)


def _due(
    lake: "Lake", plan: RetentionPlan, contracts: "Mapping[str, Contract]", policies: "Policies", today: date
) -> list[DuePartition]:
    """Return the due partitions of the plan's items. Raises `VoidProposalError` if they differ from the plan."""
    due_now = {
        (partition.item.table, partition.item.partition_date): partition
        for partition in due(lake, contracts, policies, today)
    }
    refuse_low_tier(lake, plan, policies)
    partitions = []
    for item in plan.items:
        current = due_now.get((item.table, item.partition_date))
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
    """Return the destination of an archived item under today's policies; None if the item is not archived."""
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
    """Write the files of the numbered plan that applies a retention plan, and return the plan.

    `places` has the destination of each partition; None for partitions that are not archived.
    """
    drop: dict[str, list[pa.Table]] = {}
    live: dict[str, list[pa.Table]] = {}
    not_in_tables: dict[str, list[pa.Table]] = {}  # raw bytes in quarantine, and archives
    new: list[DataFile] = []
    masked: dict[str, list[str]] = {}
    downsampled: dict[str, list[str]] = {}
    removed_rows: dict[str, list[DataFile]] = {}  # files of single rows, for a cancellation
    written: list[WrittenArchive] = []
    aggregates = iter(
        write_aggregates(lake, [partition for partition in partitions if partition.aggregates is not None], number)
    )
    for partition, place in zip(partitions, places, strict=True):
        table = partition.item.table
        if table.startswith((RAW, ARCHIVED_ROWS)):
            not_in_tables.setdefault(table, []).append(partition.files)
            continue
        drop.setdefault(table, []).append(partition.files)
        live.setdefault(table, []).append(partition.live)
        writer = None if place is None else ArchiveWriter(lake, partition.item, place, plan.name, number)
        if writer is not None and partition.select_rows is None:
            writer.copy(partition.files)
        if partition.select_rows is not None:
            kept = removed_rows.setdefault(table, []) if grace_days else None
            new += _rewrite_partition(lake, plan, partition, number, writer, kept)
        if partition.mask_rows is not None:
            contract = lake.contract(table)
            new += action_plan.change_rows(lake.tables, contract, number, partition.files, partition.mask_rows)
            masked.setdefault(table, []).append(partition.item.partition_date.isoformat())
        if partition.aggregates is not None:
            new += next(aggregates)
            downsampled.setdefault(table, []).append(partition.item.partition_date.isoformat())
        written += [] if writer is None else [writer.finish()]
    until = clock.now() + timedelta(days=grace_days) if grace_days else None
    row = head_row(plan, "application", by, number, single_operator=alone, kept_until=until)
    new += row_files(lake.store, TABLE, with_time([row]), number)
    raw = _by_date(plan, not_in_tables, RAW)
    ended = _by_date(plan, not_in_tables, ARCHIVED_ROWS)
    if entries := [*archived_rows(written), *ended_rows(lake.tables, ended, plan.name, number)]:
        new += row_files(lake.store, ARCHIVES_TABLE, with_time(entries), number)
    archived: dict[str, dict[str, str]] = {}
    for archive in written:
        manifest = archive.manifest
        archived.setdefault(manifest.table, {})[str(manifest.partition_date)] = manifest.sha256
    facts = {
        "retention_plan": plan.name,
        QUARANTINED: raw,
        MASKED: masked,
        FOLDED: downsampled,
        ARCHIVES: archived,
        ENDED: ended,
        **({} if until is None else {GRACE: _grace_facts(lake, until, drop, removed_rows)}),
    }
    remove = {table: pa.concat_tables(files, promote_options="default") for table, files in drop.items()}
    kept_files = [file for kept_plan in kept_plans(lake.tables) for file in kept_plan.files]  # of earlier plans
    retained = {
        table: pa.concat_tables(
            [*files, as_files(file for file in kept_files if file.table == table)], promote_options="default"
        )
        for table, files in live.items()
    }
    purge = until is None
    return action_plan.compose(number, RETENTION.name, add=new, remove=remove, live=retained, purge=purge, facts=facts)


def _grace_facts(
    lake: "Lake", until: datetime, tables: "Iterable[str]", removed_rows: "Mapping[str, list[DataFile]]"
) -> dict[str, Any]:
    """Return a plan's facts about files that are kept until a time; see `ranklake.lake.plans.rules`."""
    started = clock.uptime()
    return {
        "until": until.isoformat(),
        "uptime": None if started is None else [started[0], float(started[1])],
        "versions": {table: as_read(latest(lake.tables, table), lake.contract(table)).stamp for table in tables},
        "aside": {table: [_file_facts(file) for file in files] for table, files in removed_rows.items()},
    }


def _file_facts(file: "DataFile") -> dict[str, Any]:
    facts = {"path": file.path, "size_bytes": file.size_bytes, "num_records": file.rows}
    return {**facts, "date": file.partition.isoformat()}


def _rewrite_partition(
    lake: "Lake",
    plan: RetentionPlan,
    partition: DuePartition,
    number: int,
    writer: ArchiveWriter | None,
    kept: "list[DataFile] | None",
) -> "list[DataFile]":
    """Write the files of a partition without the removed rows, and return these files.

    The removed rows go to the archive writer, if there is one. If the plan can be cancelled, they are also written to
    files of their own, which are added to `kept`. Raises `VoidProposalError` if their number is not as planned; no
    commit refers to the written files then.
    """
    assert partition.select_rows is not None
    new: list[DataFile] = []
    removed = 0
    target, item = lake.contract(partition.item.table), partition.item
    for _, added, rows in action_plan.remove_rows(lake.tables, target, number, partition.files, partition.select_rows):
        new += added
        removed += rows.num_rows
        if writer is not None:
            writer.add(rows)
        if kept is not None:
            kept += append_files(lake.store, target, rows, number)
    if removed != item.rows:
        raise _void(plan, item, f"holds {removed:,} rows that are due, and {item.rows:,} were planned")
    return new


def _by_date(
    plan: RetentionPlan, files: "Mapping[str, list[pa.Table]]", prefix: str
) -> dict[str, dict[str, list[str]]]:
    """Return the paths of a plan's files, by table and date, for the tables whose name has the prefix."""
    paths: dict[str, dict[str, list[str]]] = {}
    for item in plan.items:
        if item.table in files and item.table.startswith(prefix):
            rows = pa.concat_tables(files[item.table])
            of_date = rows.filter(pc.equal(rows["date"], pa.scalar(item.partition_date, pa.date32())))
            paths.setdefault(item.table, {})[item.partition_date.isoformat()] = of_date["path"].to_pylist()
    return paths
