"""Checks of new partitions: scan, move failing rows to `rejects`, write results.

A crash before the plan is written leaves files that no commit names; a later one leaves a plan that the next driver
finishes.
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
from ranklake.quality.scan import PendingScan, Scans, TableWork
from ranklake.quality.suite import KINDS, Suite, as_stored, compile_suite, select_contracts
from ranklake.quality.suites.asking import SuiteRun, record_unplaced
from ranklake.quality.tally import Partition, Tally, prune, result_of
from ranklake.quality.watching import Neighbours, judge_watched

if TYPE_CHECKING:
    from ranklake.lake.contracts.model import Contract
    from ranklake.lake.plans.plan import Plan, Progress
    from ranklake.lake.plans.workers import Workers
    from ranklake.lake.store.lake import Lake
    from ranklake.lake.store.tables import Tables
    from ranklake.lake.tables.live_files import DataFile


REJECTS: Final = "rejects"
_ROWS: Final = 50_000  # rows that are JSON text in memory at a time


@dataclass(slots=True)
class QuarantineResult:
    """What was taken out of one partition.

    Attributes
    ----------
    reasons
        Rows by reason, as `ranklake.lake.contracts.edge.reject_reasons` gives it.
    files
        Paths of the partition's files that were scanned, after rows were taken out.
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
    """Write the files of a plan that takes failing rows out of some partitions; None if no row fails any more.

    Parameters
    ----------
    contract
        Its quarantining checks say which rows go; its columns are those that the table has.
    parts
        Partitions as they were scanned. Files that came since are left for the next check, files that are gone are
        passed over. Where scanned files were merely merged meanwhile, the merged ones take their place.
    report
        Given what was taken out of each partition, returns the rows of ``quality_results`` that the plan commits too.
    """
    when = datetime.now(UTC)
    gone: list[pa.Table] = []
    new: list[DataFile] = []
    taken = {part.day: QuarantineResult(files=set(part.files["path"].to_pylist())) for part in parts}
    candidates = _candidates(lake, contract, taken)
    for dropped, replaced, rows in action_plan.take_rows_out(
        lake.tables, contract, number, candidates, lambda rows: pc.is_valid(edge.reject_reasons(contract, rows))
    ):
        target = taken[dropped["date"][0].as_py()]
        target.files -= set(dropped["path"].to_pylist())
        target.files |= {file.path for file in replaced}
        gone.append(dropped)
        new += replaced
        for start in range(0, rows.num_rows, _ROWS):
            chunk = rows.slice(start, _ROWS)
            reasons = edge.reject_reasons(contract, chunk)
            target.reasons.update(reasons.to_pylist())
            rejected = reject_rows(chunk, reasons, [None] * chunk.num_rows, "check", contract, number, when)
            new += append_files(lake.store, contract_of(REJECTS), rejected, number)
    if not gone:
        return None
    new += row_files(lake.store, RESULTS, report(taken), number)
    return action_plan.compose(number, QUARANTINE.name, add=new, remove={contract.table: pa.concat_tables(gone)})


def _candidates(lake: "Lake", contract: "Contract", taken: dict[date, QuarantineResult]) -> pa.Table:
    """Return the live files that hold scanned rows alone, and put merged files into the place of scanned ones."""
    live = action_plan.live_files(lake, contract.table, list(taken))
    parts = [live.slice(0, 0)]
    for day, target in taken.items():
        rows = live.filter(pc.equal(live["date"], pa.scalar(day, pa.date32())))
        paths = rows["path"].to_pylist()
        if files_digest(paths) == files_digest(target.files):
            target.files = set(paths)
        parts.append(rows.filter(pc.is_in(rows["path"], value_set=pa.array(target.files, pa.string()))))
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
    """Check the partitions that are new since they were last checked.

    New is a partition whose files changed, whose suite changed, or on which something could not be computed. All tables
    of these `kinds` that the lake has are looked at, unless `tables` names some.

    Parameters
    ----------
    workers
        Who scans, a partition each, where there is enough to do; by default this process does all.
    again
        Whether to check all partitions: what a check asks of other tables may have changed, too.

    Raises
    ------
    UnknownTableError, NotCheckedError
        A name in `tables` is no table, or a system table.
    ranklake.quality.suites.folder.SuitesError
        The configured folder of users' suites is not there.
    """
    contracts = select_contracts(lake.contracts(), tables, kinds)
    finish(lake, QUARANTINE, InProcess())  # what a check that died left half done
    with SuiteRun(lake) as asking:
        return _check(lake, contracts, asking, workers or InProcess(), progress, again=again)


def _check(
    lake: "Lake",
    contracts: "Mapping[str, Contract]",
    asking: SuiteRun,
    workers: "Workers",
    progress: "Progress | None",
    *,
    again: bool,
) -> CheckReport:
    """Check the partitions of some tables that are new, or all."""
    metrics = lake.catalog.metrics()
    known = {} if again else last_checks(lake, list(contracts))
    unchanged: list[LastCheck] = []
    scans = Scans(lake, workers, progress)
    run = _Run(lake, uuid.uuid4().hex, datetime.now(UTC), scans, asking)
    live: dict[str, set[date]] = {}
    try:
        for contract in contracts.values():
            partitions = _partitions(lake.tables, contract)
            live[contract.table] = {part.day for part in partitions}
            if not partitions:
                continue
            suite = compile_suite(contract, metrics, asking.suites.of(contract))
            new = [part for part in partitions if not _done(known.get((contract.table, part.day)), suite, part)]
            unchanged += [known[contract.table, part.day] for part in partitions if part not in new]
            if new:
                run.add(TableWork(as_stored(lake.tables, contract), suite, new), partitions)
        results = run.results()
    except BaseException:
        scans.cancel()
        raise
    if results:
        prune(lake.store, live)
    fresh, old = record_unplaced(lake, asking.suites, run.name, run.when)
    still = tuple(result for scanned in unchanged for result in scanned.open)
    return CheckReport(run.name, (*results, *fresh), len(unchanged), (*still, *old))


def _partitions(tables: "Tables", contract: "Contract") -> list[Partition]:
    handle = latest(tables, contract.table)
    if handle is None:
        return []
    live = files(handle)
    by_day: dict[date, list[int]] = {}
    for index, day in enumerate(live["date"].to_pylist()):
        by_day.setdefault(day, []).append(index)
    return [Partition(day, handle.version(), live.take(rows)) for day, rows in sorted(by_day.items())]


def _done(last: LastCheck | None, suite: Suite, part: Partition) -> bool:
    if last is None or last.errored or last.suite != suite.name:
        return False
    return last.files_sha256 == files_digest(part.files["path"].to_pylist())


class _Run:
    """One call of `run_checks` on its way."""

    def __init__(self, lake: "Lake", name: str, when: datetime, scans: Scans, asking: SuiteRun) -> None:
        self.lake, self.name, self.when, self._scans, self._asking = lake, name, when, scans, asking
        self._neighbours = Neighbours(lake, when)

    def add(self, work: TableWork, partitions: Sequence[Partition]) -> None:
        """Take a table, all partitions that it has, and what is to be checked of them."""
        self._neighbours.has(work.contract.table, {part.day: part.rows for part in partitions})
        self._scans.add(work)

    def results(self) -> list[CheckResult]:
        """Check all that was added; return the results."""
        return [result for batch in self._scans.batches() for result in self._check(batch)]

    def _check(self, batch: Sequence[PendingScan]) -> list[CheckResult]:
        """Wait for the scans of tables' partitions, and commit the results; return the results.

        A table is judged while workers scan those after it.
        """
        moved, quiet = list[CheckResult](), list[CheckResult]()
        for scanned in batch:
            table, parts = scanned.work.contract.table, scanned.work.parts
            unit = Unit("check", table, tuple(part.day for part in parts), reads=(table,))
            partitions = carry_out(unit, scanned.results)
            taken, stayed = self._judge_partitions(scanned.work, list(zip(parts, partitions, strict=True)))
            moved += taken
            quiet += stayed
        tables = [scanned.work.contract.table for scanned in batch]
        self._write_down(tables, quiet)
        place = {table: number for number, table in enumerate(tables)}
        return sorted([*moved, *quiet], key=lambda result: (place[result.table], result.partition_date))

    def _judge_partitions(
        self, work: TableWork, pairs: list[tuple[Partition, list[Tally]]]
    ) -> tuple[list[CheckResult], list[CheckResult]]:
        """Judge partitions as wholes, and take failing rows out of the table.

        Returns the results that were committed with that, and those of the other partitions, which were not yet.
        """
        pairs = sorted(pairs, key=lambda pair: pair[0].day)
        for part, tallies in pairs:
            judge_watched(work.contract, work.suite, part, tallies, self._neighbours)
            self._asking.judge(work.contract, work.suite, part, tallies)
        dirty = [(part, tallies) for part, tallies in pairs if _must_lose_rows(work.suite, tallies)]
        moved = self._take_out(work, dirty)
        committed = {result.partition_date for result in moved}
        quiet = [
            result
            for part, tallies in pairs
            if part.day not in committed
            for result in self._results(work.suite, part, tallies, None)
        ]
        return moved, quiet

    def _write_down(self, tables: Sequence[str], results: Sequence[CheckResult]) -> None:
        """Commit results of some tables, together: each commit takes as long as all of these rows."""
        rows = [result.row() for result in results]
        detail = f"of {tables[0] if len(tables) == 1 else counted(len(tables), 'table')}"
        unit = Unit("commit", RESULTS, detail=detail, reads=tuple(tables), writes=True)
        if rows:
            carry_out(unit, partial(append_own, self.lake.tables, RESULTS, lambda _: rows))

    def _take_out(self, work: TableWork, dirty: list[tuple[Partition, list[Tally]]]) -> list[CheckResult]:
        """Move failing rows to ``rejects`` and commit the results of those partitions with it; return the results.

        None are returned, and nothing was committed, if another process took the rows out first.
        """
        written: list[CheckResult] = []

        def report(taken: dict[date, QuarantineResult]) -> list[dict[str, Any]]:
            for part, tallies in dirty:
                written.extend(self._results(work.suite, part, tallies, taken[part.day]))
            return [result.row() for result in written]

        def compose(number: int) -> "Plan | None":
            written.clear()  # of an earlier try that lost its number to another driver
            return compose_quarantine(self.lake, number, work.contract, [part for part, _ in dirty], report)

        if dirty:
            drive(self.lake, compose, InProcess())
        return written

    def _results(
        self, suite: Suite, part: Partition, tallies: list[Tally], taken: QuarantineResult | None
    ) -> list[CheckResult]:
        paths = part.files["path"].to_pylist() if taken is None else taken.files
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
            result_of(one, tally, 0 if taken is None or not one.quarantines else taken.reasons[one.reason], facts)
            for one, tally in zip(suite.expectations, tallies, strict=True)
        ]


def _must_lose_rows(suite: Suite, tallies: list[Tally]) -> bool:
    return any(one.quarantines and tally.failed for one, tally in zip(suite.expectations, tallies, strict=True))
