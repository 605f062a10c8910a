"""Finds the dates of partition rollups and the runs of run rollups that must be computed."""

from collections import defaultdict
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import date, timedelta
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from ranklake.lake.query.sql import session
from ranklake.lake.rollups.declaration import AFFECTED, replace_table
from ranklake.lake.rollups.inputs import (
    NOTHING,
    WHOLE,
    Key,
    Snapshot,
    by_only_run,
    combine_days,
    day_of,
    of_days,
    of_hours,
    partition,
)
from ranklake.lake.rollups.lineage import Recorded, State
from ranklake.lake.rollups.thresholds import MAX_DAYS
from ranklake.lake.tables.live_files import files_digest, refuse_damaged
from ranklake.segments.segment import is_agent_run

if TYPE_CHECKING:
    from ranklake.lake.rollups.declaration import Input, Rollup
    from ranklake.lake.store.lake import Lake

_DAY = timedelta(days=1)
_WIDE = timedelta(days=31)


@dataclass(frozen=True, slots=True)
class DueRuns:
    """Runs to compute.

    Attributes
    ----------
    starts
        Output date by run: the first date on which any input has a row of the run. Runs of agents are left out.
    replaced
        Runs whose rows in the output are replaced: those of `starts`, and runs that are in no input any more.
    old_days
        Output dates with rows of `replaced`.
    inputs
        Digests of the input partitions, for lineage.
    """

    starts: dict[str, date]
    replaced: frozenset[str]
    old_days: frozenset[date]
    inputs: dict[Key, str]


def due_days(
    lake: "Lake", rollup: "Rollup", inputs: Mapping[str, Snapshot], output: Snapshot, state: State, gone: set[Key]
) -> dict[date, dict[Key, str]]:
    """Return the dates of a partition rollup that are due, each with the digests of its inputs.

    Parameters
    ----------
    inputs, output
        Current snapshots of the input tables and of the rollup's table.
    state
        Lineage of the rollup; empty to compute everything.
    gone
        Partitions that retention removed.
    """
    extents = {
        item: inputs[item.table].extents(item.begin, item.end, timedelta(MAX_DAYS))
        for item in rollup.inputs
        if item.reach == "over"
    }
    days = {*output.digests, *(day_of(name) for name in state)}
    for item in rollup.inputs[: rollup.leads]:
        snapshot = inputs[item.table]
        days.update(snapshot.digests if item.reach != "over" else _days_of(lake, item, snapshot, extents[item]))
    due = {}
    for day in days:
        was = _still_read(state.get(partition(day), {}), inputs)
        if _is_frozen(rollup, day, was, gone):
            continue
        expected = _input_digests(rollup, day, inputs, extents)
        vanished = {key: NOTHING for key, one in was.items() if key not in expected and one.digest != NOTHING}
        stale = {key for key, digest in expected.items() if not _same_digest(was.get(key), digest, rollup.sha256)}
        if (stale | set(vanished)) - gone:
            due[day] = expected | vanished
    return due


def _days_of(lake: "Lake", item: "Input", table: Snapshot, extents: Mapping[date, tuple[date, date]]) -> set[date]:
    """Return the output dates for the rows of an input with reach ``over``.

    If rows of one date begin far apart, such as a job of last year and one of today, the rows are read for their exact
    dates. Otherwise all dates between would be computed, and most of these have no rows.
    """
    wide = {day for day, (first, last) in extents.items() if item.begin and last - first > _WIDE}
    spans = {span for day, span in extents.items() if day not in wide}
    days = {first + timedelta(number) for first, last in spans for number in range((last - first).days + 1)}
    return days | (table.begin_days(lake, item.begin, wide, timedelta(MAX_DAYS)) if wide else set())


def _is_frozen(rollup: "Rollup", day: date, was: Collection[Key], gone: Collection[Key]) -> bool:
    """Whether retention removed inputs of an output date, so that computing it again would lose rows."""
    leads = rollup.inputs[: rollup.leads]
    over = {item.table for item in leads if item.reach == "over"}
    return any((item.table, partition(day)) in gone for item in leads if item.reach != "over") or any(
        key in gone for key in was if key[0] in over
    )


def depends_on(rollup: "Rollup", day: date, gone: Collection[Key]) -> bool:
    """Whether an output date of a partition rollup depends on one of the partitions in `gone`."""
    for item in rollup.inputs:
        days = item.days(day)
        until = day + timedelta(MAX_DAYS) if item.reach == "over" else day
        for table, name in gone:
            if table == item.table and (day_of(name) <= until if days is None else day_of(name) in days):
                return True
    return False


def changed_inputs(
    rollup: "Rollup",
    inputs: Mapping[str, Snapshot],
    output: Snapshot,
    state: State,
    gone: set[Key],
    kept_back: Collection[Key] = (),
) -> dict[Key, str] | None:
    """Return the changed input partitions of a run rollup with their digests; None if no run is due.

    It reads only Delta logs. The parameters are those of `due_runs`.
    """
    was = _still_read(state.get(WHOLE, {}), inputs)
    now = {(name, partition(day)): digest for name, one in inputs.items() for day, digest in one.digests.items()}
    now |= {key: NOTHING for key, one in was.items() if key not in now and one.digest != NOTHING}
    changed = {
        key: digest
        for key, digest in now.items()
        if key not in gone and key not in kept_back and not _same_digest(was.get(key), digest, rollup.sha256)
    }
    return None if not changed and (state or not output.digests) else changed


def due_runs(
    lake: "Lake",
    rollup: "Rollup",
    inputs: Mapping[str, Snapshot],
    output: Snapshot,
    state: State,
    gone: set[Key],
    kept_back: Collection[Key] = (),
) -> DueRuns | None:
    """Return the runs of a run rollup that are due; None if nothing changed.

    Due are runs with rows in a changed partition, and runs that may have had rows there before.

    - A run with inputs that retention removed is computed from the remaining inputs only if new rows of it arrive. It
      is not computed because of new code, or to compute everything.
    - A run with rows in a partition of `kept_back` is not computed. Once the partition is released, it counts as
      changed.

    Parameters
    ----------
    inputs, output, state, gone
        As for `due_days`.
    kept_back
        Partitions that are held back because a check failed.

    Raises `ranklake.lake.tables.live_files.DamagedFileError` if a file of a changed partition, or a file that may have
    rows of a due run, is damaged.
    """
    was = _still_read(state.get(WHOLE, {}), inputs)
    changed = changed_inputs(rollup, inputs, output, state, gone, kept_back)
    if changed is None:
        return None
    begin, end = rollup.times
    held = output.rows(lake, ["run", "date", begin, end]).to_pylist()
    spans: dict[str, tuple[date, date]] = {}
    for row in held:
        first, last = spans.get(row["run"], (date.max, date.min))
        spans[row["run"]] = (
            min(first, row["date"], row[begin].date()),
            max(last, (row[end] or row[begin]).date()),
        )
    # The earlier rows of a partition are unknown. But only runs that were active on its date can have had rows in it.
    rewritten = {day_of(name) for table, name in changed if (table, name) in was or not state}
    under_way = {
        run
        for run, (first, last) in spans.items()
        if not state or any(first - _DAY <= day <= last + _DAY for day in rewritten)
    }
    came: dict[str, set[date]] = defaultdict(set)
    for table, name in changed:
        if name != WHOLE:
            came[table].add(day_of(name))
    news = {name: one.files(came[name]) for name, one in inputs.items()}
    for table, live_files in news.items():
        refuse_damaged(lake.tables, table, live_files)
    came_in = {key for key, digest in changed.items() if state and (key not in was or was[key].digest != digest)}
    every = _runs_in(lake, news, changed)
    arrived = every if came_in == changed.keys() else _runs_in(lake, news, came_in)
    frozen = {run for run in spans if run not in arrived and _overlaps(spans[run], gone, rollup.tables)}
    wanted = (every | under_way) - frozen - _runs_kept_back(lake, inputs, kept_back)
    mine = {name: one.files_of(wanted) for name, one in inputs.items()}
    for table, live_files in mine.items():
        refuse_damaged(lake.tables, table, live_files)
    starts = {run: day for run, day in _first_dates(lake, mine, wanted).items() if not is_agent_run(run)}
    return DueRuns(
        starts=starts,
        replaced=frozenset(wanted),
        old_days=frozenset(row["date"] for row in held if row["run"] in wanted),
        inputs=changed,
    )


def _runs_kept_back(lake: "Lake", inputs: Mapping[str, Snapshot], kept_back: Collection[Key]) -> set[str]:
    """Return the runs with rows in partitions that are held back because a check failed."""
    mine = {key for key in kept_back if key[0] in inputs and day_of(key[1]) in inputs[key[0]].digests}
    days: dict[str, list[date]] = defaultdict(list)
    for table, name in mine:
        days[table].append(day_of(name))
    live = {table: inputs[table].files(some) for table, some in days.items()}
    for table, files in live.items():
        refuse_damaged(lake.tables, table, files)
    return _runs_in(lake, live, mine)


def _overlaps(span: tuple[date, date], gone: Collection[Key], tables: Collection[str]) -> bool:
    """Whether retention removed inputs of a run, so that computing it again would lose information."""
    return any(table in tables and span[0] - _DAY <= day_of(name) <= span[1] + _DAY for table, name in gone)


def _runs_in(lake: "Lake", live: Mapping[str, pa.Table], keys: Collection[Key]) -> set[str]:
    """Return the runs with rows in some input partitions.

    Parameters
    ----------
    live
        Files by table, including those of the partitions.
    """
    days: dict[str, list[date]] = defaultdict(list)
    for table, name in keys:
        days[table].append(day_of(name))
    runs: set[str] = set()
    asked: dict[str, pa.Table] = {}
    for table, dates in days.items():
        files, asked[table] = by_only_run(of_days(live[table], dates))
        runs.update(files["min.run"].to_pylist())
    if asked := {table: some for table, some in asked.items() if some.num_rows}:
        ctx = session(lake, asked, live=asked)
        for table in asked:
            answer = ctx.sql(f"SELECT DISTINCT run FROM {table}")  # noqa: S608 - our own names
            runs.update(answer.to_arrow_table()["run"].to_pylist())
    return runs


def _first_dates(lake: "Lake", live: Mapping[str, pa.Table], runs: Collection[str]) -> dict[str, date]:
    """Return the first date of each run in any of the tables; runs without rows are left out.

    Parameters
    ----------
    live
        Files to read, by table.
    """
    parts: list[pa.Table] = []
    asked: dict[str, pa.Table] = {}
    wanted = pa.array(sorted(runs), pa.string())
    for table, files in live.items():
        of_one_run, asked[table] = by_only_run(files)
        parts.append(pa.table({"run": of_one_run["min.run"].cast(pa.string()), "date": of_one_run["date"]}))
    if asked := {table: some for table, some in asked.items() if some.num_rows}:
        ctx = session(lake, asked, live=asked)
        replace_table(ctx, AFFECTED, pa.table({"run": wanted}))
        every = " UNION ALL ".join(
            f"SELECT {name}.run, date FROM {name} INNER JOIN {AFFECTED} ON {AFFECTED}.run = {name}.run"  # noqa: S608 - likewise
            for name in asked
        )
        dates = ctx.sql(f"SELECT run, min(date) AS date FROM ({every}) GROUP BY run").to_arrow_table()  # noqa: S608 - likewise
        parts.append(dates.cast(pa.schema([("run", pa.string()), ("date", pa.date32())])))
    rows = pa.concat_tables(parts)
    firsts = rows.filter(pc.is_in(rows["run"], value_set=wanted)).group_by("run").aggregate([("date", "min")])
    return dict(zip(firsts["run"].to_pylist(), firsts["date_min"].to_pylist(), strict=True))


def _input_digests(
    rollup: "Rollup",
    day: date,
    inputs: Mapping[str, Snapshot],
    extents: "Mapping[Input, Mapping[date, tuple[date, date]]]",
) -> dict[Key, str]:
    """Return the digests of an output date's input partitions, always including the date of the first input."""
    digests: dict[Key, str] = {(rollup.inputs[0].table, partition(day)): NOTHING}
    for item in rollup.inputs:
        snapshot, days = inputs[item.table], item.days(day)
        if item.reach == "over":
            near = [other for other, (first, last) in extents[item].items() if first <= day <= last]
            digests |= {(item.table, partition(other)): snapshot.digests[other] for other in near}
            continue
        if days is None:
            digests[item.table, WHOLE] = combine_days(snapshot, day)
            continue
        for other in days:
            if other not in snapshot.digests:
                continue
            digest = snapshot.digests[other]
            if item.reach == "hours" and other != day:
                paths = of_hours(snapshot.files([other]), day)["path"].to_pylist()
                if not paths:
                    continue
                digest = files_digest(paths)
            digests[item.table, partition(other)] = digest
    return digests


def _same_digest(was: Recorded | None, digest: str, sha256: str) -> bool:
    return was is not None and was.digest == digest and was.transform_sha256 == sha256


def _still_read(was: Mapping[Key, Recorded], inputs: Mapping[str, Snapshot]) -> dict[Key, Recorded]:
    """Return the lineage of tables that the rollup reads now. Another version of its code may have read others."""
    return {key: one for key, one in was.items() if key[0] in inputs}
