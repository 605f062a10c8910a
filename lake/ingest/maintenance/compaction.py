"""Compaction: merges small files of a date by plans of kind ``compaction``; rows do not change.

Files are divided into tiers by size. When a tier has `FAN_IN` files, they are merged into one file of a higher tier. So
a row is rewritten only a few times, however often ingest runs, and a date has a bounded number of small files. When no
more rows are expected for a date, all its small files are merged. A damaged file is left out and reported.
"""

import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, date, datetime, timedelta
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from ranklake.lake.contracts.arrow import TARGET_FILE_BYTES, TARGET_FILE_PROPERTY, row_bytes
from ranklake.lake.plans import action_plan
from ranklake.lake.plans.driver import Unit, carry_out, drive
from ranklake.lake.plans.kinds import COMPACTION
from ranklake.lake.plans.plan import read_plan
from ranklake.lake.plans.workers import PIECE_SHARE
from ranklake.lake.store.catalog import Catalog
from ranklake.lake.store.lake import Lake
from ranklake.lake.tables.live_files import Damage, DataFile, damaged_files, files, files_digest, live_paths
from ranklake.lake.tables.parquet import write_partition
from ranklake.lake.tables.read import read_within
from ranklake.lake.tables.tables import delta_table, latest, refuse_unfit
from ranklake.printable import counted

if TYPE_CHECKING:
    from ranklake.lake.plans.plan import Plan, Progress
    from ranklake.lake.plans.workers import Workers

FAN_IN: Final = 8
TIERS: Final = (1 / 512, 1 / 64, 1 / 8, 1 / 2)
"""Upper bound of each tier, as a share of a full file. A file above the last bound is not merged."""

MEMORY_BYTES: Final = 256 * 2**20
"""Bytes in memory of the rows that are merged together. Sorting and writing take about three times as much. Tasks are
cut by an estimate from the contract; the worker merges as many of the files as fit, by their footers."""

_EXPECTED_DAYS: Final = 2


@dataclass(frozen=True, slots=True)
class Merge:
    """A task for a worker: files of one date to merge into one file.

    Attributes
    ----------
    lake_uri, storage
        Address of the lake, and storage options.
    table, day
        Table and date of the files.
    files
        Rows of `ranklake.lake.tables.live_files.files` as dicts: path, size_bytes, num_records, date.
    plan
        Number of the plan that is being composed. It is part of the new file's name.
    most_bytes
        Bytes in memory of the rows to merge.
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
        """Paths of the files."""
        return frozenset(row["path"] for row in self.files)

    @property
    def rows(self) -> int:
        """Number of rows in all files."""
        return sum(row["num_records"] for row in self.files)


@dataclass(frozen=True, slots=True)
class MergeResult:
    """Result of one task.

    Attributes
    ----------
    task
        The task, with only the files that were merged.
    file
        The new file; None if fewer than two files are sound and fit into memory.
    damaged
        Files of the task whose bytes changed after they were written.
    """

    task: Merge
    file: DataFile | None
    damaged: list[Damage]


def mergeable_tables(catalog: Catalog, tables: Iterable[str] | None = None) -> list[str]:
    """Return the tables, sorted, without derived tables: commits outside of plans remove files of derived tables."""
    contracts = catalog.contracts()
    return sorted(name for name in (tables or contracts) if contracts[name].kind != "derived")


def merges_due(
    lake: Lake,
    tables: Iterable[str],
    number: int,
    *,
    thorough: bool,
    today: date,
    without: Collection[tuple[str, str]] = (),
) -> Iterator[Merge]:
    """Yield the merges that are due, table by table and date by date, from the lowest tier up.

    Parameters
    ----------
    number
        Number of the plan that is being composed.
    thorough
        Whether to merge all small files of dates for which no more rows are expected.
    without
        Files (table, path) to leave out.

    Raises `ranklake.lake.tables.tables.NewerTableError` if a table has columns that this software does not know: a
    merge would lose them.
    """
    for table in tables:
        handle = latest(lake.tables, table)
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
                yield Merge(lake.store.address, lake.store.storage, table, day, group, number)


def groups_due(
    rows: Sequence[Mapping[str, Any]], target_bytes: int, rows_most: int, *, past: bool = False
) -> list[list[dict[str, Any]]]:
    """Return groups of files of one date; each group should be merged into one file.

    Parameters
    ----------
    rows
        All files of the date: size_bytes, num_records and path.
    target_bytes, rows_most
        Bytes and rows of a full file.
    past
        Whether no more rows are expected for the date.
    """

    def fill(row: Mapping[str, Any]) -> float:
        return float(max(row["size_bytes"] / target_bytes, row["num_records"] / rows_most))

    tiers: list[list[Mapping[str, Any]]] = [[] for _ in TIERS]
    for row in sorted(rows, key=lambda row: str(row["path"])):
        tier = next((index for index, bound in enumerate(TIERS) if fill(row) < bound), None)
        if tier is not None:
            tiers[tier].append(row)
    if past:
        tiers = [[row for tier in tiers for row in tier]]
    groups: list[list[dict[str, Any]]] = []
    for tier_rows in tiers:
        if len(tier_rows) < (2 if past else FAN_IN):
            continue
        group: list[dict[str, Any]] = []
        group_fill = 0.0
        for row in tier_rows:
            if group and group_fill + fill(row) > 1:
                groups.append(group)
                group, group_fill = [], 0.0
            group.append(dict(row))
            group_fill += fill(row)
        groups.append(group)
    return [group for group in groups if len(group) > 1]


def merge(task: Merge) -> MergeResult:
    """Write the rows of the sound files that fit into memory together as one new file. Does not commit it."""
    lake = Lake.open(task.lake_uri, task.storage)
    target = lake.contract(task.table)
    damaged = damaged_files(lake.tables, task.table, task.files)
    damaged_paths = {damage.path for damage in damaged}
    sound = [row for row in task.files if row["path"] not in damaged_paths]
    if len(sound) < 2:  # noqa: PLR2004 - one file needs no merge
        return MergeResult(task, None, damaged)
    rows, paths = read_within(lake.store, target, pa.Table.from_pylist(sound), task.most_bytes)
    if len(paths) < 2:  # noqa: PLR2004 - likewise
        return MergeResult(task, None, damaged)
    merged = replace(task, files=[row for row in task.files if row["path"] in set(paths)])
    file = write_partition(lake.store, target, rows, task.day, task.plan, merged=files_digest(merged.paths))
    return MergeResult(merged, file, damaged)


PLAN_MERGES: Final = 64
"""Most merges in one plan. It limits how long plans of other drivers wait."""

REUSE_S: Final = 900.0
"""Merged files that are older than this are not used in another plan."""
_ROW_CPU_S: Final = 0.5e-6
"""Rough CPU cost of merging a row."""


@dataclass(slots=True)
class CompactionResult:
    """Result of `merge_small`.

    Attributes
    ----------
    plans
        Numbers of the plans.
    files_before, files_after
        Number of files that were merged, and of files that replaced them.
    size_bytes
        Bytes of the files that were merged.
    damaged
        Files that were not merged because their bytes changed after they were written.
    """

    plans: list[int] = field(default_factory=list)
    files_before: int = 0
    files_after: int = 0
    size_bytes: int = 0
    damaged: list[Damage] = field(default_factory=list)


def merge_small(
    lake: "Lake",
    workers: "Workers",
    tables: Iterable[str] | None = None,
    *,
    thorough: bool = False,
    progress: "Progress | None" = None,
) -> CompactionResult:
    """Merge small files until none is left to merge. Files that are added meanwhile may be left for the next call.

    Parameters
    ----------
    tables
        By default all fact and system tables. Derived tables are left out: they have one file per date anyway.
    thorough
        Also merge all small files of dates for which no more rows are expected, even if they are few.

    Raises what the store raises. Then merged files without a plan are left for vacuum to delete.
    """
    composer = _Composer(lake, workers, mergeable_tables(lake.catalog, tables), thorough=thorough, progress=progress)
    result = CompactionResult()
    while (plan := drive(lake, composer.compose, workers).plan) is not None:
        result.plans.append(plan.number)
        result.files_before += sum(map(len, plan.body["remove"].values()))
        result.files_after += len(plan.body["add"])
        result.size_bytes += sum(row["size_bytes"] for rows in plan.body["remove"].values() for row in rows)
    result.damaged += composer.damaged.values()
    return result


class _Composer:
    """Composes plans of merges.

    If another driver writes a plan with the same number first, the merged files are used in a plan with a later number.
    Otherwise a date would never be merged if its merge takes longer than the time between two ingests.
    """

    def __init__(
        self,
        lake: "Lake",
        workers: "Workers",
        tables: Sequence[str],
        *,
        thorough: bool,
        progress: "Progress | None",
    ) -> None:
        self.lake, self.workers, self.tables = lake, workers, tables
        self.thorough, self.progress = thorough, progress
        self._ready: list[tuple[float, Merge, DataFile]] = []
        self._remaining: dict[str, int] = {}
        """Number of files of each table that may still be merged. It starts at twice the table's number of files, which
        is enough to merge all of them, and their results again. The limit ends the call even if other drivers add files
        as fast as this one merges them."""
        self.damaged: dict[tuple[str, str], Damage] = {}

    def compose(self, number: int) -> "Plan | None":
        """Return the plan of the next merges, or None if none is due."""
        ready = self._reusable(number)
        if not ready:
            today = datetime.now(UTC).date()
            damaged = frozenset(self.damaged)
            tables = [table for table in self.tables if self._may_merge(table)]
            due = merges_due(self.lake, tables, number, thorough=self.thorough, today=today, without=damaged)
            while not ready and (tasks := list(islice(due, PLAN_MERGES))):
                began = time.monotonic()
                results = self._merge(tasks)
                ready = [(began, result.task, result.file) for result in results if result.file is not None]
            for _, task, _ in ready:  # counted once, even if the files are used only in a later plan
                self._remaining[task.table] -= len(task.files)
        self._ready = ready
        if not ready:
            return None
        replaced: dict[str, list[dict[str, Any]]] = {}
        for _, task, _ in ready:
            replaced.setdefault(task.table, []).extend(task.files)
        return action_plan.compose(
            number,
            COMPACTION.name,
            add=[file for _, _, file in ready],
            remove={table: pa.Table.from_pylist(rows) for table, rows in replaced.items()},
            data_change=False,
        )

    def _may_merge(self, table: str) -> bool:
        if table not in self._remaining:
            handle = latest(self.lake.tables, table)
            self._remaining[table] = 0 if handle is None else 2 * files(handle).num_rows
        return self._remaining[table] > 0

    def _merge(self, tasks: Sequence[Merge]) -> list[MergeResult]:
        finished_tasks = 0
        rows = sum(row["num_records"] for task in tasks for row in task.files)
        workers = self.workers.fitting(rows * _ROW_CPU_S)
        most_bytes = min(MEMORY_BYTES, workers.room().bytes_each // PIECE_SHARE)

        def report() -> None:
            nonlocal finished_tasks
            finished_tasks += 1
            if self.progress is not None:
                self.progress(finished_tasks, len(tasks))

        sized_tasks = [replace(task, most_bytes=most_bytes) for task in tasks]
        results = carry_out(_merge_unit(tasks), lambda: workers.run(merge, sized_tasks, report))
        self.damaged |= {(damage.table, damage.path): damage for result in results for damage in result.damaged}
        return results

    def _reusable(self, number: int) -> list[tuple[float, Merge, DataFile]]:
        """Return recent merges whose result is in no plan yet and whose source files are all still live.

        Merges of dates that a plan has purged meanwhile are left out, since a purge deletes files without a commit.
        """
        recent = [entry for entry in self._ready if time.monotonic() - entry[0] < REUSE_S]
        numbers = range(min((task.plan for _, task, _ in recent), default=number), number)
        other_plans = [plan for plan in map(partial(read_plan, self.lake.store), numbers) if plan is not None]
        purged = {table_date for plan in other_plans for table_date in action_plan.purged_dates(plan)}
        recent = [entry for entry in recent if (entry[1].table, entry[1].day.isoformat()) not in purged]
        live: dict[str, set[str]] = {}
        for _, task, _ in recent:
            if task.table not in live:
                handle = delta_table(self.lake.store, task.table)
                live[task.table] = set() if handle is None else live_paths(handle)
        return [entry for entry in recent if entry[1].paths <= live[entry[1].table] and self._exists(entry[2])]

    def _exists(self, file: DataFile) -> bool:
        return bool(self.lake.fs.exists(self.lake.path("tables", file.table, file.path)))


def _merge_unit(tasks: Sequence[Merge]) -> Unit:
    tables = {task.table for task in tasks}
    files = sum(len(task.files) for task in tasks)
    where = f"of {len(tables)} tables " if len(tables) > 1 else ""
    detail = f"{where}{counted(files, 'small file')} into {len(tasks):,}"
    return Unit("merge", "" if where else min(tables), tuple(task.day for task in tasks), detail)
