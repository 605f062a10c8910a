"""Disowning: what a segment or a stream says of itself cannot be, and somebody answers for setting it aside.

    audit row (begun) ─▶ one numbered plan: rows from the table to ``rejects``, a row of ``disowned`` ─▶ audit row

From then on its claims do not count when rows are reconciled (`ranklake.lake.ingest.status.reconciliation`). A process
that dies before the plan is written leaves files that no commit names. One that dies later leaves a plan that the next
driver finishes; the next call of the same writes the missing row of the audit log.
"""

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from ranklake.errors import RanklakeError
from ranklake.lake.audit import trail as audit
from ranklake.lake.contracts.load import contract
from ranklake.lake.ingest.disowned import DISOWN, TABLE, Claim, claim_of, disowned_claims
from ranklake.lake.ingest.rejects import REJECTED_ROWS, reject_rows
from ranklake.lake.plans import action_plan
from ranklake.lake.plans.driver import drive
from ranklake.lake.plans.kinds import QUARANTINE
from ranklake.lake.plans.plan import row_files
from ranklake.lake.plans.workers import InProcess
from ranklake.lake.tables.live_files import files
from ranklake.lake.tables.parquet import append_files
from ranklake.lake.tables.read import read
from ranklake.lake.tables.tables import delta_table, refuse_unfit

if TYPE_CHECKING:
    from ranklake.lake.contracts.model import Contract
    from ranklake.lake.plans.plan import Plan
    from ranklake.lake.store.lake import Lake
    from ranklake.lake.store.store import Store
    from ranklake.lake.store.tables import Tables
    from ranklake.lake.tables.live_files import DataFile

REASON: Final = "disowned: set aside by hand"
_STREAM: Final = ("run", "attempt", "rank", "incarnation")


class NothingClaimedError(RanklakeError):
    """No segment that was taken in is one of those that are to be set aside."""


@dataclass(frozen=True, slots=True)
class DisownResult:
    """What was done: the plan that did it, the rows it moved, and whether this call did it."""

    claim: Claim
    plan: int
    rows: int
    fresh: bool


def disown(lake: "Lake", claim: Claim, by: str, reason: str) -> DisownResult:
    """Set a segment or a stream aside: its rows go to ``rejects``, and what it says does not count any more.

    What was set aside already stays so; rows of it that came since go, too. Raises `NothingClaimedError`, and what the
    trail and the store raise; nothing was changed then.
    """
    _segments(lake.tables, claim)

    def compose(number: int) -> "Plan | None":
        return _compose(lake, claim, number, by, reason)

    fresh = drive(lake, compose, InProcess()).plan is not None
    row = max(
        (row for row in read(lake.tables, contract(TABLE)).to_pylist() if claim_of(row) == claim),
        key=lambda row: row["plan"],
    )
    audit.record(lake, by, "disowned", f"{claim} by plan {row['plan']}", None, {"rows": row["rows"]}, once=True)
    return DisownResult(claim, row["plan"], row["rows"], fresh)


def _segments(tables: "Tables", claim: Claim) -> list[dict[str, Any]]:
    """Return the rows of ``segments`` that a claim covers. Raises `NothingClaimedError`."""
    names = ["table", *_STREAM, "segment", "ts_min", "ts_max", "rows_stored"]
    known = read(tables, contract("segments"), names)
    mine = known.filter(_of_stream(known, claim.stream)).to_pylist()
    covered = [row for row in mine if claim.covers(row["table"], claim.stream, row["segment"])]
    if not covered:
        hint = "'ranklake status' names streams that do not add up; ask the table segments for others"
        raise NothingClaimedError("nothing of this was ever ingested", where=str(claim), hint=hint)
    return covered


def _of_stream(rows: pa.Table, stream: tuple[Any, ...]) -> pa.ChunkedArray:
    """Return true where a row is a stream's."""
    mask = pc.equal(rows["incarnation"], pa.scalar(stream[3], rows["incarnation"].type))
    for name, value in zip(_STREAM[:3], stream[:3], strict=True):
        mask = pc.and_(mask, pc.equal(rows[name], pa.scalar(value, rows[name].type)))
    return pc.fill_null(mask, fill_value=False)


def _compose(lake: "Lake", claim: Claim, number: int, by: str, reason: str) -> "Plan | None":
    """Write the files of the plan; None where it is set aside already and no row of it is in a table."""
    begun = claim in disowned_claims(lake.tables)
    new: list[DataFile] = []
    gone: dict[str, pa.Table] = {}
    moved, when = 0, datetime.now(UTC)
    by_table: dict[str, list[dict[str, Any]]] = {}
    for row in _segments(lake.tables, claim):
        by_table.setdefault(row["table"], []).append(row)
    if not begun:
        audit.record(lake, by, DISOWN, str(claim), reason, {"segments": sum(map(len, by_table.values()))}, once=True)
    for table, rows in sorted(by_table.items()):
        if not any(row["rows_stored"] for row in rows):
            continue
        target = lake.contract(table)
        candidates = _candidates(lake, table, rows)
        dropped = []
        for drop, added, taken in action_plan.take_rows_out(
            lake.tables, target, number, candidates, lambda batch: _rows_of(batch, claim)
        ):
            dropped.append(drop)
            new += [*added, *_reject_rows(lake.store, target, taken, number, when)]
            moved += taken.num_rows
        if dropped:
            gone[table] = pa.concat_tables(dropped)
    if begun and not gone:
        return None
    run, attempt, rank, incarnation = claim.stream
    facts = {"run": run, "attempt": attempt, "rank": rank, "incarnation": incarnation, "segment": claim.segment}
    row = {"plan": number, "table": claim.table, **facts, "rows": moved, "actor": by, "reason": reason}
    new += row_files(lake.store, TABLE, [{**row, "ts": when, "date": when.date()}], number)
    return action_plan.compose(number, QUARANTINE.name, add=new, remove=gone, facts={"disowned": str(claim)})


def _rows_of(rows: pa.Table, claim: Claim) -> pa.ChunkedArray:
    mask = _of_stream(rows, claim.stream)
    return mask if claim.segment is None else pc.and_(mask, pc.equal(rows["segment"], claim.segment))


def _reject_rows(store: "Store", target: "Contract", taken: pa.Table, number: int, when: datetime) -> "list[DataFile]":
    written: list[DataFile] = []
    for at in range(0, taken.num_rows, REJECTED_ROWS):
        batch = taken.slice(at, REJECTED_ROWS)
        reasons = pa.repeat(REASON, batch.num_rows)
        rows = reject_rows(batch, reasons, [None] * batch.num_rows, "disown", target, number, when)
        written += append_files(store, contract("rejects"), rows, number)
    return written


def _candidates(lake: "Lake", table: str, segments: list[dict[str, Any]]) -> pa.Table:
    """Return the live files that rows of some segments can lie in; where nobody knows their times, all."""
    handle = delta_table(lake.store, table)
    assert handle is not None, "rows were stored"
    live = files(refuse_unfit(handle, lake.contract(table)))
    ends = [row[name] for row in segments for name in ("ts_min", "ts_max")]
    if None in ends:
        return live
    first, last = (pa.scalar(end.date(), pa.date32()) for end in (min(ends), max(ends)))
    return live.filter(pc.and_(pc.greater_equal(live["date"], first), pc.less_equal(live["date"], last)))
