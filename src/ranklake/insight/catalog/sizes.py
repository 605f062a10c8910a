"""Sizes of tables and columns: from the Delta log, and for columns from the footers of data files."""

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, date, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from ranklake.lake.tables.live_files import files, reading
from ranklake.lake.tables.tables import latest

if TYPE_CHECKING:
    from ranklake.lake.contracts.model import Contract
    from ranklake.lake.store.store import Store
    from ranklake.lake.store.tables import Tables

GROWTH_DAYS: Final = 7
_CLOCKS_APART_DAYS: Final = 1
_STRAY_SHARE: Final = 0.01
"""If older rows are fewer than this share of a week's, they come from wrong clocks."""
_LEVELS: Final = frozenset({"RLE", "BIT_PACKED"})
"""Encodings of definition levels, which every optional column has."""


@dataclass(frozen=True, slots=True)
class TableSize:
    """Size of a table from its Delta log; 0 and None if it was never written.

    Attributes
    ----------
    rows, files, stored_bytes
        Totals of the live files.
    version
        Delta version that was read.
    first_date, last_date
        Partitions with rows.
    last_ts
        Latest ``ts`` in the statistics.
    written
        When the newest live file was written.
    daily_rows, daily_bytes
        Mean growth per day over the last `GROWTH_DAYS` up to the last date that is not in the future; None without one.
    """

    table: str
    rows: int = 0
    files: int = 0
    stored_bytes: int = 0
    version: int | None = None
    first_date: date | None = None
    last_date: date | None = None
    last_ts: datetime | None = None
    written: datetime | None = None
    daily_rows: float | None = None
    daily_bytes: float | None = None


@dataclass(frozen=True, slots=True)
class ColumnSize:
    """Size of a column in the files that were read.

    Attributes
    ----------
    values
        Number of values that are not NULL; None if unknown.
    stored_bytes, plain_bytes
        Size of its encoded pages with headers, compressed and uncompressed.
    encodings
        Encodings of its pages, sorted.
    """

    column: str
    values: int | None
    stored_bytes: int
    plain_bytes: int
    encodings: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Sizes:
    """Sizes of a table's columns, in its order.

    Attributes
    ----------
    rows, files, stored_bytes
        Totals of the files that were read; `stored_bytes` includes footers and indexes.
    columns
        All columns of the contract; a column in no file has size 0.
    """

    table: str
    rows: int
    files: int
    stored_bytes: int
    columns: tuple[ColumnSize, ...]

    @property
    def rest_bytes(self) -> int:
        """Bytes outside columns: footers, statistics, page indexes, bloom filters."""
        return self.stored_bytes - sum(column.stored_bytes for column in self.columns)

    @property
    def values(self) -> int | None:
        """Number of values that are not NULL, in all columns; None if unknown for a column."""
        known = [column.values for column in self.columns if column.stored_bytes]
        return None if None in known else sum(count for count in known if count is not None)

    @property
    def row_bytes(self) -> float:
        """Stored bytes a row."""
        return self.stored_bytes / self.rows

    @property
    def value_bytes(self) -> float | None:
        """Stored bytes per value; None without values, or if their number is unknown."""
        return self.stored_bytes / self.values if self.values else None

    def facts(self) -> dict[str, Any]:
        """Return fields and derived values as JSON values."""
        return asdict(self) | {
            name: getattr(self, name) for name in ("rest_bytes", "values", "row_bytes", "value_bytes")
        }


def live_files(tables: "Tables", table: str) -> tuple[int | None, pa.Table | None]:
    """Return a table's Delta version and its live files, as `ranklake.lake.tables.live_files.files` does."""
    handle = latest(tables, table)
    return (None, None) if handle is None else (handle.version(), files(handle))


def table_size(table: str, version: int | None, live: pa.Table | None) -> TableSize:
    """Return the size of a table's live files."""
    if live is None or not live.num_rows:
        return TableSize(table, version=version)
    rows, sizes = live["num_records"].to_pylist(), live["size_bytes"].to_pylist()
    days: list[date] = live["date"].to_pylist()
    written = datetime.fromtimestamp(max(_written_ms(live)) / 1000, UTC)
    grown = _growth(days, rows, written.date())
    return TableSize(
        table,
        rows=sum(rows),
        files=live.num_rows,
        stored_bytes=sum(sizes),
        version=version,
        first_date=min(days),
        last_date=max(days),
        last_ts=_latest(live),
        written=written,
        daily_rows=None if grown is None else sum(rows[place] for place in grown[0]) / grown[1],
        daily_bytes=None if grown is None else sum(sizes[place] for place in grown[0]) / grown[1],
    )


def _growth(days: Sequence[date], rows: Sequence[int], written: date) -> tuple[list[int], int] | None:
    """Return the files of the days over which growth is computed, and the number of days; None for none.

    The last of these days is not after the day of the newest file: later dates come from wrong clocks. So do a few very
    old rows, which are ignored.
    """
    last = max((day for day in days if day <= written + timedelta(days=_CLOCKS_APART_DAYS)), default=None)
    if last is None:
        return None
    begin = last - timedelta(days=GROWTH_DAYS - 1)
    inside = [place for place, day in enumerate(days) if begin <= day <= last]
    before = sum(count for day, count in zip(days, rows, strict=True) if day < begin)
    if before <= _STRAY_SHARE * sum(rows[place] for place in inside):
        begin = min(days[place] for place in inside)
    return inside, (last - begin).days + 1


def newest(live: pa.Table, most_files: int | None = None, most_rows: int | None = None) -> pa.Table:
    """Return the newest live files, up to a number of files or about a number of rows (at least one file)."""
    written = _written_ms(live)
    order = sorted(range(live.num_rows), key=lambda place: -written[place])
    if most_files is not None:
        order = order[:most_files]
    if most_rows is not None:
        held, kept, rows = 0, list[int](), live["num_records"].to_pylist()
        for place in order:
            if kept and held + rows[place] > most_rows:
                break
            kept.append(place)
            held += rows[place]
        order = kept
    return live.take(pa.array(order, pa.int64()))


def column_sizes(store: "Store", contract: "Contract", chosen: pa.Table) -> Sizes:
    """Return the sizes of a table's columns in some of its files, from their footers.

    Parameters
    ----------
    chosen
        Rows of `ranklake.lake.tables.live_files.files`.
    """
    stored: Counter[str] = Counter()
    plain: Counter[str] = Counter()
    counts: Counter[str] = Counter()
    nulls: Counter[str] = Counter()
    unknown_tables: set[str] = set()
    encodings: defaultdict[str, set[str]] = defaultdict(set)
    for name, chunk in _chunks(store, contract.table, chosen.select(["path", "date"]).to_pylist()):
        stored[name] += chunk.total_compressed_size
        plain[name] += chunk.total_uncompressed_size
        counts[name] += chunk.num_values
        encodings[name] |= set(chunk.encodings)
        if chunk.statistics is not None and chunk.statistics.has_null_count:
            nulls[name] += chunk.statistics.null_count
        else:
            unknown_tables.add(name)
    columns = []
    for column in contract.columns:
        name = column.name
        missing: int | None = nulls[name]
        if name in unknown_tables:
            missing = 0 if column.required else _nulls_of(chosen, name)
        pages = tuple(sorted(encodings[name] - _LEVELS)) or tuple(sorted(encodings[name]))
        values = None if missing is None else max(0, counts[name] - missing)
        columns.append(ColumnSize(name, values, stored[name], plain[name], pages))
    rows, size = (pc.sum(chosen[of]).as_py() or 0 for of in ("num_records", "size_bytes"))
    return Sizes(contract.table, rows, chosen.num_rows, size, tuple(columns))


def _chunks(store: "Store", table: str, chosen: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, Any]]:
    """Yield each column chunk's column and metadata. Raises `ranklake.lake.tables.live_files.DamagedFileError`."""
    for row in chosen:
        with store.fs.open(store.path("tables", table, row["path"]), "rb") as source, reading(table, row):
            footer = pq.read_metadata(source)
            for group in range(footer.num_row_groups):
                of = footer.row_group(group)
                for place in range(of.num_columns):
                    chunk = of.column(place)
                    yield chunk.path_in_schema.partition(".")[0], chunk


def _nulls_of(chosen: pa.Table, name: str) -> int | None:
    """Return a column's number of NULLs from the Delta log; None if it is unknown for a file."""
    column = f"null_count.{name}"
    if column not in chosen.column_names or chosen[column].null_count:
        return None
    return int(pc.sum(chosen[column]).as_py() or 0)


def _written_ms(live: pa.Table) -> list[int]:
    """Return when each file was written, ms since 1970."""
    return list(live["modification_time"].cast(pa.int64()).to_pylist())


def _latest(live: pa.Table) -> datetime | None:
    if "max.ts" not in live.column_names:
        return None
    latest = pc.max(live["max.ts"]).as_py()
    return latest if isinstance(latest, datetime) else None
