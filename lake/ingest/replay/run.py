"""Replay: rebuilds partitions of a table from segments that the spool still has, or from the facts.

    fact      segments (by ``segments``, by digest in the spool: selection.py) ─▶ task.py ─▶ one plan: new files in, old
              ones out
    derived   inputs as they are now ─▶ rollups/runner.py

Nothing comes back that was taken out since: of a partition that retention took, only what came later is rebuilt; rows
in ``rejects`` stay there; and where a plan of another kind changed a partition, which nothing here can redo, a replay
is refused. Before the plan is written its rows are counted against the log and against the ledger.
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
    discard(lake.store, [file for file in made.files if file.partition not in task.days])
    mine = [file for file in made.files if file.partition in task.days]
    return Rebuilt(_without_rejected(lake.tables, lake.contract(task.group.table), mine, task.group.plan), unreadable)


def discard(store: Store, files: Sequence[DataFile]) -> None:
    """Delete files that no commit names."""
    for file in files:
        delete(store, store.path("tables", file.table, file.path))


def _without_rejected(tables: Tables, target: "Contract", files: list[DataFile], plan: int) -> list[DataFile]:
    """Return the files, those that hold rejected rows rewritten without them."""
    rejected = _rejected_keys(tables, target.table)
    if not rejected.num_rows:
        return files
    kept = []
    for file in files:
        day = pa.array([file.partition], pa.date32())
        facts = {"path": [file.path], "size_bytes": [file.size_bytes], "num_records": [file.rows]}
        batch = pa.table({**facts, "date": day})
        ((_, keys),) = read_some(tables, target, batch, KEY)
        # A join keeps no order and takes no lists, so it is made over the keys alone, with their places.
        placed = keys.replace_schema_metadata(None).append_column("place", pa.array(np.arange(keys.num_rows)))
        left = placed.join(rejected, KEY, join_type="left anti")["place"]
        if len(left) == keys.num_rows:
            kept.append(file)
            continue
        if len(left):
            ((_, rows),) = read_some(tables, target, batch)
            kept.append(write_partition(tables.store, target, rows.take(left), file.partition, plan))
        discard(tables.store, [file])
    return kept


def _rejected_keys(tables: Tables, table: str) -> pa.Table:
    """Return the keys of a table's rows in ``rejects``."""
    parts = [
        part.filter(pc.equal(part["table"], table)).select(KEY)
        for _, part in read_files(tables, contract("rejects"), [*KEY, "table"])
    ]
    empty = pa.schema([arrow_schema(contract("rejects")).field(name) for name in KEY]).empty_table()
    return pa.concat_tables([empty, *parts]).replace_schema_metadata(None)


GROUP_ROWS: Final = 2_000_000


@dataclass(frozen=True, slots=True)
class ReplayResult:
    """What a replay did, or would do.

    Attributes
    ----------
    table, partitions
        What was rebuilt; dates (ISO).
    kept
        Dates that stay as they are, since retention took away what they were made of.
    plan
        Number of the lake's plan; None for derived tables, which count their own commits, and where nothing was done.
    segments
        Segments that were read; 0 for derived tables.
    rows
        Rows in the partitions afterwards; in a dry run, before.
    files_before, files_after
        Data files of the partitions; after a dry run the same.
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
        Only look whether it can be done, and at what.

    Raises
    ------
    ReplayError
        The table is none that can be rebuilt, or it would not hold the rows that it should.
    MissingSegmentsError
        The spool no longer has all that is needed.

    Nothing is changed then. A replay that dies before its plan is written leaves files that no commit names; later, the
    next driver finishes it. Old files stay readable by time travel until upkeep.
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
    """Composes the plan of a replay of facts, again if another plan comes first."""

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
        """Return the plan, its files written; None where the partitions hold nothing and nothing is to come."""
        self.chosen = chosen = select(self.lake.tables, self.spool, self.table, self.first, self.last)
        if not chosen.days:
            return None
        tasks = list(self._tasks(number))
        count = 0

        def done() -> None:
            nonlocal count
            count += 1
            if self.progress is not None:
                self.progress(count, len(tasks))

        cpu_s = expected_cpu_s([row for task in tasks for row in task.group.segments])
        made = self.workers.fitting(cpu_s).run(rebuild, tasks, done)
        new = [file for one in made for file in one.files]
        try:
            _check_segments(self.table, [why for one in made for why in one.unreadable])
            _check_rows(self.lake.tables, self.table, chosen, new)
        except ReplayError:
            discard(self.lake.store, new)
            raise
        facts = {"segments": len(chosen.segments), "partitions": [day.isoformat() for day in chosen.days]}
        return action_plan.compose(number, REPLAY.name, add=new, remove={self.table: chosen.live}, facts=facts)

    def result(self, plan: int | None, chosen: Selection, after: pa.Table, began: float) -> ReplayResult:
        """Return what was done."""
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
        # Cuts of one slot file have seen different slots before them, so each goes into a task of its own.
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
    """Cut segments into tasks."""
    group: list[PlannedSegment] = []
    held = 0
    for row in rows:
        if group and held + row["rows"] > GROUP_ROWS:
            yield group
            group, held = [], 0
        group.append(row)
        held += row["rows"]
    if group:
        yield group


def _check_segments(table: str, unreadable: list[str]) -> None:
    """Raise `ReplayError` where segments could not be read."""
    if unreadable:
        message = f"{len(unreadable)} segments cannot be read any more, the first of them: {unreadable[0]}"
        raise ReplayError(message, where=table, hint="restore them in the spool, or replay other dates")


def _check_rows(tables: "Tables", table: str, chosen: Selection, new: "Sequence[DataFile]") -> None:
    """Raise `ReplayError` unless the new files hold as many rows as the log says.

    They may hold more where the ledger says that rows are missing; never fewer: nobody else has what would go.
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
    done, kept = recompute(lake, table, span, dry_run=dry_run)
    after = live_files(delta_table(lake.store, table), span)
    return ReplayResult(
        table,
        tuple(day.isoformat() for day in done),
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
