"""What applied retention plans removed: the dates, and the files that are kept during the days of grace.

A kept file stays under its path, but no table refers to it, so no reader of the table sees it. A cancellation restores
its rows, and only a purge deletes it. An erasure replaces a kept file by one without the erased rows.
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
    """A data file that a retention plan removed from its table and keeps.

    Attributes
    ----------
    table, path, size_bytes, rows, day
        The file; the path is relative to the table's folder.
    version
        Contract version under which the file was written; None if unknown.
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
    """The files that one applied retention plan keeps.

    Attributes
    ----------
    proposal, plan
        The retention plan, and the lake's plan that applied it.
    files
        The files with the removed rows, and with the values from before masking.
    """

    proposal: RetentionPlan
    plan: Plan
    files: tuple[KeptFile, ...]

    @property
    def until(self) -> datetime:
        """The end of the days of grace, by the clock."""
        return datetime.fromisoformat(self.plan.body["facts"][GRACE]["until"])

    @property
    def raw(self) -> set[str]:
        """Digests of the raw bytes in quarantine that the plan keeps."""
        by_table = self.plan.body["facts"].get(QUARANTINED, {}).values()
        return {digest for by_date in by_table for digests in by_date.values() for digest in digests}

    def why_not_over(self) -> str:
        """Return why the days of grace are not over; empty if they are.

        A clock that was set forward does not end them: if the machine was not restarted, its uptime must agree.
        """
        now = clock.now()
        if now < self.until:
            return f"it can be cancelled until {self.until:%Y-%m-%d %H:%M} UTC"
        start, now_up = self.plan.body["facts"][GRACE]["uptime"], clock.uptime()  # (id of the boot, seconds)
        elapsed_s = None if start is None or now_up is None or start[0] != now_up[0] else now_up[1] - start[1]
        grace_s = (self.until - self.plan.created).total_seconds()
        if elapsed_s is not None and elapsed_s < grace_s:
            reason = f"the clock says that it ended at {self.until:%Y-%m-%d %H:%M} UTC"
            return f"{reason}, but this machine ran only {elapsed_s / 86_400:.1f} of {grace_s / 86_400:.1f} days since"
        return ""


def kept_plans(tables: "Tables") -> list[KeptPlan]:
    """Return the kept files of each plan, by plan number.

    Raises `ranklake.lake.plans.plan.DamagedPlanError` and the store's errors.
    """
    waiting = sorted((item for item in register(tables).values() if item.is_kept), key=lambda item: item.plan or 0)
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
    """Return the kept files of a retention plan that a numbered plan applied; None if none are kept.

    Raises the same errors as `kept_plans`.
    """
    matches = (kept for kept in kept_plans(tables) if kept.proposal.name == name and kept.plan.number == number)
    return next(matches, None)


def kept_paths(tables: "Tables") -> dict[str, set[str]]:
    """Return the paths of all kept files by table, relative to the table's folder."""
    paths: dict[str, set[str]] = {}
    for kept_plan in kept_plans(tables):
        for file in kept_plan.files:
            paths.setdefault(file.table, set()).add(file.path)
    return paths


def kept_raw(tables: "Tables") -> set[str]:
    """Return the digests of all raw bytes in quarantine that are kept."""
    return {digest for kept_plan in kept_plans(tables) for digest in kept_plan.raw}


def as_files(files: Iterable[KeptFile]) -> pa.Table:
    """Return kept files as rows of `ranklake.lake.tables.live_files.files`."""
    return pa.Table.from_pylist([file.row for file in files], schema=FILE_SCHEMA)


def _files(plan: Plan, replaced: Replaced) -> Iterator[KeptFile]:
    versions = plan.body["facts"][GRACE]["versions"]
    for table, row in kept_rows(plan.body):
        for file in _current_files(table, {**row, "version": versions.get(table)}, replaced):
            facts = {name: file[name] for name in ("path", "size_bytes", "version")}
            day = date.fromisoformat(file["date"])
            yield KeptFile(table=table, **facts, rows=file["num_records"], day=day)


def _current_files(table: str, row: Mapping[str, Any], replaced: Replaced) -> Iterator[Mapping[str, Any]]:
    """Yield the files that replace a kept file, after all erasures; the file itself if none changed it."""
    if (table, row["path"]) not in replaced:
        yield row
        return
    for file in replaced[table, row["path"]]:
        yield from _current_files(table, file, replaced)


def _replacements(tables: "Tables", since: int) -> Replaced:
    """Return the files with which erasures replaced kept files, by table and path of the kept file."""
    ledger = read(tables, contract(LEDGER), ["plan", "kind"])
    later = pc.and_(pc.equal(ledger["kind"], ERASURE.name), pc.greater(ledger["plan"], since))
    replacements: dict[tuple[str, str], Sequence[Mapping[str, Any]]] = {}
    for number in ledger.filter(later)["plan"].to_pylist():
        plan = read_plan(tables.store, number)
        by_table = {} if plan is None else plan.body["facts"].get(REPLACED, {})
        replacements |= {(table, file["path"]): file["by"] for table, files in by_table.items() for file in files}
    return replacements


RESTORE_HINT: Final = "with it, restore the version before that, which 'ranklake doctor' names"


def restored_rows(store: "Store", kept_plan: KeptPlan) -> Counter[str]:
    """Return how many of the removed rows are in their tables again, by table. Raises the errors of reading tables."""
    return _rows_in_tables(kept_plan, cache(partial(_live, store)))


def restorations(tables: "Tables") -> tuple[str, ...]:
    """Return a clause for each plan and table whose kept files are in the table again without a cancellation.

    Recognizes the kept files themselves. If another program wrote their rows into new files, such as by a merge, only
    the counts of `ranklake.lake.ingest.status.reconciliation` show it. Raises
    `ranklake.lake.plans.plan.DamagedPlanError`, and the errors of reading the register and the tables.
    """
    live = cache(partial(_live, tables.store))
    clauses = []
    for kept_plan in kept_plans(tables):
        name = kept_plan.proposal.name
        cause = f"that {name} took or masked, and nobody cancelled it: another program restored the table"
        clauses += [
            f"{table} has {rows:,} rows again {cause}; {RESTORE_HINT}"
            for table, rows in _rows_in_tables(kept_plan, live).items()
        ]
    return tuple(clauses)


def _rows_in_tables(kept_plan: KeptPlan, live: Callable[[str], set[str]]) -> Counter[str]:
    rows: Counter[str] = Counter()
    for file in kept_plan.files:
        if file.path in live(file.table):
            rows[file.table] += file.rows
    return rows


def _live(store: "Store", table: str) -> set[str]:
    handle = delta_table(store, table)
    return set() if handle is None else live_paths(handle)


ARCHIVED_ROWS: Final = "archive/"
"""Prefix of a table's name in items about archives of its rows, by the rows' date. `path` is the archive's name."""


def retired_dates(tables: "Tables", *, final: bool = False, of_parts: bool = False) -> dict[str, dict[date, int]]:
    """Return the dates that retention removed, by table or `RAW` and table, each with the last plan that removed it.

    Plans whose items were altered are left out. Dates of which only some rows were removed are left out, too; see
    `thinned_dates`.

    Parameters
    ----------
    final
        Leave out plans that can still be cancelled.
    of_parts
        Return the dates of which some rows were removed or masked, instead of the dates that were removed entirely.
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
    """Return the dates of a table of which retention removed some rows or masked values.

    A replay would bring these rows and values back, and nothing records which they were.
    """
    return {
        item.partition_date
        for plan in register(tables).values()
        for item in (plan.items if plan.holds else ())
        if item.table == table and item.part_sha256 is not None
    }
