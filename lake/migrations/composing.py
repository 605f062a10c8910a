"""Composes the plan of a migration: what becomes of each file, written anew on workers, and noted so that it can go on.

due ─▶ rewrite files on workers (noted, so that it can go on) ─▶ plan N: files in, files out, columns ─▶ one commit
▲                                                        │ an ingest took N: only its files are left to do
└────────────────────────────────────────────────────────┘
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ranklake.lake.delta.commit import files
from ranklake.lake.delta.table_schema import version_of
from ranklake.lake.delta.tables import delta_table
from ranklake.lake.migrations.carry_out import target_of
from ranklake.lake.migrations.due import ROW_CPU_S
from ranklake.lake.migrations.keys import refuse_repeated
from ranklake.lake.migrations.register import last_applied
from ranklake.lake.migrations.rewriting import Rewrite, folder_of, noted, rewrite
from ranklake.lake.migrations.steps.step import MigrationError
from ranklake.lake.plans import action_plan
from ranklake.lake.plans.kinds import MIGRATION
from ranklake.lake.plans.plan import read_plan
from ranklake.lake.plans.units import Unit, carry_out, counted

if TYPE_CHECKING:
    from ranklake.lake.contracts.model import Contract
    from ranklake.lake.delta.data_file import DataFile
    from ranklake.lake.migrations.migration import Migration
    from ranklake.lake.plans.plan import Plan, Progress
    from ranklake.lake.plans.workers import Workers
    from ranklake.lake.storage.store import Lake

File = Mapping[str, Any]
"""Row of `ranklake.lake.delta.commit.files`: path, size_bytes, num_records, date."""


@dataclass(slots=True)
class Work:
    """A migration in one direction, under way.

    Attributes
    ----------
    made
        What was made of which files, by the path of the first of them.
    """

    lake: "Lake"
    workers: "Workers"
    migration: "Migration"
    backwards: bool = False
    progress: "Progress | None" = None
    made: "dict[str, tuple[DataFile, ...]]" = field(default_factory=dict)

    def compose(self, number: int, more: Mapping[str, Any] | None = None) -> "Plan | None":
        """Return the plan of a number; None where the table is there already. Raises `MigrationError`.

        Parameters
        ----------
        more
            Further facts of the plan.
        """
        one, backwards = self.migration, self.backwards
        handle = delta_table(self.lake, one.table)
        begin, end = (one.to_version, one.from_version) if backwards else (one.from_version, one.to_version)
        if handle is None or version_of(handle) == end or max(version_of(handle), 1) != begin:
            return None
        target = target_of(self.lake, one, handle, backwards=backwards)
        live = files(handle).select(["path", "size_bytes", "num_records", "date"])
        every: list[dict[str, Any]] = live.to_pylist()
        jobs: list[Job] = []
        if one.keeps_files(backwards=backwards):
            live = live.slice(0, 0)
        else:
            jobs = self._jobs_back(every) if backwards else [Job((row,)) for row in every]
        self._write(target, number, jobs)
        if one.rekeys:
            made = [file.path for job in jobs for file in self.made[job.name]] if jobs else [r["path"] for r in every]
            refuse_repeated(self.lake, target, made)
        facts = {
            "migration": one.label,
            "sha256": one.sha256,
            "backwards": backwards,
            "rows": sum(row["num_records"] for row in live.to_pylist()),
            "pairs": [[row["path"], made.path] for job in jobs for row in job.files for made in self.made[job.name]],
            **({"moves_rows": True} if one.moves_rows else {}),
            **(more or {}),
        }
        new = [file for job in jobs for file in self.made[job.name]]
        return action_plan.compose(
            number, MIGRATION.name, add=new, remove={one.table: live} if jobs else {}, facts=facts
        )

    def forget(self) -> None:
        """Delete the notes; whoever dies before leaves them, and they say nothing any more."""
        folder = self.lake.path(folder_of(self.migration, backwards=self.backwards))
        if self.lake.fs.exists(folder):
            self.lake.fs.rm(folder, recursive=True)

    def _write(self, target: "Contract", number: int, jobs: "Sequence[Job]") -> None:
        """Fill in what becomes of files: from this call's memory, an earlier try's notes, or by writing it now."""
        lake, one = self.lake, self.migration
        for job in jobs:
            found = noted(lake, one, job.name, backwards=self.backwards)  # what a purge took meanwhile is made again
            if found is None or sum(file.rows for file in found) != job.rows:  # noted of other files beside this one
                self.made.pop(job.name, None)
            else:
                self.made[job.name] = found
        left = [job for job in jobs if job.name not in self.made]
        tasks = [
            Rewrite(lake.address, lake.storage, target, one, self.backwards, number, job.files[0], job.source)
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
            unit = Unit("rewrite", one.table, days, f"{one.label}: {counted(len(tasks), 'file')}")
            results = carry_out(unit, lambda: fit.run(rewrite, tasks, tell))
            self.made |= {job.name: made for job, made in zip(left, results, strict=True)}

    def _jobs_back(self, live: Sequence[File]) -> "list[Job]":
        """Return what to do to undo: where all that came of a file is there, that file's rows are what comes back."""
        one, by_path = self.migration, {row["path"]: row for row in live}
        came = self._came_of()
        if one.drops and {path for paths in came.values() for path in paths} - by_path.keys():
            what = f"files were merged or rewritten since, and the values of {', '.join(one.drops)} are gone"
            raise MigrationError(what, where=one.label, mend="restore the table from a backup")
        sources = _before(self.lake, one) if came else {}
        jobs = []
        for old, paths in came.items():
            source = sources.get(old)
            if source is not None and by_path.keys() >= set(paths):
                jobs.append(Job(tuple(by_path.pop(path) for path in paths), source))
        return [*jobs, *(Job((row,)) for row in by_path.values())]

    def _came_of(self) -> dict[str, list[str]]:
        """Return which files the migration made of which."""
        row = last_applied(self.lake, self.migration.table)
        plan = read_plan(self.lake, row["plan"]) if row is not None else None
        found: dict[str, list[str]] = defaultdict(list)
        for old, new in plan.body["facts"]["pairs"] if plan is not None else []:
            found[old].append(new)
        return dict(found)


@dataclass(frozen=True, slots=True)
class Job:
    """Files that become others together.

    Attributes
    ----------
    files
        Live files; but for undoing what made several of one, it is one.
    source
        To undo: the file of before with the very rows of these, as a plan names it; None if there is none.
    """

    files: tuple[File, ...]
    source: File | None = None

    @property
    def rows(self) -> int:
        """Rows of all files."""
        return sum(file["num_records"] for file in self.files)

    @property
    def name(self) -> str:
        """Path of the first, by which it is noted."""
        return str(self.files[0]["path"])


def _before(lake: "Lake", one: "Migration") -> dict[str, File]:
    """Return, by path, the files of before a migration that are still there. Raises `MigrationError`."""
    row = last_applied(lake, one.table)
    plan = read_plan(lake, row["plan"]) if row is not None else None
    gone = plan.body["remove"].get(one.table, []) if plan is not None else []
    there = {old["path"]: old for old in gone if lake.fs.exists(lake.path("tables", one.table, old["path"]))}
    if one.drops and len(there) < len(gone):
        what = f"the files of before are gone, and with them the values of {', '.join(one.drops)}"
        raise MigrationError(what, where=one.label, mend="restore the table from a backup")
    return there
