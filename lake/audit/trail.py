"""The audit trail: who did what to governed data, as a chain that shows any alteration.

    heads beside the table, and the witness: how long was it?  ─▶ the table's end: not shorter? ─▶ rows, one commit
        ─▶ the new head, beside the table and at the witness

Rows are appended by compare-and-swap, so that writers at the same time make one chain. The table's log counts them
under an application of its own, since its commits are also those of upkeep, which merges the trail's files as it does
those of others.
"""

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from ranklake.errors import RanklakeError
from ranklake.lake.audit import clock
from ranklake.lake.audit.chain import RESUME, Head, HeadRecords, digest, head_records
from ranklake.lake.contracts.arrow import arrow_schema
from ranklake.lake.contracts.load import contract
from ranklake.lake.plans.plan import row_files
from ranklake.lake.tables.commit import LostRaceError, number_of, swap, transaction_number
from ranklake.lake.tables.live_files import files
from ranklake.lake.tables.read import read, read_some
from ranklake.lake.tables.table_schema import refuse_misread
from ranklake.lake.tables.tables import keep_handle, refresh, take_handle

if TYPE_CHECKING:
    from deltalake import DeltaTable

    from ranklake.lake.store.lake import Lake
    from ranklake.lake.store.store import Store
    from ranklake.lake.store.tables import Tables

TABLE: Final = "audit"
ROWS: Final = "rows"
"""Application under which the log counts the trail's rows, lost ones among them."""
_ONCE: Final = "once "


class BrokenTrailError(RanklakeError):
    """A trail whose end is not what its head records say. Nothing was written.

    Attributes
    ----------
    found, recorded
        Rows in the table, and rows that it had.
    """

    def __init__(self, where: str, actual: int, recorded: int) -> None:
        message = f"the audit trail ends at {actual} rows, and its head record says {recorded}"
        if actual == recorded:
            message = f"the last of {actual} rows of the audit trail is not the one that its head record tells of"
        hint = (
            "restore tables/audit from a backup, or go on behind the gap: ranklake audit resume --by NAME --reason TEXT"
        )
        super().__init__(message, where=where, hint=hint)
        self.rows, self.recorded = actual, recorded


@dataclass(frozen=True, slots=True)
class Entry:
    """A row to append.

    Attributes
    ----------
    actor
        Who did it; pseudonymous data, which goes nowhere but into this row.
    action, subject
        What was done, such as ``retention.approve``, and to what.
    reason
        Why, in the actor's words.
    details
        Facts as plain JSON values, without personal data.
    once
        Append nothing if a row of this action and subject is there: for what may be carried out again after a crash.
        The log holds a digest of both, so such a subject is no person.
    once_for
        What else it is once for, such as a signature: a subject may have several such rows.
    """

    actor: str
    action: str
    subject: str
    reason: str | None = None
    details: Mapping[str, Any] | None = None
    once: bool = False
    once_for: str = ""

    @property
    def mark(self) -> str:
        """Delta application id whose transaction number shows that the row was appended."""
        identity = f"{self.action}\0{self.subject}" + (f"\0{self.once_for}" if self.once_for else "")
        return _ONCE + hashlib.sha256(identity.encode()).hexdigest()[:32]


def record(
    lake: "Lake",
    actor: str,
    action: str,
    subject: str,
    reason: str | None = None,
    details: Mapping[str, Any] | None = None,
    *,
    once: bool = False,
    once_for: str = "",
) -> int | None:
    """Append a row and return its number in the chain, None if it was there; see `Entry` and `record_all`."""
    (number,) = record_all(lake, [Entry(actor, action, subject, reason, details, once, once_for)])
    return number


def record_all(lake: "Lake", entries: Sequence[Entry]) -> list[int | None]:
    """Append rows in one commit; return their numbers in the chain, None for those that were there already.

    What it costs does not depend on how many rows there are. Raises `BrokenTrailError`,
    `ranklake.lake.audit.chain.HeadError` and what the store raises. Killed before the last head is written, the rows
    are there, and the next call writes the head.
    """
    there: list[bool] = []

    def fresh(handle: "DeltaTable") -> tuple[list[Entry], dict[str, int]]:
        there[:] = _already_recorded(handle, entries)
        return [entry for entry, old in zip(entries, there, strict=True) if not old], {}

    numbers = iter(_record(lake, fresh))
    return [None if old else next(numbers) for old in there]


def record_since(lake: "Lake", application: str, compose: Callable[[int], tuple[list[Entry], int]]) -> list[int]:
    """Append rows about all that came since a number, and with them the number that they reach; return theirs.

    Whoever is at it at the same time, or died, each thing has its row once. Raises as `record_all`.

    Parameters
    ----------
    application
        Under which the trail's log keeps the number, 0 at first.
    compose
        Returns the rows for what came after a number, and the number that they reach.
    """

    def since(handle: "DeltaTable") -> tuple[list[Entry], dict[str, int]]:
        entries, number = compose(transaction_number(handle, application) or 0)
        return entries, {application: number}

    return _record(lake, since)


def _record(lake: "Lake", choose: Callable[["DeltaTable"], tuple[list[Entry], dict[str, int]]]) -> list[int]:
    """Append the rows that are chosen for a version of the table, with numbers of applications."""
    places = head_records(lake)
    while True:
        known = [place.last() for place in places]  # before the table, which is never behind them
        handle = take_handle(lake.tables, contract(TABLE))
        end = _known_end(handle, known) or end_of_chain(lake.tables, handle)
        for place, head in zip(places, known, strict=True):
            if head.rows > end.rows or (head.rows == end.rows and head != end):
                raise BrokenTrailError(place.where, end.rows, head.rows)
        entries, also = choose(handle)
        rows = _chain_rows(entries, end)
        written = not rows or _append(lake.store, handle, rows, entries, also)
        keep_handle(lake.tables, TABLE, handle)
        if not written:
            continue
        _write_heads(places, known, Head(rows[-1]["seq"] + 1, rows[-1]["sha256"]) if rows else end)
        return [row["seq"] for row in rows]


def length(lake: "Lake") -> int:
    """Return how many rows the chain has, by its heads: at most one row fewer where somebody died while adding it."""
    return max(place.last().rows for place in head_records(lake))


def resume(lake: "Lake", actor: str, reason: str) -> int:
    """Go on behind rows that are lost, with a row that says so; return its number.

    The chain goes on from the longest head record, which is that of a lost row; where another row than that was added
    in its place, after a restore, from the chain's end. Raises `RanklakeError` where nothing is lost.
    """
    places = head_records(lake)
    while True:
        known = [place.last() for place in places]
        handle = take_handle(lake.tables, contract(TABLE))
        end = end_of_chain(lake.tables, handle)
        last = max(known, key=lambda head: head.rows)
        if all(head.rows < end.rows or head == end for head in known):
            raise RanklakeError("no row of the audit trail is lost at its end", hint="see 'ranklake audit verify'")
        details = {"rows_left": end.rows, "rows_recorded": last.rows}
        entry = Entry(actor, RESUME, TABLE, reason, details)
        rows = _chain_rows([entry], last if last.rows > end.rows else end)
        if _append(lake.store, handle, rows, [entry], {}):
            _write_heads(places, known, Head(rows[-1]["seq"] + 1, rows[-1]["sha256"]))
            return int(rows[0]["seq"])


def _known_end(handle: "DeltaTable", known: Sequence[Head]) -> Head | None:
    """Return the end of the chain where every head reports as many rows as the log counts: no file is read then.

    Should the table's last row be another, the chain goes on from the one that the heads report, and the proof names
    the other.
    """
    (first, *others) = known
    return (
        first
        if first.rows and transaction_number(handle, ROWS) == first.rows and all(one == first for one in others)
        else None
    )


def end_of_chain(tables: "Tables", handle: "DeltaTable") -> Head:
    """Return the end of the chain in a table, of the one file that has it."""
    live = files(handle)
    if not live.num_rows:
        return Head()
    if "max.seq" in live.column_names and not live["max.seq"].null_count:
        live = live.filter(pc.equal(live["max.seq"], pc.max(live["max.seq"])))
    last = max(
        (row for _, rows in read_some(tables, contract(TABLE), live, ["seq", "sha256"]) for row in rows.to_pylist()),
        key=lambda row: int(row["seq"]),
    )
    return Head(last["seq"] + 1, last["sha256"])


def trail_table(tables: "Tables", handle: "DeltaTable | None", since: int = 0) -> pa.Table:
    """Return the rows of a version from a number on, in the order of the chain; files that end before are not read."""
    target = contract(TABLE)
    if handle is None:
        return arrow_schema(target).empty_table()
    refuse_misread(handle, target)
    live = files(handle)
    if since and "max.seq" in live.column_names:
        live = live.filter(pc.fill_null(pc.greater_equal(live["max.seq"], since), fill_value=True))
    live = live.sort_by("max.seq") if "max.seq" in live.column_names else live
    parts = [rows for _, rows in read_some(tables, target, live)]
    rows = pa.concat_tables([arrow_schema(target).empty_table(), *parts])
    rows = rows.filter(pc.greater_equal(rows["seq"], since)) if since else rows
    numbers = rows["seq"].to_numpy()
    return rows if (numbers[1:] > numbers[:-1]).all() else rows.sort_by("seq")  # sorting costs as much as hashing


def trail(tables: "Tables") -> list[dict[str, Any]]:
    """Return the rows in the order of the chain."""
    return sorted(read(tables, contract(TABLE)).to_pylist(), key=lambda row: row["seq"])


def _chain_rows(entries: Sequence[Entry], end: Head) -> list[dict[str, Any]]:
    """Return the rows of entries behind the end of a chain."""
    now = clock.now()
    rows: list[dict[str, Any]] = []
    for entry in entries:
        row: dict[str, Any] = {
            "seq": end.rows,
            "ts": now,
            "actor": entry.actor,
            "action": entry.action,
            "subject": entry.subject,
            "reason": entry.reason,
            "details": None if entry.details is None else json.dumps(dict(entry.details), sort_keys=True),
            "prev_sha256": end.sha256,
            "date": now.date(),
        }
        rows.append({**row, "sha256": digest(row)})
        end = Head(end.rows + 1, rows[-1]["sha256"])
    return rows


def _append(
    store: "Store",
    handle: "DeltaTable",
    rows: list[dict[str, Any]],
    entries: Sequence[Entry],
    reached: Mapping[str, int],
) -> bool:
    """Commit rows after the version of which the end was read; return False where another writer was faster."""
    also = {ROWS: rows[-1]["seq"] + 1, **{entry.mark: 1 for entry in entries if entry.once}, **reached}
    number = number_of(handle) + 1
    try:
        swap(handle, number, add=row_files(store, TABLE, rows, number), also=also, tidy=False)
    except LostRaceError:
        return False
    refresh(handle)
    return True


def _already_recorded(handle: "DeltaTable", entries: Sequence[Entry]) -> list[bool]:
    """Return of each entry whether it is to be recorded once and stands there, or among the entries before it."""
    marks: set[str] = set()
    there = []
    for entry in entries:
        is_there = entry.once and (entry.mark in marks or transaction_number(handle, entry.mark) is not None)
        there.append(is_there)
        if entry.once:
            marks.add(entry.mark)
    return there


def _write_heads(places: Sequence[HeadRecords], known: Sequence[Head], head: Head) -> None:
    for place, last in zip(places, known, strict=True):
        if last != head:
            place.note(head)
