"""Checks of new partitions: scan, move failing rows to `rejects`, write results.

A crash before the plan is written leaves files that no commit refers to. After a later crash the next driver finishes
the plan.
"""

import uuid
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from ranklake.lake.contracts import edge
from ranklake.lake.contracts.load import contract as contract_of
from ranklake.lake.ingest.refused import reject_rows
from ranklake.lake.plans import action_plan
from ranklake.lake.plans.driver import Unit, carry_out, drive, finish
from ranklake.lake.plans.kinds import QUARANTINE
from ranklake.lake.plans.plan import append_own, row_files
from ranklake.lake.plans.workers import InProcess
from ranklake.lake.tables.live_files import files, files_digest
from ranklake.lake.tables.parquet import append_files
from ranklake.lake.tables.tables import latest
from ranklake.printable import counted
from ranklake.quality.engine import gx_version
from ranklake.quality.results import RESULTS, CheckReport, CheckResult, LastCheck, last_checks
from ranklake.quality.scan import BATCH_ROWS, PendingScan, Scans, TableWork
from ranklake.quality.suite import KINDS, Suite, as_stored, compile_suite, select_contracts
from ranklake.quality.suites.asking import SuiteRun, record_unplaced
from ranklake.quality.tally import Partition, Tally, prune, result_of, unread_rows
from ranklake.quality.watching import Neighbours, judge_watched

if TYPE_CHECKING:
    from ranklake.lake.contracts.model import Contract
    from ranklake.lake.plans.plan import Plan, Progress
    from ranklake.lake.plans.workers import Workers
    from ranklake.lake.store.lake import Lake
    from ranklake.lake.store.tables import Tables
    from ranklake.lake.tables.live_files import DataFile


REJECTS: Final = "rejects"
_ROWS: Final = 50_000  # rows held as JSON text in memory at a time


@dataclass(slots=True)
class QuarantineResult:
    """Rows that a plan removes from one partition.

    Attributes
    ----------
    reasons
        Number of rows by reason, as `ranklake.lake.contracts.edge.reject_reasons` returns it.
    files
        Paths of the partition's scanned files, after the rewrite.
    """

    reasons: Counter[str] = field(default_factory=Counter)
    files: set[str] = field(default_factory=set)


def compose_quarantine(
    lake: "Lake",
    number: int,
    contract: "Contract",
    parts: "Sequence[Partition]",
    report: Callable[[dict[date, QuarantineResult]], list[dict[str, Any]]],
) -> "Plan | None":
    """Write the files of a plan that moves failing rows of some partitions to ``rejects``; None if no row fails.

    Parameters
    ----------
    contract
        Contract with the columns that the table has. Rows fail by its checks with ``on_fail: quarantine``.
    parts
        Partitions as scanned. Newer files are left to the next check, deleted files are skipped. Files that were
        only merged since the scan replace the scanned ones.
    report
        Function from the removed rows of each partition to the rows of ``quality_results`` that the plan also
        commits.
    """
    now = datetime.now(UTC)
    removed_files: list[pa.Table] = []
    added_files: list[DataFile] = []
    results = {part.day: QuarantineResult(files=set(part.files["path"].to_pylist())) for part in parts}
    candidates = _candidates(lake, contract, results)
    for file, new_files, rows in action_plan.remove_rows(
        lake.tables, contract, number, candidates, lambda rows: pc.is_valid(edge.reject_reasons(contract, rows))
    ):
        result = results[file["date"][0].as_py()]
        result.files -= set(file["path"].to_pylist())
        result.files |= {file.path for file in new_files}
        removed_files.append(file)
        added_files += new_files
        for start in range(0, rows.num_rows, _ROWS):
            chunk = rows.slice(start, _ROWS)
            reasons = edge.reject_reasons(contract, chunk)
            result.reasons.update(reasons.to_pylist())
            rejected = reject_rows(chunk, reasons, [None] * chunk.num_rows, "check", contract, number, now)
            added_files += append_files(lake.store, contract_of(REJECTS), rejected, number)
    if not removed_files:
        return None
    added_files += row_files(lake.store, RESULTS, report(results), number)
    return action_plan.compose(
        number, QUARANTINE.name, add=added_files, remove={contract.table: pa.concat_tables(removed_files)}
    )


def _candidates(lake: "Lake", contract: "Contract", results: dict[date, QuarantineResult]) -> pa.Table:
    """Return the live files with scanned rows only, and replace scanned files by their merged ones in `results`."""
    live = action_plan.live_files(lake, contract.table, list(results))
    parts = [live.slice(0, 0)]
    for day, result in results.items():
        rows = live.filter(pc.equal(live["date"], pa.scalar(day, pa.date32())))
        paths = rows["path"].to_pylist()
        if files_digest(paths) == files_digest(result.files):
            result.files = set(paths)
        parts.append(rows.filter(pc.is_in(rows["path"], value_set=pa.array(result.files, pa.string()))))
    return pa.concat_tables(parts)


def run_checks(
    lake: "Lake",
    tables: Sequence[str] | None = None,
    *,
    kinds: Collection[str] = KINDS,
    workers: "Workers | None" = None,
    progress: "Progress | None" = None,
    again: bool = False,
) -> CheckReport:
    """Check the partitions that are new since the last check, and move failing rows to ``rejects``.

    A partition is new if its files or its suite changed, or if a check could not be computed on it.

    Parameters
    ----------
    tables
        Tables to check; by default all tables of these `kinds` in the lake.
    workers
        Scan partitions in parallel if there is enough work; by default this process scans.
    again
        Check all partitions. A check also reads other tables, which may have changed.

    Raises
    ------
    UnknownTableError, NotCheckedError
        A name in `tables` is no table, or a system table.
    ranklake.quality.suites.folder.SuitesError
        The configured folder of users' suites does not exist.
    """
    contracts = select_contracts(lake.contracts(), tables, kinds)
    finish(lake, QUARANTINE, InProcess())  # a plan that a crashed check left unfinished
    with SuiteRun(lake) as suite_run:
        return _check(lake, contracts, suite_run, workers or InProcess(), progress, again=again)


def _check(
    lake: "Lake",
    contracts: "Mapping[str, Contract]",
    suite_run: SuiteRun,
    workers: "Workers",
    progress: "Progress | None",
    *,
    again: bool,
) -> CheckReport:
    """Check the new partitions of some tables, or all of them if `again`."""
    metrics = lake.catalog.metrics()
    known = {} if again else last_checks(lake, list(contracts))
    unchanged: list[LastCheck] = []
    scans = Scans(lake, workers, progress)
    run = _Run(lake, uuid.uuid4().hex, datetime.now(UTC), scans, suite_run)
    live: dict[str, set[date]] = {}
    try:
        for contract in contracts.values():
            partitions = _partitions(lake.tables, contract)
            live[contract.table] = {part.day for part in partitions}
            if not partitions:
                continue
            suite = compile_suite(contract, metrics, suite_run.suites.of(contract))
            new = [part for part in partitions if not _is_checked(known.get((contract.table, part.day)), suite, part)]
            unchanged += [known[contract.table, part.day] for part in partitions if part not in new]
            if new:
                stored = as_stored(lake.tables, contract)
                rows = sum(unread_rows(lake.store, stored, suite, part, BATCH_ROWS) for part in new)
                run.add(TableWork(stored, suite, new, rows), partitions)
        results = run.results()
    except BaseException:
        scans.cancel()
        raise
    if results:
        prune(lake.store, live)
    fresh, earlier = record_unplaced(lake, suite_run.suites, run.name, run.when)
    open_failures = tuple(result for scanned in unchanged for result in scanned.open)
    return CheckReport(run.name, (*results, *fresh), len(unchanged), (*open_failures, *earlier))


def _partitions(tables: "Tables", contract: "Contract") -> list[Partition]:
    handle = latest(tables, contract.table)
    if handle is None:
        return []
    live = files(handle)
    by_day: dict[date, list[int]] = {}
    for index, day in enumerate(live["date"].to_pylist()):
        by_day.setdefault(day, []).append(index)
    return [Partition(day, handle.version(), live.take(rows)) for day, rows in sorted(by_day.items())]


def _is_checked(last: LastCheck | None, suite: Suite, part: Partition) -> bool:
    if last is None or last.errored or last.suite != suite.name:
        return False
    return last.files_sha256 == files_digest(part.files["path"].to_pylist())


class _Run:
    """State of one call of `run_checks`."""

    def __init__(self, lake: "Lake", name: str, when: datetime, scans: Scans, suite_run: SuiteRun) -> None:
        self.lake, self.name, self.when, self._scans, self._suite_run = lake, name, when, scans, suite_run
        self._neighbours = Neighbours(lake, when)

    def add(self, work: TableWork, partitions: Sequence[Partition]) -> None:
        """Queue the given work on a table; `partitions` are all partitions of the table."""
        self._neighbours.set_volumes(work.contract.table, {part.day: part.rows for part in partitions})
        self._scans.add(work)

    def results(self) -> list[CheckResult]:
        """Check the queued tables and return the results."""
        return [result for batch in self._scans.batches() for result in self._check(batch)]

    def _check(self, batch: Sequence[PendingScan]) -> list[CheckResult]:
        """Wait for the scans of a batch of tables, commit the results and return them.

        Workers scan the next tables of the batch meanwhile.
        """
        committed, uncommitted = list[CheckResult](), list[CheckResult]()
        for scanned in batch:
            table, parts = scanned.work.contract.table, scanned.work.parts
            unit = Unit("check", table, tuple(part.day for part in parts), reads=(table,))
            partitions = carry_out(unit, scanned.results)
            moved, kept = self._judge_partitions(scanned.work, list(zip(parts, partitions, strict=True)))
            committed += moved
            uncommitted += kept
        tables = [scanned.work.contract.table for scanned in batch]
        self._commit_results(tables, uncommitted)
        positions = {table: number for number, table in enumerate(tables)}
        return sorted([*committed, *uncommitted], key=lambda result: (positions[result.table], result.partition_date))

    def _judge_partitions(
        self, work: TableWork, pairs: list[tuple[Partition, list[Tally]]]
    ) -> tuple[list[CheckResult], list[CheckResult]]:
        """Evaluate the checks of whole partitions, and remove failing rows from the table.

        Returns the results that were committed together with removed rows, and the other results, which were not.
        """
        pairs = sorted(pairs, key=lambda pair: pair[0].day)
        for part, tallies in pairs:
            judge_watched(work.contract, work.suite, part, tallies, self._neighbours)
            self._suite_run.judge(work.contract, work.suite, part, tallies)
        failing = [(part, tallies) for part, tallies in pairs if _must_lose_rows(work.suite, tallies)]
        committed = self._take_out(work, failing)
        committed_dates = {result.partition_date for result in committed}
        uncommitted = [
            result
            for part, tallies in pairs
            if part.day not in committed_dates
            for result in self._results(work.suite, part, tallies, None)
        ]
        return committed, uncommitted

    def _commit_results(self, tables: Sequence[str], results: Sequence[CheckResult]) -> None:
        """Commit results of several tables in one commit: a commit has a fixed cost."""
        rows = [result.row() for result in results]
        detail = f"of {tables[0] if len(tables) == 1 else counted(len(tables), 'table')}"
        unit = Unit("commit", RESULTS, detail=detail, reads=tuple(tables), writes=True)
        if rows:
            carry_out(unit, partial(append_own, self.lake.tables, RESULTS, lambda _: rows))

    def _take_out(self, work: TableWork, failing: list[tuple[Partition, list[Tally]]]) -> list[CheckResult]:
        """Move failing rows to ``rejects``, commit the results of their partitions in the same plan and return them.

        Returns an empty list, without a commit, if another process removed the rows first.
        """
        results: list[CheckResult] = []

        def report(removed: dict[date, QuarantineResult]) -> list[dict[str, Any]]:
            for part, tallies in failing:
                results.extend(self._results(work.suite, part, tallies, removed[part.day]))
            return [result.row() for result in results]

        def compose(number: int) -> "Plan | None":
            results.clear()  # results of an attempt that lost its number to another driver
            return compose_quarantine(self.lake, number, work.contract, [part for part, _ in failing], report)

        if failing:
            drive(self.lake, compose, InProcess())
        return results

    def _results(
        self, suite: Suite, part: Partition, tallies: list[Tally], removed: QuarantineResult | None
    ) -> list[CheckResult]:
        paths = part.files["path"].to_pylist() if removed is None else removed.files
        facts = {
            "check_run": self.name,
            "table": suite.table,
            "partition_date": part.day,
            "table_version": part.version,
            "suite": suite.name,
            "gx_version": gx_version(),
            "files_sha256": files_digest(paths),
            "ts": self.when,
            "contract_version": suite.version,
        }
        return [
            result_of(
                expectation,
                tally,
                0 if removed is None or not expectation.quarantines else removed.reasons[expectation.reason],
                facts,
            )
            for expectation, tally in zip(suite.expectations, tallies, strict=True)
        ]


def _must_lose_rows(suite: Suite, tallies: list[Tally]) -> bool:
    return any(
        expectation.quarantines and tally.failed for expectation, tally in zip(suite.expectations, tallies, strict=True)
    )
