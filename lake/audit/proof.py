"""Verifies that the audit trail is intact: its chain, its own count, and its heads outside the table.

An export (lines of JSON as ``ranklake audit export`` prints them) is verified without a lake. A row that is altered
shows, and so does one that is missing between others, unless a filter left it out. That rows are missing at the end no
export can tell: compare its last digest with a head record, or with an anchor.
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
    """What is known of a trail.

    Attributes
    ----------
    rows
        In the table.
    broken
        Number of the first row that is missing, repeated or altered; None if the trail is whole.
    why
        What is wrong, in words; empty if the trail is whole.
    lost
        First and last number of rows that are missing, where a row of action ``audit.resume`` says that they are.
    witnessed
        Rows that each place outside the table vouches for, by place.
    since
        First row that was verified: those before it stand on the head record of that many rows.
    """

    rows: int
    broken: int | None
    why: str
    lost: tuple[tuple[int, int], ...]
    witnessed: dict[str, int]
    since: int = 0

    @property
    def whole(self) -> bool:
        """Whether nothing is wrong."""
        return self.broken is None


def prove(lake: "Lake", since: int = 0) -> Proof:
    """Read the trail and check it against its count and its heads.

    Parameters
    ----------
    since
        A row; those before the last head at or before it are not read, and nothing is said of them. The head is that of
        the witness, where one is configured: whoever writes the lake cannot have made it.

    Raises `ranklake.lake.audit.chain.HeadError` where a head record cannot be read, and what the store raises.
    """
    places = head_records(lake)
    heads = {place.where: place.last() for place in places}  # before the table, which is never behind them
    start = places[-1].before(since) if since else Head()
    handle = delta_table(lake.store, TABLE)
    rows = trail_table(lake.tables, handle, start.rows)
    chain = follow_table(rows, start)
    broken, why = _chain_fault(chain, handle)
    for where, head in heads.items():
        at, said_so = _head_mismatch(chain, rows, where, head)
        if at is not None and (broken is None or at < broken):
            broken, why = at, said_so
    witnessed = {where: head.rows for where, head in heads.items()}
    return Proof(rows.num_rows, broken, why, chain.lost, witnessed, start.rows)


def first_row_of(tables: "Tables", day: date) -> int:
    """Return the number of the first row that was written on a date (UTC) or later; rows so far if none was."""
    handle = delta_table(tables.store, TABLE)
    if handle is None:
        return 0
    late = files(handle)
    late = late.filter(pc.greater_equal(late["date"], pa.scalar(day, pa.date32())))
    numbers = [pc.min(rows["seq"]).as_py() for _, rows in read_some(tables, contract(TABLE), late, ["seq"])]
    return min(numbers, default=transaction_number(handle, ROWS) or 0)


def verify(lake: "Lake") -> int | None:
    """Return the number of the first row that is missing, repeated or altered; None if the trail is whole."""
    return prove(lake).broken


def _chain_fault(chain: Chain, handle: "DeltaTable | None") -> tuple[int | None, str]:
    """Return the first row that is wrong by the chain itself, or by the count in the table's log."""
    if chain.broken is not None:
        return chain.broken, f"row {chain.broken} is missing, repeated or altered"
    counted = 0 if handle is None else transaction_number(handle, ROWS)
    if counted is not None and counted != chain.head.rows:
        return chain.head.rows, f"the trail ends at row {chain.head.rows - 1}, and its log counts {counted} rows"
    return None, ""


def _head_mismatch(chain: Chain, rows: pa.Table, where: str, head: Head) -> tuple[int | None, str]:
    """Return the first row that is wrong by a head, and what is."""
    if head.rows > chain.head.rows and chain.broken is None:
        return chain.head.rows, f"{where} vouches for {head.rows} rows, and {chain.head.rows} are there"
    place = pc.index(rows["seq"], pa.scalar(head.rows - 1, pa.int64())).as_py()
    if place >= 0 and rows["sha256"][place].as_py() != head.sha256:
        return max(head.rows - 1, 0), f"row {head.rows - 1} is not the one that {where} vouches for"
    return None, ""


_COLUMNS: Final = frozenset(
    {"seq", "ts", "actor", "action", "subject", "reason", "details", "prev_sha256", "sha256", "date"}
)


class NoExportError(RanklakeError):
    """Lines that are no export of an audit trail as JSON."""

    def __init__(self, line: int) -> None:
        hint = "give what 'ranklake audit export' printed as JSON, without --role"
        super().__init__(f"line {line:,} is no row of an audit trail", hint=hint)
        self.line = line

    def __reduce__(self) -> tuple[type["NoExportError"], tuple[int]]:
        return type(self), (self.line,)


@dataclass(frozen=True, slots=True)
class ExportProof:
    """What is known of exported rows.

    Attributes
    ----------
    rows, first, last
        How many rows there are, and the numbers of the first and the last; None without rows.
    head
        Digest of the last row; empty without rows.
    missing
        Rows that are missing between them, or before the first.
    broken
        Number of the first row that is altered, repeated, or does not follow the one before; None if all hold.
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
    head, missing = GENESIS, 0
    for place, row in enumerate(rows):
        number, before = numbers[place], numbers[place - 1] if place else -1
        follows = number == before + 1
        if number == before or row["sha256"] != digest(row) or (follows and row["prev_sha256"] != head):
            return ExportProof(len(rows), numbers[0], numbers[-1], rows[-1]["sha256"], missing, number)
        missing += number - before - 1
        head = row["sha256"]
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
