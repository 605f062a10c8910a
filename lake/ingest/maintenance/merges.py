"""Chooses which small files of a date to merge, and the task that writes the result.

Files are of tiers by how full they are, and a tier that has `FAN_IN` files is merged into one of a higher tier. So a
row is written again a few times at most, however often ingest runs, and a date has a bounded number of small files. A
date on which nothing is expected any more is merged as far as it goes. A file that is no longer what was written is
left out, and told.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date, timedelta
from typing import Any, Final

import pyarrow as pa

from ranklake.lake.contracts.arrow import row_bytes
from ranklake.lake.contracts.delta import TARGET_FILE_BYTES, TARGET_FILE_PROPERTY
from ranklake.lake.store.store import Lake
from ranklake.lake.tables.data_file import DataFile
from ranklake.lake.tables.integrity import Damage, damaged
from ranklake.lake.tables.live_files import files, files_digest
from ranklake.lake.tables.parquet import write_partition
from ranklake.lake.tables.read import read_within
from ranklake.lake.tables.tables import latest, refuse_unfit

FAN_IN: Final = 8
TIERS: Final = (1 / 512, 1 / 64, 1 / 8, 1 / 2)
"""How full the fullest file of each tier is, of a full one; a fuller file is left alone."""

MEMORY_BYTES: Final = 256 * 2**20
"""Rows that are merged at a time, as they lie in memory; sorting and writing take some three times that. Which files
are tried is reckoned from the contract; the worker takes as many of them as fit by what their footers say."""

_EXPECTED_DAYS: Final = 2


@dataclass(frozen=True, slots=True)
class Merge:
    """Files of one date that become one: a task for a worker.

    Attributes
    ----------
    lake_uri, storage
        Where to read and write.
    table, day
        Whose files.
    files
        Rows of `ranklake.lake.tables.live_files.files` as dicts: path, size_bytes, num_records, date.
    plan
        Number of the plan that is being composed; part of the new file's name.
    most_bytes
        Rows to hold, as they lie in memory.
    """

    lake_uri: str
    storage: dict[str, str]
    table: str
    day: date
    files: list[dict[str, Any]]
    plan: int
    most_bytes: int = MEMORY_BYTES

    @property
    def paths(self) -> frozenset[str]:
        """The files' paths."""
        return frozenset(row["path"] for row in self.files)

    @property
    def rows(self) -> int:
        """Rows in all files."""
        return sum(row["num_records"] for row in self.files)


@dataclass(frozen=True, slots=True)
class MergeResult:
    """What came of one task.

    Attributes
    ----------
    task
        With just the files that were merged.
    file
        The new one; None where no two fit.
    damaged
        Files of the task that are not what was written.
    """

    task: Merge
    file: DataFile | None
    damaged: list[Damage]


def mergeable_tables(lake: Lake, tables: Iterable[str] | None = None) -> list[str]:
    """Return those of some tables, default all, that only plans take files from."""
    known = lake.contracts()
    return sorted(name for name in (tables or known) if known[name].kind != "derived")


def merges_due(
    lake: Lake,
    tables: Iterable[str],
    number: int,
    *,
    thorough: bool,
    today: date,
    without: Collection[tuple[str, str]] = (),
) -> Iterator[Merge]:
    """Yield the merges that are due, table by table, the fullest tier last, but of no files (table, path) in `without`.

    Raises `ranklake.lake.tables.tables.NewerTableError`: a merge would lose columns that are not known here.
    """
    for table in tables:
        handle = latest(lake, table)
        if handle is None:
            continue
        live = files(refuse_unfit(handle, lake.contract(table))).select(["path", "size_bytes", "num_records", "date"])
        target = int(handle.metadata().configuration.get(TARGET_FILE_PROPERTY) or TARGET_FILE_BYTES)
        rows_most = MEMORY_BYTES // row_bytes(lake.contract(table))
        by_day: dict[date, list[dict[str, Any]]] = {}
        for row in live.to_pylist():
            if (table, row["path"]) not in without:
                by_day.setdefault(row["date"], []).append(row)
        for day, rows in sorted(by_day.items()):
            past = thorough and day <= today - timedelta(days=_EXPECTED_DAYS)
            for group in groups_due(rows, target, rows_most, past=past):
                yield Merge(lake.address, lake.storage, table, day, group, number)


def groups_due(
    rows: Sequence[Mapping[str, Any]], target_bytes: int, rows_most: int, *, past: bool = False
) -> list[list[dict[str, Any]]]:
    """Return the files of one date that should become one file each group.

    Parameters
    ----------
    rows
        All files of the date: size_bytes, num_records and path.
    target_bytes, rows_most
        What a full file takes and holds.
    past
        Whether nothing more is expected on the date.
    """

    def fill(row: Mapping[str, Any]) -> float:
        return float(max(row["size_bytes"] / target_bytes, row["num_records"] / rows_most))

    tiers: list[list[Mapping[str, Any]]] = [[] for _ in TIERS]
    for row in sorted(rows, key=lambda row: str(row["path"])):
        tier = next((place for place, most in enumerate(TIERS) if fill(row) < most), None)
        if tier is not None:
            tiers[tier].append(row)
    if past:
        tiers = [[row for tier in tiers for row in tier]]
    groups: list[list[dict[str, Any]]] = []
    for tier_rows in tiers:
        if len(tier_rows) < (2 if past else FAN_IN):
            continue
        group: list[dict[str, Any]] = []
        full = 0.0
        for row in tier_rows:
            if group and full + fill(row) > 1:
                groups.append(group)
                group, full = [], 0.0
            group.append(dict(row))
            full += fill(row)
        groups.append(group)
    return [group for group in groups if len(group) > 1]


def merge(task: Merge) -> MergeResult:
    """Write the rows of those files that are sound and fit into memory together as one file; commit nothing."""
    lake = Lake.open(task.lake_uri, task.storage)
    target = lake.contract(task.table)
    bad = damaged(lake, task.table, task.files)
    sound = [row for row in task.files if row["path"] not in {one.path for one in bad}]
    if len(sound) < 2:  # noqa: PLR2004 - one file is merged already
        return MergeResult(task, None, bad)
    rows, paths = read_within(lake, target, pa.Table.from_pylist(sound), task.most_bytes)
    if len(paths) < 2:  # noqa: PLR2004 - likewise
        return MergeResult(task, None, bad)
    done = replace(task, files=[row for row in task.files if row["path"] in set(paths)])
    file = write_partition(lake, target, rows, task.day, task.plan, merged=files_digest(done.paths))
    return MergeResult(done, file, bad)
