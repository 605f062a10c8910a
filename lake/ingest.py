"""Ingest: new segments of the spool become rows of the tables, exactly once.

The driver composes a plan, hands its groups to workers, and commits: fact tables, then ``rejects``, then
``segments``, and ``ingest_plans`` last. It can die anywhere: the next driver finds the plan unfinished and carries it
out again; tables that have the plan's number are counted again but not written again.
"""

import itertools
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Protocol

import pyarrow as pa

import ranklake
from ranklake.lake.commit import append_files, number_of, swap
from ranklake.lake.compact import Compacted, Group, compact
from ranklake.lake.contracts.arrow import arrow_schema
from ranklake.lake.contracts.load import contract
from ranklake.lake.plan import LEDGER, Plan, propose_and_carry_out
from ranklake.lake.read import read
from ranklake.lake.spool import Spool, Spooled
from ranklake.lake.tables import delta_table, ensure_table

if TYPE_CHECKING:
    from ranklake.lake.store import Lake
    from ranklake.lake.workers import Workers

PLAN_SEGMENTS = 20_000
GROUP_ROWS = 2_000_000
GROUP_BYTES = 128 * 2**20


class Progress(Protocol):
    """Told how many tasks a plan has and when each is done."""

    def __call__(self, done: int, total: int) -> None:
        """Report."""


@dataclass(frozen=True, slots=True)
class Ingested:
    """What one call of `ingest` did.

    Attributes
    ----------
    plans
        Numbers of the plans this call proposed and finished; empty if the spool held nothing new.
    segments, unreadable
        Segments in them, and how many of those could not be read.
    rows_stored, rows_rejected, rows_duplicate
        Rows by fate.
    purged
        Old segments removed from the spool.
    elapsed_s
        Wall seconds.
    """

    plans: list[int]
    segments: int
    unreadable: int
    rows_stored: int
    rows_rejected: int
    rows_duplicate: int
    purged: int
    elapsed_s: float


def ingest(
    lake: "Lake", spool: Spool, workers: "Workers", *, keep_days: int = 7, progress: Progress | None = None
) -> Ingested:
    """Bring everything new in the spool into the lake.

    Parameters
    ----------
    keep_days
        Segments stay in the spool that long after their plan is finished, for replay.
    """
    started = time.monotonic()
    outcomes: dict[int, list[dict[str, Any]]] = {}

    def compose(number: int) -> Plan | None:
        return _compose(lake, spool, number)

    def carry_out(plan: Plan) -> None:
        outcomes[plan.number] = execute(lake, plan, workers, progress)

    plans = []
    while (plan := propose_and_carry_out(lake, compose, carry_out)) is not None:
        plans.append(plan.number)
    purged = 0
    if delta_table(lake, "segments") is not None:
        kept = read(lake, contract("segments"), ["uri_name", "date"])
        purged = spool.purge(kept, datetime.now(UTC).date(), keep_days)
    rows = [row for number in plans for row in outcomes.get(number, [])]
    return Ingested(
        plans,
        len(rows),
        sum(row["unreadable"] is not None for row in rows),
        *(sum(row[name] for row in rows) for name in ("rows_stored", "rows_rejected", "rows_duplicate")),
        purged=purged,
        elapsed_s=time.monotonic() - started,
    )


def _compose(lake: "Lake", spool: Spool, number: int) -> Plan | None:
    known = read(lake, contract("segments"), ["sha256", "table", "incarnation", "segment"])
    digests = set(known["sha256"].to_pylist())
    new = {item.sha256: item for item in spool.listing() if item.sha256 not in digests}
    if not new:
        return None
    slots = set(zip(*(known[name].to_pylist() for name in ("table", "incarnation", "segment")), strict=True))
    chosen = list(new.values())[:PLAN_SEGMENTS]
    tables = sorted({item.table for item in chosen})
    body = {
        "spool": spool.uri,
        "writer": f"ranklake {ranklake.__version__}",
        "versions": {table: _version(lake, table) for table in [*tables, "rejects"]},
        "segments": [
            {
                "path": item.path,
                "table": item.table,
                "bytes": item.size_bytes,
                "rows": item.name.rows if item.name else 0,
                "sha256": item.sha256,
                "resent": item.name is not None and _slot_file(item) in slots,
            }
            for item in chosen
        ],
    }
    return Plan(number, "ingest", time.time_ns() // 1000, body)


def _slot_file(item: Spooled) -> tuple[str, int, int]:
    assert item.name is not None
    return (item.table, item.name.incarnation, item.name.segment)


def _version(lake: "Lake", table: str) -> int:
    found = delta_table(lake, table)
    return -1 if found is None else found.version()


def execute(lake: "Lake", plan: Plan, workers: "Workers", progress: Progress | None = None) -> list[dict[str, Any]]:
    """Carry out an ingest plan, again if need be; return the account of its segments (rows of the table ``segments``).

    Raises `ranklake.lake.commit.LostRaceError` where another driver carries out the same plan and won; whoever asked
    then looks again which plan is unfinished.
    """
    created = datetime.fromtimestamp(0, UTC) + timedelta(microseconds=plan.created_us)
    groups = list(_groups(lake, plan, created))
    counter = itertools.count(1)
    done: Callable[[], None] | None = None
    if progress is not None:
        progress(0, len(groups))
        done = lambda: progress(next(counter), len(groups))  # noqa: E731 - one line at its one place of use
    results = workers.run(compact, groups, done)

    by_table: dict[str, list[Compacted]] = {}
    for group, result in zip(groups, results, strict=True):
        by_table.setdefault(group.table, []).append(result)
    metadata = {"ranklake.plan": str(plan.number), "ranklake.kind": plan.kind}
    for table, parts in by_table.items():
        new = [file for part in parts for file in part.files]
        if new:
            swap(ensure_table(lake, contract(table)), plan.number, add=new, metadata=metadata)
    rejected = [file for part in results for file in part.rejects]
    if rejected:
        swap(ensure_table(lake, contract("rejects")), plan.number, add=rejected, metadata=metadata)
    outcomes = [{**row, "plan": plan.number, "date": created.date()} for part in results for row in part.outcomes]
    commit_rows(lake, "segments", outcomes, plan.number)
    commit_rows(lake, LEDGER, [_ledger_row(plan, created, outcomes)], plan.number)
    return outcomes


def commit_rows(lake: "Lake", table: str, rows: list[dict[str, Any]], number: int) -> bool:
    """Append rows, given as dicts, to a system table under a plan's number; return whether this call did it."""
    handle = ensure_table(lake, contract(table))
    if number_of(handle) >= number:
        return False
    batch = pa.Table.from_pylist(rows, schema=arrow_schema(contract(table)))
    new = append_files(lake, contract(table), batch, number)
    return swap(handle, number, add=new, metadata={"ranklake.plan": str(number)})


def _groups(lake: "Lake", plan: Plan, created: datetime) -> Iterator[Group]:
    """Cut a plan into tasks: segments of one slot file stay together, so that their repeats meet."""
    versions = plan.body["versions"]
    rejects_done = _number(lake, "rejects") >= plan.number
    by_table = itertools.groupby(plan.body["segments"], key=lambda row: row["table"])
    for table, segments in by_table:
        stored = _number(lake, table) >= plan.number
        for chunk in _chunks(list(segments)):
            yield Group(
                lake.uri,
                plan.body["spool"],
                lake.storage,
                table,
                chunk,
                plan.number,
                created,
                versions[table],
                versions["rejects"],
                store_rows=not stored,
                store_rejects=not rejects_done,
            )


def _number(lake: "Lake", table: str) -> int:
    found = delta_table(lake, table)
    return 0 if found is None else number_of(found)


def _chunks(segments: list[dict[str, Any]]) -> Iterator[list[dict[str, Any]]]:
    chunk: list[dict[str, Any]] = []
    rows = size = 0
    stem = ""
    for segment in segments:
        here = segment["path"].rpartition("/")[2].rsplit("~", 2)[0]  # without rows and digest: the slot file
        full = rows + segment["rows"] > GROUP_ROWS or size + segment["bytes"] > GROUP_BYTES
        if chunk and full and here != stem:
            yield chunk
            chunk, rows, size = [], 0, 0
        chunk.append(segment)
        rows, size, stem = rows + segment["rows"], size + segment["bytes"], here
    yield chunk


def _ledger_row(plan: Plan, created: datetime, outcomes: list[dict[str, Any]]) -> dict[str, Any]:
    sums = {name: sum(row[name] for row in outcomes) for name in ("rows_stored", "rows_rejected", "rows_duplicate")}
    per_table: dict[str, int] = {}
    for row in outcomes:
        per_table[row["table"]] = per_table.get(row["table"], 0) + row["rows_stored"]
    return {
        "plan": plan.number,
        "kind": plan.kind,
        "created_ts": created,
        "committed_ts": datetime.now(UTC),
        "tables": json.dumps(per_table, sort_keys=True),
        "segments": len(outcomes),
        "rows_recorded": sum(row["rows"] or 0 for row in outcomes),
        **sums,
        "writer": plan.body["writer"],
        "date": created.date(),
    }
