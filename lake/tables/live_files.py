"""Data files of a Delta table: their names and add actions, which are live, and the digest of some."""

import hashlib
import re
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import date
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable
from deltalake.transaction import AddAction

from ranklake.lake.store.reachability import LakeError
from ranklake.lake.tables.tables import reading_log

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
    return f"{sum(map(_share, paths)) % _SUMS:0{_SUM_DIGITS}x}"


def _share(path: str) -> int:
    merged = _MERGED.search(path)
    return int(merged["sum"] if merged else hashlib.sha256(path.encode()).hexdigest(), 16)
