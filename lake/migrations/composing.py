"""Composes, carries out and verifies the plan of a migration: files rewritten on workers, one commit.

due ─▶ rewrite files on workers (noted, so that it can go on) ─▶ plan N: files in, files out, columns ─▶ one commit
▲                                                        │ an ingest took N: only its files are left to do
└────────────────────────────────────────────────────────┘
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import date
from functools import partial
from typing import TYPE_CHECKING, Any

from deltalake.exceptions import CommitFailedError

from ranklake.errors import RanklakeError
from ranklake.lake.contracts.model import Contract
from ranklake.lake.migrations.due import ROW_CPU_S, refuse_sealed
from ranklake.lake.migrations.register import last_applied, note
from ranklake.lake.migrations.registry import contract_at, ends_of, load_migrations
from ranklake.lake.migrations.rewriting import Rewrite, earlier_result, folder_of, rewrite
from ranklake.lake.migrations.steps.step import MigrationError
from ranklake.lake.plans import action_plan
from ranklake.lake.plans.driver import Unit, carry_out
from ranklake.lake.plans.kinds import MIGRATION
from ranklake.lake.plans.plan import LEDGER, commit_rows, ledger_row, read_plan
from ranklake.lake.plans.verification import refusal, verify_files
from ranklake.lake.store.governance import require_approved_migration
from ranklake.lake.tables.commit import AGAIN, PLAN_ID, LostRaceError, change_contract, transaction_number
from ranklake.lake.tables.live_files import DataFile, files, live_paths
from ranklake.lake.tables.table_schema import added_version_of, align, as_logged, fields_of, version_of
from ranklake.lake.tables.tables import delta_table, reading_log, refresh
from ranklake.printable import counted

if TYPE_CHECKING:
    from deltalake import DeltaTable

    from ranklake.lake.migrations.due import ComputedDate, Computing
    from ranklake.lake.migrations.migration import Migration
    from ranklake.lake.plans.plan import Plan, Progress
    from ranklake.lake.plans.workers import Workers
    from ranklake.lake.store.catalog import Catalog
    from ranklake.lake.store.lake import Lake


def target_of(catalog: "Catalog", migration: "Migration", handle: "DeltaTable", *, backwards: bool) -> Contract:
    """Return the contract that a migration leads a table to, or back to, with columns that are not ours to change.

    Those are columns of the log that neither contract knows: an overlay's, which stay as they are.
    """
    ends = ends_of(migration, catalog.overlay)
    here, there = reversed(ends) if backwards else ends
    fields = fields_of(handle.schema())
    own = {*here.names, *there.names}
    foreign = {field["name"] for field in fields} - own
    if migration.is_of_added:  # what is ours stays as the log has it
        ours = as_logged(fields, contract_at(migration.table, max(version_of(handle), 1)), foreign)
        return replace(ours, columns=(*ours.columns, *there.columns))
    if not foreign:
        return there
    return replace(there, columns=(*there.columns, *as_logged(fields, there, foreign).columns))


def execute(lake: "Lake", plan: "Plan", _workers: object = None, _progress: object = None) -> None:
    """Carry out the plan, again if need be. Raises `LostRaceError`."""
    migration = _migration_of(lake, plan)
    table = migration.table
    dates = {date.fromisoformat(row["partition"]) for row in plan.body["add"]}
    unit = Unit("commit", table, tuple(dates), f"plan {plan.number} (migration)", writes=True)
    if carry_out(unit, partial(_commit, lake, plan, migration)):
        note(lake.tables, migration, plan)
    row = ledger_row(plan, plan.body["account"])
    last = Unit("commit", LEDGER, detail=f"plan {plan.number}", writes=True)
    carry_out(last, lambda: commit_rows(lake.tables, LEDGER, [row], plan.number))


def _commit(lake: "Lake", plan: "Plan", migration: "Migration") -> bool:
    """Commit, unless that was done; return whether it is.

    Some tables are written beside plans. Where somebody was faster with such a table, the plan is passed over: its
    files are not of those that are there now. Raises `LostRaceError`.
    """
    handle = delta_table(lake.store, migration.table)
    assert handle is not None, "a migration of no table"
    backwards = plan.body["facts"]["backwards"]
    target = target_of(lake.catalog, migration, handle, backwards=backwards)
    done = transaction_number(handle, PLAN_ID) or 0
    if done > plan.number:
        return True
    if done < plan.number:
        gone = {row["path"] for row in plan.body["remove"].get(migration.table, [])}
        if gone and gone != live_paths(handle):
            return False
        end = migration.from_version if backwards else migration.to_version
        of_added = migration.is_of_added
        target = replace(
            target,
            version=version_of(handle) if of_added else end,
            added_version=end if of_added else added_version_of(handle),
        )
        new = [DataFile(**{**row, "partition": date.fromisoformat(row["partition"])}) for row in plan.body["add"]]
        metadata = {"ranklake.plan": str(plan.number), "ranklake.migration": migration.label}
        change_contract(handle, target, plan.number, new, metadata)
        refresh(handle)
    try:
        with reading_log(handle):
            align(handle, target)
    except CommitFailedError as error:
        raise LostRaceError(f"{migration.table} moved on", where=lake.uri, hint=AGAIN) from error
    return True


def _migration_of(lake: "Lake", plan: "Plan") -> "Migration":
    facts = plan.body["facts"]
    known = {one.label: one for one in load_migrations(overlay=lake.catalog.overlay)}
    migration = known.get(facts["migration"])
    if migration is None:
        raise refusal(lake.store, plan, f"migration {facts['migration']} is not known here", "upgrade ranklake")
    if migration.sha256 != facts["sha256"]:
        message = f"migration {migration.label} is not the one that the plan was made by"
        raise refusal(lake.store, plan, message, "restore its file, or go on with the release that made the plan")
    return migration


def verify_migration(lake: "Lake", plan: "Plan") -> None:
    """Look whether a found plan is of a migration that is known here, approved if it drops, and loses no row."""
    migration = _migration_of(lake, plan)
    if {*plan.body["remove"], *(row["table"] for row in plan.body["add"])} - {migration.table}:
        raise refusal(lake.store, plan, f"the plan changes other tables than {migration.table}")
    facts = plan.body["facts"]
    if facts.get("computed") and lake.contract(migration.table).kind != "derived":
        raise refusal(lake.store, plan, f"the plan computes dates of {migration.table}, which is no derived table")
    verify_files(lake, plan)
    if not migration.drops or facts["backwards"]:
        return
    try:
        require_approved_migration(lake, migration.sha256, facts["round"])
    except RanklakeError as error:
        raise refusal(lake.store, plan, f"the plan would drop values without approval: {error}") from error


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
        with suppress(FileNotFoundError):  # also where another call deletes them at the same time
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
