"""Asking the tables in SQL: DataFusion over the lake's Delta tables, read only.

Only tables that the text of a query names are opened. A table of a contract that was never written is empty, with its
columns and types, so that ``SELECT count(*) FROM gpu_samples`` gives 0 on a machine without a GPU.
"""

import os
import re
from collections.abc import Collection, Iterable, Mapping
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from datafusion import SessionConfig, SessionContext, SQLOptions
from deltalake import DeltaTable

from ranklake.errors import RanklakeError, did_you_mean
from ranklake.lake.contracts.load import load_contracts
from ranklake.lake.scan import register
from ranklake.lake.store import Lake
from ranklake.lake.tables import delta_table

if TYPE_CHECKING:
    from ranklake.lake.contracts.model import Contract

_WORD: Final = re.compile(r"[a-z_][a-z0-9_]*", re.IGNORECASE)
_LISTS_TABLES: Final = frozenset({"information_schema", "show", "tables"})
_READ_ONLY: Final = (
    SQLOptions().with_allow_ddl(allow=False).with_allow_dml(allow=False).with_allow_statements(allow=False)
)
_NO_TABLE: Final = re.compile(r"table '(?:[^']*\.)?([^'.]+)' not found")
_NO_FIELD: Final = re.compile(r"No field named ([^\n]+?)\.(?: Did you mean '([^']+)'\?)?(?:\n|$)")
_VALID: Final = re.compile(r"Valid fields are ([^\n]+?)\.(?:\n|$)")
_NO_FUNCTION: Final = re.compile(r"Invalid function '([^']+)'\.(?:\s*Did you mean '([^']+)'\?)?")
_POSITION: Final = re.compile(r" at Line: (\d+), Column: (\d+)")


class QueryError(RanklakeError):
    """A query that cannot be answered."""


class NotReadOnlyError(QueryError):
    """A statement that would change something."""


def engine(threads: int | None = None) -> SessionContext:
    """Return a DataFusion session without tables; `threads` as for `session`."""
    partitions = threads or os.cpu_count() or 1
    config = SessionConfig().with_target_partitions(partitions).with_information_schema(enabled=True)
    # Contracts put their facts into field metadata. DataFusion merges it where tables meet and then takes its own
    # result for another schema; names and types are checked elsewhere.
    return SessionContext(config.set("datafusion.execution.skip_physical_aggregate_schema_check", "true"))


def session(
    lake: Lake,
    tables: Iterable[str] | None = None,
    *,
    overlay: Path | None = None,
    handles: Mapping[str, DeltaTable | None] | None = None,
    days: Mapping[str, Collection[date]] | None = None,
    threads: int | None = None,
) -> SessionContext:
    """Return a DataFusion session with tables of the lake registered under their names.

    Parameters
    ----------
    tables
        Names to register; default all contracts'.
    overlay
        Folder of the user's own contracts.
    handles
        Delta tables that are open already, at the versions to read; None stands for one that was never written.
    days
        Dates to register, by table; default all.
    threads
        Partitions that a query runs in; default one per core.
    """
    ctx = engine(threads)
    contracts = load_contracts(overlay)
    for name in contracts if tables is None else tables:
        handle = handles[name] if handles is not None and name in handles else delta_table(lake, name)
        register(ctx, lake, contracts[name], handle, None if days is None else days.get(name))
    return ctx


def query(
    lake: Lake,
    text: str,
    params: Mapping[str, Any] | None = None,
    limit: int | None = None,
    *,
    overlay: Path | None = None,
) -> pa.Table:
    """Answer one SELECT (or EXPLAIN, DESCRIBE, SHOW TABLES).

    Parameters
    ----------
    text
        SQL in DataFusion's dialect, which is close to PostgreSQL's.
    params
        Values for ``$name`` placeholders.
    limit
        Most rows to return; default all.

    Raises
    ------
    NotReadOnlyError
        The statement would change something.
    QueryError
        Unknown table, column or function (with the nearest name), bad syntax (with its position), or what else
        DataFusion says.
    """
    contracts = load_contracts(overlay)
    words = {word.lower() for word in _WORD.findall(text)}
    names = list(contracts) if words & _LISTS_TABLES else [name for name in contracts if name in words]
    ctx = session(lake, names, overlay=overlay)
    try:
        frame = ctx.sql_with_options(text, _READ_ONLY, param_values=dict(params or {}))
        rows = frame.limit(limit).to_arrow_table() if limit is not None else frame.to_arrow_table()
    except Exception as error:  # DataFusion raises plain Exception and ValueError alike
        raise _explained(error, contracts, names) from error
    return plain(rows)


def plain(rows: pa.Table) -> pa.Table:
    """Return rows with text columns as plain strings, which every reader knows, and without field metadata."""
    arrays = [column.cast(_plain_type(column.type)) for column in rows.columns]
    return pa.table(arrays, names=rows.column_names)


def sql(
    text: str,
    lake: Lake | str | None = None,
    *,
    params: Mapping[str, Any] | None = None,
    limit: int | None = None,
    as_: str = "arrow",
    storage: dict[str, str] | None = None,
) -> Any:  # noqa: ANN401 - the caller names the library
    """Answer one SELECT from Python, as `ranklake.lake.sql`.

    Parameters
    ----------
    lake
        An open lake or its URI; default ``RANKLAKE_LAKE``.
    as_
        ``arrow`` (`pyarrow.Table`), ``pandas`` or ``polars`` (either must be installed).

    Raises as `query`, and what `Lake.open` raises.
    """
    if as_ not in {"arrow", "pandas", "polars"}:
        raise QueryError(f"no kind of table is called {as_!r}", mend=did_you_mean(as_, ("arrow", "pandas", "polars")))
    if not isinstance(lake, Lake):
        uri = lake or os.environ.get("RANKLAKE_LAKE", "")
        if not uri:
            raise QueryError("no lake is named", mend="pass lake=URI or set RANKLAKE_LAKE")
        lake = Lake.open(uri, storage)
    rows = query(lake, text, params, limit)
    if as_ == "pandas":
        return rows.to_pandas()
    if as_ == "polars":
        import polars as pl

        return pl.from_arrow(rows)
    return rows


def _plain_type(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_string_view(kind) or pa.types.is_large_string(kind):
        return pa.string()
    if pa.types.is_binary_view(kind) or pa.types.is_large_binary(kind):
        return pa.binary()
    return kind


def _explained(error: Exception, contracts: Mapping[str, "Contract"], opened: Iterable[str]) -> QueryError:
    """Return one line for what DataFusion said in several."""
    said = str(error)
    if "not supported: " in said and any(word in said for word in ("DDL", "DML", "Statement")):
        return NotReadOnlyError("only queries are answered here", where="SQL", mend="write SELECT …")
    if found := _NO_TABLE.search(said):
        name = found[1]
        return QueryError(f"no table is called {name!r}", where="SQL", mend=did_you_mean(name, contracts))
    if found := _NO_FIELD.search(said):
        return _no_column(found[1], _VALID.search(said), contracts, opened)
    if found := _NO_FUNCTION.search(said):
        mend = f"did you mean {found[2]!r}?" if found[2] else ""
        return QueryError(f"no function is called {found[1]!r}", where="SQL", mend=mend)
    where = "SQL"
    if found := _POSITION.search(said):
        where = f"SQL:{found[1]}:{found[2]}"
        said = _POSITION.sub("", said)
    for noise in ("SQL error: ", "Error during planning: ", "Schema error: ", "This feature is not implemented: "):
        said = said.removeprefix(noise)
    if found := re.fullmatch(r'ParserError\("(.*)"\)', said.strip(), re.DOTALL):
        said = f"syntax error: {found[1]}"
    return QueryError(" ".join(said.split()) or type(error).__name__, where=where)


def _no_column(
    name: str, valid: re.Match[str] | None, contracts: Mapping[str, "Contract"], opened: Iterable[str]
) -> QueryError:
    wanted = name.replace('"', "").split(".")[-1]
    known = {field.replace('"', "").split(".")[-1] for field in valid[1].split(", ")} if valid else set()
    if not known:
        known = {column for table in opened for column in contracts[table].names}
    return QueryError(f"no column is called {name!r}", where="SQL", mend=did_you_mean(wanted, known))
