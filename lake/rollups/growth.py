"""What came since a date of a rollup was computed: only the groups that have new rows are computed again.

A rollup that is `cut` has groups of one attempt and one value of a column, such as a step. Where its inputs only got
files since, and its own rows of the date are as it wrote them, the rows of all other groups stand. The Delta logs tell
which files came, and digests prove it: the digest of an input partition in lineage plus those of the files that came
must be its digest now. Merging files changes no digest. An erasure, a quarantine, a migration or a restore does, and
then the date is computed as a whole.

    lineage ──▶ versions and digests then ──┐
    Delta logs ──▶ files since then ────────┴─ proved ─▶ groups that they have rows of ──▶ input files of these groups
                                                              └─▶ rows of these groups, in place of those that stood
"""

import json
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ranklake.lake.rollups.declaration import replace_table
from ranklake.lake.rollups.evaluate import Range
from ranklake.lake.rollups.inputs import NOTHING, Key, Snapshot, day_of
from ranklake.lake.store.reachability import unreachable
from ranklake.lake.tables.live_files import extend_digest, plan_of
from ranklake.lake.tables.read import read_some
from ranklake.lake.tables.tables import actions_of

if TYPE_CHECKING:
    from ranklake.lake.contracts.model import Contract
    from ranklake.lake.query.engine import SessionContext
    from ranklake.lake.rollups.declaration import Rollup
    from ranklake.lake.rollups.lineage import Recorded
    from ranklake.lake.store.lake import Lake
    from ranklake.lake.store.store import Store

MOST_COMMITS: Final = 64
"""Commits of a table that are read; after more the date is computed as a whole."""
FULL_ROWS: Final = 8192
"""Rows from which on a file of a rollup stays as it is when rows of other groups come."""

Attempt = tuple[str, int]
"""Run and number of the attempt."""
Groups = dict[Attempt, list[Range]]
"""Groups by attempt: ranges of the rollup's column `cut`, in order and apart."""


class NewFile(NamedTuple):
    """A file that came to an input, as the log has it; `stats` are Delta statistics."""

    path: str
    size_bytes: int
    num_records: int
    date: date
    stats: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Growth:
    """Files that came to each input of a date since it was computed; nothing else changed."""

    files: Mapping[str, Sequence[NewFile]]


def growth_of(
    store: "Store",
    rollup: "Rollup",
    day: date,
    was: "Mapping[Key, Recorded]",
    now: Mapping[Key, str],
    inputs: Mapping[str, Snapshot],
    output: Snapshot,
) -> Growth | None:
    """Return what came since a date was computed; None where it must be computed as a whole.

    Parameters
    ----------
    was
        What lineage has of the date.
    now
        Digests of its input partitions.

    Raises `LakeUnreachableError` where a log cannot be read.
    """
    written = {one.output_version for one in was.values() if one.digest != NOTHING}
    tables = {item.table for item in rollup.inputs}
    is_ours = all(table in tables and one.transform_sha256 == rollup.sha256 for (table, _), one in was.items())
    if not rollup.cut or not is_ours or len(written) != 1 or (version := written.pop()) is None:
        return None
    try:
        if any(change["date"] == day for change in _changes(store, output.table, version, output.version)):
            return None
        came: dict[str, list[NewFile]] = {}
        for item in rollup.inputs:
            noted = [one.input_version for key, one in was.items() if key[0] == item.table]
            since = max((-1 if each is None else each for each in noted), default=-1)
            days = set(item.days(day) or ())
            changes = _changes(store, item.table, since, inputs[item.table].version)
            files = [change["file"] for change in changes if change["file"] and change["date"] in days]
            came[item.table] = [file for file in files if item.reach != "hours" or _is_near(file, day)]
    except (FileNotFoundError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return None  # the log no longer has a commit, or it is another's
    except OSError as error:
        raise unreachable(store.uri, error, store.storage) from None
    for key in {*was, *now}:
        then = was[key].digest if key in was else NOTHING
        paths = [file.path for file in came[key[0]] if file.date == day_of(key[1])]
        if extend_digest(then, paths) != extend_digest(now.get(key, NOTHING), ()):
            return None
    return Growth(came)


def _changes(store: "Store", table: str, since: int, until: int) -> Iterator[dict[str, Any]]:
    """Yield the date of each file that came or went after a version, and the file if it came; merges are no change.

    Raises `ValueError` for more than `MOST_COMMITS` commits, or fewer than none.
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
    """Whether a file is of a date, or may have rows of an hour before or after it; as `of_hours` has it."""
    bounds = [file.stats.get(side, {}).get("ts") for side in ("minValues", "maxValues")]
    if file.date == day or None in bounds:
        return True
    begin = datetime(day.year, day.month, day.day, tzinfo=UTC)
    low, high = map(datetime.fromisoformat, bounds)
    return high >= begin - timedelta(hours=1) and low < begin + timedelta(hours=25)


def groups_of(lake: "Lake", rollup: "Rollup", growth: Growth) -> Groups:
    """Return the groups that new files have rows of, by their statistics, else by their rows.

    Raises `DamagedFileError`, where a file is gone, too.
    """
    ranges: dict[Attempt, list[Range]] = defaultdict(list)
    for table, files in growth.files.items():
        known = lake.contract(table)
        for file in files:
            for attempt, extent in _groups_of_file(lake, known, rollup.cut, file):
                ranges[attempt].append(extent)
    return {attempt: _apart(extents) for attempt, extents in ranges.items()}


def _groups_of_file(lake: "Lake", known: "Contract", cut: str, file: NewFile) -> list[tuple[Attempt, Range]]:
    low, high = file.stats.get("minValues", {}), file.stats.get("maxValues", {})
    if file.stats.get("nullCount", {}).get(cut) == file.num_records:
        return []
    names = ("run", "attempt", cut)
    alone = all(name in low and name in high for name in names) and all(low[name] == high[name] for name in names[:2])
    if alone:
        return [((low["run"], low["attempt"]), (low[cut], high[cut]))]
    live = pa.Table.from_pylist([{name: getattr(file, name) for name in file._fields[:-1]}])
    ((_, rows),) = read_some(lake.tables, known, live, names)
    rows = rows.filter(rows[cut].is_valid()).group_by(["run", "attempt"]).aggregate([(cut, "min"), (cut, "max")])
    return [((row["run"], row["attempt"]), (row[f"{cut}_min"], row[f"{cut}_max"])) for row in rows.to_pylist()]


def _apart(ranges: Sequence[Range]) -> list[Range]:
    """Return ranges without those that overlap, in order.

    >>> _apart([(5, 9), (1, 3), (3, 4), (9, 12)])
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
    """Return those of some attempts of which a stored row says that they are settled, see `Rollup.settled_by`.

    Raises `DamagedFileError`.
    """
    left, settled = set(attempts), set[Attempt]()
    columns = ["run", "attempt", rollup.settled_by]
    newest = sorted(held.files([day]).to_pylist(), key=lambda row: plan_of(row["path"]) or 0, reverse=True)
    for row in newest:
        if not left:
            break
        ((_, rows),) = read_some(lake.tables, rollup.contract, pa.Table.from_pylist([row]), columns)
        pairs = rows.filter(rows[rollup.settled_by].is_valid()).group_by(columns[:2]).aggregate([]).to_pylist()
        settled |= left & {(pair["run"], pair["attempt"]) for pair in pairs}
        left -= settled
    return settled


def files_of_groups(live: pa.Table, cut: str, groups: Groups) -> pa.Table:
    """Return those of some files that may have rows of groups, by what the log says of them."""
    names = [f"{side}.{name}" for name in ("run", cut) for side in ("min", "max")]
    if not live.num_rows or not set(names) <= set(live.column_names):
        return live
    unknown = np.zeros(live.num_rows, bool)
    for name in names:
        unknown |= live[name].is_null().to_numpy()
    low_run, high_run = (pc.fill_null(live[name].cast(pa.string()), "").to_numpy().astype(str) for name in names[:2])
    low, high = (pc.fill_null(live[name], 0).to_numpy() for name in names[2:])
    wanted = unknown
    for (run, _), ranges in groups.items():
        first, last = ranges[0][0], ranges[-1][1]
        wanted = wanted | ((low_run <= run) & (high_run >= run) & (low <= last) & (high >= first))
    return live.filter(pa.array(wanted))


def keep_groups(ctx: "SessionContext", tables: Collection[str], cut: str, groups: Groups) -> None:
    """Leave no rows in a session's tables but those of some groups."""
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
    """Return for each row whether it is of one of some groups."""
    result = np.zeros(rows.num_rows, bool)
    values = rows[cut].to_numpy()
    for (run, attempt), ranges in groups.items():
        is_attempt = pc.and_(pc.equal(rows["run"], run), pc.equal(rows["attempt"], attempt)).to_numpy()
        for first, last in ranges:
            result |= is_attempt & (values >= first) & (values <= last)
    return pa.array(result)
