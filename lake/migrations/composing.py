"""Composes the plan of a migration: what becomes of each file, rewritten on workers, and noted so that it can go on.

due ─▶ rewrite files on workers (noted, so that it can go on) ─▶ plan N: files in, files out, columns ─▶ one commit
▲                                                        │ an ingest took N: only its files are left to do
└────────────────────────────────────────────────────────┘
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ranklake.lake.migrations.carry_out import target_of
from ranklake.lake.migrations.due import ROW_CPU_S, refuse_sealed
from ranklake.lake.migrations.register import last_applied
from ranklake.lake.migrations.rewriting import Rewrite, earlier_result, folder_of, rewrite
from ranklake.lake.migrations.steps.step import MigrationError
from ranklake.lake.plans import action_plan
from ranklake.lake.plans.driver import Unit, carry_out
from ranklake.lake.plans.kinds import MIGRATION
from ranklake.lake.plans.plan import read_plan
from ranklake.lake.tables.live_files import files
from ranklake.lake.tables.tables import delta_table
from ranklake.printable import counted

if TYPE_CHECKING:
    from datetime import date

    from ranklake.lake.contracts.model import Contract
    from ranklake.lake.migrations.computing import ComputedDate, Computing
    from ranklake.lake.migrations.migration import Migration
    from ranklake.lake.plans.plan import Plan, Progress
    from ranklake.lake.plans.workers import Workers
    from ranklake.lake.store.lake import Lake
    from ranklake.lake.tables.live_files import DataFile

File = Mapping[str, Any]
"""Row of `ranklake.lake.tables.live_files.files`: path, size_bytes, num_records, date."""


@dataclass(slots=True)
class Work:
    """A migration in one direction, under way.

    Attributes
    ----------
    computing
        Computes dates of derived tables from their inputs; without it all are rewritten.
    made
        What was made of which files, by the path of the first of them.
    anew, asked
        Dates that were computed; those that were asked for, with the files that they had.
    """

    lake: "Lake"
    workers: "Workers"
    migration: "Migration"
    backwards: bool = False
    progress: "Progress | None" = None
    computing: "Computing | None" = None
    made: "dict[str, tuple[DataFile, ...]]" = field(default_factory=dict)
    anew: "dict[date, ComputedDate]" = field(default_factory=dict)
    asked: "dict[date, frozenset[str]]" = field(default_factory=dict)

    def compose(self, number: int, more: Mapping[str, Any] | None = None) -> "Plan | None":
        """Return the plan of a number; None where the table exists already. Raises `MigrationError`.

        Parameters
        ----------
        more
            Further facts of the plan.
        """
        migration, backwards = self.migration, self.backwards
        handle = delta_table(self.lake.store, migration.table)
        begin = migration.to_version if backwards else migration.from_version
        if handle is None or migration.version_in(handle) != begin:
            return None
        # an ingest may have begun to seal since it was planned
        refuse_sealed(self.lake, migration, backwards=backwards)
        target = target_of(self.lake.catalog, migration, handle, backwards=backwards)
        live = files(handle).select(["path", "size_bytes", "num_records", "date"])
        every: list[dict[str, Any]] = live.to_pylist()
        jobs: list[Job] = []
        if migration.keeps_files(backwards=backwards):
            live = live.slice(0, 0)
        else:
            jobs = self._jobs_back(every) if backwards else self._jobs(target, every)
        self._write(target, number, jobs)
        computed = [
            {
                "out": [row["path"] for row in job.files],
                "in": [file.path for file in self.made[job.name]],
                "of": job.inputs,
            }
            for job in jobs
            if job.is_computed
        ]
        facts = {
            "migration": migration.label,
            "sha256": migration.sha256,
            "backwards": backwards,
            "rows": sum(row["num_records"] for row in live.to_pylist()),
            "pairs": [
                [row["path"], made.path]
                for job in jobs
                if not job.is_computed
                for row in job.files
                for made in self.made[job.name]
            ],
            **({"computed": computed} if computed else {}),
            **(more or {}),
        }
        new = [file for job in jobs for file in self.made[job.name]]
        return action_plan.compose(
            number, MIGRATION.name, add=new, remove={migration.table: live} if jobs else {}, facts=facts
        )

    @property
    def is_done(self) -> bool:
        """Whether the table has the version that this leads to."""
        handle, migration = delta_table(self.lake.store, self.migration.table), self.migration
        end = migration.from_version if self.backwards else migration.to_version
        return handle is not None and migration.version_in(handle) == end

    def forget(self) -> None:
        """Delete the notes; whoever dies before leaves them, and they say nothing any more."""
        folder = self.lake.path(folder_of(self.migration, backwards=self.backwards))
        if self.lake.fs.exists(folder):
            self.lake.fs.rm(folder, recursive=True)

    def _write(self, target: "Contract", number: int, jobs: "Sequence[Job]") -> None:
        """Fill in what becomes of files: from this call's memory, an earlier try's notes, or by writing it now."""
        lake, migration = self.lake, self.migration
        for job in jobs:
            if job.inputs:
                continue
            # a file that a purge deleted since is written again; a note may be of other files than these
            files_noted = earlier_result(lake.store, migration, job.name, backwards=self.backwards)
            if files_noted is None or sum(file.rows for file in files_noted) != job.rows:
                self.made.pop(job.name, None)
            else:
                self.made[job.name] = files_noted
        left = [job for job in jobs if job.name not in self.made]
        tasks = [
            Rewrite(
                lake.store.address,
                lake.store.storage,
                target,
                migration,
                self.backwards,
                number,
                job.files[0],
                job.sources,
            )
            for job in left
        ]
        finished = 0

        def tell() -> None:
            nonlocal finished
            finished += 1
            if self.progress is not None:
                self.progress(finished, len(tasks))

        if tasks:
            fit = self.workers.fitting(sum(job.rows for job in left) * ROW_CPU_S)
            days = tuple({row["date"] for job in left for row in job.files})
            unit = Unit("rewrite", migration.table, days, f"{migration.label}: {counted(len(tasks), 'file')}")
            results = carry_out(unit, lambda: fit.run(rewrite, tasks, tell))
            self.made |= {job.name: made for job, made in zip(left, results, strict=True)}

    def _jobs(self, target: "Contract", live: Sequence[File]) -> "list[Job]":
        """Return what to do to apply: dates of a derived table are computed; other files are rewritten."""
        if self.computing is None or target.kind != "derived":
            return [Job((row,)) for row in live]
        by_date: dict[date, list[File]] = defaultdict(list)
        for row in live:
            by_date[row["date"]].append(row)
        paths = {day: frozenset(str(row["path"]) for row in rows) for day, rows in by_date.items()}
        if lacking := {day for day, some in paths.items() if self.asked.get(day) != some}:
            # what an ingest brings meanwhile is for the next rollups; what such rollups wrote must not go back
            computed = self.computing.anew(self.lake, target, lacking, self.workers)
            self.anew = {day: one for day, one in self.anew.items() if day not in lacking} | computed
            self.asked = paths
        jobs = []
        for day, rows in by_date.items():
            if day in self.anew:
                jobs.append(Job(tuple(rows), inputs=self.anew[day].inputs))
                self.made[jobs[-1].name] = self.anew[day].files
            else:
                jobs += [Job((row,)) for row in rows]
        return jobs

    def _jobs_back(self, live: Sequence[File]) -> "list[Job]":
        """Return what to do to undo: where all that came of a file is there, that file's rows are what comes back."""
        migration, by_path = self.migration, {row["path"]: row for row in live}
        plan = self._applied_by()
        facts = {} if plan is None else plan.body["facts"]
        came: dict[str, list[str]] = defaultdict(list)
        for old, new in facts.get("pairs", []):
            came[old].append(new)
        if migration.drops and {path for paths in came.values() for path in paths} - by_path.keys():
            message = f"files were merged or rewritten since, and the values of {', '.join(migration.drops)} are gone"
            raise MigrationError(message, where=migration.label, hint="restore the table from a backup")
        before = {} if plan is None else {row["path"]: row for row in plan.body["remove"].get(migration.table, [])}
        there = {path: row for path, row in before.items() if self.lake.fs.exists(self._path(path))}
        if migration.drops and came.keys() - there.keys():
            message = f"the files of before are gone, and with them the values of {', '.join(migration.drops)}"
            raise MigrationError(message, where=migration.label, hint="restore the table from a backup")
        groups = [([old], paths) for old, paths in came.items()]
        groups += [(some["out"], some["in"]) for some in facts.get("computed", [])]
        jobs = []
        for olds, news in groups:
            if there.keys() >= set(olds) and by_path.keys() >= set(news):
                jobs.append(Job(tuple(by_path.pop(path) for path in news), tuple(there[path] for path in olds)))
        return [*jobs, *(Job((row,)) for row in by_path.values())]

    def _applied_by(self) -> "Plan | None":
        """Return the plan by which the migration was applied."""
        row = last_applied(self.lake, self.migration.table)
        return read_plan(self.lake.store, row["plan"]) if row is not None else None

    def _path(self, path: str) -> str:
        return self.lake.path("tables", self.migration.table, path)


@dataclass(frozen=True, slots=True)
class Job:
    """Files that become others together.

    Attributes
    ----------
    files
        Live files; except for undoing what made several of one or several, it is one.
    sources
        To undo: the files of before that these were made of, as a plan names them; empty if they are not there.
    inputs
        Digest of what a date of a derived table was computed from; empty where rows are rewritten.
    """

    files: tuple[File, ...]
    sources: tuple[File, ...] = ()
    inputs: str = ""

    @property
    def rows(self) -> int:
        """Rows that it yields."""
        return sum(file["num_records"] for file in self.sources or self.files)

    @property
    def is_computed(self) -> bool:
        """Whether its rows are others than those that go."""
        return bool(self.inputs) or self.rows != sum(file["num_records"] for file in self.files)

    @property
    def name(self) -> str:
        """Path of the first, by which it is noted."""
        return str(self.files[0]["path"])
