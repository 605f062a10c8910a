"""Action plans: plans that list the files to add and to remove, as for retention, compaction, erasure or migration.

The new data files are written before the plan. The plan lists them together with the files that they replace. Carrying
it out consists of commits only, so any process can do it, repeatedly. If a plan is never written, no commit names its
files, and upkeep deletes them.
"""

import itertools
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from datetime import date
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc

import ranklake
from ranklake.lake.contracts.load import contract
from ranklake.lake.plans.driver import Unit, carry_out
from ranklake.lake.plans.kinds import KINDS
from ranklake.lake.plans.plan import LEDGER, Plan, ledger_row, row_files
from ranklake.lake.store.files import delete, listed, remove_dead
from ranklake.lake.store.reachability import LakeUnreachableError
from ranklake.lake.tables.commit import LostRaceError, fence, number_of, swap, swap_plan
from ranklake.lake.tables.live_files import FILE_SCHEMA, DataFile, files, live_paths, plan_of
from ranklake.lake.tables.parquet import append_files
from ranklake.lake.tables.read import read_some
from ranklake.lake.tables.tables import delta_table, ensure_table, last_table, refuse_unfit

if TYPE_CHECKING:
    from deltalake import DeltaTable

    from ranklake.lake.contracts.model import Contract
    from ranklake.lake.store.lake import Lake
    from ranklake.lake.store.store import Store
    from ranklake.lake.store.tables import Tables


_TRIES: Final = 100
"""Number of tries to merge a system table's files while other processes append to it."""

QUARANTINED: Final = "quarantined"
"""Key of a plan's facts: digests of quarantined bytes to delete, by ``quarantine/<table>`` and date."""


MASKED: Final = "masked"
"""Key of a plan's facts: dates (ISO) by table whose values are masked and whose rows are kept."""


FOLDED: Final = "downsampled"
"""Key of a plan's facts: dates (ISO) by table whose rows are aggregated.

The aggregates go to the table ``downsampled`` and are not counted in the ledger.
"""


ARCHIVES: Final = "archived"
"""Key of a plan's facts: digests of archive manifests for the removed rows, by table and date (ISO)."""


ENDED: Final = "archives_ended"
"""Key of a plan's facts: names of archives that the plan ends, by ``archive/<table>`` and date (ISO)."""


def compose(
    number: int,
    kind: str,
    *,
    add: Sequence[DataFile] = (),
    remove: Mapping[str, pa.Table] | None = None,
    live: Mapping[str, pa.Table] | None = None,
    purge: bool = False,
    data_change: bool = True,
    facts: Mapping[str, Any] | None = None,
) -> Plan:
    """Return an action plan.

    Parameters
    ----------
    add
        New files of any tables. They must exist.
    remove
        Files to remove, by table: rows of `ranklake.lake.tables.live_files.files`.
    live
        Needed to purge: by table, all live files of the dates from which files are removed, and files that a
        cancellable plan keeps for them.
    purge
        Whether to delete the removed files after the commits, together with older files of the same dates. Otherwise
        they stay readable by time travel until upkeep. The plan lists the files that remain, so that a slow driver does
        not delete files into which later plans merged them.
    data_change
        False if the new files contain the same rows as the removed ones.
    facts
        Further plain JSON values for people and audits.
    """
    columns = ["path", "size_bytes", "num_records", "date"]
    removed = {table: rows.select(columns) for table, rows in (remove or {}).items()}
    account: dict[str, int] = {}
    for table, rows in removed.items():
        account[table] = -int(pc.sum(rows["num_records"]).as_py() or 0)
    for file in add:
        if file.table in removed and not (file.table == FOLDED and (facts or {}).get(FOLDED)):
            account[file.table] += file.rows
    if purge and not set(removed) <= set(live or {}):
        raise ValueError("to purge, all live files must be given in live")
    kept = {
        table: sorted(set((live or {})[table]["path"].to_pylist()) - set(rows["path"].to_pylist()))
        for table, rows in removed.items()
        if purge
    }
    body = {
        "writer": f"ranklake {ranklake.__version__}",
        "add": [{**asdict(file), "partition": file.partition.isoformat()} for file in add],
        "remove": {
            table: [{**row, "date": row["date"].isoformat()} for row in rows.to_pylist()]
            for table, rows in removed.items()
        },
        "purge": purge,
        "kept": kept,
        "data_change": data_change,
        "account": account,
        "facts": dict(facts or {}),
    }
    return Plan(number, kind, time.time_ns() // 1000, body)


def execute(lake: "Lake", plan: Plan, _workers: object = None, _progress: object = None) -> None:
    """Carry out an action plan. Can be repeated. It consists of commits, so it uses no workers.

    Raises `ranklake.lake.tables.commit.LostRaceError`.
    """
    added: dict[str, list[DataFile]] = {}
    for row in plan.body["add"]:
        file = DataFile(**{**row, "partition": date.fromisoformat(row["partition"])})
        added.setdefault(file.table, []).append(file)
    removed = {
        table: pa.Table.from_pylist([{**row, "date": date.fromisoformat(row["date"])} for row in rows])
        for table, rows in plan.body["remove"].items()
        if rows
    }
    metadata = {"ranklake.plan": str(plan.number), "ranklake.kind": plan.kind}
    data_change = _changes_data(plan)
    detail = f"plan {plan.number} ({plan.kind})"
    for table in sorted({*added, *removed} - {LEDGER}):
        add, remove = added.get(table, []), removed.get(table)
        dates = {*(file.partition for file in add), *([] if remove is None else remove["date"].to_pylist())}
        unit = Unit("commit", table, tuple(dates), detail, writes=data_change)
        carry_out(unit, partial(_commit, lake, plan, table, add, remove, metadata))
    if plan.body["purge"]:
        carry_out(Unit("purge", detail=f"files that {detail} took out"), partial(purge, lake, plan))
    if KINDS[plan.kind].fences:
        carry_out(Unit("commit", detail=f"fences of {detail}"), partial(_fence, lake, plan))
    finish = partial(_finish, lake.tables, plan, added, removed.get(LEDGER), metadata)
    carry_out(Unit("commit", LEDGER, detail=detail, writes=data_change), finish)


def _commit(
    lake: "Lake", plan: Plan, table: str, add: list[DataFile], remove: pa.Table | None, metadata: Mapping[str, str]
) -> None:
    contract, data_change = lake.contract(table), _changes_data(plan)
    for tries_left in reversed(range(_TRIES)):
        handle = ensure_table(lake.tables, contract)
        if contract.kind == "derived" and add and not _are_live(handle, remove):
            add, remove = [], None  # a rollup replaced these files meanwhile; adding them would duplicate its rows
        if not data_change and not (_are_live(handle, remove) and _exist(lake.store, add)):
            return
        try:
            swap_plan(handle, plan.number, add=add, remove=remove, metadata=metadata, data_change=data_change)
        except LostRaceError:
            # Other processes append to system tables at any time; later plans wait for this one.
            if data_change or contract.kind != "system" or not tries_left:
                raise
        else:
            return


def _fence(lake: "Lake", plan: Plan) -> None:
    """Fence all derived tables, so that rollups which read rows from before the plan must start again."""
    for derived in lake.contracts().values():
        if derived.kind == "derived":
            fence(delta_table(lake.store, derived.table) or ensure_table(lake.tables, derived), plan.number)


def _changes_data(plan: Plan) -> bool:
    return bool(plan.body.get("data_change", True))


def _finish(
    tables: "Tables",
    plan: Plan,
    added: Mapping[str, list[DataFile]],
    merged: pa.Table | None,
    metadata: Mapping[str, str],
) -> None:
    """Commit the row of the ledger, together with the plan's changes to the ledger's own files."""
    ledger = ensure_table(tables, contract(LEDGER))
    if number_of(ledger) >= plan.number:
        return
    account = plan.body["account"]
    rejects = [] if "rejects" in plan.body["remove"] else added.get("rejects", [])
    rejected = sum(file.rows for file in rejects)
    row = ledger_row(plan, account, rows_stored=sum(account.values()), rows_rejected=rejected)
    new = row_files(tables.store, LEDGER, [row], plan.number)
    merge_result = added.get(LEDGER, [])
    if merged is not None and _are_live(ledger, merged) and _exist(tables.store, merge_result):
        swap(ledger, plan.number, add=[*merge_result, *new], remove=merged, metadata=metadata)
    else:
        swap(ledger, plan.number, add=new, metadata=metadata)


def _are_live(handle: "DeltaTable", files: pa.Table | None) -> bool:
    """Whether all files are live. If not, another process replaced them, and their merged file must not be added."""
    return files is None or live_paths(handle).issuperset(files["path"].to_pylist())


def _exist(store: "Store", merged: Iterable[DataFile]) -> bool:
    """Whether the results of a merge still exist.

    No log names them before their commit. An erasure, or a vacuum without a grace period, may delete them as orphans.
    """
    return all(store.fs.exists(store.path("tables", file.table, file.path)) for file in merged)


def purge(lake: "Lake", plan: Plan, spare: Mapping[str, Iterable[str]] | None = None) -> None:
    """Delete the files that a plan removed, and older files of the same dates, with their old versions in the bucket.

    Versions that the bucket locks are kept (`ranklake.lake.store.files`). Files of later plans are kept: their names
    contain a higher number, and a compaction with a lower one abandons its result
    (`ranklake.lake.ingest.maintenance.compaction`). Files that the plan kept or added are kept, even if later plans
    replaced them meanwhile. Derived tables have their own numbers, so only the files that the plan lists are deleted
    there; other files may belong to a rollup that is about to commit. Can be repeated.

    Parameters
    ----------
    spare
        Further files to keep, by table.
    """
    added = {(row["table"], row["path"]) for row in plan.body["add"]}
    for table, rows in plan.body["remove"].items():
        paths = {row["path"] for row in rows}
        if KINDS[plan.kind].purges_dates and lake.contract(table).kind != "derived":
            spared = {path for owner, path in added if owner == table} | set(plan.body["kept"].get(table, []))
            spared |= set((spare or {}).get(table, ()))
            paths |= _left_behind(lake.store, table, {path.rpartition("/")[0] for path in paths}, plan.number) - spared
        for path in paths:
            delete(lake.store, lake.path("tables", table, path))  # an earlier try may have deleted it
    for days in (plan.body.get("facts") or {}).get(QUARANTINED, {}).values():
        for sha256 in itertools.chain.from_iterable(days.values()):
            delete(lake.store, lake.path("quarantine", sha256))
    remove_dead(lake.fs, purged_places(lake, plan))


def purged_places(lake: "Lake", plan: Plan) -> list[str]:
    """Return the prefixes of all paths that a plan deletes, for deleting their old versions in the bucket."""
    places = set()
    for table, rows in plan.body["remove"].items():
        is_whole_date = KINDS[plan.kind].purges_dates and lake.contract(table).kind != "derived"
        for path in {row["path"] for row in rows}:
            places.add(lake.path("tables", table, f"{path.rpartition('/')[0]}/" if is_whole_date else path))
    for days in (plan.body.get("facts") or {}).get(QUARANTINED, {}).values():
        places |= {lake.path("quarantine", sha256) for digests in days.values() for sha256 in digests}
    return sorted(places)


def purged_dates(plan: Plan) -> set[tuple[str, str]]:
    """Return the tables and dates (ISO) from which a plan deletes all files that it does not keep."""
    rows_by_table = plan.body["remove"] if plan.body.get("purge") else {}
    return {(table, row["date"]) for table, rows in rows_by_table.items() for row in rows}


def _left_behind(store: "Store", table: str, folders: set[str], number: int) -> set[str]:
    root = store.path("tables", table)
    """Return the files in some folders that are not live and were written by this plan or an earlier one."""
    root = store.path("tables", table)
    paths = {file.path.removeprefix(f"{root}/") for folder in folders for file in listed(store.fs, f"{root}/{folder}")}
    handle = last_table(store, table)
    if handle is not None and number_of(handle) < number:  # a stale listing lacks the plan's own commit
        raise LakeUnreachableError(f"the log lacks plan {number}", where=handle.table_uri, hint="run it again")
    live = set() if handle is None else live_paths(handle)
    return {path for path in paths - live if (plan := plan_of(path)) is not None and plan <= number}


def live_files(lake: "Lake", table: str, partitions: Sequence[date]) -> pa.Table:
    """Return a table's live files in some partitions, for `compose`; none if the table does not exist.

    Raises `ranklake.lake.tables.tables.NewerTableError`, because rewriting its files would lose unknown columns.
    """
    handle = delta_table(lake.store, table)
    if handle is None:
        return FILE_SCHEMA.empty_table()
    return files(refuse_unfit(handle, lake.contract(table)), partitions)


def change_rows(
    tables: "Tables", target: "Contract", number: int, files: pa.Table, change: Callable[[pa.Table], pa.Table]
) -> Iterator[DataFile]:
    """Rewrite files with the rows that `change` returns for each file's rows, without a commit. Yields the new files.

    `change` must return as many rows as it gets. At most one file is in memory at a time. Raises
    `ranklake.lake.tables.live_files.DamagedFileError`.
    """
    for _, rows in read_some(tables, target, files, verify=True):
        changed = change(rows)
        if changed.num_rows != rows.num_rows:
            raise ValueError("rows came or went where values were to change")
        yield from append_files(tables.store, target, changed, number)


def remove_rows(
    tables: "Tables", target: "Contract", number: int, candidates: pa.Table, select: Callable[[pa.Table], pa.Array]
) -> Iterator[tuple[pa.Table, list[DataFile], pa.Table]]:
    """Rewrite files without the rows that `select` marks, without a commit.

    Yields for each file with marked rows: the file to remove (one row of `candidates`), the files that replace it, and
    the removed rows. At most one file is in memory at a time. Raises
    `ranklake.lake.tables.live_files.DamagedFileError`.

    Parameters
    ----------
    number
        Number of the plan.
    candidates
        Files to examine: rows of `live_files`.
    select
        Returns a boolean array for a file's rows, true for rows to remove.
    """
    for path, rows in read_some(tables, target, candidates, verify=True):
        mask = select(rows)
        if not pc.any(mask).as_py():
            continue
        kept = rows.filter(pc.invert(mask))
        added = append_files(tables.store, target, kept, number) if kept.num_rows else []
        yield candidates.filter(pc.equal(candidates["path"], path)), added, rows.filter(mask)
