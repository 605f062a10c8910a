"""Gives DataFusion a Delta table's live files, so that it reads only what a query needs.

`SessionContext.register_table(name, DeltaTable)` works, but delta-rs's provider takes no conditions across the C
interface: every file of the table is read whatever the query asks. So the live files are taken from the Delta log, and
`needed_files` says which of them a query can want: DataFusion plans it over stand-ins that know of each file what the
log says, and notes for which files they are asked. What is left is registered

- on a local disk as a folder of links to just these files, which DataFusion's own Parquet reader reads: it skips files
  by their date, and row groups and pages by their statistics;
- elsewhere as an Arrow dataset, which reads through the lake's own file system and skips row groups.
"""

import re
import weakref
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import ExitStack
from datetime import date, datetime
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq

from ranklake.lake.contracts.arrow import arrow_schema, default_of
from ranklake.lake.query.engine import BATCH_ROWS, Expr, SessionContext, coalesce, col, engine, lit
from ranklake.lake.store.governance import REHYDRATED
from ranklake.lake.store.reachability import LakeError
from ranklake.lake.store.scratch import scratch
from ranklake.lake.tables.live_files import FILE_SCHEMA, files
from ranklake.lake.tables.table_schema import as_read
from ranklake.lake.tables.tables import delta_table

if TYPE_CHECKING:
    from deltalake import DeltaTable

    from ranklake.lake.contracts.model import Contract
    from ranklake.lake.store.lake import Lake
    from ranklake.lake.store.store import Store

NO_FILES: Final = FILE_SCHEMA.empty_table()
_NAME: Final = re.compile(r"\w+")
_ALL_ROWS: Final = 2**63 - 1
_NO_EXPRESSION: Final = "'pyarrow.lib.BooleanScalar' and 'pyarrow._compute.Expression'"
"""What DataFusion says where it fails to put a condition with a bare NULL, as in IN (NULL, 1), before a dataset."""


class MissingFileError(LakeError):
    """A data file that the log names and that is not there, or not of its size."""


def data_path(store: "Store", table: str, path: str) -> str:
    """Return the path of a file: of a table's folder, or of rows that came back, relative to the lake."""
    return store.path(path) if path.startswith(f"{REHYDRATED}/") else store.path("tables", table, path)


def live_files(handle: "DeltaTable | None", days: Collection[date] | None = None) -> pa.Table:
    """Return the live files of a table's handle (None: never written), of some dates or all."""
    return NO_FILES if handle is None else files(handle, None if days is None else sorted(days))


def register(
    ctx: SessionContext,
    store: "Store",
    contract: "Contract",
    live: pa.Table,
    *,
    views: bool = False,
    whole: bool = False,
) -> None:
    """Register files of a table (rows of `live_files`) under its name; none make it empty, with its columns and types.

    Parameters
    ----------
    views
        Whether text of local files is read as Arrow's string views, which group and compare up to a tenth faster.
    whole
        Whether all rows are read before any condition is looked at: no optimizer may move one across a limit.

    Links to local files lie in a folder that goes with the session object, which must therefore be kept as long as any
    frame made from it. Raises `MissingFileError`.
    """
    schema = arrow_schema(contract).remove_metadata()
    if not live.num_rows:
        ctx.register_record_batches(contract.table, [[pa.RecordBatch.from_pylist([], schema=schema)]])
    elif store.is_local:
        held = ExitStack()
        folder = held.enter_context(scratch("sql"))
        weakref.finalize(ctx, held.close)
        _link(store, contract.table, live, folder)
        stored = schema.remove(schema.get_field_index("date"))
        if views:
            stored = pa.schema([_view_type(column) for column in stored])
        # as a URI: in a plain path brackets, stars and question marks would be patterns
        frame = ctx.read_parquet(f"{folder.as_uri()}/", table_partition_cols=[("date", pa.date32())], schema=stored)
        frame = frame.select(*(_or_default(field) for field in schema))
        ctx.register_view(contract.table, frame.limit(_ALL_ROWS) if whole else frame)
    else:
        ctx.register_dataset(contract.table, _dataset(store, contract.table, live.to_pylist(), schema, schema.names))
        defaults = any(default_of(field) is not None for field in schema)
        if whole or defaults:  # a dataset knows no defaults, so it must not choose rows by them
            frame = ctx.table(contract.table).limit(_ALL_ROWS)
            ctx.deregister_table(contract.table)
            ctx.register_view(contract.table, frame.select(*(_or_default(field) for field in schema)))


def needed_files(
    ctx: SessionContext,
    store: "Store",
    contracts: Mapping[str, "Contract"],
    live: Mapping[str, pa.Table],
    plan: Callable[[SessionContext], Any],
    words: Collection[str],
) -> tuple[dict[str, pa.Table], set[str]]:
    """Return those files of each table that a query can need, by what the Delta log says of them.

    Returned beside them: tables of which a reader would answer a condition of the query in another way than SQL does:
    on object stores pyarrow, on a local disk the look at a row group's extremes.

    Parameters
    ----------
    ctx
        A session for this purpose alone.
    live
        Live files by table: rows of `live_files`.
    plan
        Plans the query in the session that it is given, down to the physical plan.
    words
        Columns that the query may apply conditions to: statistics of others are not looked at.

    Raises whatever `plan` raises.
    """
    stand_ins = {}
    for table, rows in live.items():
        schema = arrow_schema(contracts[table]).remove_metadata()
        columns = {name for name in schema.names if name in words}
        stand_ins[table] = _dataset(store, table, rows.to_pylist(), schema, columns)
        ctx.register_dataset(table, stand_ins[table])
    try:
        plan(ctx)
    except Exception as error:
        if _NO_EXPRESSION not in str(error):
            raise
        return dict(live), set() if store.is_local else set(live)
    kept = {}
    for table, rows in live.items():
        named = {data_path(store, table, path): path for path in rows["path"].to_pylist()}
        asked = pa.array([named[path] for path in stand_ins[table].asked if path in named], pa.string())
        kept[table] = rows.filter(pc.is_in(rows["path"], value_set=asked))
    return kept, {table for table, one in stand_ins.items() if (one.mislisted if store.is_local else one.misread)}


class _StandIn(ds.FileSystemDataset):  # type: ignore[misc] # pyarrow ships no types
    """A table's files as a dataset that notes which of them it is asked for, by path.

    It notes, too, whether it was asked with conditions that pyarrow reads in another way than SQL (`misread`), and
    whether one is a list of floats (`mislisted`).
    """

    asked: set[str]
    misread: bool
    mislisted: bool

    def get_fragments(self, filter: ds.Expression | None = None) -> Iterator["_Fragment"]:  # noqa: A002 - pyarrow's name
        """Return the fragments that may hold rows for which the filter is true."""
        fragments = list(super().get_fragments(filter=_expression(filter)))
        self.asked.update(fragment.path for fragment in fragments)
        text = str(filter)
        words = set(_NAME.findall(text))
        floats = any(field.name in words and pa.types.is_floating(field.type) for field in self.schema)
        # NULL is in no list for pyarrow, so that it is "not in" every list; for SQL nobody knows. NaN is above all
        # other floats in SQL, and beside them for pyarrow. A long list holds -0.0 and 0.0 apart in SQL; no extremes do.
        self.mislisted |= floats and "is_in(" in text
        self.misread |= floats or ("is_in(" in text and "invert(" in text)
        # DataFusion cannot sort what has no partition at all: where there is nothing, a file without rows stands for it
        return map(_Fragment, fragments or [_empty_file(self.schema)])

    def scanner(self, **options: Any) -> ds.Scanner:  # noqa: ANN401 - pyarrow's own
        """Return a scanner, as pyarrow does."""
        return super().scanner(**{**options, "filter": _expression(options.get("filter"))})


class _Fragment:
    """A file of a table as DataFusion reads it: by a scanner, whose condition may have become constant."""

    def __init__(self, fragment: ds.Fragment) -> None:
        self._fragment = fragment

    def scanner(self, schema: pa.Schema, **options: Any) -> ds.Scanner:  # noqa: ANN401 - pyarrow's own
        """Return a scanner, as pyarrow does."""
        return self._fragment.scanner(schema, **{**options, "filter": _expression(options.get("filter"))})


def _empty_file(schema: pa.Schema) -> ds.Fragment:
    sink = pa.BufferOutputStream()
    pq.write_table(schema.empty_table(), sink)
    return ds.ParquetFileFormat().make_fragment(sink.getvalue())


def _expression(condition: ds.Expression | pa.Scalar | None) -> ds.Expression | None:
    """Return a condition as pyarrow takes it: DataFusion hands it one that has become constant as a bare value."""
    return pc.scalar(bool(condition.as_py())) if isinstance(condition, pa.Scalar) else condition


def _or_default(field: pa.Field) -> Expr:
    """Return a column by name; with a default, that stands for NULL, which is what files that lack the column give."""
    column, default = col(f'"{field.name}"'), default_of(field)
    return column if default is None else coalesce(column, lit(default).cast(field.type)).alias(field.name)


def _view_type(column: pa.Field) -> pa.Field:
    return column.with_type(pa.string_view()) if pa.types.is_string(column.type) else column


def _link(store: "Store", table: str, live: pa.Table, folder: Path) -> None:
    """Lay out links like the table's own folders, so that paths name the dates.

    DataFusion passes over a link that leads nowhere, so each file is looked at here.
    """
    made: set[str] = set()
    for row in live.select(["path", "size_bytes", "date"]).to_pylist():
        target = Path(data_path(store, table, row["path"]))
        size = target.stat().st_size if target.is_file() else None
        if size != row["size_bytes"]:
            message = "a data file is missing" if size is None else "a data file is not of the size that the log says"
            hint = "ask again if an old version was asked for; else restore the file from a backup"
            raise MissingFileError(message, where=str(target), hint=hint)
        day = f"date={row['date'].isoformat()}"
        if day not in made:
            (folder / day).mkdir()
            made.add(day)
        (folder / day / f"{target.stem}.parquet").symlink_to(target)  # of another ending it would be passed over


def _dataset(
    store: "Store", table: str, live: list[dict[str, Any]], schema: pa.Schema, columns: Collection[str]
) -> _StandIn:
    filesystem = store.arrow_filesystem()
    # pyarrow looks at the pages' checksums, as DataFusion's own reader does not
    options = ds.ParquetFragmentScanOptions(page_checksum_verification=True)
    form = ds.ParquetFileFormat(default_fragment_scan_options=options)
    fields = [field for field in schema if field.name in columns]
    fragments = [
        form.make_fragment(
            data_path(store, table, row["path"]),
            filesystem=filesystem,
            partition_expression=_column_bounds(row, fields),
        )
        for row in live
    ]
    dataset = _StandIn(fragments, schema, form, filesystem)
    dataset.asked, dataset.misread, dataset.mislisted = set(), False, False
    return dataset


def _column_bounds(row: dict[str, Any], fields: list[pa.Field]) -> ds.Expression:
    """Return what is true of every row of a file: its date, and the ranges of columns without NULLs.

    Of floats nothing is said: no range holds a NaN, and pyarrow does not tell -0.0 from 0.0 where a list in SQL does.
    """
    known = ds.field("date") == pa.scalar(row["date"], pa.date32())
    for field in fields:
        if pa.types.is_floating(field.type):
            continue
        low, high = row.get(f"min.{field.name}"), row.get(f"max.{field.name}")
        if low is None or high is None or row.get(f"null_count.{field.name}") != 0:
            continue
        if pa.types.is_timestamp(field.type) and not isinstance(low, datetime):
            continue
        known &= (ds.field(field.name) >= pa.scalar(low, field.type)) & (
            ds.field(field.name) <= pa.scalar(high, field.type)
        )
    return known


_MOST_FILES: Final = 64
"""Of a table of which none is left out by the Delta log: finding out which a query needs means to plan it twice."""
_LISTS_NUMBERS: Final = re.compile(r"\bin\s*\(\s*(?!'|select\b|with\b)", re.IGNORECASE)


class _Table(NamedTuple):
    handle: "DeltaTable | None"
    live: "pa.Table"


class Opened:
    """Tables of a lake as they stood when a question first named them, so that many answers are of one state.

    Not for several threads at once. Files stay readable for the grace period of vacuum, so it is for the time of a
    command, not of a service.
    """

    def __init__(self, lake: "Lake") -> None:
        self._lake = lake
        self._tables: dict[str, _Table] = {}
        self._registered: set[str] = set()

    @cached_property
    def contracts(self) -> "dict[str, Contract]":
        """Contracts by table, as of the first question."""
        return dict(self._lake.contracts())

    def handle(self, table: str) -> "DeltaTable | None":
        """Return a table's handle; None where it was never written. Raises `LakeUnreachableError`."""
        return self._open_table(table).handle

    def live(self, table: str) -> "pa.Table":
        """Return a table's live files, as `ranklake.lake.query.scan.live_files` does."""
        return self._open_table(table).live

    def session(self, text: str, names: "Collection[str]") -> SessionContext | None:
        """Return a session that has some tables as a whole; None where a query is better, or must be, planned twice.

        That is where tables have many files, where they are not on a local disk, and where the query may ask for a list
        of floats (`ranklake.lake.query.scan.needed_files`). Raises `MissingFileError`.
        """
        few = all(self._open_table(name).live.num_rows <= _MOST_FILES for name in names)
        if not self._lake.store.is_local or not few or _LISTS_NUMBERS.search(text):
            return None
        for name in names:
            if name not in self._registered:
                table = self._open_table(name)
                read = as_read(table.handle, self.contracts[name])
                register(self._session, self._lake.store, read, table.live, views=True)
                self._registered.add(name)
        return self._session

    @cached_property
    def _session(self) -> SessionContext:
        return engine(batch_rows=BATCH_ROWS)

    def _open_table(self, table: str) -> _Table:
        if table not in self._tables:
            handle = delta_table(self._lake.store, table)
            self._tables[table] = _Table(handle, live_files(handle))
        return self._tables[table]
