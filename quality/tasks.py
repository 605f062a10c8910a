"""Scans as tasks for workers: a partition each, so that what is judged at a time, and its memory, stay the same."""

from dataclasses import dataclass
from time import perf_counter
from typing import TYPE_CHECKING, Final

from ranklake.lake.store.store import Lake
from ranklake.quality.engine import judge
from ranklake.quality.partition import Partition, Tally
from ranklake.quality.scan import BATCH_ROWS, scan

if TYPE_CHECKING:
    from ranklake.lake.contracts.model import Contract
    from ranklake.quality.suite import Suite

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
    """Carry out one task, where the lake is open already or not; as `ranklake.quality.scan.scan` does."""
    there = lake or Lake.open(task.lake_uri, task.storage)
    begun = perf_counter()
    tallies = scan(there, task.contract, task.suite, task.part, judge, task.batch_rows)
    for tally in tallies:
        tally.seconds = perf_counter() - begun
    return tallies


def fitting_rows(bytes_each: int) -> int:
    """Return how many rows are judged at a time where each task has so much memory."""
    return max(10_000, min(BATCH_ROWS, bytes_each // _ROW_BYTES))


def expected_cpu_s(parts: list[Partition]) -> float:
    """Return about what is to be gained by workers; less than 0 where there is nothing to scan."""
    return sum(PARTITION_CPU_S + part.rows * ROW_CPU_S for part in parts) if parts else -1.0
