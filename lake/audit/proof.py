"""Verifies that the audit log is intact: its chain, the count in its Delta log, and its heads outside the table.

An export (JSON lines from ``ranklake audit export``) can be verified without a lake. The check finds
altered rows. It finds missing rows between others, but cannot tell deleted rows from those that a filter left out. An
export cannot show whether rows are missing at its end: compare its last digest with a head record or with an anchor.
"""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import date, datetime
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from ranklake.errors import RanklakeError
from ranklake.lake.audit.chain import GENESIS, Chain, Head, digest, follow_table, head_records
from ranklake.lake.audit.trail import ROWS, TABLE, trail_table
from ranklake.lake.contracts.load import contract
from ranklake.lake.tables.commit import transaction_number
from ranklake.lake.tables.live_files import files
from ranklake.lake.tables.read import read_some
from ranklake.lake.tables.tables import delta_table

if TYPE_CHECKING:
    from deltalake import DeltaTable

    from ranklake.lake.store.lake import Lake
    from ranklake.lake.store.tables import Tables


@dataclass(frozen=True, slots=True)
class Proof:
    """Result of verifying the audit log.

    Attributes
    ----------
    rows
        Number of rows that were read.
    broken
        Number of the first row that is missing, repeated or altered; None if the audit log is intact.
    why
        A text that says what is wrong; empty if the audit log is intact.
    lost
        Ranges (first and last number) of missing rows that a row of action ``audit.resume`` acknowledges.
    witnessed
        Number of rows in the last head record, by URI of the records.
    since
        Number of the first verified row. Earlier rows are not read; the head record for them is trusted.
    """

    rows: int
    broken: int | None
    why: str
    lost: tuple[tuple[int, int], ...]
    witnessed: dict[str, int]
    since: int = 0

    @property
    def whole(self) -> bool:
        """Whether the audit log is intact."""
        return self.broken is None


def prove(lake: "Lake", since: int = 0) -> Proof:
    """Read the audit log and verify it against its count and its heads.

    Parameters
    ----------
    since
        Number of the first row of interest. Verification starts at the last head at or before it; earlier rows are not
        checked. If a witness is configured, its head is used, which writers of the lake cannot forge.

    Raises `ranklake.lake.audit.chain.HeadError` if a head record cannot be read, and what the store raises.
    """
    records = head_records(lake)
    heads = {record.where: record.last() for record in records}  # read before the table, which must have as many rows
    start = records[-1].before(since) if since else Head()  # the witness's record is the last, if there is a witness
    handle = delta_table(lake.store, TABLE)
    rows = trail_table(lake.tables, handle, start.rows)
    chain = follow_table(rows, start)
    broken, why = _chain_fault(chain, handle)
    for where, head in heads.items():
        at, problem = _head_mismatch(chain, rows, where, head)
        if at is not None and (broken is None or at < broken):
            broken, why = at, problem
    witnessed = {where: head.rows for where, head in heads.items()}
    return Proof(rows.num_rows, broken, why, chain.lost, witnessed, start.rows)


def first_row_of(tables: "Tables", day: date) -> int:
    """Return the number of the first row from a date (UTC) or later; the number of all rows if there is none."""
    handle = delta_table(tables.store, TABLE)
    if handle is None:
        return 0
    late = files(handle)
    late = late.filter(pc.greater_equal(late["date"], pa.scalar(day, pa.date32())))
    numbers = [pc.min(rows["seq"]).as_py() for _, rows in read_some(tables, contract(TABLE), late, ["seq"])]
    return min(numbers, default=transaction_number(handle, ROWS) or 0)


def verify(lake: "Lake") -> int | None:
    """Return the number of the first row that is missing, repeated or altered; None if the audit log is intact."""
    return prove(lake).broken


def _chain_fault(chain: Chain, handle: "DeltaTable | None") -> tuple[int | None, str]:
    """Return the first bad row by the chain or by the count in the table's log, and a text that says what is wrong."""
    if chain.broken is not None:
        return chain.broken, f"row {chain.broken} is missing, repeated or altered"
    counted = 0 if handle is None else transaction_number(handle, ROWS)
    if counted is not None and counted != chain.head.rows:
        return chain.head.rows, f"the audit log ends at row {chain.head.rows - 1}, and its log counts {counted} rows"
    return None, ""


def _head_mismatch(chain: Chain, rows: pa.Table, where: str, head: Head) -> tuple[int | None, str]:
    """Return the first row that contradicts a head, and a text that says what is wrong."""
    if head.rows > chain.head.rows and chain.broken is None:
        return chain.head.rows, f"{where} vouches for {head.rows} rows, and {chain.head.rows} are there"
    index = pc.index(rows["seq"], pa.scalar(head.rows - 1, pa.int64())).as_py()
    if index >= 0 and rows["sha256"][index].as_py() != head.sha256:
        return max(head.rows - 1, 0), f"row {head.rows - 1} is not the one that {where} vouches for"
    return None, ""


_COLUMNS: Final = frozenset(
    {"seq", "ts", "actor", "action", "subject", "reason", "details", "prev_sha256", "sha256", "date"}
)


class NoExportError(RanklakeError):
    """A line that is no row of a JSON export of an audit log."""

    def __init__(self, line: int) -> None:
        hint = "give what 'ranklake audit export' printed as JSON, without --role"
        super().__init__(f"line {line:,} is no row of an audit log", hint=hint)
        self.line = line

    def __reduce__(self) -> tuple[type["NoExportError"], tuple[int]]:
        return type(self), (self.line,)


@dataclass(frozen=True, slots=True)
class ExportProof:
    """Result of verifying an export.

    Attributes
    ----------
    rows, first, last
        Number of rows, and the numbers of the first and the last row; None without rows.
    head
        Digest of the last row; empty without rows.
    missing
        Number of missing rows before the first and between the rows.
    broken
        Number of the first row that is altered, repeated, or does not continue the chain; None if the export is intact.
    """

    rows: int
    first: int | None
    last: int | None
    head: str
    missing: int
    broken: int | None


def verify_lines(lines: Iterable[str]) -> ExportProof:
    """Verify the lines of an export, in any order. Raises `NoExportError`."""
    rows = sorted((_row(number, line) for number, line in enumerate(lines, 1) if line.strip()), key=_number)
    numbers = [_number(row) for row in rows]
    head, missing, previous = GENESIS, 0, -1
    for number, row in zip(numbers, rows, strict=True):
        follows = number == previous + 1
        if number == previous or row["sha256"] != digest(row) or (follows and row["prev_sha256"] != head):
            return ExportProof(len(rows), numbers[0], numbers[-1], rows[-1]["sha256"], missing, number)
        missing += number - previous - 1
        head, previous = row["sha256"], number
    if not rows:
        return ExportProof(0, None, None, "", 0, None)
    return ExportProof(len(rows), numbers[0], numbers[-1], head, missing, None)


def _number(row: dict[str, Any]) -> int:
    return int(row["seq"])


def _row(number: int, line: str) -> dict[str, Any]:
    try:
        row = json.loads(line)
        if not row.keys() >= _COLUMNS or not isinstance(row["seq"], int):
            raise NoExportError(number)
        if row["details"] is not None and not isinstance(row["details"], str):
            row["details"] = json.dumps(row["details"], sort_keys=True)
        return {**row, "ts": datetime.fromisoformat(row["ts"]), "date": date.fromisoformat(row["date"])}
    except (ValueError, TypeError, AttributeError, RecursionError):
        raise NoExportError(number) from None
