"""Scans of partitions: each file by file, in batches of bounded size; several at a time on workers.

Great Expectations validates only rows that the screen does not pass. Its import costs seconds, and each value a
microsecond or more.
"""

import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from time import perf_counter
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.compute as pc

from ranklake.lake.contracts.arrow import arrow_schema
from ranklake.lake.contracts.checks.registry import failures, judged_rows, kind_of
from ranklake.lake.contracts.model import ALARMS
from ranklake.lake.plans.workers import InProcess
from ranklake.lake.store.lake import Lake
from ranklake.lake.tables.live_files import DamagedFileError
from ranklake.lake.tables.read import read_batches
from ranklake.quality.engine import frame, judge
from ranklake.quality.forms import Screen, clear
from ranklake.quality.keys import Hashes, count_repeats, near_files, repeated_keys
from ranklake.quality.suite import Suite
from ranklake.quality.suites.conditions import filter_rows
from ranklake.quality.tally import SHOWN, FileTallies, Partition, Tally, is_storable, load, save
from ranklake.quality.watching import watch, watched_columns

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ranklake.lake.contracts.model import Check, Contract
    from ranklake.lake.store.store import Store
    from ranklake.quality.engine import Verdict
    from ranklake.quality.suite import Expectation
    from ranklake.quality.suites.conditions import Condition

    Judged = tuple[Expectation, Tally]
    Judge = Callable[..., list[Verdict]]
    from ranklake.lake.plans.plan import Progress
    from ranklake.lake.plans.workers import Pending, Workers

BATCH_ROWS: Final = 500_000  # of 40 columns these take about 400 MB on their way through pandas
_RUN: Final = "run"
KEYED: Final = ("unique", "duplicates")
"""Kinds of checks that count repeated keys."""


def scan(
    store: "Store",
    contract: "Contract",
    suite: "Suite",
    part: "Partition",
    judge: "Judge",
    batch_rows: int = BATCH_ROWS,
    judged_rows: int = 0,
    known: FileTallies | None = None,
) -> list[Tally]:
    """Return one tally per expectation of the suite, in its order: the sum over the partition's files.

    A file that cannot be read makes the expectations errored, each with the reason.

    Parameters
    ----------
    contract
        Contract with only those columns that the table has; expectations on other columns are returned as absent.
    judge
        Validates rows by Great Expectations; see `ranklake.quality.engine.judge`.
    batch_rows
        Maximum number of rows of a file that are validated at a time.
    judged_rows
        Number of first rows that Great Expectations always validates; tests compare it with the screen. Of the other
        rows, it validates only those that the screen does not pass.
    known
        Tallies of files that need not be read; the scan adds the tallies of all other files.
    """
    known = known or FileTallies()
    files = part.files.sort_by("path")  # so that shown values and float sums do not depend on `known`
    paths = files["path"].to_pylist()
    tallies = [
        Tally(error=expectation.refused, absent=any(name not in contract for name in expectation.columns))
        for expectation in suite.expectations
    ]
    all_pairs = zip(suite.expectations, tallies, strict=True)
    scanned = [(expectation, tally) for expectation, tally in all_pairs if expectation.is_scanned and not tally.absent]
    keyed = [expectation.check for expectation, _ in scanned if expectation.check.kind in KEYED]
    near = {
        check.id: near_files(files, _key(contract, check), known.distinct.get(check.id, frozenset())) for check in keyed
    }
    with ExitStack() as stack:
        keys = {
            check.id: stack.enter_context(
                Hashes(_key(contract, check), pc.sum(near[check.id]["num_records"]).as_py() or 0)
            )
            for check in keyed
        }
        reader = _Reader(store, contract, suite, judge, keys, batch_rows, judged_rows)
        error = reader.read(files, near, known)
        for number, tally in enumerate(tallies):
            for path in () if error or tally.absent else paths:
                tally.add(known.files[path][number])
        for expectation, tally in scanned:
            if expectation.per_row or expectation.watch is not None:
                tally.error = error or tally.error
                continue
            check = expectation.check.id
            if check in keys:
                known.distinct[check] = frozenset(paths if not error and keys[check].distinct() else ())
            _judge_whole(store, contract, part, expectation, tally, is_distinct=bool(known.distinct.get(check)))
    return tallies


@dataclass(slots=True)
class _Reader:
    """Reads the data files of one scan. Attributes are arguments of `scan`, and `keys` the key hashes of each check."""

    store: "Store"
    contract: "Contract"
    suite: "Suite"
    judge: "Judge"
    keys: "Mapping[str, Hashes]"
    batch_rows: int
    judged_rows: int

    def read(self, files: pa.Table, near: "Mapping[str, pa.Table]", known: FileTallies) -> str:
        """Add tallies of new files to `known`, hash the keys of files in `near`; return a read error, or ``""``."""
        fresh = []
        try:
            for at, path in enumerate(files["path"].to_pylist()):
                if path not in known.files:
                    known.files[path] = self._tally(files.slice(at, 1))
                    fresh.append(path)
            for check, hashes in self.keys.items():
                hashed = pc.is_in(near[check]["path"], value_set=pa.array(fresh, pa.string()))
                others = near[check].filter(pc.invert(hashed))
                for at in range(others.num_rows):
                    for rows in self._batches(others.slice(at, 1), hashes.columns):
                        hashes.add(rows)
                    hashes.end_file()
        except DamagedFileError as damage:
            return f"a data file cannot be read: {damage}"
        except (OSError, pa.ArrowException) as fault:  # no message: it may quote a value
            return f"a data file cannot be read ({type(fault).__name__})"
        return ""

    def _batches(self, files: pa.Table, columns: "Sequence[str]") -> "Iterator[pa.Table]":
        return read_batches(self.store, self.contract, files, columns, batch_rows=self.batch_rows, dictionaries=True)

    def _tally(self, file: pa.Table) -> list[Tally]:
        """Return the tallies of one data file, and hash its keys. Checks of keys count the rows that have a key."""
        contract, suite = self.contract, self.suite
        tallies = [Tally() for _ in suite.expectations]
        scanned = [
            (expectation, tally)
            for expectation, tally in zip(suite.expectations, tallies, strict=True)
            if expectation.is_scanned and all(name in contract for name in expectation.columns)
        ]
        judged = _group_checks(scanned)
        watched = [
            (expectation, tally, watched_columns(contract, expectation))
            for expectation, tally in scanned
            if expectation.watch is not None
        ]
        names = {name for expectation, _ in scanned for name in expectation.columns}
        names = names.union(*(watch_names for _, _, watch_names in watched))
        columns = [name for name in contract.names if name in names or (name == _RUN and names)]
        for rows in self._batches(file, columns) if columns else ():
            for expectation, tally in scanned:
                if (hashes := self.keys.get(expectation.check.id)) is not None:
                    tally.checked += hashes.add(rows)
            watch(rows, watched)
            first, rest = rows.slice(0, self.judged_rows), rows.slice(self.judged_rows)
            self.judged_rows -= first.num_rows
            for where, classified in judged:
                group = judged[where, classified]
                _add(contract, suite, filter_rows(first, where), group, self.judge, classified=classified)
                selected = filter_rows(rest, where)
                _add(contract, suite, selected, _screen(suite, selected, group), self.judge, classified=classified)
        for hashes in self.keys.values():
            hashes.end_file()
        return tallies


def _group_checks(scanned: "Sequence[Judged]") -> "dict[tuple[Condition | None, bool], list[Judged]]":
    """Group the checks of single rows by their row condition, and by whether they read classified columns."""
    groups: dict[tuple[Condition | None, bool], list[Judged]] = {}
    for expectation, tally in scanned:
        if expectation.per_row:
            groups.setdefault((expectation.where, expectation.classified), []).append((expectation, tally))
    return groups


def _screen(suite: "Suite", rows: pa.Table, group: "Sequence[Judged]") -> "list[Judged]":
    """Count the rows of the checks that no row can fail; return the other checks."""
    if not rows.num_rows:
        return []
    screen = Screen(rows, suite.ranges)
    doubtful = []
    for expectation, tally in group:
        count = 0 if _blank(expectation.check, rows) else clear(screen, expectation.check)
        if count is None:
            doubtful.append((expectation, tally))
        else:
            tally.checked += count
    return doubtful


def _add(
    contract: "Contract",
    suite: "Suite",
    rows: pa.Table,
    group: "Sequence[Judged]",
    judge: "Judge",
    *,
    classified: bool,
) -> None:
    """Validate rows with the judge, and add the verdicts to the tallies."""
    group = [pair for pair in group if not _blank(pair[0].check, rows)]
    if not group or not rows.num_rows:
        return
    expectations = [expectation for expectation, _ in group]
    named = {name for expectation in expectations for name in expectation.check.columns}
    stored = arrow_schema(contract)
    runs = rows[_RUN] if _RUN in rows.column_names else None
    rows = pa.table({name: rows[name].cast(stored.field(name).type) for name in rows.column_names if name in named})
    verdicts = judge(contract, frame(rows, expectations, suite.ranges), expectations, classified=classified)
    for (expectation, tally), verdict in zip(group, verdicts, strict=True):
        if verdict.success is False and runs is not None and expectation.check.severity in ALARMS:
            failed = runs.filter(failures(expectation.check, rows, suite.ranges)).unique()
            tally.runs.update(name for name in failed.to_pylist() if name is not None)
        if verdict.success is None:
            tally.error = tally.error or verdict.error
        elif verdict.checked is None or verdict.failed is None:  # a classified column: Arrow counts
            tally.checked += judged_rows(expectation.check, rows, suite.ranges)
            if not verdict.success:
                tally.failed += int(pc.sum(failures(expectation.check, rows, suite.ranges)).as_py() or 0)
        else:
            tally.checked += verdict.checked
            tally.failed += verdict.failed
            # pandas converts integers with NULL to floats
            is_integer = pa.types.is_integer(rows[expectation.check.columns[0]].type)
            shown = verdict.shown[: SHOWN - len(tally.seen)]
            tally.seen += [f"{value:.0f}" if is_integer and isinstance(value, float) else str(value) for value in shown]


def _blank(check: "Check", rows: pa.Table) -> bool:
    """Whether a column of the check is all NULL, as columns that a job never fills; then nothing is validated."""
    return kind_of(check).null_passes and any(rows[name].null_count == rows.num_rows for name in check.columns)


def _key(contract: "Contract", check: "Check") -> list[str]:
    """Return the columns that distinguish rows within a partition: the partition column is constant."""
    return [name for name in check.columns if name not in contract.partition]


def _judge_whole(
    store: "Store",
    contract: "Contract",
    part: "Partition",
    expectation: "Expectation",
    tally: Tally,
    *,
    is_distinct: bool,
) -> None:
    check = expectation.check
    if check.kind == "row_count":
        tally.checked = part.rows
        low, high = check.min, check.max
        outside = (low is not None and part.rows < float(low)) or (high is not None and part.rows > float(high))
        tally.failed = part.rows if outside else 0
        tally.passed = not outside  # also for no rows
        tally.seen = [f"{part.rows} rows"]
        return
    if is_distinct:
        return
    try:
        tally.checked, tally.failed = count_repeats(store, contract, part.files, check.columns)
    except Exception as error:  # noqa: BLE001 - the query engine has no error class of its own; no message: it may quote a key
        tally.error = f"could not be computed ({type(error).__name__})"
        return
    if tally.failed and check.kind == "unique" and _RUN in check.columns and check.severity in ALARMS:
        tally.runs.update(repeated_keys(store, contract, part.files, _key(contract, check))[_RUN].to_pylist())
    if check.kind == "duplicates" and tally.checked:
        tally.seen = [f"{tally.failed:,} of {tally.checked:,} rows"]
        if tally.failed <= float(check.max or 0) * tally.checked:
            tally.failed = 0


PARTITION_CPU_S: Final = 0.01
ROW_CPU_S: Final = 0.18e-6
"""Approximate CPU seconds for a partition, and for each row, without failures."""
_ROW_BYTES: Final = 4096
"""Worker memory for each row of a batch; 40 columns take a fifth of that."""


@dataclass(frozen=True, slots=True)
class ScanTask:
    """One partition to scan, with contract and suite, so that workers need no contracts of the operator."""

    lake_uri: str
    storage: dict[str, str]
    contract: "Contract"
    suite: "Suite"
    part: Partition
    batch_rows: int = BATCH_ROWS


def scan_partition(task: ScanTask, lake: Lake | None = None) -> list[Tally]:
    """Scan one partition; returns what `scan` returns. `lake` is the open lake, if this process has one.

    Files with stored tallies are not read again.
    """
    opened = lake or Lake.open(task.lake_uri, task.storage)
    started = perf_counter()
    args = (opened.store, task.contract, task.suite, task.part)
    stored = is_storable(task.contract, task.suite, task.part)
    known = load(*args, task.batch_rows) if stored else FileTallies()
    known_paths = set(known.files)
    tallies = scan(*args, judge, task.batch_rows, known=known)
    if stored and known.files.keys() != known_paths:
        save(*args, task.batch_rows, known)
    for tally in tallies:
        tally.seconds = perf_counter() - started
    return tallies


def fitting_rows(bytes_each: int) -> int:
    """Return the number of rows of a batch if each task has this much memory."""
    return max(10_000, min(BATCH_ROWS, bytes_each // _ROW_BYTES))


def expected_cpu_s(parts: int, rows: int) -> float:
    """Return the approximate CPU seconds of scans of some partitions that read some rows; -1 for no partition."""
    return parts * PARTITION_CPU_S + rows * ROW_CPU_S if parts else -1.0


BATCH_PARTITIONS: Final = 256
BATCH_ROWS_HERE: Final = 2_000_000
"""Partitions, and rows in this process, that are scanned before their results are committed together."""


@dataclass(frozen=True, slots=True)
class TableWork:
    """Partitions of one table to check. The largest is first, so that it does not run alone at the end.

    `unread_rows` is the number of rows of files without stored tallies.
    """

    contract: "Contract"
    suite: Suite
    parts: list[Partition]
    unread_rows: int

    def __post_init__(self) -> None:
        self.parts.sort(key=lambda part: -part.rows)


@dataclass(frozen=True, slots=True)
class PendingScan:
    """A table whose partitions are being scanned, or will be scanned by the call of `results`."""

    work: TableWork
    pending: "Pending[ScanTask, list[Tally]]"
    progress: "_ScanProgress"

    def results(self) -> Sequence[list[Tally]]:
        """Return the tallies of each partition. A call after an error scans again."""
        before = self.progress.done
        try:
            self.progress.report()
            return self.pending.results(partial(self.progress.report, 1))
        except BaseException:
            self.progress.done = before  # for the next attempt
            raise


@dataclass(slots=True)
class _ScanProgress:
    """Number of scanned partitions, of all."""

    progress: "Progress | None"
    done: int = 0
    total: int = 0

    def report(self, more: int = 0) -> None:
        self.done += more
        if self.progress is not None:
            self.progress(self.done, self.total)


class Scans:
    """Runs the scans of partitions: on workers if there is enough work, otherwise in this process.

    Results of a batch of tables are committed together, because each commit adds a file to read.
    """

    def __init__(self, lake: "Lake", workers: "Workers", progress: "Progress | None") -> None:
        self._lake, self._workers = lake, workers
        self._work: list[TableWork] = []
        self._progress = _ScanProgress(progress)
        self._started: list[PendingScan] = []

    def add(self, work: TableWork) -> None:
        """Queue the scans of a table. If workers are worthwhile, they start immediately, up to the size of a batch."""
        self._work.append(work)
        self._progress.total += len(work.parts)
        if isinstance(self._chosen_workers(), InProcess):
            return
        for queued in self._work[len(self._started) :]:
            if _is_full(self._started):
                return
            self._start(queued)

    def _chosen_workers(self) -> "Workers":
        """Return the workers for the queued scans, or this process if they are too few."""
        return self._workers.fitting(expected_cpu_s(self._progress.total, sum(work.unread_rows for work in self._work)))

    def batches(self) -> Iterator[list[PendingScan]]:
        """Yield the tables of each batch, in the order in which they were queued."""
        most_rows = BATCH_ROWS_HERE if isinstance(self._chosen_workers(), InProcess) else sys.maxsize
        for work in self._work[len(self._started) :]:
            if _is_full(self._started, most_rows):
                yield self._started
                self._started = []
            self._start(work)
        if self._started:
            yield self._started

    def _start(self, table_work: TableWork) -> None:
        """Start the scans of a table. In this process they run when the results are read."""
        workers = self._chosen_workers()
        work = partial(scan_partition, lake=self._lake) if isinstance(workers, InProcess) else scan_partition
        rows = fitting_rows(workers.room().bytes_each)
        store, checks = self._lake.store, (expectation.check for expectation in table_work.suite.expectations)
        keys = {name for check in checks if check.kind in KEYED for name in check.columns}
        tasks = [
            ScanTask(store.address, store.storage, table_work.contract, table_work.suite, part.slim(keys), rows)
            for part in table_work.parts
        ]
        self._started.append(
            PendingScan(table_work, workers.begin(work, tasks, table_work.parts[0].rows), self._progress)
        )

    def cancel(self) -> None:
        """Cancel scans that have not started."""
        for scanned in self._started:
            scanned.pending.cancel()


def _is_full(started: Sequence[PendingScan], most_rows: int = sys.maxsize) -> bool:
    parts = sum(len(scan_.work.parts) for scan_ in started)
    return parts >= BATCH_PARTITIONS or sum(scan_.work.unread_rows for scan_ in started) >= most_rows
