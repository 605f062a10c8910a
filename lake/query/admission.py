"""Admission: a role's views in place of a session's tables, and rows of chosen files as a role sees them.

A view binds those who come through it. Who holds keys to the bucket reads the files themselves.
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
_TELL_FILES: Final = ("input_file_name",)


def pseudonyms_for(role: Role | None, contracts: Iterable["Contract"], source: str) -> Pseudonyms | None:
    """Return what hashes the columns that a role sees of some tables so; None where it sees none.

    Parameters
    ----------
    source
        Reference to the keyring; empty for none.

    Raises `RoleError` where there is no key.
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
    """Return a contract of an older version of a table with the classes and masks that its columns have now."""
    known = {column.id: column for column in now.columns}
    columns = [
        replace(one, class_=known[one.id].class_, mask=known[one.id].mask) if one.id in known else one
        for one in read.columns
    ]
    return replace(read, columns=tuple(columns))


def admit(
    ctx: SessionContext,
    role: Role,
    contracts: Mapping[str, "Contract"],
    pseudonyms: Pseudonyms | None = None,
    rows_in: Mapping[str, str] | None = None,
) -> None:
    """Put the role's views in place of a session's tables.

    Parameters
    ----------
    contracts
        Of all tables that are registered: those that the role asks for, and those that its conditions name. What it
        does not see is not there afterwards.
    pseudonyms
        What columns are hashed by; a session that only plans needs none.
    rows_in
        Views that have some rows of a table, by table: those are shown, and conditions ask the table as a whole.

    Rows are chosen behind a limit that takes all of them. No optimizer may move a condition across a limit, so no
    condition of the query is ever evaluated on a row that the role does not see: it could tell by failing. Nor may one
    move a condition beneath a function that it takes for volatile, as masks are registered: so whatever the query asks
    of a masked column it asks of the masks, each made once. The functions have no name in the session, so no query can
    call them. The functions that tell which file a row is from are taken away.
    """
    for name in _TELL_FILES:
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
        shown = [
            _column_sql(one.column.name, types[one.column.name], one.mask, pseudonyms)
            for one in role.sights(contract)
            if not one.is_hidden
        ]
        if (groups := role.groups.get(table)) is None:
            views[table] = frame.select(*shown)
            continue
        person = [col(f'"{groups.of}"').alias(PERSON)] if groups.of else []
        views[table] = suppress_small_groups(ctx, frame.select(*shown, *person), groups)
    for table in (*contracts, *(rows_in or {}).values()):
        ctx.deregister_table(table)
    for table, view in views.items():
        ctx.register_view(table, view)


def _filter_by_role(ctx: SessionContext, role: Role, table: str, source: str, conditions: Sequence[str]) -> DataFrame:
    """Return the rows that meet a role's conditions. Raises `ConditionError` where one is none."""
    # each on lines of its own, so that a comment in it ends
    clause = " AND ".join(f"(\n{one}\n)" for one in conditions)
    try:
        return ctx.sql(f'SELECT * FROM "{source}" AS "{table}" WHERE {clause} LIMIT {_ALL_ROWS}')  # noqa: S608 - the role's own
    except Exception as error:  # noqa: BLE001 - DataFusion raises plain ones; what they say is of tables as they are
        raise ConditionError(role.name, table, error) from None


def _column_sql(name: str, type_: pa.DataType, mask: "Mask | None", pseudonyms: Pseudonyms | None) -> Expr:
    """Return a column as it is or masked."""
    column = col(f'"{name}"')
    if mask is None:
        return column
    shown = udf(_without_values(mask, pseudonyms), [type_], masked_type(type_), "volatile", name="masked")
    return shown(column).alias(name)


def _without_values(mask: "Mask", pseudonyms: Pseudonyms | None) -> Callable[[pa.Array], pa.Array]:
    """Return a function that masks values, and fails without a word of them."""

    def shown(values: pa.Array) -> pa.Array:
        try:
            return mask_values(values, mask, pseudonyms)
        except Exception:  # noqa: BLE001 - an error would quote what it is to hide
            raise RuntimeError("a mask could not be computed") from None

    return shown


_PIECE: Final = "ranklake_piece"
_UNSETTLED: Final = frozenset(
    {
        *("now", "current_date", "current_timestamp", "current_time", "today", "localtime", "localtimestamp"),
        *("random", "uuid", "gen_random_uuid"),
    }
)
"""Words of conditions whose answer changes though no row does."""


def read_by(handle: "DeltaTable | None", contract: "Contract") -> "Contract":
    """Return the contract by which a role reads a table: the log's columns, as they are classified today."""
    return as_classified_now(as_read(handle, contract), contract)


def tables_behind(role: Role, contract: "Contract", every: Mapping[str, "Contract"]) -> list[str]:
    """Return the tables that a role's conditions on a table may ask, the table itself perhaps among them."""
    return sorted(TableNames.of(every.values()).mentioned(role.words([contract]), every))


def tables_asked(role: Role, contract: "Contract", every: Mapping[str, "Contract"]) -> list[str]:
    """Return those of them that its file's own conditions may ask, whichever teams the role is of."""
    words = {word.lower() for said in role.own_conditions(contract) for word in WORD.findall(said)}
    return sorted(TableNames.of(every.values()).mentioned(words, every))


def runs_of_teams(store: "Store", role: Role, contract: "Contract", files: "pa.Table") -> frozenset[str]:
    """Return the runs that are of a role's teams, by some files of the table ``runs``."""
    ctx = engine(1, BATCH_ROWS)
    register(ctx, store, contract, files, views=True)
    return frozenset(ctx.sql(runs_of(role.teams)).to_pydict()["run"])


def runs_in(store: "Store", contract: "Contract", files: "pa.Table") -> tuple[str, ...]:
    """Return the runs that rows of some files of a table name."""
    ctx = engine(1, BATCH_ROWS)
    register(ctx, store, contract, files, views=True)
    runs = ctx.sql(f'SELECT DISTINCT run FROM "{contract.table}" WHERE run IS NOT NULL')  # noqa: S608 - a contract's
    return tuple(sorted(runs.to_pydict()["run"]))


def is_settled(role: Role, contract: "Contract") -> bool:
    """Whether a role's conditions on a table give the same rows of the same data at any time."""
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
    """Return rows of some files of a table as a role sees them, and the session, to be kept as long as they are read.

    Parameters
    ----------
    contracts
        As `read_by` gives them: of the table, and of those in `behind`.
    files
        Files of the table: rows of `ranklake.lake.query.scan.live_files`.
    behind
        All files of the tables that the role's conditions ask (`tables_behind`), the table itself perhaps among them.
    """
    ctx = engine(1, BATCH_ROWS)
    register(ctx, store, contracts[table], files, views=True)
    rows_in = {}
    if table in behind:  # its conditions ask all of it, and only some of its rows are shown
        rows_in[table] = _PIECE
        ctx.register_view(_PIECE, ctx.table(table))
        ctx.deregister_table(table)
    for name, rows in behind.items():
        register(ctx, store, contracts[name], rows, views=True)
    TableNames.of(contracts.values()).put(ctx, keeps=True)
    admit(ctx, role, {name: contracts[name] for name in {table, *behind}}, pseudonyms, rows_in)
    return ctx, ctx.table(table)
