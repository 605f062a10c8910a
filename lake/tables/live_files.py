"""Data files of a Delta table: names, add actions, live files, digests, and detection of damage.

The name of a file that ranklake writes contains the SHA-256 of its bytes (`ranklake.lake.tables.parquet`). Files of
other tools have no digest in their names; they are read completely, and each page is checked against its checksum. This
finds damaged values, but not every damaged footer.

A verified file is not verified again through the same `Tables` while its size and time are unchanged.
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
    """A written data file of a table, perhaps not committed yet.

    Attributes
    ----------
    table, path
        Table, and path relative to the table's folder.
    partition
        UTC date of all rows.
    rows, size_bytes
        Number of rows, and size of the file.
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
        """Return the Delta action that adds the file to its table."""
        values = {"date": self.partition.isoformat()}
        return AddAction(
            self.path, self.size_bytes, values, int(time.time() * 1000), data_change=data_change, stats=self.stats
        )


def plan_of(path: str) -> int | None:
    """Return the plan number in a data file's path; None if `write_partition` did not write the file."""
    match = _NAME.fullmatch(path)
    return int(match["plan"]) if match else None


def digest_of(path: str) -> str | None:
    """Return the SHA-256 in a data file's path; None if the name has none."""
    match = _NAME.fullmatch(path)
    return match["sha256"] if match else None


DATA_PATH: Final = r"date=[0-9]{4,}-[0-9]{2}-[0-9]{2}/[A-Za-z0-9][A-Za-z0-9._~-]*\.parquet"
"""Pattern of a data file's path, relative to its table's folder. It excludes ``..`` and percent escapes."""


MOST: Final = 2**40
"""Maximum of a file's rows and bytes in a log, so that sums over all files do not overflow."""
FILE_SCHEMA: Final = pa.schema(
    {"path": pa.string(), "size_bytes": pa.int64(), "num_records": pa.int64(), "date": pa.date32()}
)
"""Columns of `files`, without statistics."""

_SUM_DIGITS: Final = 64
_SUMS: Final = 16**_SUM_DIGITS
_MERGED: Final = re.compile(rf"~(?P<sum>[0-9a-f]{{{_SUM_DIGITS}}})\.parquet$")


class DamagedLogError(LakeError):
    """A Delta log contains impossible values."""


def damaged_log(table: DeltaTable, problem: str) -> DamagedLogError:
    """Return the error for a problem of a table's log, given as a clause."""
    hint = "restore its _delta_log from a backup"
    return DamagedLogError(f"the log is damaged: {problem}", where=table.table_uri, hint=hint)


def files(table: DeltaTable, partitions: Sequence[date] | None = None) -> pa.Table:
    """Return the table's live files: path, size_bytes, num_records, date (``date32``), and flat statistics.

    All values are validated. Raises `DamagedLogError` for impossible values, and `LakeUnreachableError` if the log
    cannot be read.
    """
    try:
        with reading_log(table):
            actions = pa.table(table.get_add_actions(flatten=True))
    except ValueError as error:  # NULL in a partition column that must not be NULL
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
    if not _are_in_partitions(actions["path"], dates):
        raise damaged_log(table, "the path of a file leads out of its partition")
    actions = actions.append_column("date", dates)
    if partitions is not None:
        actions = actions.filter(pc.is_in(actions["date"], value_set=pa.array(partitions, pa.date32())))
    return actions


def live_paths(table: DeltaTable) -> set[str]:
    """Return the paths of the table's live files, relative to its folder. Raises as `files`."""
    return set(files(table)["path"].to_pylist())


def _are_in_partitions(paths: pa.ChunkedArray, dates: pa.ChunkedArray) -> bool:
    """Whether all paths are in the folders of their dates. A log could name any path."""
    is_valid = pc.match_substring_regex(paths, f"^(?:{DATA_PATH})$")
    days = pc.replace_substring_regex(paths, "^date=([^/]*)/.*$", r"\1")
    return bool(pc.all(pc.and_(is_valid, pc.equal(days, dates.cast(pa.string()))), min_count=0).as_py())


def files_digest(paths: Iterable[str]) -> str:
    """Return a digest of a set of data files, in any order. Their names are enough, because files never change.

    The digest is the sum of the files' digests. The name of a merged file contains the sum of the files from which it
    was merged. So merging files does not change the digest, and nothing is computed or checked again.
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
_THREADS: Final = 4
"""Number of files that are read in parallel."""
_BATCH_ROWS: Final = 65_536
_OTHER_BYTES: Final = "its bytes differ from the digest in its name"


@dataclass(frozen=True, slots=True)
class Damage:
    """A damaged data file.

    Attributes
    ----------
    table, partition, path
        Table; UTC date (ISO; empty if the log has none); path relative to the table's folder.
    why
        The problem, as a clause.
    """

    table: str
    partition: str
    path: str
    why: str

    def __str__(self) -> str:
        """Return file, problem and hint in one line."""
        return f"{self.table}/{self.path}: {self.why}; {self.hint}"

    @property
    def hint(self) -> str:
        """The command that rebuilds the rows, or the advice to restore the file."""
        if self.partition and _is_replayable(self.table):
            return f"ranklake replay --table {self.table} --from {self.partition} --to {self.partition}"
        return "restore the file from a backup: nothing else has its rows"


def _is_replayable(table: str) -> bool:
    """Whether a replay can rebuild a table's rows: recorded and derived tables, and all tables of operators."""
    return table not in table_names() or contract(table).envelope or contract(table).kind == "derived"


class DamagedFileError(LakeError):
    """Data files are damaged. Nothing was written from them.

    Attributes
    ----------
    damage
        The damaged files.
    """

    exit_code = 1

    def __init__(self, damage: Sequence[Damage]) -> None:
        first, *others = damage
        more = f" ({len(others)} more beside it: 'ranklake upkeep --scrub' lists all)" if others else ""
        super().__init__(f"{first.why}{more}", where=f"{first.table}/{first.path}", hint=first.hint)
        self.damage = tuple(damage)


def damaged_files(tables: "Tables", table: str, files: pa.Table | Iterable[Mapping[str, Any]]) -> list[Damage]:
    """Verify some files and return the damaged ones.

    Raises `LakeUnreachableError`, and `OSError` if a file may not be read.

    Parameters
    ----------
    files
        Rows of `files`: path, size_bytes, num_records, date.
    """
    rows = (
        files.select(["path", "size_bytes", "num_records", "date"]).to_pylist()
        if isinstance(files, pa.Table)
        else files
    )
    rows = list(rows)
    if len(rows) <= 1:  # starting a thread takes longer than reading a small file
        damages = [_file_damage(tables, table, row) for row in rows]
    else:
        with ThreadPoolExecutor(min(_THREADS, len(rows))) as pool:
            damages = list(pool.map(lambda row: _file_damage(tables, table, row), rows))
    return [damage for damage in damages if damage is not None]


def refuse_damaged(tables: "Tables", table: str, files: pa.Table | Iterable[Mapping[str, Any]]) -> None:
    """Raise `DamagedFileError` if any of some files is damaged; arguments as for `damaged_files`."""
    if damages := damaged_files(tables, table, files):
        raise DamagedFileError(damages)


class ForeignRowsError(ValueError):
    """Rows of a data file do not fit its table. The message contains no value."""


@contextmanager
def reading(table: str, row: Mapping[str, Any]) -> Iterator[None]:
    """Translate pyarrow's errors for invalid Parquet, and `ForeignRowsError`, to `DamagedFileError`.

    Errors of the operating system or the store are passed on.
    """
    try:
        yield
    except ForeignRowsError as error:
        raise DamagedFileError([_damage(table, row, str(error))]) from None
    except (OSError, pa.ArrowException, UnicodeDecodeError) as error:  # column names may be invalid UTF-8
        # Errors with a number come from the system or the store; lack of memory is no damage either.
        if getattr(error, "errno", None) is not None or isinstance(error, MemoryError):
            raise
        # pyarrow's message may quote a value, so it is not shown.
        reason = "a page differs from its checksum" if "CRC" in str(error) else "no sound Parquet"
        raise DamagedFileError([_damage(table, row, reason)]) from None


def _file_damage(tables: "Tables", table: str, row: Mapping[str, Any]) -> Damage | None:
    """Return the damage of a file; None if it is sound."""
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
    """Raise `DamagedFileError`, or an error of pyarrow, if a file's content is damaged."""
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
    """Return the SHA-256, in hexadecimal, of an open file from its current position."""
    digest = hashlib.sha256()
    while chunk := source.read_buffer(CHUNK_BYTES):
        digest.update(chunk)
    return digest.hexdigest()


def _other_size(size: int, row: Mapping[str, Any]) -> str:
    return f"{size:,} bytes where the log says {row['size_bytes']:,}"


def _state(store: "Store", full: str, row: Mapping[str, Any]) -> tuple[int, object]:
    """Return a file's size, and a value that changes with the file; for object stores, the log's size for both."""
    if not store.is_local:
        return row["size_bytes"], row["size_bytes"]
    status = Path(full).stat()
    return status.st_size, (status.st_size, status.st_mtime_ns, status.st_ino)


def _damage(table: str, row: Mapping[str, Any], reason: str) -> Damage:
    day: date | None = row["date"]
    return Damage(table, "" if day is None else day.isoformat(), row["path"], reason)
