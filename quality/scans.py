"""Scans of one check: a partition each, in this process or on workers, handed over in batches."""

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from time import perf_counter
from typing import TYPE_CHECKING, Final

from ranklake.lake.plans.workers import InProcess
from ranklake.lake.store.lake import Lake
from ranklake.quality.engine import judge
from ranklake.quality.scan import BATCH_ROWS, KEYED, scan
from ranklake.quality.suite import Suite
from ranklake.quality.tally import FileTallies, Partition, Tally, is_storable, load, save

if TYPE_CHECKING:
    from ranklake.lake.contracts.model import Contract
    from ranklake.lake.plans.plan import Progress
    from ranklake.lake.plans.workers import Pending, Workers

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
