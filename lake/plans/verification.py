"""Verifies another process' plan against the lake before it is carried out.

    the seal, if keys are configured ─▶ the checks of its kind (`ranklake.lake.plans.kinds`):
        ingest: the spool, and the signatures that segments need
        all others: numbers of rows, compared with the Delta log and the Parquet footers
        retention and others that need an approval: the approval in the audit log

A plan that this process composed is not verified. `ranklake.lake.plans.rules` validates a plan by itself when it is
read.
"""

from collections.abc import Mapping, Sequence
from datetime import date
from typing import TYPE_CHECKING, Any, Protocol, cast

import pyarrow as pa
import pyarrow.parquet as pq

from ranklake.lake.contracts.arrow import arrow_schema
from ranklake.lake.plans.kinds import KINDS, MIGRATION, resolve
from ranklake.lake.plans.plan import FORGED, LEDGER, RESTORE, SEAL, Plan, RefusedPlanError, is_sealed
from ranklake.lake.tables.commit import PLAN_ID, number_of, transaction_number
from ranklake.lake.tables.live_files import FILE_SCHEMA, files
from ranklake.lake.tables.table_schema import as_read
from ranklake.lake.tables.tables import delta_table
from ranklake.segments.envelope import MissingKeyError

if TYPE_CHECKING:
    from deltalake import DeltaTable

    from ranklake.lake.store.lake import Lake
    from ranklake.lake.store.store import Store


class Verifier(Protocol):
    """Verifies plans of a kind against the lake."""

    def __call__(self, lake: "Lake", plan: Plan, /) -> None:
        """Raise `RefusedPlanError` if a plan must not be carried out."""


def authorise(lake: "Lake", plan: Plan) -> None:
    """Raise `RefusedPlanError` if another process' plan must not be carried out.

    Raises `ranklake.segments.envelope.MissingKeyError` if the key of its seal is missing, and the store's errors.
    """
    _verify_seal(lake, plan)
    cast("Verifier", resolve(KINDS[plan.kind].verify))(lake, plan)


def refusal(store: "Store", plan: Plan, message: str, hint: str = FORGED) -> RefusedPlanError:
    """Return the error for a plan that must not be carried out. It names the plan's file."""
    return RefusedPlanError(message, store.path(plan.name), hint)


def no_file(store: "Store", plan: Plan, path: str) -> RefusedPlanError:
    """Return the error for a plan that adds a missing or invalid data file."""
    return refusal(store, plan, f"the plan adds a file that is not there, or is none: {path}", RESTORE)


def _verify_seal(lake: "Lake", plan: Plan) -> None:
    seal = lake.config.plans
    try:
        is_genuine = not seal.key or SEAL not in plan.body or is_sealed(plan.facts, seal.key)
    except MissingKeyError as error:
        hint = "put the key back; if it is lost, and no commit carries the plan's number, remove the file"
        raise MissingKeyError(error.what, where=lake.path(plan.name), hint=hint) from None
    if not is_genuine:
        raise refusal(lake.store, plan, "the plan's seal is not that of its key")
    if seal.require_signed_plans and (SEAL not in plan.body or not seal.key):
        hint = "find out who put the file there; if it is your own from before, finish it once without "
        raise refusal(lake.store, plan, "the plan has no seal, and one is required", f"{hint}require_signed_plans")


def verify_merge(lake: "Lake", plan: Plan) -> None:
    """Verify the files of a merge. Removed files that other commits replaced are skipped. Raises `RefusedPlanError`."""
    verify_files(lake, plan, skip_replaced=True)


def verify_files(lake: "Lake", plan: Plan, *, skip_replaced: bool = False) -> None:
    """Verify that added and removed files have the plan's numbers of rows, in tables that lack the plan's commit.

    Raises `RefusedPlanError`.

    Parameters
    ----------
    skip_replaced
        Whether to skip removed files that are not live, because carrying out the plan skips them, too.
    """
    added: dict[str, list[dict[str, Any]]] = {}
    for row in plan.body["add"]:
        added.setdefault(row["table"], []).append(row)
    for table in sorted({*added, *plan.body["remove"]}):
        if table not in lake.contracts():
            raise refusal(lake.store, plan, f"the plan changes a table that is not known: {table}")
        handle = delta_table(lake.store, table)
        if handle is not None and _is_committed(handle, table, plan.number):
            continue
        # A migration's files already have the new columns; the migration's own verification checks their content.
        schema = None if plan.kind == MIGRATION.name else arrow_schema(as_read(handle, lake.contract(table)))
        for row in added.get(table, []):
            _verify_added(lake.store, plan, table, row, schema)
        live = {} if handle is None else {row["path"]: row for row in _live_files(handle)}
        # A file of a derived table may have been replaced by a rollup.
        for row in plan.body["remove"].get(table, []):
            if row["path"] in live or not (skip_replaced or lake.contract(table).kind == "derived"):
                _verify_removed(lake.store, plan, table, row, live)


def named_files(files: Sequence[Mapping[str, Any]]) -> pa.Table:
    """Return files that a plan adds or removes, as a table like that of `ranklake.lake.tables.live_files.files`."""
    rows = [
        {
            "path": row["path"],
            "size_bytes": row["size_bytes"],
            "num_records": row.get("num_records", row.get("rows")),
            "date": date.fromisoformat(row.get("date") or row["partition"]),
        }
        for row in files
    ]
    return pa.Table.from_pylist(rows, schema=FILE_SCHEMA)


def is_committed_in(store: "Store", table: str, number: int) -> bool:
    """Whether a plan's commit to a table exists."""
    handle = delta_table(store, table)
    return handle is not None and _is_committed(handle, table, number)


def _is_committed(handle: "DeltaTable", table: str, number: int) -> bool:
    committed = number_of(handle) if table == LEDGER else transaction_number(handle, PLAN_ID)
    return committed is not None and committed >= number


def _live_files(handle: "DeltaTable") -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = files(handle).select(["path", "size_bytes", "num_records", "date"]).to_pylist()
    return rows


def _verify_added(store: "Store", plan: Plan, table: str, row: Mapping[str, Any], schema: pa.Schema | None) -> None:
    """Verify that a new file exists, with the plan's number of rows and with columns that fit the table."""
    path = store.path("tables", table, row["path"])
    try:
        with store.open_file(path, row["size_bytes"]) as source:
            footer, size = pq.read_metadata(source), source.size()
            file_schema = footer.schema.to_arrow_schema()
            names = file_schema.names
    except (FileNotFoundError, pa.ArrowException, UnicodeDecodeError):
        raise no_file(store, plan, path) from None
    rows = footer.num_rows
    if (rows, size) != (row["rows"], row["size_bytes"]):
        raise refusal(store, plan, f"the plan says of a file what is not true, {row['rows']} rows for {rows}: {path}")
    fault = "has two columns of one name" if len(set(names)) < len(names) else _type_fault(file_schema, schema)
    if fault:
        raise refusal(store, plan, f"the plan adds a file that {fault}: {path}")


def _type_fault(actual: pa.Schema, schema: pa.Schema | None) -> str | None:
    """Return which column of a file has another type than in its table's schema, as a clause; None if none has."""
    for column in actual:
        known = schema.field(column.name) if schema is not None and column.name in schema.names else None
        if known is not None and _value_type(column.type) != known.type:
            return f"has another type in {column.name}"
    return None


def _value_type(type_: pa.DataType) -> pa.DataType:
    return type_.value_type if pa.types.is_dictionary(type_) else type_


def _verify_removed(
    store: "Store", plan: Plan, table: str, row: Mapping[str, Any], live: Mapping[str, Mapping[str, Any]]
) -> None:
    """Verify that a file to remove is live, with the plan's number of rows."""
    file = live.get(row["path"])
    facts = (row["num_records"], row["size_bytes"], row["date"])
    if file is None or (file["num_records"], file["size_bytes"], file["date"].isoformat()) != facts:
        raise refusal(store, plan, f"the log of {table} knows no such file, or one with other rows: {row['path']}")


def verify_application(store: "Store", plan: Plan, table: str, key: str, name: str) -> None:
    """Verify that the row which a plan adds to a register of proposals records its own application.

    Parameters
    ----------
    table, key
        The register, and its column with the names of proposals.
    name
        Name of the proposal that the plan carries out.
    """
    verify_written(store, plan, table, {key: name, "row_kind": "application", "plan": plan.number})


def verify_written(store: "Store", plan: Plan, table: str, own: Mapping[str, Any]) -> None:
    """Verify that the row which a plan adds to a register has the values `own`. Raises `RefusedPlanError`."""
    (row,) = (file for file in plan.body["add"] if file["table"] == table)
    path = store.path("tables", table, row["path"])
    try:
        with store.open_file(path, row["size_bytes"]) as source:
            file = pq.ParquetFile(source)
            entries = file.read(columns=[column for column in own if column in file.schema_arrow.names]).to_pylist()
    except (pa.ArrowException, UnicodeDecodeError):
        raise no_file(store, plan, path) from None
    if entries != [own]:  # also true if a forged file lacks a column or has several rows
        raise refusal(store, plan, "the plan would write another row into the register than its own")
