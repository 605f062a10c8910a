"""Registers a Delta table's live files with DataFusion, so that a query reads only the files that it needs.

`SessionContext.register_table(name, DeltaTable)` would read every file of the table, since delta-rs's provider gets no
conditions across the C interface. So the live files are taken from the Delta log. `needed_files` finds the files that a
query needs: DataFusion plans the query over datasets (`_StandIn`) with the statistics in the log, and these datasets
record which files DataFusion requests. The needed files are registered as follows:

- On a local disk, as a folder of links to these files. DataFusion's own Parquet reader reads them. It skips files by
  their date, and row groups and pages by their statistics.
- On an object store, as an Arrow dataset, which reads through the lake's own file system and skips row groups.
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
"""Part of DataFusion's error if it cannot pass a condition with a NULL literal, as in IN (NULL, 1), to a dataset."""


class MissingFileError(LakeError):
    """A data file in the log that does not exist, or has another size than in the log."""


def data_path(store: "Store", table: str, path: str) -> str:
    """Return the full path of a data file in a table's folder, or of a file with rehydrated rows."""
    return store.path(path) if path.startswith(f"{REHYDRATED}/") else store.path("tables", table, path)


def live_files(handle: "DeltaTable | None", days: Collection[date] | None = None) -> pa.Table:
    """Return the live files of a table, of some dates or all; none if the handle is None.

    The columns are those of `ranklake.lake.tables.live_files.files`.
    """
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
    """Register files of a table (rows of `live_files`) under its name. Without files, the table is empty.

    Links to local files are in a temporary folder, which is deleted with the session object. The caller must keep the
    session for as long as it uses a frame from it.

    Parameters
    ----------
    views
        Whether text of local files is read as Arrow's string views, which are grouped and compared up to a tenth
        faster.
    whole
        Whether DataFusion must evaluate all conditions itself, after reading all rows. A LIMIT above the number of rows
        is added, since an optimizer must not move conditions across a limit.

    Raises `MissingFileError`.
    """
    schema = arrow_schema(contract).remove_metadata()
    if not live.num_rows:
        ctx.register_record_batches(contract.table, [[pa.RecordBatch.from_pylist([], schema=schema)]])
    elif store.is_local:
        stack = ExitStack()
        folder = stack.enter_context(scratch("sql"))
        weakref.finalize(ctx, stack.close)
        _link(store, contract.table, live, folder)
        stored = schema.remove(schema.get_field_index("date"))
        if views:
            stored = pa.schema([_view_type(column) for column in stored])
        # a URI, since brackets, stars and question marks in a plain path would be patterns
        frame = ctx.read_parquet(f"{folder.as_uri()}/", table_partition_cols=[("date", pa.date32())], schema=stored)
        frame = frame.select(*(_or_default(field) for field in schema))
        ctx.register_view(contract.table, frame.limit(_ALL_ROWS) if whole else frame)
    else:
        ctx.register_dataset(contract.table, _dataset(store, contract.table, live.to_pylist(), schema, schema.names))
        defaults = any(default_of(field) is not None for field in schema)
        if whole or defaults:  # a dataset has no defaults, so it must not evaluate conditions on these columns
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
    """Return the files of each table that a query may need, by their statistics in the Delta log.

    Also returns the tables whose reader would evaluate a condition of the query differently from SQL: pyarrow on object
    stores, the statistics of row groups on a local disk. These tables must be registered with `whole`.

    Parameters
    ----------
    ctx
        A session that is used only here.
    live
        Live files by table: rows of `live_files`.
    plan
        Plans the query in a session, including the physical plan.
    words
        Columns that may be in conditions of the query. Statistics of other columns are not used.

    Raises what `plan` raises.
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
    needed = {}
    for table, rows in live.items():
        relative_paths = {data_path(store, table, path): path for path in rows["path"].to_pylist()}
        requested = [relative_paths[path] for path in stand_ins[table].requested if path in relative_paths]
        needed[table] = rows.filter(pc.is_in(rows["path"], value_set=pa.array(requested, pa.string())))
    differing = {
        table for table, stand_in in stand_ins.items() if (stand_in.mislisted if store.is_local else stand_in.misread)
    }
    return needed, differing


class _StandIn(ds.FileSystemDataset):  # type: ignore[misc] # pyarrow ships no types
    """A dataset of a table's files that records which files DataFusion requests.

    Attributes
    ----------
    requested
        Paths of the requested files.
    misread
        Whether a condition was used that pyarrow evaluates differently from SQL.
    mislisted
        Whether a condition has a list of floats (``IN (0.5, 1.0)``).
    """

    requested: set[str]
    misread: bool
    mislisted: bool

    def get_fragments(self, filter: ds.Expression | None = None) -> Iterator["_Fragment"]:  # noqa: A002 - pyarrow's name
        """Return the fragments that may have rows for which the filter is true."""
        fragments = list(super().get_fragments(filter=_expression(filter)))
        self.requested.update(fragment.path for fragment in fragments)
        text = str(filter)
        words = set(_NAME.findall(text))
        has_floats = any(field.name in words and pa.types.is_floating(field.type) for field in self.schema)
        # Differences between pyarrow or statistics and SQL:
        # - NULL NOT IN (…) is true in pyarrow and NULL in SQL.
        # - NaN is greater than all other floats in SQL; in pyarrow, comparisons with it are false.
        # - A long list in SQL distinguishes -0.0 and 0.0; statistics do not.
        self.mislisted |= has_floats and "is_in(" in text
        self.misread |= has_floats or ("is_in(" in text and "invert(" in text)
        # DataFusion fails to sort a table without partitions, so a table without files gets a file without rows.
        return map(_Fragment, fragments or [_empty_file(self.schema)])

    def scanner(self, **options: Any) -> ds.Scanner:  # noqa: ANN401 - pyarrow's own
        """Return a scanner, like pyarrow, but accept a constant filter."""
        return super().scanner(**{**options, "filter": _expression(options.get("filter"))})


class _Fragment:
    """A file of a table. DataFusion reads it with a scanner, and may pass a constant as its filter."""

    def __init__(self, fragment: ds.Fragment) -> None:
        self._fragment = fragment

    def scanner(self, schema: pa.Schema, **options: Any) -> ds.Scanner:  # noqa: ANN401 - pyarrow's own
        """Return a scanner, like pyarrow, but accept a constant filter."""
        return self._fragment.scanner(schema, **{**options, "filter": _expression(options.get("filter"))})


def _empty_file(schema: pa.Schema) -> ds.Fragment:
    sink = pa.BufferOutputStream()
    pq.write_table(schema.empty_table(), sink)
    return ds.ParquetFileFormat().make_fragment(sink.getvalue())


def _expression(condition: ds.Expression | pa.Scalar | None) -> ds.Expression | None:
    """Convert a condition for pyarrow: DataFusion passes a constant condition as a scalar."""
    return pc.scalar(bool(condition.as_py())) if isinstance(condition, pa.Scalar) else condition


def _or_default(field: pa.Field) -> Expr:
    """Return an expression for a column. A default replaces NULL, which files without the column return."""
    column, default = col(f'"{field.name}"'), default_of(field)
    return column if default is None else coalesce(column, lit(default).cast(field.type)).alias(field.name)


def _view_type(column: pa.Field) -> pa.Field:
    return column.with_type(pa.string_view()) if pa.types.is_string(column.type) else column


def _link(store: "Store", table: str, live: pa.Table, folder: Path) -> None:
    """Create links to the files, in date folders like those of the table. DataFusion takes the date from the path.

    DataFusion would skip a link to a missing file, so the existence and size of each file are checked here.
    """
    created: set[str] = set()
    for row in live.select(["path", "size_bytes", "date"]).to_pylist():
        target = Path(data_path(store, table, row["path"]))
        size = target.stat().st_size if target.is_file() else None
        if size != row["size_bytes"]:
            message = "a data file is missing" if size is None else "a data file is not of the size that the log says"
            hint = "ask again if an old version was asked for; else restore the file from a backup"
            raise MissingFileError(message, where=str(target), hint=hint)
        day = f"date={row['date'].isoformat()}"
        if day not in created:
            (folder / day).mkdir()
            created.add(day)
        (folder / day / f"{target.stem}.parquet").symlink_to(target)  # DataFusion skips files with other endings


def _dataset(
    store: "Store", table: str, live: list[dict[str, Any]], schema: pa.Schema, columns: Collection[str]
) -> _StandIn:
    filesystem = store.arrow_filesystem()
    # pyarrow can verify the checksums of pages; DataFusion's own reader cannot
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
    dataset.requested, dataset.misread, dataset.mislisted = set(), False, False
    return dataset


def _column_bounds(row: dict[str, Any], fields: list[pa.Field]) -> ds.Expression:
    """Return a condition that is true for every row of a file: its date, and the ranges of columns without NULLs.

    Floats are left out: a NaN is outside of any range, and pyarrow treats -0.0 and 0.0 as equal where SQL does not.
    """
    bounds = ds.field("date") == pa.scalar(row["date"], pa.date32())
    for field in fields:
        if pa.types.is_floating(field.type):
            continue
        low, high = row.get(f"min.{field.name}"), row.get(f"max.{field.name}")
        if low is None or high is None or row.get(f"null_count.{field.name}") != 0:
            continue
        if pa.types.is_timestamp(field.type) and not isinstance(low, datetime):
            continue
        bounds &= (ds.field(field.name) >= pa.scalar(low, field.type)) & (
            ds.field(field.name) <= pa.scalar(high, field.type)
        )
    return bounds


_MOST_FILES: Final = 64
"""Up to this number of files, all files of a table are registered. Finding the needed ones means planning twice."""
_LISTS_NUMBERS: Final = re.compile(r"\bin\s*\(\s*(?!'|select\b|with\b)", re.IGNORECASE)


class _Table(NamedTuple):
    handle: "DeltaTable | None"
    live: "pa.Table"


class Opened:
    """Tables of a lake at the version at which a query first used them, for several queries on the same state.

    Not for several threads. Vacuum deletes old files after its grace period, so this is for the duration of a command,
    not of a service.
    """

    def __init__(self, lake: "Lake") -> None:
        self._lake = lake
        self._tables: dict[str, _Table] = {}
        self._registered: set[str] = set()

    @cached_property
    def contracts(self) -> "dict[str, Contract]":
        """Contracts by table, at the time of the first query."""
        return dict(self._lake.contracts())

    def handle(self, table: str) -> "DeltaTable | None":
        """Return a table's handle; None if it was never written. Raises `LakeUnreachableError`."""
        return self._open_table(table).handle

    def live(self, table: str) -> "pa.Table":
        """Return a table's live files, like `live_files`."""
        return self._open_table(table).live

    def session(self, text: str, names: "Collection[str]") -> SessionContext | None:
        """Return a session with all files of some tables; None if the files that the query needs should be found first.

        That is the case if a table has many files, if the lake is on an object store, or if the query may have a list
        of floats (see `needed_files`). Raises `MissingFileError`.
        """
        has_few_files = all(self._open_table(name).live.num_rows <= _MOST_FILES for name in names)
        if not self._lake.store.is_local or not has_few_files or _LISTS_NUMBERS.search(text):
            return None
        for name in names:
            if name not in self._registered:
                table = self._open_table(name)
                contract = as_read(table.handle, self.contracts[name])
                register(self._session, self._lake.store, contract, table.live, views=True)
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
