"""Queries the tables in SQL: DataFusion over the lake's Delta tables, read-only.

Only tables that the text of a query names are opened. A table of a contract that was never written is empty, with its
columns and types, so that ``SELECT count(*) FROM gpu_samples`` gives 0 on a machine without a GPU.
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
"""What `AsOf.parse` understands."""


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
        Names to register; default all contracts'.
    live
        Files to read, by table, as `live_files` gives them; default all that are live now.
    days
        Dates to register, by table; default all. Of tables in `live` all files are.
    threads
        Partitions that a query runs in; default one per core.
    heavy
        Whether what is asked reads many rows: then large batches and string views take up to a fifth less time.
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
    """What a query gave.

    Attributes
    ----------
    rows
        Its rows.
    sketch
        Columns and former names that it used; empty if former names were not resolved.
    versions
        Delta versions of the tables that its words name; None of one that was never written.
    """

    rows: pa.Table
    sketch: Sketch
    versions: Mapping[str, int | None] = field(default_factory=dict)


def answer(  # noqa: PLR0913 - what may be said of a query
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
    """Answer one SELECT (or EXPLAIN, DESCRIBE, SHOW TABLES), and say what it used.

    Parameters
    ----------
    text
        SQL in DataFusion's dialect, which is close to PostgreSQL's.
    params
        Values for ``$name`` placeholders.
    limit
        Most rows to return; default all.
    as_of
        A time (of all tables), a version (of the one table that is named), ``table=version``, or several of these.
    role
        Whose views to ask in place of the tables; default the tables themselves.
    verify
        Whether to verify the files that the query needs against their digests first. DataFusion looks at no checksum: a
        file that rotted gives wrong rows.
    views
        A SELECT by name, which the query may name like a table; what a role does not see, no view shows it.
    former
        Returns the former names of a table's columns, which the query may use; default there are none.
    former_tables
        Returns the former names of tables, likewise; asked where tables have others now.
    rehydrated
        Whether tables also have the rows that came back from archives (`ranklake.retention.archive.rehydrated`).
    opened
        The lake's tables as they were opened for earlier questions; not together with `as_of`.

    Raises
    ------
    NotReadOnlyError
        The statement would change something.
    ranklake.lake.query.roles.RoleError
        The role sees a column by a keyed hash, and there is no key.
    QueryError
        Unknown table, column or function (with the nearest name), bad syntax (with its position), a version or time
        that is not there (any more), or what else DataFusion says.
    MissingFileError
        A data file that the query needs is not there.
    ranklake.lake.tables.live_files.DamagedFileError
        One is not what was written.
    """
    _refuse_of(role, as_of, rehydrated=rehydrated)
    every = lake.contracts() if opened is None else opened.contracts
    contracts = every if role is None else {name: one for name, one in every.items() if role.sees(name)}
    names_of = TableNames.of(every.values())
    if names_of.now and former_tables is not None:
        names_of = TableNames.of(every.values(), former_tables())
    behind_views = " ".join((views or {}).values())
    names, behind, words = _tables_in_query(f"{text} {behind_views}", contracts, every, role, names_of)
    handles = _handles(lake.store, opened, as_of, names, behind)
    live = {name: live_files(one) if opened is None else opened.live(name) for name, one in handles.items()}
    every = {**every, **{name: _read(handle, every[name], role) for name, handle in handles.items()}}
    live |= _with_rehydrated(lake, live, every, role) if rehydrated else {}
    pseudonyms = pseudonyms_for(role, (every[name] for name in names), lake.config.masking.key)

    clear = Clear(lake, text, role)

    def asked(ctx: SessionContext) -> DataFrame:
        clear.put(ctx)
        for name, meant in (views or {}).items():
            ctx.register_view(name, ctx.sql_with_options(meant, READ_ONLY))
        frame = ctx.sql_with_options(text, READ_ONLY, param_values=dict(params or {}))
        if role is not None and _is_explain(frame):
            hint = f"leave EXPLAIN out; DESCRIBE shows columns, 'ranklake roles explain {role.name} TABLE' rows and why"
            raise QueryError("a plan shows more than a role may see", where="EXPLAIN", hint=hint)
        return frame if limit is None else frame.limit(limit)

    def planned(ctx: SessionContext) -> DataFrame:
        add_former(ctx, drawn.beneath)
        if role is not None:
            names_of.put(ctx, keeps=True)  # its conditions may use them
            admit(ctx, role, {name: every[name] for name in live}, pseudonyms)
            names_of.take(ctx)
        add_former(ctx, drawn.asked)
        names_of.put(ctx, [one.name for one in drawn.tables])
        return asked(ctx)

    drawn = Sketch()
    with _explaining(role, contracts, names):
        if former is not None:
            drawn = sketch(
                asked, {name: every[name] for name in live}, role, former, names_of, datetime.now(UTC).date()
            )
        kept, misread = needed_files(
            engine(), lake.store, every, live, partial(_physical, planned), words | drawn.words
        )
        ctx = engine(batch_rows=BATCH_ROWS)
        for name, rows in kept.items():
            if verify:
                refuse_damaged(lake.tables, name, rows.filter(pc.starts_with(rows["path"], "date=")))
            register(ctx, lake.store, every[name], rows, views=True, whole=name in misread)
        frame = planned(ctx)
        with _veiling(role, contracts, names):
            result = without_former(plain_text_columns(frame.to_arrow_table()))
    versions = {name: _version(handle) for name, handle in handles.items()}
    return Answer(_with_files(result, live, kept) if _EXPLAINS.match(text) else result, drawn, versions)


def answer_next(lake: Lake, opened: Opened, text: str, role: Role | None = None) -> Answer:
    """Answer one SELECT of many, as `answer` does, of tables that are opened, listed and registered once.

    Half of what a small query takes is planning; where its tables are small, it is planned once and not twice.
    """
    contracts = opened.contracts
    names, _, words = _tables_in_query(text, contracts, contracts, None, TableNames())
    renamed = any(one.called for one in contracts.values())
    if role is None and not renamed and words.isdisjoint(_LISTS_TABLES):
        with _explaining(None, contracts, names):
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
    """Return the rows of a query, as `answer` does."""
    return answer(lake, text, params, limit, as_of=as_of, role=role, verify=verify, views=views).rows


def _refuse_of(role: Role | None, as_of: Moment, *, rehydrated: bool) -> None:
    """Raise `RoleError` where a role ended; `QueryError` where it sees groups, and other rows than those of now.

    The difference would reveal single people.
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
def _explaining(role: Role | None, contracts: Mapping[str, "Contract"], names: Collection[str]) -> Iterator[None]:
    """Turn what is raised into a `QueryError` of one line; to a role no error names a file."""
    try:
        yield
    except QueryError:
        raise
    except LakeError:
        if role is None:
            raise
        # it names a file, which would tell a role of rows that it does not see
        raise QueryError("a data file cannot be read", where="SQL", hint="tell whoever keeps the lake") from None
    except Exception as error:  # DataFusion raises plain Exception and ValueError alike
        query_error = one_line(error, contracts, names)
        if role is not None and query_error.what.startswith("unknown "):  # the same whether it is hidden, or is nowhere
            query_error.hint += f"; what role {role.name} sees: ranklake roles explain {role.name} TABLE"
        raise query_error from error


@contextmanager
def _veiling(role: Role | None, contracts: Mapping[str, "Contract"], names: Collection[str]) -> Iterator[None]:
    """Take values out of what a running query's errors say to a role."""
    try:
        yield
    except Exception as error:
        if role is None:
            raise
        raise without_values(one_line(error, contracts, names)) from None


def _tables_in_query(
    text: str,
    contracts: Mapping[str, "Contract"],
    every: Mapping[str, "Contract"],
    role: Role | None,
    called: TableNames,
) -> tuple[list[str], list[str], set[str]]:
    """Return the tables that a query may name, those that only the role's conditions name, and all words."""
    words = {word.lower() for word in _WORD.findall(text)}
    names = list(contracts) if words & _LISTS_TABLES else called.mentioned(words, contracts)
    if role is None:
        return names, [], words
    own = role.words(contracts[name] for name in names)  # they choose files, too
    return names, sorted({*called.mentioned(own, every)} - set(names)), words | own


def _handles(
    store: Store, opened: Opened | None, as_of: Moment, names: list[str], behind: list[str]
) -> dict[str, "DeltaTable | None"]:
    """Return handles of the tables that a query names, and of those behind them, which no version is meant for."""
    if opened is not None:
        return {name: opened.handle(name) for name in (*names, *behind)}
    moment = AsOf.parse(as_of)
    named = {name: moment.handle(store, name, names) for name in names}
    return named | {name: AsOf(moment.time).handle(store, name, behind) for name in behind}


def _read(handle: "DeltaTable | None", contract: "Contract", role: Role | None) -> "Contract":
    """Return the contract to read a table by; for a role, with today's classification of columns."""
    stored_contract = as_read(handle, contract)
    return stored_contract if role is None else as_classified_now(stored_contract, contract)


def _with_rehydrated(
    lake: Lake, live: Mapping[str, pa.Table], every: Mapping[str, "Contract"], role: Role | None
) -> dict[str, pa.Table]:
    """Return live files together with rehydrated files of the same tables. Raises `StaleRowsError`.

    Raises `QueryError` where a role is bound to teams, and rows of ``runs`` that tell whose a run was are away: anybody
    could record that run again as his own.
    """
    back = rehydrated_files(lake.store, datetime.now(UTC).date(), {name: every[name].stamp for name in live})
    if role is not None and role.teams and back:
        dates = {day for some in back.get("runs", ()) for day in some["date"].to_pylist()}
        if retired_dates(lake.tables).get("runs", {}).keys() - dates:
            message = f"role {role.name} sees its teams' runs, and whose they are is told by rows of runs that are gone"
            hint = "bring these back from their archive, too: ranklake retain rehydrate plan runs"
            raise QueryError(message, where="--rehydrated", hint=hint)
    return {name: pa.concat_tables([live[name], *some], promote_options="default") for name, some in back.items()}


def _is_explain(frame: DataFrame) -> bool:
    return type(frame.logical_plan().to_variant()).__name__ in _EXPLANATIONS


def _physical(planned: Callable[[SessionContext], DataFrame], ctx: SessionContext) -> object:
    """Return the physical plan of a query, or of the query in an EXPLAIN, whose planning may fail by itself."""
    frame = planned(ctx)
    if _is_explain(frame):
        frame = ctx.create_dataframe_from_logical_plan(frame.logical_plan().inputs()[0])
    return frame.execution_plan()


def plain_text_columns(rows: pa.Table) -> pa.Table:
    """Return rows with text columns as plain strings, which every reader knows, and without field metadata."""
    arrays = [column.cast(_plain_type(column.type)) for column in rows.columns]
    return pa.table(arrays, names=rows.column_names)


def _with_files(plan: pa.Table, live: Mapping[str, pa.Table], kept: Mapping[str, pa.Table]) -> pa.Table:
    """Return an explained plan with a row that counts the files skipped by the Delta log."""
    counts = [
        f"{name}: {kept[name].num_rows} of {rows.num_rows} files, {_bytes(kept[name]):,} of {_bytes(rows):,} bytes"
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


class Clear:
    """The SQL function ``unsealed``, registered where a query may use it.

    Raises `ranklake.retention.subjects.store.SubjectKeysError` where the query calls it and the keys are missing.
    """

    def __init__(self, lake: "Lake", text: str, role: "Role | None") -> None:
        self._function: Any = None
        if role is None and CLEAR in text.lower():
            self._function = udf(unsealer(lake), [pa.string()], pa.string(), "stable", name=CLEAR)

    def put(self, ctx: SessionContext) -> None:
        """Register it in a session."""
        if self._function is not None:
            ctx.register_udf(self._function)
