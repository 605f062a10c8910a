"""Migrations of a lake: which are due, what they would do, applying them, and undoing the last of a table.

due ─▶ rewrite files on workers (noted, so that it can go on) ─▶ plan N: files in, files out, columns ─▶ one commit
▲                                                        │ an ingest took N: only its files are left to do
└────────────────────────────────────────────────────────┘
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import pyarrow.compute as pc

from ranklake.lake.audit import trail as audit
from ranklake.lake.contracts.load import contract, table_names
from ranklake.lake.delta.commit import files
from ranklake.lake.delta.table_schema import version_of
from ranklake.lake.delta.tables import NewerTableError, delta_table, latest
from ranklake.lake.governance import lifecycle
from ranklake.lake.migrations.carry_out import target_of
from ranklake.lake.migrations.register import MIGRATIONS, history, last_applied, register
from ranklake.lake.migrations.registry import chain, digest_at, load_migrations
from ranklake.lake.migrations.rewriting import Rewrite, folder_of, noted, rewrite
from ranklake.lake.migrations.steps import MigrationError
from ranklake.lake.plans import action_plan
from ranklake.lake.plans.driver import drive
from ranklake.lake.plans.kinds import MIGRATION
from ranklake.lake.plans.plan import LEDGER, read_plan
from ranklake.lake.plans.units import Unit, carry_out, counted

if TYPE_CHECKING:
    from deltalake import DeltaTable

    from ranklake.lake.contracts.model import Contract
    from ranklake.lake.delta.data_file import DataFile
    from ranklake.lake.migrations.migration import Migration
    from ranklake.lake.plans.plan import Plan, Progress
    from ranklake.lake.plans.workers import Workers
    from ranklake.lake.storage.store import Lake

ROW_CPU_S: Final = 1e-6
"""What writing a row of the widest fact anew costs, about."""


@dataclass(frozen=True, slots=True)
class Due:
    """A migration that is due, and what it would do.

    Attributes
    ----------
    migration
        Which.
    files, rows, bytes
        What would be written anew; all 0 where only metadata changes.
    cpu_s
        What that takes, about.
    proposal
        Name of the proposal to approve, where values would go; empty otherwise.
    """

    migration: "Migration"
    files: int
    rows: int
    bytes: int
    cpu_s: float
    proposal: str = ""

    def plain(self) -> dict[str, Any]:
        """Return plain JSON values."""
        one = self.migration
        return {
            "migration": one.label,
            "table": one.table,
            "from_version": one.from_version,
            "to_version": one.to_version,
            "steps": [step.text for step in one.steps],
            "metadata_only": one.is_metadata_only,
            "drops": list(one.drops),
            "proposal": self.proposal or None,
            "files": self.files,
            "rows": self.rows,
            "bytes": self.bytes,
            "cpu_s": round(self.cpu_s, 3),
        }


@dataclass(frozen=True, slots=True)
class Done:
    """A migration that was carried out, or undone.

    Attributes
    ----------
    label, table, version
        Which, of which table, and the contract version that it has now.
    plan
        Number of the plan.
    rows
        Rows that were written anew.
    """

    label: str
    table: str
    version: int
    plan: int
    rows: int


@dataclass(slots=True)
class _Work:
    """A migration in one direction, under way: what was made of which file, by path."""

    migration: "Migration"
    backwards: bool
    made: "dict[str, DataFile]" = field(default_factory=dict)


def due(lake: "Lake", table: str | None = None) -> Iterator[Due]:
    """Yield the migrations that tables of the lake need, in order.

    Raises `MigrationError` where one is missing or was edited, and `NewerTableError`.
    """
    history(lake)
    proposals = {one.label: one for one in register(lake).values()}
    found: list[tuple[Migration, DeltaTable]] = []
    for name in table_names() if table is None else [contract(table).table]:
        handle = latest(lake, name)
        if handle is None:
            continue
        version, wanted = version_of(handle), contract(name).version
        if version > wanted:
            raise NewerTableError(name, version, wanted, handle.table_uri)
        if version < wanted:
            found += [(one, handle) for one in chain(name, max(version, 1), wanted)]
    for one, handle in sorted(found, key=lambda pair: pair[0].number):
        _hold_digests(one)
        live = files(handle) if not one.is_metadata_only else files(handle).slice(0, 0)
        rows, size = (int(pc.sum(live[name]).as_py() or 0) for name in ("num_records", "size_bytes"))
        proposal = proposals[one.label].name if one.drops else ""
        yield Due(one, live.num_rows, rows, size, rows * ROW_CPU_S, proposal)


def _hold_digests(one: "Migration") -> None:
    for version, meant in ((one.from_version, one.from_digest), (one.to_version, one.to_digest)):
        if digest_at(one.table, version) != meant:
            what = f"version {version} of {one.table} is not the contract that the migration was written for"
            raise MigrationError(what, where=one.path, mend="restore the contract, or draft the migration again")


def apply(
    lake: "Lake",
    workers: "Workers",
    by: str,
    table: str | None = None,
    *,
    single_operator: bool = False,
    progress: "Progress | None" = None,
) -> list[Done]:
    """Carry out what is due; return what this call did. Killed anywhere, the next call goes on.

    Parameters
    ----------
    by
        Who does it, for the audit trail.
    single_operator
        Whether who approved a migration that drops values may apply it.

    Raises `MigrationError`, and for one that drops values what `ranklake.lake.governance.lifecycle.apply` does: nothing
    of that migration was changed then, and earlier ones stay.
    """
    drive(lake, lambda _: None, workers)  # what a dead driver left half done comes first
    done = []
    for one in [due_one.migration for due_one in due(lake, table)]:
        if one.table == LEDGER and not one.is_metadata_only:
            raise MigrationError("the ledger changes by added columns alone", where=one.path, mend="write another")
        work = _Work(one, backwards=False)
        if one.drops:
            plan = _apply_approved(lake, workers, by, work, progress, single_operator=single_operator)
        else:
            details = {"migration": one.label, "table": one.table, "sha256": one.sha256}
            audit.record(lake, by, MIGRATIONS.begin, one.label, None, details)
            plan = drive(lake, partial(_compose, lake, workers, work, progress), workers).plan
            if plan is not None:
                audit.record(lake, by, MIGRATIONS.applied, one.label, None, {**details, "plan": plan.number})
        _forget(lake, one, backwards=False)
        if plan is not None:
            done.append(Done(one.label, one.table, one.to_version, plan.number, plan.body["facts"]["rows"]))
    return done


def _apply_approved(
    lake: "Lake",
    workers: "Workers",
    by: str,
    work: _Work,
    progress: "Progress | None",
    *,
    single_operator: bool,
) -> "Plan | None":
    proposal = next(one for one in register(lake).values() if one.label == work.migration.label)

    def check(found: Any) -> Callable[..., "Plan"]:  # noqa: ANN401 - the proposal
        def write(number: int, *, alone: bool) -> "Plan":
            facts = {"round": found.round_, "single_operator": alone}
            plan = _compose(lake, workers, work, progress, number, facts)
            if plan is None:
                raise MigrationError("it was applied already", where=work.migration.label, mend="run it again")
            return plan

        return write

    applied, fresh = lifecycle.apply(lake, MIGRATIONS, proposal.name, by, check, single_operator=single_operator)
    return read_plan(lake, applied.plan) if fresh and applied.plan is not None else None


def undo(lake: "Lake", workers: "Workers", by: str, table: str, *, progress: "Progress | None" = None) -> Done:
    """Undo the migration of a table that was applied last; return what was done.

    Rows of files that are as the migration left them are read from the files of before, so that values come back as
    they were, dropped columns included. Rows that came since are turned back by the steps. Raises `MigrationError`
    where nothing is to undo, or dropped values are gone: nothing was changed then.
    """
    drive(lake, lambda _: None, workers)
    row = last_applied(lake, table)
    handle = delta_table(lake, table)
    known = {one.number: one for one in load_migrations()}
    if row is None or handle is None or row["number"] not in known:
        raise MigrationError(f"no migration of {table} is there to undo", where=table, mend="see the table migrations")
    one = known[row["number"]]
    if version_of(handle) != one.to_version:
        raise MigrationError(f"{table} is not at version {one.to_version} any more", where=table, mend="look again")
    work = _Work(one, backwards=True)
    details = {"migration": one.label, "table": table, "sha256": one.sha256}
    audit.record(lake, by, "migration.undo", one.label, None, details)
    plan = drive(lake, partial(_compose, lake, workers, work, progress), workers).plan
    _forget(lake, one, backwards=True)
    if plan is None:
        raise MigrationError(f"{one.label} was undone by another", where=table, mend="look again")
    audit.record(lake, by, "migration.undone", one.label, None, {**details, "plan": plan.number})
    return Done(one.label, table, one.from_version, plan.number, plan.body["facts"]["rows"])


def _compose(
    lake: "Lake",
    workers: "Workers",
    work: _Work,
    progress: "Progress | None",
    number: int,
    more: Mapping[str, Any] | None = None,
) -> "Plan | None":
    """Return the plan of a number; None where the table is there already."""
    one, backwards = work.migration, work.backwards
    handle = delta_table(lake, one.table)
    begin, end = (one.to_version, one.from_version) if backwards else (one.from_version, one.to_version)
    if handle is None or version_of(handle) == end or max(version_of(handle), 1) != begin:
        return None
    target = target_of(one, handle, backwards=backwards)
    live = files(handle).select(["path", "size_bytes", "num_records", "date"])
    if one.is_metadata_only and not backwards:
        live = live.slice(0, 0)
    rows: list[dict[str, Any]] = live.to_pylist()
    sources = _sources(lake, one) if backwards else {}
    if backwards and one.drops and sources.keys() - {row["path"] for row in rows}:
        what = f"files were merged or rewritten since, and the values of {', '.join(one.drops)} are gone"
        raise MigrationError(what, where=one.label, mend="restore the table from a backup")
    _rewrite(lake, workers, work, target, number, rows, sources, progress)
    facts = {
        "migration": one.label,
        "sha256": one.sha256,
        "backwards": backwards,
        "rows": sum(row["num_records"] for row in rows),
        "pairs": [[row["path"], work.made[row["path"]].path] for row in rows],
        **(more or {}),
    }
    gone = {one.table: live} if rows else {}
    return action_plan.compose(
        number, MIGRATION.name, add=[work.made[row["path"]] for row in rows], remove=gone, facts=facts
    )


def _rewrite(
    lake: "Lake",
    workers: "Workers",
    work: _Work,
    target: "Contract",
    number: int,
    rows: list[dict[str, Any]],
    sources: Mapping[str, Mapping[str, Any]],
    progress: "Progress | None",
) -> None:
    """Fill in what becomes of each file: from this call's memory, an earlier try's notes, or by writing it now."""
    one, backwards = work.migration, work.backwards
    for row in rows:
        found = noted(lake, one, row["path"], backwards=backwards)  # what a purge took in between is made again
        if found is None:
            work.made.pop(row["path"], None)
        else:
            work.made[row["path"]] = found
    open_ = [row for row in rows if row["path"] not in work.made]
    tasks = [
        Rewrite(lake.address, lake.storage, target, one, backwards, number, row, sources.get(row["path"]))
        for row in open_
    ]
    finished = 0

    def tell() -> None:
        nonlocal finished
        finished += 1
        if progress is not None:
            progress(finished, len(tasks))

    if tasks:
        fit = workers.fitting(sum(row["num_records"] for row in open_) * ROW_CPU_S)
        days = tuple({row["date"] for row in open_})
        unit = Unit("rewrite", one.table, days, f"{one.label}: {counted(len(tasks), 'file')}")
        results = carry_out(unit, lambda: fit.run(rewrite, tasks, tell))
        work.made |= {row["path"]: made for row, made in zip(open_, results, strict=True)}


def _sources(lake: "Lake", one: "Migration") -> dict[str, Mapping[str, Any]]:
    """Return, by path of a file that a migration made, the file of before, where it is still there."""
    row = last_applied(lake, one.table)
    plan = read_plan(lake, row["plan"]) if row is not None else None
    if plan is None:
        return {}
    before = {gone["path"]: gone for gone in plan.body["remove"].get(one.table, [])}
    pairs = {new: before[old] for old, new in plan.body["facts"]["pairs"]}
    there = {new: gone for new, gone in pairs.items() if lake.fs.exists(lake.path("tables", one.table, gone["path"]))}
    if one.drops and len(there) < len(pairs):
        what = f"the files of before are gone, and with them the values of {', '.join(one.drops)}"
        raise MigrationError(what, where=one.label, mend="restore the table from a backup")
    return there


def _forget(lake: "Lake", one: "Migration", *, backwards: bool) -> None:
    """Delete the notes of a migration that is done; whoever dies before leaves them, and they say nothing any more."""
    folder = lake.path(folder_of(one, backwards=backwards))
    if lake.fs.exists(folder):
        lake.fs.rm(folder, recursive=True)
