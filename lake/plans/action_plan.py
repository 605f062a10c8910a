"""Plans whose commits are spelled out: retention, quarantine by checks, compaction, erasure, migration.

Whoever composes one writes the new data files first and names them in the plan, together with the files that they
replace. Carrying it out is then nothing but commits, so anybody can do it, again and again. Files of a plan that was
never written are orphans that no commit names.
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
"""How often a merge of a system table's files is tried beside others who append to it."""

QUARANTINED: Final = "quarantined"
"""Among a plan's facts: digests of raw bytes that go with it, by ``quarantine/<table>`` and date."""


MASKED: Final = "masked"
"""Likewise: dates (ISO) by table, of which values are masked and no row goes."""


FOLDED: Final = "downsampled"
"""Likewise: dates (ISO) by table, whose rows become aggregates in the table of that name: those are in no ledger."""


ARCHIVES: Final = "archived"
"""Likewise: digests of manifests by table and date (ISO), of which the rows that go lie in an archive."""


ENDED: Final = "archives_ended"
"""Likewise: names of archives that end with it, by ``archive/<table>`` and date (ISO)."""


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
    """Return a plan that spells out its commits.

    Parameters
    ----------
    add
        New files of any tables; they exist already.
    remove
        Per table, the files to drop: rows of `ranklake.lake.tables.live_files.files`.
    live
        Per table, all files of the dates of which files are dropped, as they are before the plan, and those that other
        plans keep, which can be cancelled; needed to purge.
    purge
        Whether the bytes of removed files go too, after the commits, and with them what is left of the same dates from
        before; else they stay readable by time travel until upkeep. What stays live is named in the plan, since a slow
        driver may come to purge when later plans have merged it: its older versions are not this plan's to delete.
    data_change
        False if the new files hold the same rows of those that go.
    facts
        Further plain JSON values for people and audits.
    """
    gone = {table: rows.select(["path", "size_bytes", "num_records", "date"]) for table, rows in (remove or {}).items()}
    account: dict[str, int] = {}
    for table, rows in gone.items():
        account[table] = -int(pc.sum(rows["num_records"]).as_py() or 0)
    for file in add:
        if file.table in gone and not (file.table == FOLDED and (facts or {}).get(FOLDED)):
            account[file.table] += file.rows
    if purge and not set(gone) <= set(live or {}):
        raise ValueError("to purge, all live files must be given in live")
    kept = {
        table: sorted(set((live or {})[table]["path"].to_pylist()) - set(rows["path"].to_pylist()))
        for table, rows in gone.items()
        if purge
    }
    body = {
        "writer": f"ranklake {ranklake.__version__}",
        "add": [{**asdict(file), "partition": file.partition.isoformat()} for file in add],
        "remove": {
            table: [{**row, "date": row["date"].isoformat()} for row in rows.to_pylist()]
            for table, rows in gone.items()
        },
        "purge": purge,
        "kept": kept,
        "data_change": data_change,
        "account": account,
        "facts": dict(facts or {}),
    }
    return Plan(number, kind, time.time_ns() // 1000, body)


def execute(lake: "Lake", plan: Plan, _workers: object = None, _progress: object = None) -> None:
    """Carry out the plan, again if need be; it is nothing but commits, so it needs no workers.

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
    known, data_change = lake.contract(table), _changes_data(plan)
    for tries_left in reversed(range(_TRIES)):
        handle = ensure_table(lake.tables, known)
        if known.kind == "derived" and add and not _are_live(handle, remove):
            add, remove = [], None  # a rollup replaced them meanwhile; beside its rows they would stand twice
        if not data_change and not (_are_live(handle, remove) and _are_there(lake.store, add)):
            return
        try:
            swap_plan(handle, plan.number, add=add, remove=remove, metadata=metadata, data_change=data_change)
        except LostRaceError:
            # Others append to system tables at any time, and no later plan comes to its turn before this one.
            if data_change or known.kind != "system" or not tries_left:
                raise
        else:
            return


def _fence(lake: "Lake", plan: Plan) -> None:
    """Have rollups begin again that read what was there before the plan, those that never wrote among them."""
    for known in lake.contracts().values():
        if known.kind == "derived":
            fence(delta_table(lake.store, known.table) or ensure_table(lake.tables, known), plan.number)


def _changes_data(plan: Plan) -> bool:
    return bool(plan.body.get("data_change", True))


def _finish(
    tables: "Tables",
    plan: Plan,
    added: Mapping[str, list[DataFile]],
    merged: pa.Table | None,
    metadata: Mapping[str, str],
) -> None:
    """Commit the ledger's row, and with it what the plan does to the ledger's own files, for the ledger is last."""
    ledger = ensure_table(tables, contract(LEDGER))
    if number_of(ledger) >= plan.number:
        return
    account = plan.body["account"]
    moved = [] if "rejects" in plan.body["remove"] else added.get("rejects", [])
    rejected = sum(file.rows for file in moved)
    row = ledger_row(plan, account, rows_stored=sum(account.values()), rows_rejected=rejected)
    new = row_files(tables.store, LEDGER, [row], plan.number)
    into = added.get(LEDGER, [])
    if merged is not None and _are_live(ledger, merged) and _are_there(tables.store, into):
        swap(ledger, plan.number, add=[*into, *new], remove=merged, metadata=metadata)
    else:
        swap(ledger, plan.number, add=new, metadata=metadata)


def _are_live(handle: "DeltaTable", files: pa.Table | None) -> bool:
    """Return whether files are all live: files that were merged must not come beside a table that was built again."""
    return files is None or live_paths(handle).issuperset(files["path"].to_pylist())


def _are_there(store: "Store", merged: Iterable[DataFile]) -> bool:
    """Return whether files that others were merged into are there: until they are committed no log names them.

    So an erasure, or a vacuum without a grace period, may take them for left behind while their plan is composed.
    """
    return all(store.fs.exists(store.path("tables", file.table, file.path)) for file in merged)


def purge(lake: "Lake", plan: Plan, spare: Mapping[str, Iterable[str]] | None = None) -> None:
    """Delete what was removed, and what is left of the same rows from before they were merged or rewritten.

    So go the versions that a bucket keeps of them, unless it has them locked (`ranklake.lake.store.files`).
    Whatever a later plan writes there has a higher number, or its composer gives it up
    (`ranklake.lake.ingest.maintenance.compaction`). What the plan left live, or made so, is no business of whoever
    comes late, when later plans may have replaced it. Derived tables count numbers of their own, so of theirs only the
    files that the plan names can be distinguished from those that a rollup is about to commit. Can be called again.

    Parameters
    ----------
    spare
        Per table, further files that stay.
    """
    added = {(row["table"], row["path"]) for row in plan.body["add"]}
    for table, rows in plan.body["remove"].items():
        paths = {row["path"] for row in rows}
        if KINDS[plan.kind].purges_dates and lake.contract(table).kind != "derived":
            spared = {path for owner, path in added if owner == table} | set(plan.body["kept"].get(table, []))
            spared |= set((spare or {}).get(table, ()))
            paths |= _left_behind(lake.store, table, {path.rpartition("/")[0] for path in paths}, plan.number) - spared
        for path in paths:
            delete(lake.store, lake.path("tables", table, path))  # an earlier try may have come this far
    for days in (plan.body.get("facts") or {}).get(QUARANTINED, {}).values():
        for sha256 in itertools.chain.from_iterable(days.values()):
            delete(lake.store, lake.path("quarantine", sha256))
    remove_dead(lake.fs, purged_places(lake, plan))


def purged_places(lake: "Lake", plan: Plan) -> list[str]:
    """Return what the paths begin with of all that a plan deletes, for whoever looks after the bucket's versions."""
    places = set()
    for table, rows in plan.body["remove"].items():
        whole = KINDS[plan.kind].purges_dates and lake.contract(table).kind != "derived"
        paths = {row["path"] for row in rows}
        places |= {lake.path("tables", table, f"{path.rpartition('/')[0]}/" if whole else path) for path in paths}
    for days in (plan.body.get("facts") or {}).get(QUARANTINED, {}).values():
        places |= {lake.path("quarantine", sha256) for some in days.values() for sha256 in some}
    return sorted(places)


def purged_dates(plan: Plan) -> set[tuple[str, str]]:
    """Return the tables and dates (ISO) of which a plan deletes all that it does not know to be live."""
    rows_by_table = plan.body["remove"] if plan.body.get("purge") else {}
    return {(table, row["date"]) for table, rows in rows_by_table.items() for row in rows}


def _left_behind(store: "Store", table: str, folders: set[str], number: int) -> set[str]:
    root = store.path("tables", table)
    there = {one.path.removeprefix(f"{root}/") for folder in folders for one in listed(store.fs, f"{root}/{folder}")}
    handle = last_table(store, table)
    if handle is not None and number_of(handle) < number:  # the plan's own commit is not to be seen for now
        raise LakeUnreachableError(f"the log lacks plan {number}", where=handle.table_uri, hint="run it again")
    live = set() if handle is None else live_paths(handle)
    return {path for path in there - live if (plan := plan_of(path)) is not None and plan <= number}


def live_files(lake: "Lake", table: str, partitions: Sequence[date]) -> pa.Table:
    """Return a table's live files in some partitions (none where it was never written), for `compose`.

    Raises `ranklake.lake.tables.tables.NewerTableError`: what rewrote them would lose what it does not know.
    """
    handle = delta_table(lake.store, table)
    if handle is None:
        return FILE_SCHEMA.empty_table()
    return files(refuse_unfit(handle, lake.contract(table)), partitions)


def change_rows(
    tables: "Tables", target: "Contract", number: int, files: pa.Table, change: Callable[[pa.Table], pa.Table]
) -> Iterator[DataFile]:
    """Write files anew with rows that `change` makes of theirs, as many each; commit nothing.

    Yields the new files. At most one file's rows are held at a time. Raises
    `ranklake.lake.tables.live_files.DamagedFileError`.
    """
    for _, rows in read_some(tables, target, files, verify=True):
        changed = change(rows)
        if changed.num_rows != rows.num_rows:
            raise ValueError("rows came or went where values were to change")
        yield from append_files(tables.store, target, changed, number)


def take_rows_out(
    tables: "Tables", target: "Contract", number: int, candidates: pa.Table, select: Callable[[pa.Table], pa.Array]
) -> Iterator[tuple[pa.Table, list[DataFile], pa.Table]]:
    """Rewrite files without the rows that `select` marks, one file at a time; commit nothing.

    Parameters
    ----------
    number
        The plan this is for.
    candidates
        Files to look into: rows of `live_files`.
    select
        Given a file's rows, returns a boolean array, true where a row goes.

    Yields for each file in which something is marked: the file to drop (one row of `candidates`), the files that
    replace it, and the rows taken out. At most one file's rows are held at a time. Raises
    `ranklake.lake.tables.live_files.DamagedFileError`: what is damaged is not rewritten.
    """
    for path, rows in read_some(tables, target, candidates, verify=True):
        mask = select(rows)
        if not pc.any(mask).as_py():
            continue
        kept = rows.filter(pc.invert(mask))
        added = append_files(tables.store, target, kept, number) if kept.num_rows else []
        yield candidates.filter(pc.equal(candidates["path"], path)), added, rows.filter(mask)
