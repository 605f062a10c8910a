"""What applied retention plans took: dates, and kept files, which a cancellation brings back.

They lie where they lay, under their names; no table has them. Where an erasure took rows out of one, another file is in
its place. Nothing but a purge may delete them, and no reader of tables meets them.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from functools import cache, partial
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from ranklake.lake.audit import clock
from ranklake.lake.contracts.load import contract
from ranklake.lake.plans.action_plan import QUARANTINED
from ranklake.lake.plans.kinds import ERASURE
from ranklake.lake.plans.plan import LEDGER, Plan, read_plan
from ranklake.lake.plans.rules import GRACE, REPLACED, kept_rows
from ranklake.lake.tables.live_files import FILE_SCHEMA, live_paths
from ranklake.lake.tables.read import read
from ranklake.lake.tables.tables import delta_table
from ranklake.retention.proposals.retention_plans import RetentionPlan, register

if TYPE_CHECKING:
    from ranklake.lake.store.store import Store
    from ranklake.lake.store.tables import Tables

Replaced = Mapping[tuple[str, str], Sequence[Mapping[str, Any]]]


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptFile:
    """A file that is kept.

    Attributes
    ----------
    table, path, size_bytes, rows, day
        Which; the path is relative to the table's folder.
    version
        Contract version of its table that it is written under, a stamp; None where it is not known.
    """

    table: str
    path: str
    size_bytes: int
    rows: int
    day: date
    version: int | None

    @property
    def row(self) -> dict[str, Any]:
        """The file as a row of `ranklake.lake.tables.live_files.files`."""
        facts = {"path": self.path, "size_bytes": self.size_bytes, "num_records": self.rows}
        return {**facts, "date": self.day}


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptPlan:
    """What one retention plan took, and is kept.

    Attributes
    ----------
    proposal, plan
        The retention plan, and the lake's plan that applied it.
    files
        What holds the rows that went, and what they were before values were masked.
    """

    proposal: RetentionPlan
    plan: Plan
    files: tuple[KeptFile, ...]

    @property
    def until(self) -> datetime:
        """When the grace ends, by the clock."""
        return datetime.fromisoformat(self.plan.body["facts"][GRACE]["until"])

    @property
    def raw(self) -> set[str]:
        """Digests of raw bytes in quarantine."""
        digests = self.plan.body["facts"].get(QUARANTINED, {}).values()
        return {one for days in digests for some in days.values() for one in some}

    def why_not_over(self) -> str:
        """Return why the grace is not over; empty if it is.

        A clock that was set forward does not end it: of the same start of a machine, its uptime tells what passed.
        """
        now = clock.now()
        if now < self.until:
            return f"it can be cancelled until {self.until:%Y-%m-%d %H:%M} UTC"
        began, up = self.plan.body["facts"][GRACE]["uptime"], clock.uptime()
        passed = None if began is None or up is None or began[0] != up[0] else up[1] - began[1]
        wanted = (self.until - self.plan.created).total_seconds()
        if passed is not None and passed < wanted:
            reason = f"the clock says that it ended at {self.until:%Y-%m-%d %H:%M} UTC"
            return f"{reason}, but this machine ran only {passed / 86_400:.1f} of {wanted / 86_400:.1f} days since"
        return ""


def kept_plans(tables: "Tables") -> list[KeptPlan]:
    """Return what is kept, by plan. Raises `ranklake.lake.plans.plan.DamagedPlanError`, and what the store raises."""
    waiting = sorted((one for one in register(tables).values() if one.is_kept), key=lambda proposal: proposal.plan or 0)
    if not waiting:
        return []
    replaced = _replacements(tables, waiting[0].plan or 0)
    result = []
    for proposal in waiting:
        plan = read_plan(tables.store, proposal.plan or 0)
        if plan is not None and GRACE in plan.body["facts"]:
            result.append(KeptPlan(proposal=proposal, plan=plan, files=tuple(_files(plan, replaced))))
    return result


def kept_plan_of(tables: "Tables", name: str, number: int) -> KeptPlan | None:
    """Return what the numbered plan of a retention plan keeps; None where nothing is. Raises as `kept_plans`."""
    matches = (kept for kept in kept_plans(tables) if kept.proposal.name == name and kept.plan.number == number)
    return next(matches, None)


def kept_paths(tables: "Tables") -> dict[str, set[str]]:
    """Return the paths of kept files by table, those of old versions among them."""
    paths: dict[str, set[str]] = {}
    for kept_plan in kept_plans(tables):
        for file in kept_plan.files:
            paths.setdefault(file.table, set()).add(file.path)
    return paths


def kept_raw(tables: "Tables") -> set[str]:
    """Return the digests of raw bytes in quarantine that are kept."""
    return {digest for kept_plan in kept_plans(tables) for digest in kept_plan.raw}


def as_files(files: Iterable[KeptFile]) -> pa.Table:
    """Return kept files as rows of `ranklake.lake.tables.live_files.files`."""
    return pa.Table.from_pylist([one.row for one in files], schema=FILE_SCHEMA)


def _files(plan: Plan, replaced: Replaced) -> Iterator[KeptFile]:
    versions = plan.body["facts"][GRACE]["versions"]
    for table, row in kept_rows(plan.body):
        for now in _current_paths(table, {**row, "version": versions.get(table)}, replaced):
            named = {name: now[name] for name in ("path", "size_bytes", "version")}
            day = date.fromisoformat(now["date"])
            yield KeptFile(table=table, **named, rows=now["num_records"], day=day)


def _current_paths(table: str, row: Mapping[str, Any], replaced: Replaced) -> Iterator[Mapping[str, Any]]:
    """Yield what a kept file is by now."""
    if (table, row["path"]) not in replaced:
        yield row
        return
    for file in replaced[table, row["path"]]:
        yield from _current_paths(table, file, replaced)


def _replacements(tables: "Tables", since: int) -> Replaced:
    """Return what erasures put in the place of files, by table and path."""
    ledger = read(tables, contract(LEDGER), ["plan", "kind"])
    later = pc.and_(pc.equal(ledger["kind"], ERASURE.name), pc.greater(ledger["plan"], since))
    replacements: dict[tuple[str, str], Sequence[Mapping[str, Any]]] = {}
    for number in ledger.filter(later)["plan"].to_pylist():
        plan = read_plan(tables.store, number)
        by_table = {} if plan is None else plan.body["facts"].get(REPLACED, {})
        replacements |= {(table, one["path"]): one["by"] for table, some in by_table.items() for one in some}
    return replacements


RESTORE_HINT: Final = "with it, restore the version before that, which 'ranklake doctor' names"


def restored_rows(store: "Store", kept_plan: KeptPlan) -> Counter[str]:
    """Return how many rows of what a plan took are in their tables again, by table. Raises what reading them raises."""
    return _rows_again(kept_plan, cache(partial(_live, store)))


def restorations(tables: "Tables") -> tuple[str, ...]:
    """Return what tables have again though nobody cancelled the plan that took it, a clause for each plan and table.

    Tells of files that are still the table's; whoever writes their rows again, such as a merge, leaves only the counts
    of `ranklake.lake.ingest.status.reconciliation` to tell. Raises `ranklake.lake.plans.plan.DamagedPlanError`, and
    what reading the register and the tables raises.
    """
    live = cache(partial(_live, tables.store))
    clauses = []
    for kept_plan in kept_plans(tables):
        name = kept_plan.proposal.name
        took = f"that {name} took or masked, and nobody cancelled it: another program restored the table"
        clauses += [
            f"{table} has {rows:,} rows again {took}; {RESTORE_HINT}"
            for table, rows in _rows_again(kept_plan, live).items()
        ]
    return tuple(clauses)


def _rows_again(kept_plan: KeptPlan, live: Callable[[str], set[str]]) -> Counter[str]:
    rows: Counter[str] = Counter()
    for file in kept_plan.files:
        if file.path in live(file.table):
            rows[file.table] += file.rows
    return rows


def _live(store: "Store", table: str) -> set[str]:
    handle = delta_table(store, table)
    return set() if handle is None else live_paths(handle)


ARCHIVED_ROWS: Final = "archive/"
"""Likewise before items that are archives of its rows, by the date that those were on; `path` is an archive's name."""


def retired_dates(tables: "Tables", *, final: bool = False, of_parts: bool = False) -> dict[str, dict[date, int]]:
    """Return the dates that retention took, by table or `RAW` and table, each with the last plan that did.

    A retention plan whose items were altered took nothing that is known. Dates of which only some rows went are not
    among them, see `thinned_dates`.

    Parameters
    ----------
    final
        Leave out what can be cancelled yet.
    of_parts
        Return the dates of which it took some rows, or masked values, instead of those that it took whole.
    """
    retired: dict[str, dict[date, int]] = {}
    for plan in register(tables).values():
        for item in plan.items if plan.holds and plan.intact and not (final and plan.is_kept) else ():
            if (item.part_sha256 is not None) != of_parts:
                continue
            days = retired.setdefault(item.table, {})
            days[item.partition_date] = max(days.get(item.partition_date, 0), plan.plan or 0)
    return retired


def thinned_dates(tables: "Tables", table: str) -> set[date]:
    """Return the dates of a table of which retention took some rows, or masked values: a replay would bring them back.

    Nothing tells which rows those were.
    """
    return {
        item.partition_date
        for one in register(tables).values()
        for item in (one.items if one.holds else ())
        if item.table == table and item.part_sha256 is not None
    }
