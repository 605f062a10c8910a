"""Rows of one table as a role sees them, of chosen files: for who copies them, as queries see them otherwise.

The views are those of queries (`ranklake.lake.query.admission`), so there is one answer to what a role sees.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from ranklake.lake.query.admission import admit, as_classified_now
from ranklake.lake.query.called import TableNames
from ranklake.lake.query.engine import BATCH_ROWS, DataFrame, SessionContext, engine
from ranklake.lake.query.roles import WORD, Role
from ranklake.lake.query.scan import register
from ranklake.lake.query.teams import runs_of
from ranklake.lake.tables.table_schema import as_read

if TYPE_CHECKING:
    import pyarrow as pa
    from deltalake import DeltaTable

    from ranklake.lake.contracts.model import Contract
    from ranklake.lake.store.store import Store
    from ranklake.masking.pseudonyms import Pseudonyms

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
