"""Incremental computation of a date: only what the rows of new files can change is computed again.

A rollup with `Rollup.cut` groups by attempt and by a column, such as the step: the groups with new rows are computed. A
rollup with `Rollup.lookback_s` has rows per hour or minute: the periods from the earliest new row on are computed. If
files were only added to its inputs since the last computation, and nobody changed its own rows of the date, all other
rows are still right. The Delta logs name the added files. Digests prove that nothing else happened: the recorded digest
of an input partition, extended by the added files, must equal the current digest. Merging files does not change a
digest. An erasure, a quarantine, a migration or a restore does, and then the whole date is computed.

    lineage ──▶ recorded versions and digests ──┐
    Delta logs ──▶ added files ─────────────────┴─ proof ─▶ groups or periods ──▶ their input files
                                                                └─▶ new rows, which replace their old rows
"""

import json
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from deltalake.exceptions import DeltaError

from ranklake.lake.rollups.declaration import replace_table
from ranklake.lake.rollups.evaluate import Range
from ranklake.lake.rollups.inputs import (
    ABSENT,
    NOTHING,
    WHOLE,
    Key,
    Snapshot,
    begin_of,
    combine_days,
    day_of,
    hours_around,
    slim,
    snapshot_of,
)
from ranklake.lake.store.reachability import unreachable
from ranklake.lake.tables.live_files import extend_digest, plan_of
from ranklake.lake.tables.read import read_some
from ranklake.lake.tables.tables import actions_of, at_version

if TYPE_CHECKING:
    from ranklake.lake.contracts.model import Contract
    from ranklake.lake.query.engine import SessionContext
    from ranklake.lake.rollups.declaration import Input, Rollup
    from ranklake.lake.rollups.lineage import Recorded
    from ranklake.lake.store.lake import Lake
    from ranklake.lake.store.store import Store

MOST_COMMITS: Final = 64
"""Most commits of a table that are read. After more commits the whole date is computed."""
FULL_ROWS: Final = 8192
"""Least rows of a full file. It is kept unless it has rows of the computed groups; smaller files are rewritten."""

Attempt = tuple[str, int]
"""Run and number of the attempt."""
Groups = dict[Attempt, list[Range]]
"""Groups by attempt: sorted ranges of the rollup's column `cut` that do not overlap."""


class NewFile(NamedTuple):
    """A file that was added to an input, from the Delta log; `stats` are its Delta statistics."""

    path: str
    size_bytes: int
    num_records: int
    date: date
    stats: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Growth:
    """Changes of a date's inputs since its last computation. Nothing else changed.

    Attributes
    ----------
    files
        Files that were added, by table.
    replaced
        For inputs with `Input.facts`: files that were removed, and files that were added, by table.
    """

    files: Mapping[str, Sequence[NewFile]]
    replaced: Mapping[str, tuple[pa.Table, pa.Table]] = field(default_factory=dict)

    @property
    def rows(self) -> int:
        """Number of rows of these files."""
        return sum(file.num_records for files in self.files.values() for file in files)


def growth_of(
    store: "Store",
    rollup: "Rollup",
    day: date,
    recorded: "Mapping[Key, Recorded]",
    digests: Mapping[Key, str],
    inputs: Mapping[str, Snapshot],
    output: Snapshot,
) -> Growth | None:
    """Return the files that were added since a date was computed; None if the whole date must be computed.

    Parameters
    ----------
    recorded
        Lineage of the date.
    digests
        Current digests of its input partitions.

    Raises `LakeUnreachableError` if a log cannot be read.
    """
    output_versions = {entry.output_version for entry in recorded.values() if entry.digest != NOTHING}
    tables = {item.table for item in rollup.inputs}
    is_same_code = all(
        table in tables and entry.transform_sha256 == rollup.sha256 for (table, _), entry in recorded.items()
    )
    if not rollup.bounds or not is_same_code or len(output_versions) != 1 or (version := output_versions.pop()) is None:
        return None
    changed = {
        (table, name)
        for table, name in {*recorded, *digests}
        if not _is_extended(recorded.get((table, name)), (), digests.get((table, name), NOTHING))
    }
    added: dict[str, list[NewFile]] = {}
    replaced = {}
    try:
        if not _is_untouched(store, output, day, version):
            return None
        for item in rollup.inputs:
            key = (item.table, WHOLE)
            if item.days(day) is not None and any(table == item.table for table, _ in changed):
                added[item.table] = _added_files(store, item, day, recorded, inputs[item.table].version)
            elif item.facts and key in changed & recorded.keys():
                replaced[item.table] = _replaced_files(store, inputs[item.table], day, recorded[key])
                changed.remove(key)
    except (FileNotFoundError, DeltaError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return None  # a commit was deleted from the log, or is not one of ours
    except OSError as error:
        raise unreachable(store.uri, error, store.storage) from None
    for table, name in changed:
        paths = [file.path for file in added.get(table, ()) if name != WHOLE and file.date == day_of(name)]
        if not _is_extended(recorded.get((table, name)), paths, digests.get((table, name), NOTHING)):
            return None
    return Growth(added, replaced)


def _is_extended(recorded: "Recorded | None", paths: Sequence[str], digest: str) -> bool:
    """Whether a recorded partition with further files has a digest."""
    before = NOTHING if recorded is None else recorded.digest
    return extend_digest(before, paths) == extend_digest(digest, ())


def _is_untouched(store: "Store", output: Snapshot, day: date, version: int) -> bool:
    """Whether nobody replaced files of a date after a version of the output."""
    if output.version - version <= MOST_COMMITS:
        return all(change["date"] != day for change in _changes(store, output.table, version, output.version))
    before = {} if version == ABSENT else snapshot_of(at_version(store, output.table, version), output.table).digests
    return before.get(day) == output.digests.get(day)


def _added_files(
    store: "Store", item: "Input", day: date, recorded: "Mapping[Key, Recorded]", version: int
) -> list[NewFile]:
    """Return the files that were added to an input of a date until a version."""
    versions = [entry.input_version for (table, _), entry in recorded.items() if table == item.table]
    since = max((-1 if each is None else each for each in versions), default=-1)
    changes, days = _changes(store, item.table, since, version), item.days(day) or ()
    files = [change["file"] for change in changes if change["file"] and change["date"] in days]
    return [file for file in files if item.reach != "hours" or _is_near(file, day)]


def _replaced_files(store: "Store", table: Snapshot, until: date, recorded: "Recorded") -> tuple[pa.Table, pa.Table]:
    """Return the files up to a date that are no more, and those that are new, since a version.

    Raises `ValueError` if the version is not the recorded one.
    """
    version = recorded.input_version
    handle = None if version is None else at_version(store, table.table, version)
    before = Snapshot(table.table) if handle is None else snapshot_of(handle, table.table)
    if combine_days(before, until) != recorded.digest:
        raise ValueError(version)
    old, new = (
        slim(one.files().filter(pc.less_equal(one.files()["date"], pa.scalar(until)))) for one in (before, table)
    )
    return (
        old.filter(pc.invert(pc.is_in(old["path"], value_set=new["path"]))),
        new.filter(pc.invert(pc.is_in(new["path"], value_set=old["path"]))),
    )


def _changes(store: "Store", table: str, since: int, until: int) -> Iterator[dict[str, Any]]:
    """Yield the date of each file that was added or removed after a version, and the file if it was added.

    Merges are left out. Raises `ValueError` for more than `MOST_COMMITS` commits, or a negative number of them.
    """
    if not 0 <= until - since <= MOST_COMMITS:
        raise ValueError(until - since)
    for version in range(since + 1, until + 1):
        for action in actions_of(store, table, version):
            kind = next((name for name in ("add", "remove") if name in action), "")
            if not kind or action[kind].get("dataChange") is False:
                continue
            facts = action[kind]
            day = date.fromisoformat(facts["path"].removeprefix("date=").partition("/")[0])
            file = None
            if kind == "add":
                stats = json.loads(facts["stats"])
                file = NewFile(facts["path"], facts["size"], stats["numRecords"], day, stats)
            yield {"date": day, "file": file}


def _is_near(file: NewFile, day: date) -> bool:
    """Whether a file is of a date, or may have rows of one hour before or after it, like `of_hours`."""
    bounds = _times_of(file)
    if file.date == day or bounds is None:
        return True
    begin, end = hours_around(day)
    return bounds[1] >= begin and bounds[0] < end


def _times_of(file: NewFile) -> tuple[datetime, datetime] | None:
    """Return the first and last ``ts`` of a file by its statistics; None if they lack it."""
    bounds = [file.stats.get(side, {}).get("ts") for side in ("minValues", "maxValues")]
    return None if None in bounds else (datetime.fromisoformat(bounds[0]), datetime.fromisoformat(bounds[1]))


def groups_of(lake: "Lake", rollup: "Rollup", growth: Growth) -> Groups:
    """Return the groups with rows in the new files, by the statistics of a file or else by its rows.

    Raises `DamagedFileError`, also for a missing file.
    """
    ranges: dict[Attempt, list[Range]] = defaultdict(list)
    for table, files in growth.files.items():
        known = lake.contract(table)
        for file in files:
            for attempt, extent in _groups_of_file(lake, known, rollup.cut, file):
                ranges[attempt].append(extent)
    return {attempt: _merge_ranges(extents) for attempt, extents in ranges.items()}


def _groups_of_file(lake: "Lake", known: "Contract", cut: str, file: NewFile) -> list[tuple[Attempt, Range]]:
    low, high = file.stats.get("minValues", {}), file.stats.get("maxValues", {})
    if file.stats.get("nullCount", {}).get(cut) == file.num_records:
        return []
    names = ("run", "attempt", cut)
    has_bounds = all(name in low and name in high for name in names)
    if has_bounds and all(low[name] == high[name] for name in names[:2]):  # rows of one attempt
        return [((low["run"], low["attempt"]), (low[cut], high[cut]))]
    ((_, rows),) = read_some(lake.tables, known, _as_live(file), names)
    rows = rows.filter(rows[cut].is_valid()).group_by(["run", "attempt"]).aggregate([(cut, "min"), (cut, "max")])
    return [((row["run"], row["attempt"]), (row[f"{cut}_min"], row[f"{cut}_max"])) for row in rows.to_pylist()]


def _as_live(file: NewFile) -> pa.Table:
    return pa.Table.from_pylist([{name: getattr(file, name) for name in file._fields[:-1]}])


def _merge_ranges(ranges: Sequence[Range]) -> list[Range]:
    """Return sorted ranges, with overlapping ones merged.

    >>> _merge_ranges([(5, 9), (1, 3), (3, 4), (9, 12)])
    [(1, 4), (5, 12)]
    """
    result: list[Range] = []
    for first, last in sorted(ranges):
        if result and first <= result[-1][1]:
            result[-1] = (result[-1][0], max(last, result[-1][1]))
        else:
            result.append((first, last))
    return result


def settled_attempts(
    lake: "Lake", rollup: "Rollup", held: Snapshot, day: date, attempts: Collection[Attempt]
) -> set[Attempt]:
    """Return the attempts that a stored row of the date shows to be settled; see `Rollup.settled_by`.

    Raises `DamagedFileError`.
    """
    unsettled, settled = set(attempts), set[Attempt]()
    columns = ["run", "attempt", rollup.settled_by]
    newest = sorted(held.files([day]).to_pylist(), key=lambda row: plan_of(row["path"]) or 0, reverse=True)
    for row in newest:
        if not unsettled:
            break
        ((_, rows),) = read_some(lake.tables, rollup.contract, pa.Table.from_pylist([row]), columns)
        pairs = rows.filter(rows[rollup.settled_by].is_valid()).group_by(columns[:2]).aggregate([]).to_pylist()
        settled |= unsettled & {(pair["run"], pair["attempt"]) for pair in pairs}
        unsettled -= settled
    return settled


def files_of_groups(live: pa.Table, cut: str, groups: Groups) -> pa.Table:
    """Return the files that may have rows of these groups, by the bounds in the Delta log."""
    names = [f"{side}.{name}" for name in ("run", cut) for side in ("min", "max")]
    if not live.num_rows or not set(names) <= set(live.column_names):
        return live
    is_wanted = np.zeros(live.num_rows, bool)  # files without bounds are kept
    for name in names:
        is_wanted |= live[name].is_null().to_numpy()
    low_run, high_run = (pc.fill_null(live[name].cast(pa.string()), "").to_numpy().astype(str) for name in names[:2])
    low, high = (pc.fill_null(live[name], 0).to_numpy() for name in names[2:])
    for (run, _), ranges in groups.items():
        first, last = ranges[0][0], ranges[-1][1]
        is_wanted |= (low_run <= run) & (high_run >= run) & (low <= last) & (high >= first)
    return live.filter(pa.array(is_wanted))


def keep_groups(ctx: "SessionContext", tables: Collection[str], cut: str, groups: Groups) -> None:
    """Restrict tables of a session to the rows of these groups."""
    flat = [(*attempt, *one) for attempt, ranges in groups.items() for one in ranges]
    columns = zip(*flat, strict=True)
    types = {"group_run": pa.string(), "group_attempt": pa.int32(), "group_first": pa.int64(), "group_last": pa.int64()}
    rows = [pa.array(values, kind) for values, kind in zip(columns, types.values(), strict=True)]
    replace_table(ctx, "groups_to_compute", pa.table(rows, names=list(types)))
    runs = [run for run, _ in groups]
    bounds = {
        "low_run": min(runs),
        "high_run": max(runs),
        "low": min(first for *_, first, _ in flat),
        "high": max(last for *_, last in flat),
    }
    for table in tables:
        frame = ctx.sql(
            f"SELECT {table}.* FROM {table} INNER JOIN groups_to_compute"  # noqa: S608 - our own names
            f" ON run = group_run AND attempt = group_attempt AND {cut} BETWEEN group_first AND group_last"
            f" WHERE run BETWEEN $low_run AND $high_run AND {cut} BETWEEN $low AND $high",
            param_values=bounds,
        )
        ctx.deregister_table(table)
        ctx.register_view(table, frame)


def is_of_groups(rows: pa.Table, cut: str, groups: Groups) -> pa.Array:
    """Return for each row whether it belongs to one of these groups."""
    result = np.zeros(rows.num_rows, bool)
    values = rows[cut].to_numpy()
    for (run, attempt), ranges in groups.items():
        is_attempt = pc.and_(pc.equal(rows["run"], run), pc.equal(rows["attempt"], attempt)).to_numpy()
        for first, last in ranges:
            result |= is_attempt & (values >= first) & (values <= last)
    return pa.array(result)


def first_period(lake: "Lake", rollup: "Rollup", growth: Growth, held: Snapshot, day: date) -> datetime | None:
    """Return the first hour or minute of a date that can have changed; None if none can.

    These are the periods of rows in the new files, and of stored rows of attempts with other facts. Files without
    statistics of ``ts`` are read. Raises `DamagedFileError`, also for a missing file.
    """
    begin = begin_of(day)
    earliest = begin - timedelta(seconds=rollup.lookback_s or 0)
    firsts = []
    for table, files in growth.files.items():
        for file in files:
            bounds = _times_of(file)
            if bounds is None:
                ((_, rows),) = read_some(lake.tables, lake.contract(table), _as_live(file), ["ts"])
                bounds = tuple(pc.min_max(rows["ts"]).as_py().values())
            first, last = bounds
            if last is not None and last >= earliest:
                firsts.append(max(first, begin))
    if attempts := _changed_attempts(lake, rollup, growth):
        prefix = "holder_" if "holder_run" in rollup.contract.names else ""
        names = [rollup.period, f"{prefix}run", f"{prefix}attempt"]
        rows = held.rows(lake, names, [day])
        firsts += [moment for moment, *attempt in zip(*(rows[name].to_pylist() for name in names), strict=True)
                   if tuple(attempt) in attempts]  # fmt: skip
    if not firsts:
        return None
    first = min(firsts).replace(second=0, microsecond=0)
    return first if rollup.period == "minute" else first.replace(minute=0)


def _changed_attempts(lake: "Lake", rollup: "Rollup", growth: Growth) -> set[Attempt]:
    """Return the attempts whose facts differ between replaced files of `Input.facts`."""
    attempts = set()
    for item in rollup.inputs:
        if item.table in growth.replaced:
            columns = ["run", "attempt", *item.facts]
            old, new = (
                {row for _, part in read_some(lake.tables, lake.contract(item.table), files, columns)
                 for row in zip(*(column.to_pylist() for column in part.columns), strict=True)}
                for files in growth.replaced[item.table]
            )  # fmt: skip
            attempts |= {row[:2] for row in old ^ new}
    return attempts


def files_from(live: pa.Table, column: str, first: datetime) -> pa.Table:
    """Return the files that may have rows with a time at or after `first` in a column, by the bounds in the Delta log.

    Writers may cut a bound to milliseconds.
    """
    if f"max.{column}" not in live.column_names:
        return live
    bound = pa.scalar(first - timedelta(milliseconds=1), pa.timestamp("us", tz="UTC"))
    return live.filter(pc.fill_null(pc.greater_equal(live[f"max.{column}"], bound), fill_value=True))
