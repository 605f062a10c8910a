"""Read-only SQL queries on the lake's Delta tables, with DataFusion.

Only tables that are named in the text of a query are opened. A table that has a contract and was never written is
empty, with its columns and types. So ``SELECT count(*) FROM gpu_samples`` returns 0 on a machine without a GPU.
"""

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from ranklake.lake.query.admission import admit, as_classified_now, pseudonyms_for
from ranklake.lake.query.as_of import AsOf
from ranklake.lake.query.engine import BATCH_ROWS, DataFrame, SessionContext, SQLOptions, engine, udf
from ranklake.lake.query.errors import NotReadOnlyError, QueryError, one_line, without_values
from ranklake.lake.query.former import FormerOf, FormerTable, TableNames, add_former, without_former
from ranklake.lake.query.roles import Role
from ranklake.lake.query.scan import Opened, live_files, needed_files, register
from ranklake.lake.query.sketch import Sketch, sketch
from ranklake.lake.store.governance import rehydrated_files, retired_dates, unsealer
from ranklake.lake.store.lake import Lake
from ranklake.lake.store.reachability import LakeError
from ranklake.lake.store.store import Store
from ranklake.lake.tables.live_files import refuse_damaged
from ranklake.lake.tables.table_schema import as_read
from ranklake.lake.tables.tables import delta_table

if TYPE_CHECKING:
    from deltalake import DeltaTable

    from ranklake.lake.contracts.model import Contract

__all__ = ["Answer", "NotReadOnlyError", "QueryError", "answer", "engine", "plain_text_columns", "query", "session"]

_WORD: Final = re.compile(r"[a-z_][a-z0-9_]*", re.IGNORECASE)
_EXPLAINS: Final = re.compile(r"\s*explain\b", re.IGNORECASE)
_EXPLANATIONS: Final = frozenset({"Explain", "Analyze"})
_LISTS_TABLES: Final = frozenset({"information_schema", "show", "tables"})
READ_ONLY: Final = (
    SQLOptions().with_allow_ddl(allow=False).with_allow_dml(allow=False).with_allow_statements(allow=False)
)
Moment = AsOf | datetime | int | str | Collection[str] | None
"""A time or version for time travel, in any form that `AsOf.parse` accepts."""


def session(
    lake: Lake,
    tables: Iterable[str] | None = None,
    *,
    live: Mapping[str, pa.Table] | None = None,
    days: Mapping[str, Collection[date]] | None = None,
    threads: int | None = None,
    heavy: bool = False,
) -> SessionContext:
    """Return a DataFusion session with tables of the lake registered under their names.

    Parameters
    ----------
    tables
        Names of the tables to register; default all that have a contract.
    live
        Files to read, by table, as `live_files` returns them; default the current live files.
    days
        Dates to register, by table; default all. Not used for tables in `live`.
    threads
        Partitions in which a query runs in parallel; default one per core.
    heavy
        Whether queries will read many rows. Large batches and string views then save up to a fifth of the time.
    """
    ctx = engine(threads, BATCH_ROWS) if heavy else engine(threads)
    contracts = lake.contracts()
    for name in contracts if tables is None else tables:
        files = live.get(name) if live is not None else None
        if files is None:
            handle = delta_table(lake.store, name)
            files = live_files(handle, None if days is None else days.get(name))
            register(ctx, lake.store, as_read(handle, contracts[name]), files, views=heavy)
            continue
        register(ctx, lake.store, contracts[name], files, views=heavy)
    TableNames.of(contracts.values()).put(ctx, keeps=True)
    return ctx


@dataclass(frozen=True, slots=True)
class Answer:
    """Result of a query.

    Attributes
    ----------
    rows
        The rows.
    sketch
        The columns and former names that the query used; empty if former names were not resolved.
    versions
        Delta versions of the tables in the query; None for a table that was never written.
    """

    rows: pa.Table
    sketch: Sketch
    versions: Mapping[str, int | None] = field(default_factory=dict)


def answer(  # noqa: PLR0913 - options of a query
    lake: Lake,
    text: str,
    params: Mapping[str, Any] | None = None,
    limit: int | None = None,
    *,
    as_of: Moment = None,
    role: Role | None = None,
    verify: bool = False,
    views: Mapping[str, str] | None = None,
    former: FormerOf | None = None,
    former_tables: Callable[[], Mapping[str, FormerTable]] | None = None,
    rehydrated: bool = False,
    opened: Opened | None = None,
) -> Answer:
    """Run one SELECT (or EXPLAIN, DESCRIBE, SHOW TABLES); return its rows and what it used.

    Parameters
    ----------
    text
        SQL in DataFusion's dialect, which is close to PostgreSQL's.
    params
        Values for ``$name`` placeholders.
    limit
        Most rows to return; default all.
    as_of
        A time (for all tables), a version (for the only table of the query), ``table=version``, or several of these.
    role
        The role whose views replace the tables; by default the query reads the tables themselves.
    verify
        Whether to verify the digests of the needed files first. DataFusion checks no checksum, so without this a
        damaged file can return wrong rows.
    views
        SELECT statements by name. The query may use the names like tables. A role's limits apply to them, too.
    former
        Returns the former names of a table's columns, which the query may use. By default there are none.
    former_tables
        Returns the former names of tables, which the query may use. Only called if a table was renamed.
    rehydrated
        Whether tables also have the rows that were restored from archives (`ranklake.retention.archive.rehydrated`).
    opened
        The lake's tables, opened by earlier queries. Cannot be used with `as_of`.

    Raises
    ------
    NotReadOnlyError
        The statement is no query.
    ranklake.lake.query.roles.RoleError
        The role sees a column as a keyed hash, and there is no key.
    QueryError
        Unknown table, column or function (with the nearest name), bad syntax (with its position), a version or time
        that does not exist or was deleted, or another error of DataFusion.
    MissingFileError
        A data file that the query needs is missing.
    ranklake.lake.tables.live_files.DamagedFileError
        The bytes of a data file changed after it was written.
    """
    _refuse_of(role, as_of, rehydrated=rehydrated)
    all_contracts = lake.contracts() if opened is None else opened.contracts
    contracts = {name: contract for name, contract in all_contracts.items() if role is None or role.sees(name)}
    table_names = TableNames.of(all_contracts.values())
    if table_names.now and former_tables is not None:
        table_names = TableNames.of(all_contracts.values(), former_tables())
    view_texts = " ".join((views or {}).values())
    names, behind, words = _tables_in_query(f"{text} {view_texts}", contracts, all_contracts, role, table_names)
    handles = _handles(lake.store, opened, as_of, names, behind)
    live = {name: live_files(handle) if opened is None else opened.live(name) for name, handle in handles.items()}
    read_contracts = {
        **all_contracts,
        **{name: _read(handle, all_contracts[name], role) for name, handle in handles.items()},
    }
    live |= _with_rehydrated(lake, live, read_contracts, role) if rehydrated else {}
    pseudonyms = pseudonyms_for(role, (read_contracts[name] for name in names), lake.config.masking.key)

    unseal = UnsealFunction(lake, text, role)

    def plan_query(ctx: SessionContext) -> DataFrame:
        unseal.register(ctx)
        for name, select in (views or {}).items():
            ctx.register_view(name, ctx.sql_with_options(select, READ_ONLY))
        frame = ctx.sql_with_options(text, READ_ONLY, param_values=dict(params or {}))
        if role is not None and _is_explain(frame):
            hint = f"leave EXPLAIN out; DESCRIBE shows columns, 'ranklake roles explain {role.name} TABLE' rows and why"
            raise QueryError("a plan shows more than a role may see", where="EXPLAIN", hint=hint)
        return frame if limit is None else frame.limit(limit)

    def plan(ctx: SessionContext) -> DataFrame:
        add_former(ctx, used.beneath)
        if role is not None:
            table_names.put(ctx, keeps=True)  # the role's conditions may use these names
            admit(ctx, role, {name: read_contracts[name] for name in live}, pseudonyms)
            table_names.take(ctx)
        add_former(ctx, used.asked)
        table_names.put(ctx, [former_table.name for former_table in used.tables])
        return plan_query(ctx)

    used = Sketch()
    with _one_line_errors(role, contracts, names):
        if former is not None:
            today = datetime.now(UTC).date()
            live_contracts = {name: read_contracts[name] for name in live}
            used = sketch(plan_query, live_contracts, role, former, table_names, today)
        needed, misread = needed_files(
            engine(), lake.store, read_contracts, live, partial(_physical, plan), words | used.words
        )
        ctx = engine(batch_rows=BATCH_ROWS)
        for name, rows in needed.items():
            if verify:
                refuse_damaged(lake.tables, name, rows.filter(pc.starts_with(rows["path"], "date=")))
            register(ctx, lake.store, read_contracts[name], rows, views=True, whole=name in misread)
        frame = plan(ctx)
        with _errors_without_values(role, contracts, names):
            result = without_former(plain_text_columns(frame.to_arrow_table()))
    versions = {name: _version(handle) for name, handle in handles.items()}
    return Answer(_with_files(result, live, needed) if _EXPLAINS.match(text) else result, used, versions)


def answer_next(lake: Lake, opened: Opened, text: str, role: Role | None = None) -> Answer:
    """Run one SELECT of a series, like `answer`. Tables are opened, listed and registered only once.

    A small query spends half of its time in planning. If its tables are small, it is planned once instead of twice.
    """
    contracts = opened.contracts
    names, _, words = _tables_in_query(text, contracts, contracts, None, TableNames())
    renamed = any(contract.called for contract in contracts.values())
    if role is None and not renamed and words.isdisjoint(_LISTS_TABLES):
        with _one_line_errors(None, contracts, names):
            if (ctx := opened.session(text, names)) is not None:
                rows = plain_text_columns(ctx.sql_with_options(text, READ_ONLY).to_arrow_table())
                return Answer(rows, Sketch(), {name: _version(opened.handle(name)) for name in names})
    return answer(lake, text, role=role, opened=opened)


def _version(handle: "DeltaTable | None") -> int | None:
    return None if handle is None else handle.version()


def query(
    lake: Lake,
    text: str,
    params: Mapping[str, Any] | None = None,
    limit: int | None = None,
    *,
    as_of: Moment = None,
    role: Role | None = None,
    verify: bool = False,
    views: Mapping[str, str] | None = None,
) -> pa.Table:
    """Return the rows of a query; the parameters and errors are those of `answer`."""
    return answer(lake, text, params, limit, as_of=as_of, role=role, verify=verify, views=views).rows


def _refuse_of(role: Role | None, as_of: Moment, *, rehydrated: bool) -> None:
    """Raise an error if a role may not run a query with these options.

    Raises `RoleError` if the role has expired. Raises `QueryError` if a role with groups asks for other rows than the
    current ones, since the difference between two results could reveal a single person.
    """
    if role is None:
        return
    role.refuse_ended(datetime.now(UTC).date())
    if role.groups and as_of:
        message = f"role {role.name} sees groups, and two versions of a table tell who came between them"
        raise QueryError(message, where="--as-of", hint="ask of now")
    if role.groups and rehydrated:
        message = f"role {role.name} sees groups, and a table with and without what came back tells who is among that"
        raise QueryError(message, where="--rehydrated", hint="leave it out")
    moment = AsOf.parse(as_of)
    if role.teams and (moment.version is not None or moment.versions):
        message = f"role {role.name} sees rows of its teams, and whose a run was is told of a time, not of one table"
        raise QueryError(message, where="--as-of", hint="give a time: 2026-03-01T12:00:00Z")


@contextmanager
def _one_line_errors(role: Role | None, contracts: Mapping[str, "Contract"], names: Collection[str]) -> Iterator[None]:
    """Convert errors to a `QueryError` of one line. For a role, the error contains no file name."""
    try:
        yield
    except QueryError:
        raise
    except LakeError:
        if role is None:
            raise
        # the original error names a file, which would reveal the existence of hidden rows
        raise QueryError("a data file cannot be read", where="SQL", hint="tell whoever keeps the lake") from None
    except Exception as error:  # DataFusion raises Exception and ValueError
        query_error = one_line(error, contracts, names)
        if role is not None and query_error.what.startswith("unknown "):  # hidden and missing names give the same error
            query_error.hint += f"; what role {role.name} sees: ranklake roles explain {role.name} TABLE"
        raise query_error from error


@contextmanager
def _errors_without_values(
    role: Role | None, contracts: Mapping[str, "Contract"], names: Collection[str]
) -> Iterator[None]:
    """Remove values from errors of a running query, if there is a role."""
    try:
        yield
    except Exception as error:
        if role is None:
            raise
        raise without_values(one_line(error, contracts, names)) from None


def _tables_in_query(
    text: str,
    contracts: Mapping[str, "Contract"],
    all_contracts: Mapping[str, "Contract"],
    role: Role | None,
    table_names: TableNames,
) -> tuple[list[str], list[str], set[str]]:
    """Return the tables that a query may use, the tables that only the role's conditions use, and all their words."""
    words = {word.lower() for word in _WORD.findall(text)}
    names = list(contracts) if words & _LISTS_TABLES else table_names.mentioned(words, contracts)
    if role is None:
        return names, [], words
    role_words = role.words(contracts[name] for name in names)  # the role's conditions select files, too
    behind = {*table_names.mentioned(role_words, all_contracts)} - set(names)
    return names, sorted(behind), words | role_words


def _handles(
    store: Store, opened: Opened | None, as_of: Moment, names: list[str], behind: list[str]
) -> dict[str, "DeltaTable | None"]:
    """Return handles of the query's tables and of the tables in the role's conditions (`behind`).

    A version in `as_of` does not apply to the tables in `behind`; a time does.
    """
    if opened is not None:
        return {name: opened.handle(name) for name in (*names, *behind)}
    moment = AsOf.parse(as_of)
    query_handles = {name: moment.handle(store, name, names) for name in names}
    return query_handles | {name: AsOf(moment.time).handle(store, name, behind) for name in behind}


def _read(handle: "DeltaTable | None", contract: "Contract", role: Role | None) -> "Contract":
    """Return the contract with which to read a table; for a role, with the current classes and masks of columns."""
    stored_contract = as_read(handle, contract)
    return stored_contract if role is None else as_classified_now(stored_contract, contract)


def _with_rehydrated(
    lake: Lake, live: Mapping[str, pa.Table], contracts: Mapping[str, "Contract"], role: Role | None
) -> dict[str, pa.Table]:
    """Return live files together with rehydrated files of the same tables. Raises `StaleRowsError`.

    Raises `QueryError` for a role with teams if retired rows of ``runs`` are not rehydrated: without them, a user could
    record another team's run again as a run of their own team.
    """
    rehydrated = rehydrated_files(lake.store, datetime.now(UTC).date(), {name: contracts[name].stamp for name in live})
    if role is not None and role.teams and rehydrated:
        dates = {day for files in rehydrated.get("runs", ()) for day in files["date"].to_pylist()}
        if retired_dates(lake.tables).get("runs", {}).keys() - dates:
            message = f"role {role.name} sees its teams' runs, and whose they are is told by rows of runs that are gone"
            hint = "bring these back from their archive, too: ranklake retain rehydrate plan runs"
            raise QueryError(message, where="--rehydrated", hint=hint)
    return {
        name: pa.concat_tables([live[name], *files], promote_options="default") for name, files in rehydrated.items()
    }


def _is_explain(frame: DataFrame) -> bool:
    return type(frame.logical_plan().to_variant()).__name__ in _EXPLANATIONS


def _physical(plan: Callable[[SessionContext], DataFrame], ctx: SessionContext) -> object:
    """Return the physical plan of a query; for an EXPLAIN, of the explained query."""
    frame = plan(ctx)
    if _is_explain(frame):
        frame = ctx.create_dataframe_from_logical_plan(frame.logical_plan().inputs()[0])
    return frame.execution_plan()


def plain_text_columns(rows: pa.Table) -> pa.Table:
    """Convert text columns to Arrow's plain string type, which every reader supports, and drop field metadata."""
    arrays = [column.cast(_plain_type(column.type)) for column in rows.columns]
    return pa.table(arrays, names=rows.column_names)


def _with_files(plan: pa.Table, live: Mapping[str, pa.Table], needed: Mapping[str, pa.Table]) -> pa.Table:
    """Add a row to the result of an EXPLAIN: how many files are read, after skipping files by the Delta log."""
    counts = [
        f"{name}: {needed[name].num_rows} of {rows.num_rows} files, {_bytes(needed[name]):,} of {_bytes(rows):,} bytes"
        for name, rows in live.items()
    ]
    row = pa.table({"plan_type": ["Delta log"], "plan": ["\n".join(counts)]}, schema=plan.schema)
    return pa.concat_tables([row, plan])


def _bytes(files: pa.Table) -> int:
    return int(pc.sum(files["size_bytes"]).as_py() or 0)


def _plain_type(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_string_view(kind) or pa.types.is_large_string(kind):
        return pa.string()
    if pa.types.is_binary_view(kind) or pa.types.is_large_binary(kind):
        return pa.binary()
    if pa.types.is_list(kind):
        return pa.list_(_plain_type(kind.value_type))
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_plain_type(field.type)) for field in kind])
    return kind


CLEAR: Final = "unsealed"


class UnsealFunction:
    """The SQL function ``unsealed``, which decrypts values that are stored under keys of persons. Roles do not have it.

    Raises `ranklake.retention.subjects.store.SubjectKeysError` if the query contains it and the keys are missing.
    """

    def __init__(self, lake: "Lake", text: str, role: "Role | None") -> None:
        self._function: Any = None
        if role is None and CLEAR in text.lower():
            self._function = udf(unsealer(lake), [pa.string()], pa.string(), "stable", name=CLEAR)

    def register(self, ctx: SessionContext) -> None:
        """Register the function in a session, if the query contains it."""
        if self._function is not None:
            ctx.register_udf(self._function)
