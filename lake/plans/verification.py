"""Verifies a found plan against the lake before anything of it is carried out.

    seal (where keys are configured) ─▶ what its kind asks (`ranklake.lake.plans.kinds`): the spool and who vouches for
        segments (ingest), rows by the log and by footers (all others), an approval that stands in the audit trail
        (retention; whatever disowns)

A plan that this process composed itself needs none of it. `ranklake.lake.plans.rules` has looked already at what a plan
says by itself.
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
    """Holds plans of a kind against the lake."""

    def __call__(self, lake: "Lake", plan: Plan, /) -> None:
        """Raise `RefusedPlanError` where a plan must not be carried out."""


def authorise(lake: "Lake", plan: Plan) -> None:
    """Raise `RefusedPlanError` where a plan that was found must not be carried out.

    Raises `ranklake.segments.envelope.MissingKeyError` where the key of its seal is not at hand, and what the
    store raises.
    """
    _verify_seal(lake, plan)
    cast("Verifier", resolve(KINDS[plan.kind].verify))(lake, plan)


def refusal(store: "Store", plan: Plan, what: str, hint: str = FORGED) -> RefusedPlanError:
    """Return the error that refuses a plan; it names the plan's file."""
    return RefusedPlanError(what, store.path(plan.name), hint)


def no_file(store: "Store", plan: Plan, path: str) -> RefusedPlanError:
    """Return the error for a plan that adds what is no data file."""
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
    """Look whether a merge has the rows that the plan says; where its files were replaced it is passed over."""
    verify_files(lake, plan, passes_over=True)


def verify_files(lake: "Lake", plan: Plan, *, passes_over: bool = False) -> None:
    """Look whether files that come and go have the rows that the plan says, where it is not committed yet.

    Parameters
    ----------
    passes_over
        Whether carrying the plan out passes over files that are not live (any more).
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
        # A migration's files have the columns that the table will have; whether they hold what they should, it proves.
        schema = None if plan.kind == MIGRATION.name else arrow_schema(as_read(handle, lake.contract(table)))
        for row in added.get(table, []):
            _verify_added(lake.store, plan, table, row, schema)
        live = {} if handle is None else {row["path"]: row for row in _live_files(handle)}
        # One of a derived table that is not live is no harm: a rollup may have replaced its own.
        for row in plan.body["remove"].get(table, []):
            if row["path"] in live or not (passes_over or lake.contract(table).kind == "derived"):
                _verify_removed(lake.store, plan, table, row, live)


def named_files(files: Sequence[Mapping[str, Any]]) -> pa.Table:
    """Return files that a plan adds or removes as rows of `ranklake.lake.tables.live_files.files`."""
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
    """Whether a plan was committed to a table already."""
    handle = delta_table(store, table)
    return handle is not None and _is_committed(handle, table, number)


def _is_committed(handle: "DeltaTable", table: str, number: int) -> bool:
    done = number_of(handle) if table == LEDGER else transaction_number(handle, PLAN_ID)
    return done is not None and done >= number


def _live_files(handle: "DeltaTable") -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = files(handle).select(["path", "size_bytes", "num_records", "date"]).to_pylist()
    return rows


def _verify_added(store: "Store", plan: Plan, table: str, row: Mapping[str, Any], schema: pa.Schema | None) -> None:
    """Look whether a new file is there, with the rows that the plan says, and columns that the table can have."""
    path = store.path("tables", table, row["path"])
    try:
        with store.open_file(path, row["size_bytes"]) as source:
            footer, size = pq.read_metadata(source), source.size()
            own_schema = footer.schema.to_arrow_schema()
            names = own_schema.names
    except (FileNotFoundError, pa.ArrowException, UnicodeDecodeError):
        raise no_file(store, plan, path) from None
    rows = footer.num_rows
    if (rows, size) != (row["rows"], row["size_bytes"]):
        raise refusal(store, plan, f"the plan says of a file what is not true, {row['rows']} rows for {rows}: {path}")
    fault = "has two columns of one name" if len(set(names)) < len(names) else _type_fault(own_schema, schema)
    if fault:
        raise refusal(store, plan, f"the plan adds a file that {fault}: {path}")


def _type_fault(actual: pa.Schema, schema: pa.Schema | None) -> str | None:
    """Say which column of a file has another type than in the schema of its table, where that is known."""
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
    """Look whether a file that goes has the rows that the plan says."""
    file = live.get(row["path"])
    facts = (row["num_records"], row["size_bytes"], row["date"])
    if file is None or (file["num_records"], file["size_bytes"], file["date"].isoformat()) != facts:
        raise refusal(store, plan, f"the log of {table} knows no such file, or one with other rows: {row['path']}")


def verify_application(store: "Store", plan: Plan, table: str, key: str, name: str) -> None:
    """Look whether the one row that a plan brings to a register of proposals is that of its own application.

    Parameters
    ----------
    table, key
        The register, and its column that names a proposal.
    name
        Of the proposal that the plan carries out.
    """
    verify_written(store, plan, table, {key: name, "row_kind": "application", "plan": plan.number})


def verify_written(store: "Store", plan: Plan, table: str, own: Mapping[str, Any]) -> None:
    """Look whether the one row that a plan brings to a register says what it must."""
    (row,) = (one for one in plan.body["add"] if one["table"] == table)
    path = store.path("tables", table, row["path"])
    try:
        with store.open_file(path, row["size_bytes"]) as source:
            file = pq.ParquetFile(source)
            entries = file.read(columns=[column for column in own if column in file.schema_arrow.names]).to_pylist()
    except (pa.ArrowException, UnicodeDecodeError):
        raise no_file(store, plan, path) from None
    if entries != [own]:  # also where a forged file lacks a column, or has more rows
        raise refusal(store, plan, "the plan would write another row into the register than its own")
