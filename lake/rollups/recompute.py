"""Computes some partitions of one rollup again from its current inputs, regardless of lineage."""

from collections.abc import Collection
from dataclasses import replace
from datetime import date
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from ranklake.lake.plans.workers import InProcess
from ranklake.lake.rollups.declaration import Rollup
from ranklake.lake.rollups.due import DueRuns, depends_on, due_days, due_runs
from ranklake.lake.rollups.inputs import InputTables, Key, Snapshot, partition
from ranklake.lake.rollups.lineage import Lineage
from ranklake.lake.rollups.named import rollups_of
from ranklake.lake.rollups.work import Work
from ranklake.lake.tables.live_files import DamagedFileError, damaged_files

if TYPE_CHECKING:
    from ranklake.lake.store.lake import Lake
    from ranklake.lake.store.tables import Tables


def recompute(
    lake: "Lake", name: str, days: Collection[date], *, dry_run: bool = False
) -> tuple[list[date], list[date]]:
    """Compute partitions of one rollup from its current inputs and replace them, regardless of lineage.

    Inputs that are rollups themselves are not updated first. Damaged files of the rollup's own table are replaced.

    Parameters
    ----------
    days
        Output dates; for a run rollup, the runs that began on these dates.
    dry_run
        Whether to only return the dates.

    Returns
    -------
    The dates that were replaced, and the dates that are unchanged because retention removed their inputs, or because a
    check holds their inputs back.

    Raises `DamagedFileError` if inputs are damaged, and what `run_rollups` raises.
    """
    (rollup,) = (one for one in rollups_of(lake, [name]) if one.name == name)
    with Lineage(lake.tables) as lineage:
        return _recompute(InputTables(lake), lineage, rollup, days, dry_run=dry_run)


def _recompute(
    tables: InputTables, lineage: Lineage, rollup: Rollup, days: Collection[date], *, dry_run: bool
) -> tuple[list[date], list[date]]:
    lake, name = tables.lake, rollup.name
    inputs = {table: tables.snapshot(table) for table in rollup.tables}
    output = tables.output(rollup.name)
    gone = tables.retired
    held = {day for day in output.digests if day in days}
    if rollup.scope == "partition":
        barred = gone | tables.kept_back
        frozen = {day for day in days if (name, partition(day)) in gone or depends_on(rollup, day, barred)}
        due = due_days(lake, rollup, inputs, output, {}, gone)
        due = {day: found for day, found in due.items() if day in days and day not in frozen}
        if not dry_run:
            work = Work(lake, rollup, inputs, output, lineage, InProcess(), since_plan=tables.since_plan, anyway=True)
            work.begin_days(due)
            work.finish()
            if work.damaged:
                raise DamagedFileError(work.damaged)
        return sorted(due), sorted(held & frozen)
    output = _readable(lake.tables, rollup, output, days, gone)
    runs = due_runs(lake, rollup, inputs, output, {}, gone, tables.kept_back)
    rows = output.rows(lake, ["run", "date"], held).to_pylist()
    if runs is None:
        return [], sorted(held)
    mine = {row["run"] for row in rows} | {run for run, day in runs.starts.items() if day in days}
    mine &= runs.replaced
    kept = {row["date"] for row in rows if row["run"] not in mine}
    starts = {run: day for run, day in runs.starts.items() if run in mine}
    old_days = frozenset(row["date"] for row in rows if row["run"] in mine)
    if mine and not dry_run:
        work = Work(lake, rollup, inputs, output, lineage, InProcess(), since_plan=tables.since_plan, anyway=True)
        work.begin_runs({}, gone, DueRuns(starts, frozenset(mine), old_days, {}))
        work.finish()
    return sorted({*starts.values(), *old_days}), sorted(kept)


def _readable(tables: "Tables", rollup: Rollup, output: Snapshot, days: Collection[date], gone: set[Key]) -> Snapshot:
    """Return the output of a run rollup without damaged files on the dates to compute.

    Raises `DamagedFileError` if retention removed any input of the rollup: the damaged files may have rows that cannot
    be computed any more.
    """
    bad = damaged_files(tables, rollup.name, output.files(days))
    if not bad or output.live is None:
        return output
    if any(table in rollup.tables for table, _ in gone):
        raise DamagedFileError(bad)
    lost = pc.is_in(output.live["path"], value_set=pa.array([one.path for one in bad]))
    return replace(output, live=output.live.filter(pc.invert(lost)))
