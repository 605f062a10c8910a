"""Verifies that a found plan of kind ``retention`` removes exactly what was approved."""

import itertools
from collections import Counter
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

from ranklake.errors import RanklakeError
from ranklake.lake.plans.action_plan import ENDED, QUARANTINED
from ranklake.lake.plans.verification import no_file, refusal, verify_application, verify_files
from ranklake.lake.tables.live_files import files_digest
from ranklake.retention.proposals.evidence import require
from ranklake.retention.proposals.retention_plans import (
    DOWNSAMPLE,
    DOWNSAMPLED,
    RETENTION_PLANS,
    TABLE,
    RetentionPlan,
)

if TYPE_CHECKING:
    from ranklake.lake.plans.plan import Plan
    from ranklake.lake.store.store import Lake


def verify_retention(lake: "Lake", plan: "Plan") -> None:
    """Look whether exactly what somebody approved goes."""
    verify_files(lake, plan)
    name = plan.body["facts"]["retention_plan"]
    try:
        approved = RETENTION_PLANS.find(lake, name)
        require(lake, RETENTION_PLANS, approved, begun=True)
    except RanklakeError as error:
        raise refusal(lake, plan, f"the plan would remove rows without approval: {name}: {error.what}") from error
    gone: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for table, rows in plan.body["remove"].items():
        for row in rows:
            gone.setdefault((table, row["date"]), []).append(row)
    stay: Counter[tuple[str, str]] = Counter()
    for row in plan.body["add"]:
        if row["table"] != DOWNSAMPLED:  # made of rows that go; see below
            stay[row["table"], row["partition"]] += row["rows"]
    agreed = {
        (item.table, item.partition_date.isoformat()): (item.rows, item.files_sha256, item.part_sha256 is not None)
        for item in approved.items
    }
    told = {
        place: (
            sum(row["num_records"] for row in rows) - stay[place],
            files_digest(row["path"] for row in rows),
            stay[place] > 0,
        )
        for place, rows in gone.items()
    }
    beside = (plan.body["facts"].get(kind, {}).items() for kind in (QUARANTINED, ENDED))
    for table, days in itertools.chain.from_iterable(beside):
        told |= {(table, day): (0, files_digest(some), False) for day, some in days.items()}
    _verify_aggregates(lake, plan, approved)
    if told != agreed or approved.approved is None:
        raise refusal(lake, plan, f"the plan would remove other rows than were approved: {name}")
    verify_application(lake, plan, TABLE, "retention_plan", name)


def _verify_aggregates(lake: "Lake", plan: "Plan", approved: RetentionPlan) -> None:
    """Look whether what the plan brings into `DOWNSAMPLED` counts exactly the rows that were to become aggregates."""
    agreed = {
        (item.table, item.partition_date.isoformat(), (item.interval_s or 0) * 1_000_000_000): item.rows
        for item in approved.items
        if item.action == DOWNSAMPLE
    }
    counted: Counter[tuple[str, str, int]] = Counter()
    for row in plan.body["add"]:
        if row["table"] == DOWNSAMPLED:
            path = lake.path("tables", DOWNSAMPLED, row["path"])
            try:
                with lake.open_file(path, row["size_bytes"]) as source:
                    found = pq.read_table(source, columns=["plan", "table", "interval_ns", "rows"])
            except (FileNotFoundError, pa.ArrowException, UnicodeDecodeError):
                raise no_file(lake, plan, path) from None
            for one in found.group_by(["plan", "table", "interval_ns"]).aggregate([("rows", "sum")]).to_pylist():
                if one["plan"] != plan.number:
                    raise refusal(lake, plan, f"the plan would bring aggregates of another plan: {path}")
                counted[one["table"], row["partition"], one["interval_ns"]] += one["rows_sum"] or 0
    if dict(counted) != agreed:
        raise refusal(lake, plan, f"the plan would bring other aggregates than were approved: {approved.name}")
