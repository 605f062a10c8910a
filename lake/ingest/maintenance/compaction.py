"""Compaction: merges small files of a date by plans of kind ``compaction``; rows do not change.

Files are of tiers by how full they are, and a tier that has `FAN_IN` files is merged into one file of a higher tier. So
a row is written again a few times at most, however often ingest runs, and a date has a bounded number of small files. A
date on which nothing is expected any more is merged as far as it goes. A damaged file is left out and reported.
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
    """Result of one task.

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


def mergeable_tables(catalog: Catalog, tables: Iterable[str] | None = None) -> list[str]:
    """Return those of some tables, default all, that only plans take files from."""
    known = catalog.contracts()
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
    bad = damaged_files(lake.tables, task.table, task.files)
    sound = [row for row in task.files if row["path"] not in {one.path for one in bad}]
    if len(sound) < 2:  # noqa: PLR2004 - one file is merged already
        return MergeResult(task, None, bad)
    rows, paths = read_within(lake.store, target, pa.Table.from_pylist(sound), task.most_bytes)
    if len(paths) < 2:  # noqa: PLR2004 - likewise
        return MergeResult(task, None, bad)
    done = replace(task, files=[row for row in task.files if row["path"] in set(paths)])
    file = write_partition(lake.store, target, rows, task.day, task.plan, merged=files_digest(done.paths))
    return MergeResult(done, file, bad)


PLAN_MERGES: Final = 64
"""Merges in one plan at most: other drivers' plans wait for no more than that."""

REUSE_S: Final = 900.0
_ROW_CPU_S: Final = 0.5e-6
"""What merging a row costs, about."""


@dataclass(slots=True)
class CompactionResult:
    """Result of `merge_small`.

    Attributes
    ----------
    plans
        Numbers of the plans.
    files_before, files_after
        Files that were merged, and what they became.
    size_bytes
        Of the files that were merged.
    damaged
        Files that were to be merged and are not what was written; they stay as they are.
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
    """Merge small files until there is nothing to merge, of those that were there at first and a few that came since.

    Parameters
    ----------
    tables
        Default facts and system tables. Derived tables are left out: they have one file a date anyway.
    thorough
        Also merge dates of the past as far as it goes, however few their files are.

    Raises what the store raises; merged files that no plan names stay behind then, for `purge`.
    """
    composer = _Composer(lake, workers, mergeable_tables(lake.catalog, tables), thorough=thorough, progress=progress)
    done = CompactionResult()
    while (plan := drive(lake, composer.compose, workers).plan) is not None:
        done.plans.append(plan.number)
        done.files_before += sum(map(len, plan.body["remove"].values()))
        done.files_after += len(plan.body["add"])
        done.size_bytes += sum(row["size_bytes"] for rows in plan.body["remove"].values() for row in rows)
    done.damaged += composer.damaged.values()
    return done


class _Composer:
    """Composes plans, and keeps merged files for the next number when another driver takes the one they were meant for.

    Else a date whose merge takes longer than the time between two ingests would never be merged.
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
        self._left: dict[str, int] = {}
        """Files of each table that may still be merged. It is twice what was there at first, which is more than merging
        all of them takes, results merged again among them: where others bring files as fast as they are merged, there
        is an end all the same."""
        self.damaged: dict[tuple[str, str], Damage] = {}

    def compose(self, number: int) -> "Plan | None":
        """Return the plan of the next merges, or None if none is due."""
        ready = self._still_good(number)
        if not ready:
            today = datetime.now(UTC).date()
            bad = frozenset(self.damaged)
            tables = [table for table in self.tables if self._may_merge(table)]
            every = merges_due(self.lake, tables, number, thorough=self.thorough, today=today, without=bad)
            while not ready and (tasks := list(islice(every, PLAN_MERGES))):
                began = time.monotonic()
                ready = [(began, made.task, made.file) for made in self._merge(tasks) if made.file is not None]
            for _, task, _ in ready:  # counted once, however many plans of others come before the one that has it
                self._left[task.table] -= len(task.files)
        self._ready = ready
        if not ready:
            return None
        gone: dict[str, list[dict[str, Any]]] = {}
        for _, task, _ in ready:
            gone.setdefault(task.table, []).extend(task.files)
        return action_plan.compose(
            number,
            COMPACTION.name,
            add=[file for _, _, file in ready],
            remove={table: pa.Table.from_pylist(rows) for table, rows in gone.items()},
            data_change=False,
        )

    def _may_merge(self, table: str) -> bool:
        if table not in self._left:
            handle = latest(self.lake.tables, table)
            self._left[table] = 0 if handle is None else 2 * files(handle).num_rows
        return self._left[table] > 0

    def _merge(self, tasks: Sequence[Merge]) -> list[MergeResult]:
        done = 0
        rows = sum(row["num_records"] for task in tasks for row in task.files)
        workers = self.workers.fitting(rows * _ROW_CPU_S)
        most_bytes = min(MEMORY_BYTES, workers.room().bytes_each // PIECE_SHARE)

        def tell() -> None:
            nonlocal done
            done += 1
            if self.progress is not None:
                self.progress(done, len(tasks))

        wanted = [replace(task, most_bytes=most_bytes) for task in tasks]
        every = carry_out(_merging_of(tasks), lambda: workers.run(merge, wanted, tell))
        self.damaged |= {(one.table, one.path): one for made in every for one in made.damaged}
        return every

    def _still_good(self, number: int) -> list[tuple[float, Merge, DataFile]]:
        """Return merges that were made lately, whose files are all live and whose result is in no plan yet.

        Results on dates that a plan purged in between do not count: such a purge deletes files that no commit names.
        """
        fresh = [one for one in self._ready if time.monotonic() - one[0] < REUSE_S]
        between = range(min((task.plan for _, task, _ in fresh), default=number), number)
        came = [plan for plan in map(partial(read_plan, self.lake.store), between) if plan is not None]
        purged = {place for plan in came for place in action_plan.purged_dates(plan)}
        fresh = [one for one in fresh if (one[1].table, one[1].day.isoformat()) not in purged]
        live: dict[str, set[str]] = {}
        for _, task, _ in fresh:
            if task.table not in live:
                handle = delta_table(self.lake.store, task.table)
                live[task.table] = set() if handle is None else live_paths(handle)
        return [one for one in fresh if one[1].paths <= live[one[1].table] and self._is_there(one[2])]

    def _is_there(self, file: DataFile) -> bool:
        return bool(self.lake.fs.exists(self.lake.path("tables", file.table, file.path)))


def _merging_of(tasks: Sequence[Merge]) -> Unit:
    tables = {task.table for task in tasks}
    files = sum(len(task.files) for task in tasks)
    where = f"of {len(tables)} tables " if len(tables) > 1 else ""
    detail = f"{where}{counted(files, 'small file')} into {len(tasks):,}"
    return Unit("merge", "" if where else min(tables), tuple(task.day for task in tasks), detail)
