"""Admission: replaces a session's tables by a role's views, and reads rows of selected files as a role sees them.

Views only restrict users who query through ranklake. A user with read access to the bucket can read all files.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from ranklake.lake.query.engine import BATCH_ROWS, DataFrame, Expr, SessionContext, col, engine, udf
from ranklake.lake.query.errors import ConditionError
from ranklake.lake.query.former import TableNames
from ranklake.lake.query.roles import PERSON, WORD, Role, RoleError, runs_of, suppress_small_groups
from ranklake.lake.query.scan import register
from ranklake.lake.tables.table_schema import as_read
from ranklake.masking.columns import mask_values, masked_type
from ranklake.masking.masks import Pseudonyms
from ranklake.segments.envelope import MissingKeyError

if TYPE_CHECKING:
    from deltalake import DeltaTable

    from ranklake.lake.contracts.model import Contract
    from ranklake.lake.store.store import Store
    from ranklake.masking.masks import Mask

_ALL_ROWS: Final = 2**63 - 1
_FILE_FUNCTIONS: Final = ("input_file_name",)


def pseudonyms_for(role: Role | None, contracts: Iterable["Contract"], source: str) -> Pseudonyms | None:
    """Return the keys for the columns that a role sees as keyed hashes; None if it sees no such column.

    Parameters
    ----------
    source
        Reference to the keyring; empty for none.

    Raises `RoleError` if there is no key.
    """
    column = "" if role is None else role.hashes(contracts)
    if not column:
        return None
    if not source:
        message = f"the role sees {column} by a keyed hash, and there is no key"
        raise RoleError(message, where="[masking] key", hint="name a keyring: file:/path, env:NAME or command:/path")
    try:
        return Pseudonyms.of(source)
    except MissingKeyError as error:
        message = f"the role sees {column} by a keyed hash: {error.what}"
        raise RoleError(message, where=f"[masking] key: {error.where}", hint=error.hint) from None


def as_classified_now(read: "Contract", now: "Contract") -> "Contract":
    """Return the contract of an older version of a table, with the current classes and masks of its columns."""
    current = {column.id: column for column in now.columns}
    columns = [
        replace(column, class_=current[column.id].class_, mask=current[column.id].mask)
        if column.id in current
        else column
        for column in read.columns
    ]
    return replace(read, columns=tuple(columns))


def admit(
    ctx: SessionContext,
    role: Role,
    contracts: Mapping[str, "Contract"],
    pseudonyms: Pseudonyms | None = None,
    rows_in: Mapping[str, str] | None = None,
) -> None:
    """Replace a session's tables by the role's views.

    Parameters
    ----------
    contracts
        Contracts of all registered tables: those that the query uses, and those in the role's conditions. Tables that
        the role does not see are removed from the session.
    pseudonyms
        Keys for hashed columns; not needed in a session that only plans.
    rows_in
        Names of views with a part of a table's rows, by table. The role sees these rows; its conditions use the whole
        table.

    Protection of hidden rows and values:

    - The role's rows are selected with a LIMIT above the number of rows. An optimizer must not move a condition across
      a limit. So conditions of the query are never evaluated on hidden rows, where an error would reveal a value.
    - Masks are registered as volatile functions. An optimizer must not move a condition below a volatile function. So
      conditions of the query are evaluated on masked values, and each mask is computed once.
    - The mask functions have no name in the session, so a query cannot call them.
    - Functions that return the file of a row are removed.
    """
    for name in _FILE_FUNCTIONS:
        ctx.deregister_udf(name)
    views = {}
    for table, contract in contracts.items():
        if not role.sees(table):
            continue
        source = (rows_in or {}).get(table, table)
        frame = ctx.table(source)
        if conditions := role.conditions(contract):
            frame = _filter_by_role(ctx, role, table, source, conditions)
        types = {field.name: field.type for field in frame.schema()}
        columns = [
            _column_expression(sight.column.name, types[sight.column.name], sight.mask, pseudonyms)
            for sight in role.sights(contract)
            if not sight.is_hidden
        ]
        if (groups := role.groups.get(table)) is None:
            views[table] = frame.select(*columns)
            continue
        person = [col(f'"{groups.of}"').alias(PERSON)] if groups.of else []
        views[table] = suppress_small_groups(ctx, frame.select(*columns, *person), groups)
    for table in (*contracts, *(rows_in or {}).values()):
        ctx.deregister_table(table)
    for table, view in views.items():
        ctx.register_view(table, view)


def _filter_by_role(ctx: SessionContext, role: Role, table: str, source: str, conditions: Sequence[str]) -> DataFrame:
    """Return the rows that meet a role's conditions. Raises `ConditionError` if a condition is invalid."""
    # each condition is on separate lines, so that a comment in it ends there
    clause = " AND ".join(f"(\n{condition}\n)" for condition in conditions)
    try:
        return ctx.sql(f'SELECT * FROM "{source}" AS "{table}" WHERE {clause} LIMIT {_ALL_ROWS}')  # noqa: S608 - the role's own
    except Exception as error:  # noqa: BLE001 - DataFusion's errors have no type, and contain hidden names
        raise ConditionError(role.name, table, error) from None


def _column_expression(name: str, type_: pa.DataType, mask: "Mask | None", pseudonyms: Pseudonyms | None) -> Expr:
    """Return an expression for a column, masked if there is a mask."""
    column = col(f'"{name}"')
    if mask is None:
        return column
    masked = udf(_mask_function(mask, pseudonyms), [type_], masked_type(type_), "volatile", name="masked")
    return masked(column).alias(name)


def _mask_function(mask: "Mask", pseudonyms: Pseudonyms | None) -> Callable[[pa.Array], pa.Array]:
    """Return a function that masks values. Its errors contain no value."""

    def masked(values: pa.Array) -> pa.Array:
        try:
            return mask_values(values, mask, pseudonyms)
        except Exception:  # noqa: BLE001 - the error could quote a hidden value
            raise RuntimeError("a mask could not be computed") from None

    return masked


_PIECE: Final = "ranklake_piece"
_UNSETTLED: Final = frozenset(
    {
        *("now", "current_date", "current_timestamp", "current_time", "today", "localtime", "localtimestamp"),
        *("random", "uuid", "gen_random_uuid"),
    }
)
"""SQL functions with results that change over time, or at random, for the same rows."""


def read_by(handle: "DeltaTable | None", contract: "Contract") -> "Contract":
    """Return the contract with which a role reads a table: the log's columns, with current classes and masks."""
    return as_classified_now(as_read(handle, contract), contract)


def tables_behind(role: Role, contract: "Contract", every: Mapping[str, "Contract"]) -> list[str]:
    """Return the tables that a role's conditions on a table may use, perhaps including the table itself.

    Parameters
    ----------
    every
        Contracts of all tables of the lake.
    """
    return sorted(TableNames.of(every.values()).mentioned(role.words([contract]), every))


def tables_asked(role: Role, contract: "Contract", every: Mapping[str, "Contract"]) -> list[str]:
    """Return the tables that the conditions in the role's file may use, without the conditions by team."""
    words = {word.lower() for condition in role.own_conditions(contract) for word in WORD.findall(condition)}
    return sorted(TableNames.of(every.values()).mentioned(words, every))


def runs_of_teams(store: "Store", role: Role, contract: "Contract", files: "pa.Table") -> frozenset[str]:
    """Return the runs of a role's teams, from some files of the table ``runs``."""
    ctx = engine(1, BATCH_ROWS)
    register(ctx, store, contract, files, views=True)
    return frozenset(ctx.sql(runs_of(role.teams)).to_pydict()["run"])


def runs_in(store: "Store", contract: "Contract", files: "pa.Table") -> tuple[str, ...]:
    """Return the distinct runs in some files of a table, sorted."""
    ctx = engine(1, BATCH_ROWS)
    register(ctx, store, contract, files, views=True)
    runs = ctx.sql(f'SELECT DISTINCT run FROM "{contract.table}" WHERE run IS NOT NULL')  # noqa: S608 - a contract's
    return tuple(sorted(runs.to_pydict()["run"]))


def is_settled(role: Role, contract: "Contract") -> bool:
    """Whether a role's conditions on a table always select the same rows of the same data."""
    return _UNSETTLED.isdisjoint(role.words([contract]))


def rows_as_role(
    store: "Store",
    role: Role,
    contracts: Mapping[str, "Contract"],
    files: "pa.Table",
    behind: Mapping[str, "pa.Table"],
    table: str,
    pseudonyms: "Pseudonyms | None",
) -> tuple[SessionContext, DataFrame]:
    """Return the rows of some files of a table as a role sees them, as a session and a frame.

    The caller must keep the session for as long as it reads the frame.

    Parameters
    ----------
    contracts
        Contracts, as `read_by` returns them, of the table and of the tables in `behind`.
    files
        Files of the table: rows of `ranklake.lake.query.scan.live_files`.
    behind
        All files of the tables that the role's conditions use (`tables_behind`), perhaps including the table itself.
    """
    ctx = engine(1, BATCH_ROWS)
    register(ctx, store, contracts[table], files, views=True)
    rows_in = {}
    if table in behind:  # the conditions use the whole table, and only the rows of `files` are returned
        rows_in[table] = _PIECE
        ctx.register_view(_PIECE, ctx.table(table))
        ctx.deregister_table(table)
    for name, rows in behind.items():
        register(ctx, store, contracts[name], rows, views=True)
    TableNames.of(contracts.values()).put(ctx, keeps=True)
    admit(ctx, role, {name: contracts[name] for name in {table, *behind}}, pseudonyms, rows_in)
    return ctx, ctx.table(table)
