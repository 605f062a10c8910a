"""Scrub: reads every live data file whole, to verify that it is unchanged.

Nothing else does: a merge, a rollup and a query look at what they need. What is damaged stays where it is.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from ranklake.lake.plans.units import Unit, carry_out, counted
from ranklake.lake.store.store import Lake
from ranklake.lake.tables.data_file import digest_of
from ranklake.lake.tables.integrity import Damage, damaged
from ranklake.lake.tables.live_files import files
from ranklake.lake.tables.tables import delta_table

if TYPE_CHECKING:
    from ranklake.lake.plans.plan import Progress
    from ranklake.lake.plans.workers import Workers

TASK_BYTES: Final = 2**30
_BYTE_CPU_S: Final = 1e-9
"""What a byte costs, about: its digest; a file without one costs more."""


@dataclass(frozen=True, slots=True)
class Scrubbed:
    """What a scrub found.

    Attributes
    ----------
    files, size_bytes
        That were read.
    no_digest
        How many of them have no digest in their names, by table: written by an older version, and only their pages
        were looked at.
    damaged
        Those that are not what was written.
    """

    files: int = 0
    size_bytes: int = 0
    no_digest: dict[str, int] = field(default_factory=dict)
    damaged: list[Damage] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class ScrubTask:
    """Files of a table to read: a task for a worker; `files` are rows of `delta.live_files.files` as dicts."""

    lake_uri: str
    storage: dict[str, str]
    table: str
    files: list[dict[str, Any]]


def scrub(lake: Lake, workers: "Workers", progress: "Progress | None" = None) -> Scrubbed:
    """Look at all live files of all tables. Raises what the store raises."""
    tasks = list(_tasks(lake))
    rows = [(task.table, row) for task in tasks for row in task.files]
    size_bytes = sum(row["size_bytes"] for _, row in rows)
    no_digest: dict[str, int] = {}
    for table, row in rows:
        if digest_of(row["path"]) is None:
            no_digest[table] = no_digest.get(table, 0) + 1
    done = 0

    def tell() -> None:
        nonlocal done
        done += 1
        if progress is not None:
            progress(done, len(tasks))

    fitting = workers.fitting(size_bytes * _BYTE_CPU_S)
    unit = Unit("scrub", detail=f"{counted(len(rows), 'file')} of {counted(len({one for one, _ in rows}), 'table')}")
    found = carry_out(unit, lambda: fitting.run(scrub_files, tasks, tell))
    return Scrubbed(len(rows), size_bytes, no_digest, [one for some in found for one in some])


def scrub_files(task: ScrubTask) -> list[Damage]:
    """Carry out one task."""
    return damaged(Lake.open(task.lake_uri, task.storage), task.table, task.files)


def _tasks(lake: Lake) -> Iterator[ScrubTask]:
    for table in lake.contracts():
        handle = delta_table(lake, table)
        if handle is None:
            continue
        some: list[dict[str, Any]] = []
        size = 0
        for row in files(handle).select(["path", "size_bytes", "num_records", "date"]).to_pylist():
            if some and size + row["size_bytes"] > TASK_BYTES:
                yield ScrubTask(lake.address, lake.storage, table, some)
                some, size = [], 0
            some.append(row)
            size += row["size_bytes"]
        if some:
            yield ScrubTask(lake.address, lake.storage, table, some)
