"""The audit log: who did what to governed data, as a chain in which any alteration is found.

    read the heads of the lake and the witness ─▶ check that the table has as many rows ─▶ append rows in one commit
        ─▶ write the new head to the lake and the witness

Rows are appended by compare-and-swap, so concurrent writers produce one chain. The number of rows is stored in the
table's Delta log as the transaction number of an application (`ROWS`). The version of the table cannot serve for this,
since upkeep also commits to this table when it merges files.
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
"""Application id in the Delta log under which the number of rows is stored, including lost rows."""
_ONCE: Final = "once "


class BrokenTrailError(RanklakeError):
    """The end of the audit log contradicts its head records. Nothing was written.

    Attributes
    ----------
    rows, recorded
        Number of rows in the table, and in the head record.
    """

    def __init__(self, where: str, actual: int, recorded: int) -> None:
        message = f"the audit log ends at {actual} rows, and its head record says {recorded}"
        if actual == recorded:
            message = f"the last of {actual} rows of the audit log is not the one that its head record tells of"
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
        Who acted. This is pseudonymous data and is stored only in this row.
    action, subject
        The action, such as ``retention.approve``, and its object.
    reason
        The actor's reason as text.
    details
        Facts as JSON values, without personal data.
    once
        Whether to append the row only if no row has its action and subject, for actions that may be repeated after a
        crash. The log has a digest of both, so the subject must not be a person.
    once_for
        A further part of the key for `once`, such as a signature, if a subject may have several rows.
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
    """Append a row; return its number in the chain, None if it existed. See `Entry` and `record_all`."""
    (number,) = record_all(lake, [Entry(actor, action, subject, reason, details, once, once_for)])
    return number


def record_all(lake: "Lake", entries: Sequence[Entry]) -> list[int | None]:
    """Append rows in one commit; return their numbers in the chain, None for those that existed.

    The cost does not depend on the length of the log. If the process is killed before the last head is written, the
    rows are committed, and the next call writes a head. Raises `BrokenTrailError`,
    `ranklake.lake.audit.chain.HeadError` and what the store raises.
    """
    exists: list[bool] = []

    def new_entries(handle: "DeltaTable") -> tuple[list[Entry], dict[str, int]]:
        exists[:] = _already_recorded(handle, entries)
        return [entry for entry, is_old in zip(entries, exists, strict=True) if not is_old], {}

    numbers = iter(_record(lake, new_entries))
    return [None if is_old else next(numbers) for is_old in exists]


def record_since(lake: "Lake", application: str, compose: Callable[[int], tuple[list[Entry], int]]) -> list[int]:
    """Append rows about numbered objects that have no row yet; return the numbers of the new rows in the chain.

    The audit log's log stores the number of the last recorded object. So each object gets one row, even if several
    processes do this at the same time or one of them dies. Raises as `record_all`.

    Parameters
    ----------
    application
        Application id in the Delta log under which the last number is stored.
    compose
        Given the last recorded number (0 at first), returns the new rows, and the number of their last object.
    """

    def new_entries(handle: "DeltaTable") -> tuple[list[Entry], dict[str, int]]:
        entries, number = compose(transaction_number(handle, application) or 0)
        return entries, {application: number}

    return _record(lake, new_entries)


def _record(lake: "Lake", choose: Callable[["DeltaTable"], tuple[list[Entry], dict[str, int]]]) -> list[int]:
    """Append rows in one commit; return their numbers.

    Parameters
    ----------
    choose
        Given the current version of the table, returns the rows, and numbers by application id to store in the log.
    """
    records = head_records(lake)
    while True:
        heads = [record.last() for record in records]  # read before the table, which must have as many rows
        handle = take_handle(lake.tables, contract(TABLE))
        end = _end_by_heads(handle, heads) or end_of_chain(lake.tables, handle)
        for record, head in zip(records, heads, strict=True):
            if head.rows > end.rows or (head.rows == end.rows and head != end):
                raise BrokenTrailError(record.where, end.rows, head.rows)
        entries, application_numbers = choose(handle)
        rows = _chain_rows(entries, end)
        is_written = not rows or _append(lake.store, handle, rows, entries, application_numbers)
        keep_handle(lake.tables, TABLE, handle)
        if not is_written:
            continue
        _write_heads(records, heads, Head(rows[-1]["seq"] + 1, rows[-1]["sha256"]) if rows else end)
        return [row["seq"] for row in rows]


def length(lake: "Lake") -> int:
    """Return the number of rows of the chain, by its heads. Rows whose writer died before the head are not counted."""
    return max(record.last().rows for record in head_records(lake))


def resume(lake: "Lake", actor: str, reason: str) -> int:
    """Append a row that acknowledges lost rows at the end of the audit log, and continues the chain; return its number.

    The new row continues from the last head record. If the table has as many rows as the head, but another last row,
    as after a restore, the new row continues from the table's end. Raises `RanklakeError` if no rows are lost.
    """
    records = head_records(lake)
    while True:
        heads = [record.last() for record in records]
        handle = take_handle(lake.tables, contract(TABLE))
        end = end_of_chain(lake.tables, handle)
        last = max(heads, key=lambda head: head.rows)
        if all(head.rows < end.rows or head == end for head in heads):
            raise RanklakeError("no row of the audit log is lost at its end", hint="see 'ranklake audit verify'")
        details = {"rows_left": end.rows, "rows_recorded": last.rows}
        entry = Entry(actor, RESUME, TABLE, reason, details)
        rows = _chain_rows([entry], last if last.rows > end.rows else end)
        if _append(lake.store, handle, rows, [entry], {}):
            _write_heads(records, heads, Head(rows[-1]["seq"] + 1, rows[-1]["sha256"]))
            return int(rows[0]["seq"])


def _end_by_heads(handle: "DeltaTable", heads: Sequence[Head]) -> Head | None:
    """Return the end of the chain without reading a data file; None if heads and log disagree on the number of rows.

    If the table's last row was altered, the chain still continues from the heads, and `proof.prove` finds the row.
    """
    (first, *others) = heads
    agree = bool(first.rows) and all(head == first for head in others)
    return first if agree and transaction_number(handle, ROWS) == first.rows else None


def end_of_chain(tables: "Tables", handle: "DeltaTable") -> Head:
    """Return the head of the table's last row, from the only data file that has it."""
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
    """Return the rows with the number `since` and later, in the order of the chain. Files of earlier rows are not read.

    Parameters
    ----------
    handle
        The version of the table to read; None for an empty trail.
    """
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
    """Return all rows of the audit log in the order of the chain."""
    return sorted(read(tables, contract(TABLE)).to_pylist(), key=lambda row: row["seq"])


def _chain_rows(entries: Sequence[Entry], end: Head) -> list[dict[str, Any]]:
    """Return the rows for some entries that continue a chain after its end."""
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
    application_numbers: Mapping[str, int],
) -> bool:
    """Commit rows after the version of the handle; return False if another writer committed first."""
    marks = {entry.mark: 1 for entry in entries if entry.once}
    numbers = {ROWS: rows[-1]["seq"] + 1, **marks, **application_numbers}
    number = number_of(handle) + 1
    try:
        swap(handle, number, add=row_files(store, TABLE, rows, number), also=numbers, tidy=False)
    except LostRaceError:
        return False
    refresh(handle)
    return True


def _already_recorded(handle: "DeltaTable", entries: Sequence[Entry]) -> list[bool]:
    """Return for each entry whether it is a repeat: `once` is set, and the log or an earlier entry has its mark."""
    marks: set[str] = set()
    result = []
    for entry in entries:
        result.append(entry.once and (entry.mark in marks or transaction_number(handle, entry.mark) is not None))
        if entry.once:
            marks.add(entry.mark)
    return result


def _write_heads(records: Sequence[HeadRecords], previous: Sequence[Head], head: Head) -> None:
    for record, last in zip(records, previous, strict=True):
        if last != head:
            record.note(head)
