"""The live files of a Delta table, as its log has them, and what they are worth as a digest."""

import hashlib
import re
from collections.abc import Iterable, Sequence
from datetime import date
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable

from ranklake.lake.store.reachability import LakeError
from ranklake.lake.tables.data_file import DATA_PATH
from ranklake.lake.tables.tables import reading_log

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
            told = pc.min_max(actions[name]).as_py()
            if not 0 <= told["min"] <= told["max"] <= MOST:
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
    """Say whether data files lie in their dates' folders, as ranklake names them: a log may name any place at all."""
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
