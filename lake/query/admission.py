"""Admission: a role's views in place of a session's tables.

A view binds those who come through it. Who holds keys to the bucket reads the files themselves.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from ranklake.lake.query.engine import DataFrame, Expr, SessionContext, col, udf
from ranklake.lake.query.errors import ConditionError
from ranklake.lake.query.groups import PERSON, suppress_small_groups
from ranklake.lake.query.roles import Role, RoleError
from ranklake.masking.columns import mask_values, masked_type
from ranklake.masking.pseudonyms import Pseudonyms
from ranklake.segments.envelope import MissingKeyError

if TYPE_CHECKING:
    from ranklake.lake.contracts.model import Contract
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
