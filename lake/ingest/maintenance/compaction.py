"""Compaction: merges small files of a date by plans of kind ``compaction``; rows do not change.

`ranklake.lake.ingest.maintenance.merges` says which files, and merges some; here plans are made of the results, one
after the other until nothing is due.
"""

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from ranklake.lake.ingest.maintenance import merges
from ranklake.lake.ingest.maintenance.merges import Merge, MergeResult, merge, mergeable_tables, merges_due
from ranklake.lake.plans import action_plan
from ranklake.lake.plans.driver import drive
from ranklake.lake.plans.kinds import COMPACTION
from ranklake.lake.plans.plan import read_plan
from ranklake.lake.plans.units import Unit, carry_out, counted
from ranklake.lake.plans.workers import PIECE_SHARE
from ranklake.lake.tables.data_file import DataFile
from ranklake.lake.tables.integrity import Damage
from ranklake.lake.tables.live_files import files, live_paths
from ranklake.lake.tables.tables import delta_table, latest

if TYPE_CHECKING:
    from ranklake.lake.plans.plan import Plan, Progress
    from ranklake.lake.plans.workers import Workers
    from ranklake.lake.store.store import Lake

PLAN_MERGES: Final = 64
"""Merges in one plan at most: other drivers' plans wait for no more than that."""

REUSE_S: Final = 900.0
_ROW_CPU_S: Final = 0.5e-6
"""What merging a row costs, about."""


@dataclass(slots=True)
class Merged:
    """What came of merging.

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
) -> Merged:
    """Merge small files until there is nothing to merge, of those that were there at first and a few that came since.

    Parameters
    ----------
    tables
        Default all that only grow between plans: facts and system tables. Derived tables have a file a date anyway.
    thorough
        Also merge dates of the past as far as it goes, however few their files are.

    Raises what the store raises; merged files that no plan names stay behind then, for `purge`.
    """
    composer = _Composer(lake, workers, mergeable_tables(lake, tables), thorough=thorough, progress=progress)
    done = Merged()
    while (plan := drive(lake, composer.compose, workers).plan) is not None:
        done.plans.append(plan.number)
        done.files_before += sum(map(len, plan.body["remove"].values()))
        done.files_after += len(plan.body["add"])
        done.size_bytes += sum(row["size_bytes"] for rows in plan.body["remove"].values() for row in rows)
    done.damaged += composer.damaged.values()
    return done


class _Composer:
    """Composes plans, and keeps what it merged for a plan that another driver's was faster than.

    Without that a date that takes longer to merge than ingest takes to come again would never be merged.
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
            handle = latest(self.lake, table)
            self._left[table] = 0 if handle is None else 2 * files(handle).num_rows
        return self._left[table] > 0

    def _merge(self, tasks: Sequence[Merge]) -> list[MergeResult]:
        done = 0
        rows = sum(row["num_records"] for task in tasks for row in task.files)
        workers = self.workers.fitting(rows * _ROW_CPU_S)
        most_bytes = min(merges.MEMORY_BYTES, workers.room().bytes_each // PIECE_SHARE)

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

        A plan that came in between and purges their dates takes their result for something left behind, at any time.
        """
        fresh = [one for one in self._ready if time.monotonic() - one[0] < REUSE_S]
        between = range(min((task.plan for _, task, _ in fresh), default=number), number)
        came = [plan for plan in map(partial(read_plan, self.lake), between) if plan is not None]
        purged = {place for plan in came for place in action_plan.purged_dates(plan)}
        fresh = [one for one in fresh if (one[1].table, one[1].day.isoformat()) not in purged]
        live: dict[str, set[str]] = {}
        for _, task, _ in fresh:
            if task.table not in live:
                handle = delta_table(self.lake, task.table)
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
