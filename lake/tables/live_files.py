"""Data files of a Delta table: their names and add actions, which are live, the digest of some, and their damage.

A file that ranklake writes carries the SHA-256 of all its bytes in its name (`ranklake.lake.tables.parquet`), so
whoever knows a file from the Delta log, a plan or a listing knows its digest, too. Files of other tools have none:
theirs are read whole, and each page is checked against its checksum. That tells damaged values, but not every damaged
footer.

What was found sound once is not looked at again through the same `Tables`, as long as it has its size and its time.
"""

import hashlib
import re
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake import DeltaTable
from deltalake.transaction import AddAction

from ranklake.lake.contracts.load import contract, table_names
from ranklake.lake.store.reachability import LakeError
from ranklake.lake.tables.tables import reading_log

if TYPE_CHECKING:
    from pyarrow import NativeFile

    from ranklake.lake.store.store import Store
    from ranklake.lake.store.tables import Tables

_NAME = re.compile(
    r"date=\d{4,}-\d{2}-\d{2}/p(?P<plan>\d+)-[0-9a-f]{32}(-(?P<sha256>[0-9a-f]{64}))?(~[0-9a-f]+)?\.parquet"
)


@dataclass(frozen=True, slots=True)
class DataFile:
    """A data file of a table, on disk, perhaps not committed yet.

    Attributes
    ----------
    table, path
        Table, and path relative to it.
    partition
        UTC date of all rows.
    rows, size_bytes
        What the file holds and takes.
    stats
        Delta statistics as JSON text.
    """

    table: str
    path: str
    partition: date
    rows: int
    size_bytes: int
    stats: str

    def add_action(self, *, data_change: bool = True) -> AddAction:
        """Return the action that makes the file part of its table."""
        values = {"date": self.partition.isoformat()}
        return AddAction(
            self.path, self.size_bytes, values, int(time.time() * 1000), data_change=data_change, stats=self.stats
        )


def plan_of(path: str) -> int | None:
    """Return the number in a data file's path, relative to its table; None if `write_partition` did not write it."""
    match = _NAME.fullmatch(path)
    return int(match["plan"]) if match else None


def digest_of(path: str) -> str | None:
    """Return the SHA-256 in a data file's path, relative to its table; None where the name has none."""
    match = _NAME.fullmatch(path)
    return match["sha256"] if match else None


DATA_PATH: Final = r"date=[0-9]{4,}-[0-9]{2}-[0-9]{2}/[A-Za-z0-9][A-Za-z0-9._~-]*\.parquet"
"""Pattern of a data file's path, relative to its table's folder: nothing in it leads elsewhere, nor is an escape."""


MOST: Final = 2**40
"""Rows, and bytes, of one data file: what a log may say at most, so that sums over all files hold."""
FILE_SCHEMA: Final = pa.schema(
    {"path": pa.string(), "size_bytes": pa.int64(), "num_records": pa.int64(), "date": pa.date32()}
)
"""What is asked of a file; `files` returns statistics beside it."""

_SUM_DIGITS: Final = 64
_SUMS: Final = 16**_SUM_DIGITS
_MERGED: Final = re.compile(rf"~(?P<sum>[0-9a-f]{{{_SUM_DIGITS}}})\.parquet$")


class DamagedLogError(LakeError):
    """A Delta log that says of a file what cannot be."""


def damaged_log(table: DeltaTable, what: str) -> DamagedLogError:
    """Return the error for what is wrong with a log, in a clause."""
    hint = "restore its _delta_log from a backup"
    return DamagedLogError(f"the log is damaged: {what}", where=table.table_uri, hint=hint)


def files(table: DeltaTable, partitions: Sequence[date] | None = None) -> pa.Table:
    """Return the table's live files: path, size_bytes, num_records, date (``date32``), and flat statistics.

    Raises `DamagedLogError` where the log says of a file what cannot be: nobody has to look again; and
    `LakeUnreachableError` where it cannot be read.
    """
    try:
        with reading_log(table):
            actions = pa.table(table.get_add_actions(flatten=True))
    except ValueError as error:  # NULL in a partition column that has none, by the table's own schema
        raise damaged_log(table, "a file has no date") from error
    for name in ("size_bytes", "num_records"):
        if actions.num_rows:
            if name not in actions.column_names or actions[name].null_count:
                raise damaged_log(table, f"the {name} of a file is not told")
            extremes = pc.min_max(actions[name]).as_py()
            if not 0 <= extremes["min"] <= extremes["max"] <= MOST:
                raise damaged_log(table, f"the {name} of a file cannot be")
    name = "partition.date"
    if name not in actions.column_names:
        dates = pa.chunked_array([pa.nulls(actions.num_rows, pa.date32())])
    else:
        dates = actions[name].cast(pa.date32())
        actions = actions.drop_columns([name])
    if dates.null_count:
        raise damaged_log(table, "a file has no date")
    if not _lie_in(actions["path"], dates):
        raise damaged_log(table, "the path of a file leads out of its partition")
    actions = actions.append_column("date", dates)
    if partitions is not None:
        actions = actions.filter(pc.is_in(actions["date"], value_set=pa.array(partitions, pa.date32())))
    return actions


def live_paths(table: DeltaTable) -> set[str]:
    """Return the paths of the table's live files, relative to it. Raises as `files`."""
    return set(files(table)["path"].to_pylist())


def _lie_in(paths: pa.ChunkedArray, dates: pa.ChunkedArray) -> bool:
    """Whether data files lie in their dates' folders, as ranklake names them: a log may name any place at all."""
    named = pc.match_substring_regex(paths, f"^(?:{DATA_PATH})$")
    days = pc.replace_substring_regex(paths, "^date=([^/]*)/.*$", r"\1")
    return bool(pc.all(pc.and_(named, pc.equal(days, dates.cast(pa.string()))), min_count=0).as_py())


def files_digest(paths: Iterable[str]) -> str:
    """Return a digest of files. Data files never change once written, so their names say it all; order says nothing.

    It is the sum of the files' own digests, and a file that was merged from others carries their sum in its name: so
    merging files changes no digest, and nobody computes or checks again what did not change.
    """
    return extend_digest("", paths)


def extend_digest(digest: str, paths: Iterable[str]) -> str:
    """Return the digest of some files, of which the digest is given (empty: none), and further ones.

    >>> extend_digest(files_digest(["a", "b"]), ["c"]) == files_digest(["c", "b", "a"])
    True
    """
    return f"{(int(digest or '0', 16) + sum(map(_share, paths))) % _SUMS:0{_SUM_DIGITS}x}"


def _share(path: str) -> int:
    merged = _MERGED.search(path)
    return int(merged["sum"] if merged else hashlib.sha256(path.encode()).hexdigest(), 16)


CHUNK_BYTES: Final = 2**20
_AT_ONCE: Final = 4
"""Files that are read side by side."""
_BATCH_ROWS: Final = 65_536
_OTHER_BYTES: Final = "its bytes differ from the digest in its name"


@dataclass(frozen=True, slots=True)
class Damage:
    """A data file that is not what was written.

    Attributes
    ----------
    table, partition, path
        Whose, its UTC date (ISO; empty where the log tells none), and its path relative to the table.
    why
        What is wrong with it, in one clause.
    """

    table: str
    partition: str
    path: str
    why: str

    def __str__(self) -> str:
        """Return one line: where, what, hint."""
        return f"{self.table}/{self.path}: {self.why}; {self.hint}"

    @property
    def hint(self) -> str:
        """What to do about it."""
        if self.partition and _is_rebuilt(self.table):
            return f"ranklake replay --table {self.table} --from {self.partition} --to {self.partition}"
        return "restore the file from a backup: nothing else has its rows"


def _is_rebuilt(table: str) -> bool:
    """Whether a replay makes a table's rows again; it does so with each of an operator's."""
    return table not in table_names() or contract(table).envelope or contract(table).kind == "derived"


class DamagedFileError(LakeError):
    """Data files are not what was written; nothing was made from them.

    Attributes
    ----------
    damage
        Which, and how.
    """

    exit_code = 1

    def __init__(self, damage: Sequence[Damage]) -> None:
        first, *others = damage
        more = f" ({len(others)} more beside it: 'ranklake upkeep --scrub' lists all)" if others else ""
        super().__init__(f"{first.why}{more}", where=f"{first.table}/{first.path}", hint=first.hint)
        self.damage = tuple(damage)


def damaged_files(tables: "Tables", table: str, files: pa.Table | Iterable[Mapping[str, Any]]) -> list[Damage]:
    """Return which of some files are damaged.

    Parameters
    ----------
    files
        Rows as `files` returns them: path, size_bytes, num_records, date.

    Raises `LakeUnreachableError`, and `OSError` where a file may not be read.
    """
    rows = (
        files.select(["path", "size_bytes", "num_records", "date"]).to_pylist()
        if isinstance(files, pa.Table)
        else files
    )
    rows = list(rows)
    if len(rows) <= 1:  # starting a thread takes longer than a look at a small file
        damages = [_file_damage(tables, table, row) for row in rows]
    else:
        with ThreadPoolExecutor(min(_AT_ONCE, len(rows))) as pool:
            damages = list(pool.map(lambda row: _file_damage(tables, table, row), rows))
    return [one for one in damages if one is not None]


def refuse_damaged(tables: "Tables", table: str, files: pa.Table | Iterable[Mapping[str, Any]]) -> None:
    """Raise `DamagedFileError` where some files are damaged; arguments as for `damaged_files`."""
    if damages := damaged_files(tables, table, files):
        raise DamagedFileError(damages)


class ForeignRowsError(ValueError):
    """Rows of a data file are none that its table can have; the text says why, without a value."""


@contextmanager
def reading(table: str, row: Mapping[str, Any]) -> Iterator[None]:
    """Turn what pyarrow says of bytes that are no sound Parquet into `DamagedFileError`; what a system says stays.

    So with rows that the table cannot have.
    """
    try:
        yield
    except ForeignRowsError as error:
        raise DamagedFileError([_damage(table, row, str(error))]) from None
    except (OSError, pa.ArrowException, UnicodeDecodeError) as error:  # names of columns may be no text
        # The disk's or the store's own: a right, a place, a network; and want of memory is no damage.
        if getattr(error, "errno", None) is not None or isinstance(error, MemoryError):
            raise
        # No text of pyarrow's: it may quote a value.
        why = "a page differs from its checksum" if "CRC" in str(error) else "no sound Parquet"
        raise DamagedFileError([_damage(table, row, why)]) from None


def _file_damage(tables: "Tables", table: str, row: Mapping[str, Any]) -> Damage | None:
    """Return what is wrong with a file, or None."""
    full = tables.store.path("tables", table, row["path"])
    try:
        size, state = _state(tables.store, full, row)
        if tables.sound.get(full) == state:
            return None
        if size != row["size_bytes"]:
            return _damage(table, row, _other_size(size, row))
        with reading(table, row):
            _examine(tables.store, table, full, row)
    except DamagedFileError as error:
        return error.damage[0]
    except FileNotFoundError:
        return _damage(table, row, "it is not there")
    tables.sound[full] = state
    return None


def _examine(store: "Store", table: str, full: str, row: Mapping[str, Any]) -> None:
    """Raise `DamagedFileError`, or what pyarrow says, where a file is damaged."""
    digest = digest_of(row["path"])
    with store.open_file(full, row["size_bytes"]) as source:
        if digest is not None:
            if sha256(source) != digest:
                raise DamagedFileError([_damage(table, row, _OTHER_BYTES)])
            return
        file = pq.ParquetFile(source, page_checksum_verification=True)
        rows = sum(batch.num_rows for batch in file.iter_batches(_BATCH_ROWS, use_threads=False))
        if rows != row["num_records"]:
            raise DamagedFileError([_damage(table, row, f"{rows:,} rows where the log says {row['num_records']:,}")])


def sha256(source: "NativeFile") -> str:
    """Return the digest, as hexadecimal digits, of what is left of an open file."""
    digest = hashlib.sha256()
    while chunk := source.read_buffer(CHUNK_BYTES):
        digest.update(chunk)
    return digest.hexdigest()


def _other_size(size: int, row: Mapping[str, Any]) -> str:
    return f"{size:,} bytes where the log says {row['size_bytes']:,}"


def _state(store: "Store", full: str, row: Mapping[str, Any]) -> tuple[int, object]:
    """Return a file's size, and what changes with the file; on a store the size is taken from the log."""
    if not store.is_local:
        return row["size_bytes"], row["size_bytes"]
    status = Path(full).stat()
    return status.st_size, (status.st_size, status.st_mtime_ns, status.st_ino)


def _damage(table: str, row: Mapping[str, Any], why: str) -> Damage:
    day: date | None = row["date"]
    return Damage(table, "" if day is None else day.isoformat(), row["path"], why)
