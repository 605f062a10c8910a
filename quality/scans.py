"""The scans of one check: begun as tables are found where workers pay, and handed over in batches."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Final

from ranklake.lake.plans.workers import InProcess
from ranklake.quality.partition import Partition, Tally
from ranklake.quality.suite import Suite
from ranklake.quality.tasks import ScanTask, expected_cpu_s, fitting_rows, scan_partition

if TYPE_CHECKING:
    from ranklake.lake.contracts.model import Contract
    from ranklake.lake.plans.plan import Progress
    from ranklake.lake.plans.workers import Pending, Workers
    from ranklake.lake.storage.store import Lake

BATCH_PARTITIONS: Final = 256
"""Partitions that workers scan before results are written down, in one commit."""


@dataclass(frozen=True, slots=True)
class TableWork:
    """What is to be checked in one table; the largest partition comes first, so that none is left over at the end."""

    contract: "Contract"
    suite: Suite
    parts: list[Partition]

    def __post_init__(self) -> None:
        self.parts.sort(key=lambda part: -part.rows)


@dataclass(slots=True)
class Batch:
    """Tables whose results are written down together, and the scans of their partitions."""

    told: "_Told"
    work: list[TableWork] = field(default_factory=list)
    pending: "Pending[ScanTask, list[Tally]] | None" = None

    @property
    def partitions(self) -> int:
        """Return how many there are to scan."""
        return sum(len(one.parts) for one in self.work)

    def results(self) -> Sequence[list[Tally]]:
        """Return the tallies of each partition, table after table; asked again after an error, it scans anew."""
        before = self.told.done
        try:
            self.told.tell()
            return [] if self.pending is None else self.pending.results(partial(self.told.tell, 1))
        except BaseException:
            self.told.done = before  # for another try
            raise


@dataclass(slots=True)
class _Told:
    """Partitions that were scanned, of all."""

    progress: "Progress | None"
    done: int = 0
    total: int = 0

    def tell(self, more: int = 0) -> None:
        self.done += more
        if self.progress is not None:
            self.progress(self.done, self.total)


class Scans:
    """Has partitions scanned, by workers where there is enough to do, else by this process."""

    def __init__(self, lake: "Lake", workers: "Workers", progress: "Progress | None") -> None:
        self._lake, self._workers = lake, workers
        self._work: list[TableWork] = []
        self._told = _Told(progress)
        self._first = Batch(self._told)

    def add(self, one: TableWork) -> None:
        """Take a table; a cluster that pays begins at once to scan what the first batch has room for."""
        self._work.append(one)
        self._told.total += len(one.parts)
        if isinstance(self._crew(), InProcess):
            return
        for each in self._work[len(self._first.work) :]:
            if self._first.partitions >= BATCH_PARTITIONS:
                return
            self._begin(self._first, each)

    def _crew(self) -> "Workers":
        """Return who is to scan what was found so far."""
        return self._workers.fitting(expected_cpu_s([part for one in self._work for part in one.parts]))

    def batches(self) -> Iterator[Batch]:
        """Yield tables whose results are written down together: each by itself in this process, else many at a time."""
        most = 1 if isinstance(self._crew(), InProcess) else BATCH_PARTITIONS
        batch = self._first
        for one in self._work[len(batch.work) :]:
            if batch.partitions >= most:
                yield batch
                batch = Batch(self._told)
            self._begin(batch, one)
        if batch.work:
            yield batch

    def _begin(self, batch: Batch, one: TableWork) -> None:
        """Begin to scan a table's partitions with those of a batch; in this process they wait for who asks."""
        crew = self._crew()
        work = partial(scan_partition, lake=self._lake) if isinstance(crew, InProcess) else scan_partition
        rows = fitting_rows(crew.room().bytes_each)
        tasks = [
            ScanTask(self._lake.address, self._lake.storage, one.contract, one.suite, part.slim(), rows)
            for part in one.parts
        ]
        urgency = one.parts[0].rows
        if batch.pending is None:
            batch.pending = crew.begin(work, tasks, urgency)
        else:
            batch.pending.more(tasks, urgency)
        batch.work.append(one)

    def cancel(self) -> None:
        """Have no more of them begun."""
        if self._first.pending is not None:
            self._first.pending.cancel()
