"""Plans whose commits are spelled out: retention, quarantine by checks, erasure, migration.

Whoever composes one writes the new data files first and names them in the plan, together with the files that they
replace. Carrying it out is then nothing but commits, so anybody can do it, again and again. Files of a plan that was
never written are orphans that no commit names.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from datetime import date
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

import ranklake
from ranklake.lake.commit import append_files, files, swap_plan
from ranklake.lake.contracts.load import contract
from ranklake.lake.ledger import commit_rows, ledger_row
from ranklake.lake.parquet import DataFile
from ranklake.lake.plan import LEDGER, Plan
from ranklake.lake.read import read_some
from ranklake.lake.tables import delta_table, ensure_table

if TYPE_CHECKING:
    from ranklake.lake.contracts.model import Contract
    from ranklake.lake.store import Lake


def compose(
    number: int,
    kind: str,
    *,
    add: Sequence[DataFile] = (),
    remove: Mapping[str, pa.Table] | None = None,
    purge: bool = False,
    facts: Mapping[str, Any] | None = None,
) -> Plan:
    """Return a plan that spells out its commits.

    Parameters
    ----------
    add
        New files of any tables; they exist already.
    remove
        Per table, the files to drop: rows of `ranklake.lake.commit.files`.
    purge
        Whether the bytes of removed files go too, after the commits; else they stay readable by time travel until
        upkeep.
    facts
        Further plain JSON values for people and audits.
    """
    gone = {table: rows.select(["path", "size_bytes", "num_records", "date"]) for table, rows in (remove or {}).items()}
    account: dict[str, int] = {}
    for table, rows in gone.items():
        account[table] = -int(pc.sum(rows["num_records"]).as_py() or 0)
    for file in add:
        if file.table in gone:
            account[file.table] += file.rows
    body = {
        "writer": f"ranklake {ranklake.__version__}",
        "add": [{**asdict(file), "partition": file.partition.isoformat()} for file in add],
        "remove": {
            table: [{**row, "date": row["date"].isoformat()} for row in rows.to_pylist()]
            for table, rows in gone.items()
        },
        "purge": purge,
        "account": account,
        "facts": dict(facts or {}),
    }
    return Plan(number, kind, time.time_ns() // 1000, body)


def execute(lake: "Lake", plan: Plan) -> None:
    """Carry out the plan, again if need be. Raises `ranklake.lake.commit.LostRaceError`."""
    added: dict[str, list[DataFile]] = {}
    for row in plan.body["add"]:
        file = DataFile(**{**row, "partition": date.fromisoformat(row["partition"])})
        added.setdefault(file.table, []).append(file)
    metadata = {"ranklake.plan": str(plan.number), "ranklake.kind": plan.kind}
    for table in sorted({*added, *plan.body["remove"]}):
        dropped = pa.Table.from_pylist(
            [{**row, "date": date.fromisoformat(row["date"])} for row in plan.body["remove"].get(table, [])]
        )
        handle = delta_table(lake, table) or ensure_table(lake, contract(table))
        swap_plan(
            handle,
            plan.number,
            add=added.get(table, []),
            remove=dropped if dropped.num_rows else None,
            metadata=metadata,
        )
    if plan.body["purge"]:
        _purge(lake, plan)
    account = plan.body["account"]
    rejected = sum(file.rows for file in added.get("rejects", []))
    row = ledger_row(plan, account, rows_stored=sum(account.values()), rows_rejected=rejected)
    commit_rows(lake, LEDGER, [row], plan.number)


def _purge(lake: "Lake", plan: Plan) -> None:
    for table, rows in plan.body["remove"].items():
        for row in rows:
            try:
                lake.fs.rm_file(lake.path("tables", table, row["path"]))
            except FileNotFoundError:  # an earlier try came this far
                continue


def live_files(lake: "Lake", table: str, partitions: Sequence[date]) -> pa.Table:
    """Return a table's live files in some partitions (none where it was never written), for `compose`."""
    handle = delta_table(lake, table)
    if handle is None:
        columns = {"path": pa.string(), "size_bytes": pa.int64(), "num_records": pa.int64(), "date": pa.date32()}
        return pa.schema(columns).empty_table()
    return files(handle, partitions)


def take_rows_out(
    lake: "Lake", target: "Contract", number: int, candidates: pa.Table, select: Callable[[pa.Table], pa.Array]
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
    replace it, and the rows taken out. At most one file's rows are held at a time.
    """
    for path, rows in read_some(lake, target, candidates):
        mask = select(rows)
        if not pc.any(mask).as_py():
            continue
        kept = rows.filter(pc.invert(mask))
        added = append_files(lake, target, kept, number) if kept.num_rows else []
        yield candidates.filter(pc.equal(candidates["path"], path)), added, rows.filter(mask)
