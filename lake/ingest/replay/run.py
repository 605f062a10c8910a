"""Replay: rebuilds partitions of a fact table from segments in the spool, or of a derived table from its inputs.

    fact      segments (from ``segments``, found in the spool by digest: selection.py) ─▶ task.py ─▶ one plan that adds
              the new files and removes the old ones
    derived   inputs as they are now ─▶ rollups/runner.py

A replay does not bring back rows that were removed:

- Of a partition that retention removed, only rows that were ingested later are rebuilt.
- Rows in ``rejects`` stay there.
- If a plan of a kind that a replay cannot repeat has changed a partition, the replay is refused.

Before the plan is written, the number of rebuilt rows is compared with the Delta transaction log and with the ledger.
"""

import json
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ranklake.errors import did_you_mean
from ranklake.lake.contracts.arrow import arrow_schema
from ranklake.lake.contracts.load import contract
from ranklake.lake.ingest.execution import expected_cpu_s, subjects_of
from ranklake.lake.ingest.replay.selection import ReplayError, Selection, select, shown_days
from ranklake.lake.ingest.task import Group, compact
from ranklake.lake.plans import action_plan
from ranklake.lake.plans.driver import drive
from ranklake.lake.plans.kinds import REPLAY
from ranklake.lake.plans.plan import LEDGER
from ranklake.lake.query.scan import live_files
from ranklake.lake.rollups.recompute import recompute
from ranklake.lake.rollups.registry import ROLLUPS
from ranklake.lake.store.files import delete
from ranklake.lake.store.lake import Lake
from ranklake.lake.store.planned_segment import PlannedSegment
from ranklake.lake.store.store import Store
from ranklake.lake.store.tables import Tables
from ranklake.lake.store.writers import Authenticator
from ranklake.lake.tables.live_files import DataFile, files
from ranklake.lake.tables.parquet import write_partition
from ranklake.lake.tables.read import read, read_files, read_some
from ranklake.lake.tables.tables import delta_table, keep_overlay

if TYPE_CHECKING:
    from ranklake.lake.contracts.model import Contract
    from ranklake.lake.ingest.spool.spool import Spool
    from ranklake.lake.plans.plan import Plan, Progress
    from ranklake.lake.plans.workers import Workers

KEY = ["incarnation", "segment", "slot"]


@dataclass(frozen=True, slots=True)
class Rebuild:
    """A task: segments and the dates to rebuild.

    Attributes
    ----------
    group
        The segments. ``seen`` of each has the slots of its slot file that were ingested before it.
    days
        Dates to rebuild. Rows of other dates are discarded.
    """

    group: Group
    days: frozenset[date]


@dataclass(frozen=True, slots=True)
class RebuildResult:
    """Result of a task.

    Attributes
    ----------
    files
        New data files, not committed yet.
    unreadable
        The reasons why segments could not be read; empty if all were read.
    """

    files: list[DataFile]
    unreadable: list[str]


def rebuild(task: Rebuild) -> RebuildResult:
    """Carry out one task. If it fails, it leaves files that are not committed."""
    result = compact(task.group)
    unreadable = [row["unreadable"] for row in result.outcomes if row["unreadable"] is not None]
    lake = Lake.open(task.group.lake_uri, task.group.storage)
    discard(lake.store, [file for file in result.files if file.partition not in task.days])
    files = [file for file in result.files if file.partition in task.days]
    files = _without_rejected(lake.tables, lake.contract(task.group.table), files, task.group.plan)
    return RebuildResult(files, unreadable)


def discard(store: Store, files: Sequence[DataFile]) -> None:
    """Delete data files that are not committed."""
    for file in files:
        delete(store, store.path("tables", file.table, file.path))


def _without_rejected(tables: Tables, target: "Contract", files: list[DataFile], plan: int) -> list[DataFile]:
    """Rewrite the files that have rejected rows, without these rows; return the resulting files."""
    rejected = _rejected_keys(tables, target.table)
    if not rejected.num_rows:
        return files
    result = []
    for file in files:
        day = pa.array([file.partition], pa.date32())
        facts = {"path": [file.path], "size_bytes": [file.size_bytes], "num_records": [file.rows]}
        batch = pa.table({**facts, "date": day})
        ((_, keys),) = read_some(tables, target, batch, KEY)
        # An Arrow join loses the order and does not support lists. So only keys and row indexes are joined.
        indexed = keys.replace_schema_metadata(None).append_column("index", pa.array(np.arange(keys.num_rows)))
        accepted = indexed.join(rejected, KEY, join_type="left anti")["index"]
        if len(accepted) == keys.num_rows:
            result.append(file)
            continue
        if len(accepted):
            ((_, rows),) = read_some(tables, target, batch)
            result.append(write_partition(tables.store, target, rows.take(accepted), file.partition, plan))
        discard(tables.store, [file])
    return result


def _rejected_keys(tables: Tables, table: str) -> pa.Table:
    """Return the keys of a table's rows that are in ``rejects``."""
    parts = [
        part.filter(pc.equal(part["table"], table)).select(KEY)
        for _, part in read_files(tables, contract("rejects"), [*KEY, "table"])
    ]
    empty = pa.schema([arrow_schema(contract("rejects")).field(name) for name in KEY]).empty_table()
    return pa.concat_tables([empty, *parts]).replace_schema_metadata(None)


GROUP_ROWS: Final = 2_000_000


@dataclass(frozen=True, slots=True)
class ReplayResult:
    """Result of a replay, or of a dry run.

    Attributes
    ----------
    table, partitions
        The table and the rebuilt dates (ISO).
    kept
        Dates (ISO) that are unchanged, because retention removed the rows or inputs from which to rebuild them.
    plan
        Number of the plan; None for derived tables, which have no plans, and if nothing was done.
    segments
        Number of segments that were read; 0 for derived tables.
    rows
        Number of rows in the partitions afterwards; in a dry run, before.
    files_before, files_after
        Number of data files of the partitions; equal in a dry run.
    elapsed_s
        Wall seconds.
    """

    table: str
    partitions: tuple[str, ...]
    kept: tuple[str, ...]
    plan: int | None
    segments: int
    rows: int
    files_before: int
    files_after: int
    elapsed_s: float


def replay(
    lake: "Lake",
    spool: "Spool",
    workers: "Workers",
    table: str,
    days: tuple[date, date],
    *,
    dry_run: bool = False,
    progress: "Progress | None" = None,
) -> ReplayResult:
    """Rebuild a table's partitions from the first to the last of `days`.

    Parameters
    ----------
    dry_run
        Only check whether the replay is possible, and return what it would rebuild.

    Raises
    ------
    ReplayError
        The table cannot be rebuilt, or would not have the expected number of rows.
    MissingSegmentsError
        The spool no longer has all necessary segments.

    After an error, the table is unchanged. A replay that is killed before its plan is written leaves files that are not
    committed. If it is killed later, the next driver finishes the plan. Old files stay readable by time travel until
    upkeep deletes them.
    """
    began = time.monotonic()
    first, last = days
    if first > last:
        raise ReplayError(f"{first} is after {last}", where="--from", hint="name the first date first")
    if table not in lake.contracts():
        raise ReplayError(f"unknown table {table!r}", hint=did_you_mean(table, lake.contracts()))
    target = lake.contract(table)
    if target.kind == "derived" and (target.rollup is not None or table in {rollup.name for rollup in ROLLUPS}):
        return _recompute(lake, table, first, last, dry_run=dry_run, began=began)
    if not target.envelope:
        message = f"a {target.kind} table that is made neither of segments nor by a rollup"
        raise ReplayError(message, where=table, hint="name a table that ranks record, or a rollup")
    composer = _Composer(lake.configured(spool=spool.config.spool), spool, workers, table, (first, last), progress)
    if dry_run:
        chosen = select(lake.tables, spool, table, first, last)
        return composer.result(None, chosen, chosen.live, began)
    plan = drive(lake, composer.compose, workers).plan
    after = live_files(delta_table(lake.store, table), composer.chosen.days)
    return composer.result(plan.number if plan else None, composer.chosen, after, began)


class _Composer:
    """Composes the plan of a replay of a fact table. If another plan is written first, it composes the plan again."""

    def __init__(
        self,
        lake: "Lake",
        spool: "Spool",
        workers: "Workers",
        table: str,
        days: tuple[date, date],
        progress: "Progress | None",
    ) -> None:
        self.lake, self.spool, self.workers, self.table = lake, spool, workers, table
        self.first, self.last = days
        self.progress = progress
        self.chosen = Selection((), (), live_files(None), [])

    def compose(self, number: int) -> "Plan | None":
        """Write the new files and return the plan; None if no rows exist and none can be rebuilt."""
        self.chosen = chosen = select(self.lake.tables, self.spool, self.table, self.first, self.last)
        if not chosen.days:
            return None
        tasks = list(self._tasks(number))
        count = 0

        def report() -> None:
            nonlocal count
            count += 1
            if self.progress is not None:
                self.progress(count, len(tasks))

        cpu_s = expected_cpu_s([row for task in tasks for row in task.group.segments])
        results = self.workers.fitting(cpu_s).run(rebuild, tasks, report)
        new = [file for result in results for file in result.files]
        try:
            _check_segments(self.table, [reason for result in results for reason in result.unreadable])
            _check_rows(self.lake.tables, self.table, chosen, new)
        except ReplayError:
            discard(self.lake.store, new)
            raise
        facts = {"segments": len(chosen.segments), "partitions": [day.isoformat() for day in chosen.days]}
        return action_plan.compose(number, REPLAY.name, add=new, remove={self.table: chosen.live}, facts=facts)

    def result(self, plan: int | None, chosen: Selection, after: pa.Table, began: float) -> ReplayResult:
        """Return the result of the replay; `after` are the live files of the partitions."""
        return ReplayResult(
            self.table,
            tuple(day.isoformat() for day in chosen.days),
            tuple(day.isoformat() for day in chosen.kept),
            plan,
            len(chosen.segments),
            _rows(after),
            chosen.live.num_rows,
            after.num_rows,
            round(time.monotonic() - began, 3),
        )

    def _tasks(self, number: int) -> Iterator[Rebuild]:
        created = datetime.now(UTC)
        # Segments of one slot file have different earlier slots, so each of them goes into another task.
        by_days: dict[tuple[frozenset[date], int], list[PlannedSegment]] = defaultdict(list)
        cuts: Counter[tuple[int, int]] = Counter()
        for row, days in self.chosen.segments:
            slot_file = (row["incarnation"], row["segment"])
            by_days[days, cuts[slot_file]].append(row)
            cuts[slot_file] += 1
        for (days, _), rows in by_days.items():
            for group in _groups(rows):
                yield Rebuild(
                    Group(
                        self.lake.store.address,
                        self.spool.address,
                        self.lake.store.storage,
                        self.table,
                        group,
                        number,
                        created,
                        store_rejects=False,
                        authenticator=Authenticator(self.lake.config.encryption_key),
                        limits=self.lake.config.ingest,
                        contracts=keep_overlay(self.lake),
                        subjects=subjects_of(self.lake, self.table),
                    ),
                    days,
                )


def _groups(rows: Iterable[PlannedSegment]) -> Iterator[list[PlannedSegment]]:
    """Cut segments into groups of at most `GROUP_ROWS` rows."""
    group: list[PlannedSegment] = []
    group_rows = 0
    for row in rows:
        if group and group_rows + row["rows"] > GROUP_ROWS:
            yield group
            group, group_rows = [], 0
        group.append(row)
        group_rows += row["rows"]
    if group:
        yield group


def _check_segments(table: str, unreadable: list[str]) -> None:
    """Raise `ReplayError` if segments could not be read."""
    if unreadable:
        message = f"{len(unreadable)} segments cannot be read any more, the first of them: {unreadable[0]}"
        raise ReplayError(message, where=table, hint="restore them in the spool, or replay other dates")


def _check_rows(tables: "Tables", table: str, chosen: Selection, new: "Sequence[DataFile]") -> None:
    """Raise `ReplayError` unless the new files have as many rows as the Delta log counts.

    More rows are accepted only if the ledger counts as many: then rows were missing from the table. Fewer rows are
    never accepted, since the missing rows would be lost.
    """
    rebuilt = sum(file.rows for file in new)
    before = _rows(chosen.live)
    if rebuilt == before:
        return
    ledger = read(tables, contract(LEDGER), ["kind", "tables"]).to_pylist()
    planned = sum(json.loads(row["tables"]).get(table, 0) for row in ledger if row["kind"] != REPLAY.name)
    handle = delta_table(tables.store, table)
    elsewhere = (0 if handle is None else _rows(files(handle))) - before
    if rebuilt < before or elsewhere + rebuilt != planned:
        message = (
            f"the segments give {rebuilt:,} rows for {shown_days(chosen.days)}, the log has {before:,} "
            f"and the ledger {planned - elsewhere:,}"
        )
        raise ReplayError(message, where=table, hint="see 'ranklake status'; nothing was changed")


def _recompute(lake: "Lake", table: str, first: date, last: date, *, dry_run: bool, began: float) -> ReplayResult:
    """Rebuild partitions of a derived table by its rollup."""
    span = [first + timedelta(days=offset) for offset in range((last - first).days + 1)]
    before = live_files(delta_table(lake.store, table), span)
    rebuilt, kept = recompute(lake, table, span, dry_run=dry_run)
    after = live_files(delta_table(lake.store, table), span)
    return ReplayResult(
        table,
        tuple(day.isoformat() for day in rebuilt),
        tuple(day.isoformat() for day in kept),
        None,
        0,
        _rows(after),
        before.num_rows,
        after.num_rows,
        round(time.monotonic() - began, 3),
    )


def _rows(live: pa.Table) -> int:
    return int(pc.sum(live["num_records"]).as_py() or 0)
