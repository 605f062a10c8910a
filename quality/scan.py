"""Scans of partitions: each file by file, in batches of bounded size; many in this process or on workers.

Great Expectations judges what the screen does not clear: at seconds for its import, and a microsecond and more for
each value, it is not asked what a column's extremes already tell.
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
"""Kinds of checks that look for keys that repeat."""


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

    Parameters
    ----------
    contract
        With those columns only that the table has; expectations on others come back as absent.
    batch_rows
        Rows of a file that are put to the judge at a time.
    judged_rows
        Rows at the partition's beginning that are put to the judge whatever they hold, by which tests compare it with
        the screen; of the rest it is asked what is in doubt.
    known
        Tallies of files that need not be read again; the scan adds those of all other files.

    A file that cannot be read makes the expectations errored, each with the reason.
    """
    known = known or FileTallies()
    files = part.files.sort_by("path")  # so that what is shown, and sums of floats, do not depend on what was known
    paths = files["path"].to_pylist()
    tallies = [
        Tally(error=expectation.refused, absent=any(name not in contract for name in expectation.columns))
        for expectation in suite.expectations
    ]
    all_pairs = zip(suite.expectations, tallies, strict=True)
    there = [(expectation, tally) for expectation, tally in all_pairs if expectation.is_scanned and not tally.absent]
    keyed = [expectation.check for expectation, _ in there if expectation.check.kind in KEYED]
    near = {
        check.id: near_files(files, _key(contract, check), known.distinct.get(check.id, frozenset())) for check in keyed
    }
    with ExitStack() as held:
        keys = {
            check.id: held.enter_context(
                Hashes(_key(contract, check), pc.sum(near[check.id]["num_records"]).as_py() or 0)
            )
            for check in keyed
        }
        reader = _Reader(store, contract, suite, judge, keys, batch_rows, judged_rows)
        error = reader.read(files, near, known)
        for number, tally in enumerate(tallies):
            for path in () if error or tally.absent else paths:
                tally.add(known.files[path][number])
        for expectation, tally in there:
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
    """Reads the data files of one scan; attributes are arguments of `scan`, and the hashes of keys by check."""

    store: "Store"
    contract: "Contract"
    suite: "Suite"
    judge: "Judge"
    keys: "Mapping[str, Hashes]"
    batch_rows: int
    judged_rows: int

    def read(self, files: pa.Table, near: "Mapping[str, pa.Table]", known: FileTallies) -> str:
        """Tally the files not in `known`, hash the keys of all in `near`; return why a file cannot be read, or ""."""
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
        except (OSError, pa.ArrowException) as fault:  # no text of theirs: it may quote a value
            return f"a data file cannot be read ({type(fault).__name__})"
        return ""

    def _batches(self, files: pa.Table, columns: "Sequence[str]") -> "Iterator[pa.Table]":
        return read_batches(self.store, self.contract, files, columns, batch_rows=self.batch_rows, dictionaries=True)

    def _tally(self, file: pa.Table) -> list[Tally]:
        """Return the tallies of one data file, and hash its keys; a check of keys counts the rows that have one."""
        contract, suite = self.contract, self.suite
        tallies = [Tally() for _ in suite.expectations]
        there = [
            (expectation, tally)
            for expectation, tally in zip(suite.expectations, tallies, strict=True)
            if expectation.is_scanned and all(name in contract for name in expectation.columns)
        ]
        judged = _group_checks(there)
        watched = [
            (expectation, tally, watched_columns(contract, expectation))
            for expectation, tally in there
            if expectation.watch is not None
        ]
        read = {name for expectation, _ in there for name in expectation.columns}
        read = read.union(*(names for _, _, names in watched))
        columns = [name for name in contract.names if name in read or (name == _RUN and read)]
        for rows in self._batches(file, columns) if columns else ():
            for expectation, tally in there:
                if (hashes := self.keys.get(expectation.check.id)) is not None:
                    tally.checked += hashes.add(rows)
            watch(rows, watched)
            first, rest = rows.slice(0, self.judged_rows), rows.slice(self.judged_rows)
            self.judged_rows -= first.num_rows
            for where, classified in judged:
                group = judged[where, classified]
                _add(contract, suite, filter_rows(first, where), group, self.judge, classified=classified)
                mine = filter_rows(rest, where)
                _add(contract, suite, mine, _screen(suite, mine, group), self.judge, classified=classified)
        for hashes in self.keys.values():
            hashes.end_file()
        return tallies


def _group_checks(there: "Sequence[Judged]") -> "dict[tuple[Condition | None, bool], list[Judged]]":
    """Return what is judged row by row, by the rows that it is about and by whether it reads classified columns."""
    groups: dict[tuple[Condition | None, bool], list[Judged]] = {}
    for expectation, tally in there:
        if expectation.per_row:
            groups.setdefault((expectation.where, expectation.classified), []).append((expectation, tally))
    return groups


def _screen(suite: "Suite", rows: pa.Table, group: "Sequence[Judged]") -> "list[Judged]":
    """Count the rows of what surely none of them fails; return the other expectations."""
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
    """Put rows to the judge, and add what it says."""
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
        elif verdict.checked is None or verdict.failed is None:  # told yes or no only: Arrow counts
            tally.checked += judged_rows(expectation.check, rows, suite.ranges)
            if not verdict.success:
                tally.failed += int(pc.sum(failures(expectation.check, rows, suite.ranges)).as_py() or 0)
        else:
            tally.checked += verdict.checked
            tally.failed += verdict.failed
            whole = pa.types.is_integer(
                rows[expectation.check.columns[0]].type
            )  # pandas makes floats of them where one is NULL
            shown = verdict.shown[: SHOWN - len(tally.seen)]
            tally.seen += [f"{value:.0f}" if whole and isinstance(value, float) else str(value) for value in shown]


def _blank(check: "Check", rows: pa.Table) -> bool:
    """Return whether there is no value to judge, as in columns that a job never fills: that costs nobody a question."""
    return kind_of(check).null_passes and any(rows[name].null_count == rows.num_rows for name in check.columns)


def _key(contract: "Contract", check: "Check") -> list[str]:
    """Return what tells rows of one partition apart: its own columns are the same in all of them."""
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
        tally.passed = not outside  # of no rows, too
        tally.seen = [f"{part.rows} rows"]
        return
    if is_distinct:
        return
    try:
        tally.checked, tally.failed = count_repeats(store, contract, part.files, check.columns)
    except Exception as error:  # noqa: BLE001 - the query engine has no error class of its own; no text: it may quote a key
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
"""What a sound partition and a row of it cost, about."""
_ROW_BYTES: Final = 4096
"""Memory of a worker for each row that it judges at a time: of 40 columns it takes a fifth of that."""


@dataclass(frozen=True, slots=True)
class ScanTask:
    """One partition to scan, with all that this takes: workers need no operator's contracts of their own."""

    lake_uri: str
    storage: dict[str, str]
    contract: "Contract"
    suite: "Suite"
    part: Partition
    batch_rows: int = BATCH_ROWS


def scan_partition(task: ScanTask, lake: Lake | None = None) -> list[Tally]:
    """Carry out one task, where the lake is open already or not; as `ranklake.quality.scan.scan` does.

    Files that an earlier check has read are not read again.
    """
    there = lake or Lake.open(task.lake_uri, task.storage)
    begun = perf_counter()
    of = (there.store, task.contract, task.suite, task.part)
    stored = is_storable(task.contract, task.suite, task.part)
    known = load(*of, task.batch_rows) if stored else FileTallies()
    before = set(known.files)
    tallies = scan(*of, judge, task.batch_rows, known=known)
    if stored and known.files.keys() != before:
        save(*of, task.batch_rows, known)
    for tally in tallies:
        tally.seconds = perf_counter() - begun
    return tallies


def fitting_rows(bytes_each: int) -> int:
    """Return how many rows are judged at a time where each task has so much memory."""
    return max(10_000, min(BATCH_ROWS, bytes_each // _ROW_BYTES))


def expected_cpu_s(parts: list[Partition]) -> float:
    """Return about what is to be gained by workers; less than 0 where there is nothing to scan."""
    return sum(PARTITION_CPU_S + part.rows * ROW_CPU_S for part in parts) if parts else -1.0


BATCH_PARTITIONS: Final = 256
BATCH_ROWS_HERE: Final = 2_000_000
"""Partitions, and in this process rows, that are scanned before results are written down, in one commit."""


@dataclass(frozen=True, slots=True)
class TableWork:
    """What is to be checked in one table; the largest partition comes first, so that none is left over at the end."""

    contract: "Contract"
    suite: Suite
    parts: list[Partition]

    def __post_init__(self) -> None:
        self.parts.sort(key=lambda part: -part.rows)


@dataclass(frozen=True, slots=True)
class PendingScan:
    """A table whose partitions are being scanned, or will be when somebody asks for the results."""

    work: TableWork
    pending: "Pending[ScanTask, list[Tally]]"
    progress: "_ScanProgress"

    def results(self) -> Sequence[list[Tally]]:
        """Return the tallies of each partition; asked again after an error, it scans again."""
        before = self.progress.done
        try:
            self.progress.tell()
            return self.pending.results(partial(self.progress.tell, 1))
        except BaseException:
            self.progress.done = before  # for another try
            raise


@dataclass(slots=True)
class _ScanProgress:
    """Partitions that were scanned, of all."""

    progress: "Progress | None"
    done: int = 0
    total: int = 0

    def tell(self, more: int = 0) -> None:
        self.done += more
        if self.progress is not None:
            self.progress(self.done, self.total)


class Scans:
    """Has partitions scanned, by workers where there is enough to do, else by this process.

    Tables whose results are written down together are a batch: each commit is a file more for whoever reads them.
    """

    def __init__(self, lake: "Lake", workers: "Workers", progress: "Progress | None") -> None:
        self._lake, self._workers = lake, workers
        self._work: list[TableWork] = []
        self._progress = _ScanProgress(progress)
        self._begun: list[PendingScan] = []

    def add(self, work: TableWork) -> None:
        """Take a table; a cluster that pays begins at once to scan what the first batch has room for."""
        self._work.append(work)
        self._progress.total += len(work.parts)
        if isinstance(self._crew(), InProcess):
            return
        for each in self._work[len(self._begun) :]:
            if _is_full(self._begun):
                return
            self._begin(each)

    def _crew(self) -> "Workers":
        """Return who is to scan what was found so far."""
        return self._workers.fitting(expected_cpu_s([part for one in self._work for part in one.parts]))

    def batches(self) -> Iterator[list[PendingScan]]:
        """Yield the tables of each batch, in their order."""
        most_rows = BATCH_ROWS_HERE if isinstance(self._crew(), InProcess) else sys.maxsize
        for work in self._work[len(self._begun) :]:
            if _is_full(self._begun, most_rows):
                yield self._begun
                self._begun = []
            self._begin(work)
        if self._begun:
            yield self._begun

    def _begin(self, table_work: TableWork) -> None:
        """Begin to scan a table's partitions with those of its batch; in this process they wait for who asks."""
        crew = self._crew()
        work = partial(scan_partition, lake=self._lake) if isinstance(crew, InProcess) else scan_partition
        rows = fitting_rows(crew.room().bytes_each)
        store, checks = self._lake.store, (one.check for one in table_work.suite.expectations)
        keys = {name for check in checks if check.kind in KEYED for name in check.columns}
        tasks = [
            ScanTask(store.address, store.storage, table_work.contract, table_work.suite, part.slim(keys), rows)
            for part in table_work.parts
        ]
        self._begun.append(PendingScan(table_work, crew.begin(work, tasks, table_work.parts[0].rows), self._progress))

    def cancel(self) -> None:
        """Have no more of them begun."""
        for scanned in self._begun:
            scanned.pending.cancel()


def _is_full(begun: Sequence[PendingScan], most_rows: int = sys.maxsize) -> bool:
    parts = [part for one in begun for part in one.work.parts]
    return len(parts) >= BATCH_PARTITIONS or sum(part.rows for part in parts) >= most_rows
