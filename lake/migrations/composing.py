"""Composes, carries out and verifies the plan of a migration. Workers rewrite the files; one commit changes the table.

due ─▶ rewrite files on workers, with notes ─▶ plan N: files to add and remove, new columns ─▶ one commit
▲                                   │ if an ingest took N: rewrite only its files, then N + 1
└───────────────────────────────────┘
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
    """Return the contract of a table after a migration or its undo.

    It includes the columns of the log that the migration's contracts lack, unchanged: for a packaged migration the
    columns of an overlay, for an overlay's migration the packaged columns.
    """
    ends = ends_of(migration, catalog.overlay)
    source, target = reversed(ends) if backwards else ends
    fields = fields_of(handle.schema())
    migrated = {*source.names, *target.names}
    unchanged = {field["name"] for field in fields} - migrated
    if migration.is_of_added:
        packaged = as_logged(fields, contract_at(migration.table, max(version_of(handle), 1)), unchanged)
        return replace(packaged, columns=(*packaged.columns, *target.columns))
    if not unchanged:
        return target
    return replace(target, columns=(*target.columns, *as_logged(fields, target, unchanged).columns))


def execute(lake: "Lake", plan: "Plan", _workers: object = None, _progress: object = None) -> None:
    """Carry out a migration plan. Can be repeated. Raises `LostRaceError`."""
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
    """Commit the plan unless it is committed. Returns False if the table changed, and the plan cannot be committed.

    Some tables are also written outside of plans. If another commit replaced such a table's files meanwhile, the plan's
    files do not match them any more. Raises `LostRaceError`.
    """
    handle = delta_table(lake.store, migration.table)
    assert handle is not None, "a migration of no table"
    backwards = plan.body["facts"]["backwards"]
    target = target_of(lake.catalog, migration, handle, backwards=backwards)
    committed = transaction_number(handle, PLAN_ID) or 0
    if committed > plan.number:
        return True
    if committed < plan.number:
        removed = {row["path"] for row in plan.body["remove"].get(migration.table, [])}
        if removed and removed != live_paths(handle):
            return False
        end = migration.from_version if backwards else migration.to_version
        if migration.is_of_added:
            target = replace(target, version=version_of(handle), added_version=end)
        else:
            target = replace(target, version=end, added_version=added_version_of(handle))
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
    known = {migration.label: migration for migration in load_migrations(overlay=lake.catalog.overlay)}
    migration = known.get(facts["migration"])
    if migration is None:
        raise refusal(lake.store, plan, f"migration {facts['migration']} is not known here", "upgrade ranklake")
    if migration.sha256 != facts["sha256"]:
        message = f"migration {migration.label} is not the one that the plan was made by"
        raise refusal(lake.store, plan, message, "restore its file, or go on with the release that made the plan")
    return migration


def verify_migration(lake: "Lake", plan: "Plan") -> None:
    """Verify another process' plan: its migration is known here, approved if it drops values, and loses no row.

    Raises `RefusedPlanError`.
    """
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
    """The work of applying or undoing a migration, with the results so far, so that composing can be repeated.

    Attributes
    ----------
    computing
        Computes dates of derived tables from their inputs. Without it all files are rewritten.
    made
        New files, by `Job.name`.
    computed
        Computed dates.
    requested
        Dates for which computation was requested, with the paths of their files at that time.
    """

    lake: "Lake"
    workers: "Workers"
    migration: "Migration"
    backwards: bool = False
    progress: "Progress | None" = None
    computing: "Computing | None" = None
    made: "dict[str, tuple[DataFile, ...]]" = field(default_factory=dict)
    computed: "dict[date, ComputedDate]" = field(default_factory=dict)
    requested: "dict[date, frozenset[str]]" = field(default_factory=dict)

    def compose(self, number: int, more: Mapping[str, Any] | None = None) -> "Plan | None":
        """Rewrite the files that are left, and return the plan; None if the table is not at the starting version.

        Raises `MigrationError`.

        Parameters
        ----------
        number
            Number of the plan.
        more
            Further facts of the plan.
        """
        migration, backwards = self.migration, self.backwards
        handle = delta_table(self.lake.store, migration.table)
        begin = migration.to_version if backwards else migration.from_version
        if handle is None or migration.version_in(handle) != begin:
            return None
        # columns may be stored under keys since the migration was planned
        refuse_sealed(self.lake, migration, backwards=backwards)
        target = target_of(self.lake.catalog, migration, handle, backwards=backwards)
        live = files(handle).select(["path", "size_bytes", "num_records", "date"])
        jobs: list[Job] = []
        if migration.keeps_files(backwards=backwards):
            live = live.slice(0, 0)
        else:
            jobs = self._jobs_back(live.to_pylist()) if backwards else self._jobs(target, live.to_pylist())
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
                [row["path"], new_file.path]
                for job in jobs
                if not job.is_computed
                for row in job.files
                for new_file in self.made[job.name]
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
        """Whether the table has the target version."""
        handle, migration = delta_table(self.lake.store, self.migration.table), self.migration
        end = migration.from_version if self.backwards else migration.to_version
        return handle is not None and migration.version_in(handle) == end

    def forget(self) -> None:
        """Delete the notes. Notes that an interrupted call leaves are harmless."""
        folder = self.lake.path(folder_of(self.migration, backwards=self.backwards))
        with suppress(FileNotFoundError):  # there are none, or a concurrent call deletes them
            self.lake.fs.rm(folder, recursive=True)

    def _write(self, target: "Contract", number: int, jobs: "Sequence[Job]") -> None:
        """Complete `made` for all jobs: keep results of this call, use notes of earlier tries, or write the files."""
        lake, migration = self.lake, self.migration
        for job in jobs:
            if job.inputs:
                continue
            # a purge may have deleted a new file, and a note may belong to other files
            noted = earlier_result(lake.store, migration, job.name, backwards=self.backwards)
            if noted is None or sum(file.rows for file in noted) != job.rows:
                self.made.pop(job.name, None)
            else:
                self.made[job.name] = noted
        remaining = [job for job in jobs if job.name not in self.made]
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
            for job in remaining
        ]
        finished = 0

        def report_progress() -> None:
            nonlocal finished
            finished += 1
            if self.progress is not None:
                self.progress(finished, len(tasks))

        if tasks:
            workers = self.workers.fitting(sum(job.rows for job in remaining) * ROW_CPU_S)
            days = tuple({row["date"] for job in remaining for row in job.files})
            unit = Unit("rewrite", migration.table, days, f"{migration.label}: {counted(len(tasks), 'file')}")
            results = carry_out(unit, lambda: workers.run(rewrite, tasks, report_progress))
            self.made |= {job.name: new for job, new in zip(remaining, results, strict=True)}

    def _jobs(self, target: "Contract", live: Sequence[File]) -> "list[Job]":
        """Return the jobs to apply the migration: dates of a derived table are computed, other files rewritten."""
        if self.computing is None or target.kind != "derived":
            return [Job((row,)) for row in live]
        by_date: dict[date, list[File]] = defaultdict(list)
        for row in live:
            by_date[row["date"]].append(row)
        paths = {day: frozenset(str(row["path"]) for row in rows) for day, rows in by_date.items()}
        if lacking := {day for day, files_now in paths.items() if self.requested.get(day) != files_now}:
            # rows of a concurrent ingest are left to the next rollup; dates that a rollup replaced are computed again
            results = self.computing.anew(self.lake, target, lacking, self.workers)
            self.computed = {day: result for day, result in self.computed.items() if day not in lacking} | results
            self.requested = paths
        jobs = []
        for day, rows in by_date.items():
            if day in self.computed:
                jobs.append(Job(tuple(rows), inputs=self.computed[day].inputs))
                self.made[jobs[-1].name] = self.computed[day].files
            else:
                jobs += [Job((row,)) for row in rows]
        return jobs

    def _jobs_back(self, live: Sequence[File]) -> "list[Job]":
        """Return the jobs to undo the migration.

        If an old file exists and all its new files are live, the old file's rows are restored. Other files are
        converted back.
        """
        migration, by_path = self.migration, {row["path"]: row for row in live}
        plan = self._applied_by()
        facts = {} if plan is None else plan.body["facts"]
        new_paths: dict[str, list[str]] = defaultdict(list)
        for old, new in facts.get("pairs", []):
            new_paths[old].append(new)
        if migration.drops and {path for paths in new_paths.values() for path in paths} - by_path.keys():
            message = f"files were merged or rewritten since, and the values of {', '.join(migration.drops)} are gone"
            raise MigrationError(message, where=migration.label, hint="restore the table from a backup")
        removed = {} if plan is None else {row["path"]: row for row in plan.body["remove"].get(migration.table, [])}
        existing = {path: row for path, row in removed.items() if self.lake.fs.exists(self._path(path))}
        if migration.drops and new_paths.keys() - existing.keys():
            message = f"the files of before are gone, and with them the values of {', '.join(migration.drops)}"
            raise MigrationError(message, where=migration.label, hint="restore the table from a backup")
        groups = [([old], paths) for old, paths in new_paths.items()]
        groups += [(entry["out"], entry["in"]) for entry in facts.get("computed", [])]
        jobs = []
        for old_group, new_group in groups:
            if existing.keys() >= set(old_group) and by_path.keys() >= set(new_group):
                restored = tuple(existing[path] for path in old_group)
                jobs.append(Job(tuple(by_path.pop(path) for path in new_group), restored))
        return [*jobs, *(Job((row,)) for row in by_path.values())]

    def _applied_by(self) -> "Plan | None":
        """Return the plan that applied the migration; None if it is unknown."""
        row = last_applied(self.lake, self.migration.table)
        return read_plan(self.lake.store, row["plan"]) if row is not None else None

    def _path(self, path: str) -> str:
        return self.lake.path("tables", self.migration.table, path)


@dataclass(frozen=True, slots=True)
class Job:
    """Live files that are replaced together.

    Attributes
    ----------
    files
        The live files. A rewrite has one; a computed date, or the undo of several new files, may have more.
    sources
        For an undo: the old files whose rows are restored, as a plan lists them; empty if they do not exist any more.
    inputs
        Digest of the inputs of a computed date; empty if rows are rewritten.
    """

    files: tuple[File, ...]
    sources: tuple[File, ...] = ()
    inputs: str = ""

    @property
    def rows(self) -> int:
        """Number of rows of the new files of a rewrite."""
        return sum(file["num_records"] for file in self.sources or self.files)

    @property
    def is_computed(self) -> bool:
        """Whether the new rows are computed, so that their number may differ."""
        return bool(self.inputs) or self.rows != sum(file["num_records"] for file in self.files)

    @property
    def name(self) -> str:
        """Path of the first live file, which identifies the job in notes."""
        return str(self.files[0]["path"])
