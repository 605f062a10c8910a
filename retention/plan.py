"""What is due: partitions older than their class's period, as a plan whose name is a digest of what it would remove."""

from collections.abc import Iterator, Mapping
from datetime import date
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from ranklake.lake.delta.commit import files, files_digest
from ranklake.lake.delta.tables import latest
from ranklake.lake.governance.retention_plans import RETENTION_PLANS, Item, RetentionPlan, add_entry, plan_name
from ranklake.lake.governance.retired import RAW
from ranklake.lake.plans.driver import finish
from ranklake.lake.plans.kinds import RETENTION
from ranklake.lake.plans.workers import InProcess
from ranklake.retention.raw import OF_NOBODY, raw_bytes

if TYPE_CHECKING:
    from ranklake.lake.contracts.model import Contract
    from ranklake.lake.storage.store import Lake
    from ranklake.retention.policy import Policies, Policy


def make_plan(
    lake: "Lake", contracts: "Mapping[str, Contract]", policies: "Policies", as_of: date
) -> RetentionPlan | None:
    """Plan what is due and write the plan down; None if nothing is.

    Parameters
    ----------
    contracts
        All tables; those that the lake does not have are passed over.
    as_of
        The day to plan for. A day to come shows what will be due then; such a plan cannot be applied before.

    Equal items make the same plan, which is written once; what is returned says what became of it so far.
    """
    finish(lake, RETENTION, InProcess())  # what an application that died left half done
    items = tuple(item for item, _ in due(lake, contracts, policies, as_of))
    if not items:
        return None
    plan = RetentionPlan(plan_name(items), items, policies.sha256)
    add_entry(lake, plan, None, "plan")
    return RETENTION_PLANS.find(lake, plan.name)


def due(
    lake: "Lake", contracts: "Mapping[str, Contract]", policies: "Policies", as_of: date
) -> Iterator[tuple[Item, pa.Table]]:
    """Yield the partitions that are due, by table and date, each with its files (rows of `commit.files`).

    After the tables come raw bytes in quarantine, whose files are digests.
    """
    for contract in contracts.values():
        policy = policies.by_class[contract.retention]
        cutoff = policy.cutoff(as_of)
        handle = latest(lake, contract.table) if cutoff is not None else None
        if cutoff is None or handle is None:
            continue
        live = files(handle)
        old = live.filter(pc.is_in(live["date"], value_set=pa.array(_old(live, cutoff), pa.date32())))
        for day in sorted(set(old["date"].to_pylist())):
            partition = old.filter(pc.equal(old["date"], pa.scalar(day, pa.date32())))
            yield _item(contract, policy, cutoff, day, partition), partition
    yield from _due_raw(lake, contracts, policies, as_of)


def _due_raw(
    lake: "Lake", contracts: "Mapping[str, Contract]", policies: "Policies", as_of: date
) -> Iterator[tuple[Item, pa.Table]]:
    """Yield the raw bytes in quarantine that are due, by the class of their table and the date they came."""
    for table, day, some in raw_bytes(lake):
        policy = policies.by_class.get(contracts[table].retention if table in contracts else OF_NOBODY)
        cutoff = None if policy is None else policy.cutoff(as_of)
        if policy is None or cutoff is None or day >= cutoff:
            continue
        assert policy.period_days is not None
        yield (
            Item(
                table=f"{RAW}{table}",
                partition_date=day,
                retention_class=policy.retention_class,
                period_days=policy.period_days,
                cutoff_date=cutoff,
                rows=0,
                bytes=int(pc.sum(some["size_bytes"]).as_py() or 0),
                files=some.num_rows,
                files_sha256=files_digest(some["path"].to_pylist()),
                reason=policy.reason,
            ),
            some,
        )


def _old(live: pa.Table, cutoff: date) -> list[date]:
    """Return the dates that lie before the cutoff, or all of whose rows were written before it.

    Rows are as old as they say, or as the file that they lie in, whichever is more: who dates them in the future does
    not keep them for ever.
    """
    newest = live.group_by("date").aggregate([("modification_time", "max")])
    written = newest["modification_time_max"].cast(pa.int64()).cast(pa.timestamp("ms"))
    bounds = zip(newest["date"].to_pylist(), written.to_pylist(), strict=True)
    return [day for day, when in bounds if day is not None and (day < cutoff or when.date() < cutoff)]


def _item(contract: "Contract", policy: "Policy", cutoff: date, day: date, partition: pa.Table) -> Item:
    assert policy.period_days is not None
    return Item(
        table=contract.table,
        partition_date=day,
        retention_class=contract.retention,
        period_days=policy.period_days,
        cutoff_date=cutoff,
        rows=int(pc.sum(partition["num_records"]).as_py() or 0),
        bytes=int(pc.sum(partition["size_bytes"]).as_py() or 0),
        files=partition.num_rows,
        files_sha256=files_digest(partition["path"].to_pylist()),
        reason=policy.reason,
    )
