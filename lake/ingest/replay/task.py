"""One Dask task of a replay: reads segments of one table, writes their files for some dates.

The rows take the very way of ingest (`ranklake.lake.ingest.task`), which reads, dedupes, judges, sorts and writes. What
was taken out later is taken out here: rows whose key lies in ``rejects``, and dates that are none of the replay's.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ranklake.lake.contracts.arrow import arrow_schema
from ranklake.lake.contracts.load import contract
from ranklake.lake.ingest.group import Group
from ranklake.lake.ingest.task import compact
from ranklake.lake.store.removal import delete
from ranklake.lake.store.store import Lake
from ranklake.lake.tables.data_file import DataFile
from ranklake.lake.tables.parquet import write_partition
from ranklake.lake.tables.read import read_files, read_some

if TYPE_CHECKING:
    from ranklake.lake.contracts.model import Contract

KEY = ["incarnation", "segment", "slot"]


@dataclass(frozen=True, slots=True)
class Rebuild:
    """A task.

    Attributes
    ----------
    group
        The segments; each says which slots of its slot file came before it.
    days
        Dates to rebuild from them.
    """

    group: Group
    days: frozenset[date]


@dataclass(frozen=True, slots=True)
class Rebuilt:
    """What a task made.

    Attributes
    ----------
    files
        New data files; no commit names them yet.
    unreadable
        Why segments could not be read; empty if all could.
    """

    files: list[DataFile]
    unreadable: list[str]


def rebuild(task: Rebuild) -> Rebuilt:
    """Carry out one task. If it fails, files that no commit names stay behind."""
    made = compact(task.group)
    unreadable = [row["unreadable"] for row in made.outcomes if row["unreadable"] is not None]
    lake = Lake.open(task.group.lake_uri, task.group.storage)
    discard(lake, [file for file in made.files if file.partition not in task.days])
    mine = [file for file in made.files if file.partition in task.days]
    return Rebuilt(_without_rejected(lake, lake.contract(task.group.table), mine, task.group.plan), unreadable)


def discard(lake: Lake, files: Sequence[DataFile]) -> None:
    """Delete files that no commit names."""
    for file in files:
        delete(lake, lake.path("tables", file.table, file.path))


def _without_rejected(lake: Lake, target: "Contract", files: list[DataFile], plan: int) -> list[DataFile]:
    """Return the files, those that hold rejected rows written anew without them."""
    rejected = _rejected(lake, target.table)
    if not rejected.num_rows:
        return files
    kept = []
    for file in files:
        day = pa.array([file.partition], pa.date32())
        facts = {"path": [file.path], "size_bytes": [file.size_bytes], "num_records": [file.rows]}
        one = pa.table({**facts, "date": day})
        ((_, keys),) = read_some(lake, target, one, KEY)
        # A join keeps no order and takes no lists, so it is made over the keys alone, with their places.
        placed = keys.replace_schema_metadata(None).append_column("place", pa.array(np.arange(keys.num_rows)))
        left = placed.join(rejected, KEY, join_type="left anti")["place"]
        if len(left) == keys.num_rows:
            kept.append(file)
            continue
        if len(left):
            ((_, rows),) = read_some(lake, target, one)
            kept.append(write_partition(lake, target, rows.take(left), file.partition, plan))
        discard(lake, [file])
    return kept


def _rejected(lake: Lake, table: str) -> pa.Table:
    """Return the keys of a table's rows in ``rejects``."""
    parts = [
        part.filter(pc.equal(part["table"], table)).select(KEY)
        for _, part in read_files(lake, contract("rejects"), [*KEY, "table"])
    ]
    empty = pa.schema([arrow_schema(contract("rejects")).field(name) for name in KEY]).empty_table()
    return pa.concat_tables([empty, *parts]).replace_schema_metadata(None)
