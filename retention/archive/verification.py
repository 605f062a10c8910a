"""Verifies an unfinished plan of kind ``retention``: it removes what was approved, and its archives are complete.

Every archived file is read again, so no row leaves the lake before its copy is verified.
"""

import itertools
from collections import Counter
from collections.abc import Iterator, Mapping
from datetime import date
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from ranklake.lake.plans.action_plan import ARCHIVES, ENDED, QUARANTINED
from ranklake.lake.plans.plan import RefusedPlanError
from ranklake.lake.plans.verification import is_committed_in, no_file, refusal
from ranklake.lake.store.tables import Tables
from ranklake.lake.tables.live_files import FILE_SCHEMA, files_digest
from ranklake.lake.tables.order import digest_of_files, key_columns
from ranklake.retention.archive.place import (
    ArchiveError,
    Manifest,
    open_place,
    read_manifest,
    refuse_other,
    refuse_unsound,
)
from ranklake.retention.archive.register import ARCHIVED, REMOVED
from ranklake.retention.archive.register import TABLE as ARCHIVES_TABLE
from ranklake.retention.proposals.approvals import verify_approved
from ranklake.retention.proposals.identities import owner
from ranklake.retention.proposals.retention_plans import (
    DOWNSAMPLE,
    DOWNSAMPLED,
    RETENTION_PLANS,
    TABLE,
    Item,
    RetentionPlan,
)

if TYPE_CHECKING:
    from ranklake.lake.plans.plan import Plan
    from ranklake.lake.store.lake import Lake
    from ranklake.lake.store.store import Store


_HINT: Final = "the files are still in the lake: run 'ranklake retain apply {}' again, which copies them anew"
_ROW: Final = ("archive", "row_kind", "table", "partition_date", "manifest_sha256", "rows", "proposal", "plan", "uri")


def verify_retention(lake: "Lake", plan: "Plan") -> None:
    """Check that a plan removes exactly the approved rows, and that archived rows are in an intact archive.

    Raises `RefusedPlanError`.
    """
    _verify_approved(lake, plan)
    name = plan.body["facts"]["retention_plan"]
    approved = RETENTION_PLANS.find(lake, name)
    archives_by_table = plan.body["facts"].get(ARCHIVES, {})
    items = {(item.table, item.partition_date.isoformat()): item for item in approved.items if item.archive_to}
    if items.keys() != {(table, day) for table, days in archives_by_table.items() for day in days}:
        raise refusal(lake.store, plan, f"the plan would archive other partitions than were approved: {name}")
    expected = []
    for (table, day), item in sorted(items.items()):
        manifest = _verified_manifest(lake, plan, item, archives_by_table[table][day], name)
        expected.append(_row_of(manifest, item, plan.number, name))
    _verify_rows(lake.store, plan, expected)


def _verified_manifest(lake: "Lake", plan: "Plan", item: Item, sha256: str, name: str) -> Manifest:
    """Return the manifest of an item's archive after its files are verified."""
    assert item.archive_to is not None
    try:
        place = open_place(lake.store, item.archive_to)
        refuse_other(lake.store, place)
        manifest = read_manifest(place, sha256)
        refuse_unsound(place, manifest)
    except ArchiveError as error:
        raise _unfit(lake.store, plan, item, name, f"{error.where}: {error.what}") from error
    facts = (manifest.lake, manifest.table, manifest.partition_date, manifest.rows, manifest.retention_plan)
    expected = (owner(lake.store), item.table, item.partition_date, item.rows, name)
    if facts != expected or not _has_removed_rows(lake, plan, place, manifest, item):
        raise _unfit(lake.store, plan, item, name, f"{place.path(manifest.name)}: it has other rows than those that go")
    return manifest


def _unfit(store: "Store", plan: "Plan", item: Item, name: str, fault: str) -> RefusedPlanError:
    message = f"the archive of {item.table} {item.partition_date} does not verify: {fault}"
    return refusal(store, plan, message, _HINT.format(name))


def _has_removed_rows(lake: "Lake", plan: "Plan", place: "Store", manifest: Manifest, item: Item) -> bool:
    """Return whether an archive has exactly the rows that the plan removes, by files or by keys of rows."""
    day = item.partition_date.isoformat()
    removed = [row for row in plan.body["remove"].get(item.table, []) if row["date"] == day]
    if item.part_sha256 is None:
        return sorted(row["path"] for row in removed) == [file.path for file in manifest.files]
    if is_committed_in(lake.store, item.table, plan.number):  # checked before the commit; the files may be deleted
        return True
    contract = lake.contract(item.table)
    columns = key_columns(contract)
    added = [row for row in plan.body["add"] if row["table"] == item.table and row["partition"] == day]
    before, after = (
        digest_of_files(lake.tables, contract, _files(rows, item.partition_date), columns) for rows in (removed, added)
    )
    archived = digest_of_files(Tables(place), contract, manifest.table_files, columns)
    return (before - after - archived) % 2**256 == 0


def _files(entries: list[dict[str, Any]], day: date) -> pa.Table:
    rows = [
        {**{name: row[name] for name in ("path", "size_bytes")}, "num_records": row.get("num_records", row.get("rows"))}
        for row in entries
    ]
    return pa.Table.from_pylist([{**row, "date": day} for row in rows], schema=FILE_SCHEMA)


def _row_of(manifest: Manifest, item: Item, number: int, name: str) -> dict[str, Any]:
    row = {"table": item.table, "partition_date": item.partition_date, "manifest_sha256": manifest.sha256}
    return {
        **row,
        "row_kind": ARCHIVED,
        "rows": manifest.rows,
        "proposal": name,
        "plan": number,
        "uri": item.archive_to,
    }


def _verify_rows(store: "Store", plan: "Plan", expected: list[dict[str, Any]]) -> None:
    """Check that a plan adds only the rows of its own archives to the register of archives."""
    files = [file for file in plan.body["add"] if file["table"] == ARCHIVES_TABLE]
    rows = [row for file in files for row in _rows(store, plan, file)]
    made = [
        {key: value for key, value in row.items() if key != "archive"} for row in rows if row["row_kind"] == ARCHIVED
    ]
    ended = {row["archive"] for row in rows if row["row_kind"] == REMOVED}
    by_table = plan.body["facts"].get(ENDED, {}).values()
    planned = {name for by_date in by_table for names in by_date.values() for name in names}

    def order(row: Mapping[str, Any]) -> str:
        return str(sorted(row.items(), key=str))

    if (
        sorted(made, key=order) != sorted(expected, key=order)
        or ended != planned
        or len(rows) != len(made) + len(ended)
    ):
        raise refusal(store, plan, "the plan would write other rows into the register of archives than its own")


def _rows(store: "Store", plan: "Plan", file: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    path = store.path("tables", ARCHIVES_TABLE, file["path"])
    try:
        with store.open_file(path, file["size_bytes"]) as source:
            parquet = pq.ParquetFile(source)
            names = [name for name in _ROW if name in parquet.schema_arrow.names]
            rows = parquet.read(columns=names).to_pylist()
    except (pa.ArrowException, UnicodeDecodeError):
        raise no_file(store, plan, path) from None
    yield from ({name: row.get(name) for name in _ROW} for row in rows)


def _verify_approved(lake: "Lake", plan: "Plan") -> None:
    """Check that a plan removes exactly what was approved."""
    verify_approved(
        lake, plan, RETENTION_PLANS, TABLE, "remove", lambda proposal: _is_as_approved(lake, plan, proposal)
    )


def _is_as_approved(lake: "Lake", plan: "Plan", approved: RetentionPlan) -> bool:
    removed_files: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for table, rows in plan.body["remove"].items():
        for row in rows:
            removed_files.setdefault((table, row["date"]), []).append(row)
    kept_rows: Counter[tuple[str, str]] = Counter()
    for row in plan.body["add"]:
        if row["table"] != DOWNSAMPLED:  # see `_verify_aggregates`
            kept_rows[row["table"], row["partition"]] += row["rows"]
    approved_items = {
        (item.table, item.partition_date.isoformat()): (item.rows, item.files_sha256, item.part_sha256 is not None)
        for item in approved.items
    }
    planned_items = {
        place: (
            sum(row["num_records"] for row in rows) - kept_rows[place],
            files_digest(row["path"] for row in rows),
            kept_rows[place] > 0,
        )
        for place, rows in removed_files.items()
    }
    not_in_tables = (plan.body["facts"].get(kind, {}).items() for kind in (QUARANTINED, ENDED))
    for table, names_by_date in itertools.chain.from_iterable(not_in_tables):
        planned_items |= {(table, day): (0, files_digest(names), False) for day, names in names_by_date.items()}
    _verify_aggregates(lake.store, plan, approved)
    return planned_items == approved_items


def _verify_aggregates(store: "Store", plan: "Plan", approved: RetentionPlan) -> None:
    """Check that the rows that the plan adds to `DOWNSAMPLED` count exactly the approved rows."""
    approved_rows = {
        (item.table, item.partition_date.isoformat(), (item.interval_s or 0) * 1_000_000_000): item.rows
        for item in approved.items
        if item.action == DOWNSAMPLE
    }
    counted: Counter[tuple[str, str, int]] = Counter()
    for row in plan.body["add"]:
        if row["table"] == DOWNSAMPLED:
            path = store.path("tables", DOWNSAMPLED, row["path"])
            try:
                with store.open_file(path, row["size_bytes"]) as source:
                    aggregates = pq.read_table(source, columns=["plan", "table", "interval_ns", "rows"])
            except (FileNotFoundError, pa.ArrowException, UnicodeDecodeError):
                raise no_file(store, plan, path) from None
            for group in aggregates.group_by(["plan", "table", "interval_ns"]).aggregate([("rows", "sum")]).to_pylist():
                if group["plan"] != plan.number:
                    raise refusal(store, plan, f"the plan would bring aggregates of another plan: {path}")
                counted[group["table"], row["partition"], group["interval_ns"]] += group["rows_sum"] or 0
    if dict(counted) != approved_rows:
        raise refusal(store, plan, f"the plan would bring other aggregates than were approved: {approved.name}")
