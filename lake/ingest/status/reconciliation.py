"""The invariant: rows recorded = stored + quarantined + sampled out + gaps + in flight (+ retired by retention).

What was recorded is read from what the recorders say of themselves (cumulative counts in segment footers, totals at
closing), what is stored from the Delta logs' own row counts and the files that they name; the table ``segments`` ties
the two together. So a lost segment, a lost tail, a lost file, a lost quarantine and a double commit each show.
"""

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final

import pyarrow.compute as pc

from ranklake.lake.contracts.load import contract
from ranklake.lake.ingest.disowned import Claim
from ranklake.lake.ingest.index_summary import not_taken_in
from ranklake.lake.ingest.ingestion_index import Stream, stream_of_row
from ranklake.lake.ingest.spool.gate import may_be_read_yet
from ranklake.lake.ingest.status.stream_balance import (
    Accounts,
    Row,
    SlotFile,
    StreamBalance,
    claims_of,
    odd_segments,
    read_accounts,
    stream_balances,
)
from ranklake.lake.plans.kinds import Rows, rows_effect
from ranklake.lake.plans.plan import LEDGER
from ranklake.lake.store.files import listed
from ranklake.lake.store.governance import RAW, erased_raw, retired_dates
from ranklake.lake.store.writers import REFUSED
from ranklake.lake.tables.live_files import files
from ranklake.lake.tables.read import read
from ranklake.lake.tables.tables import delta_table

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from ranklake.lake.ingest.spool.packs import SpoolFile
    from ranklake.lake.store.lake import Lake
    from ranklake.lake.store.store import Store
    from ranklake.lake.store.tables import Tables


MOST_LISTED: Final = 20
"""Streams of a table that do not add up, and are named one by one."""


@dataclass(frozen=True, slots=True)
class TableBalance:
    """Rows of one table, by fate.

    Attributes
    ----------
    recorded
        What the recorders say they recorded, sampled out or counted as lost: rows plus gaps.
    sampled_out
        Counted by the recorder as left out, as its user wants it: weights of what was kept stand for it.
    stored, quarantined, gaps, in_flight, retired
        Live in Delta; refused by ingest or moved out by checks; counted by the recorder as not recorded; in the
        spool, not yet ingested; removed by retention.
    refused
        Segments among the quarantined that nobody vouches for, or that had no business where they lay, by reason.
    faults
        What does not add up, in words; empty if all is well.
    unreadable
        Segments in the quarantine folder whose bytes could not be read, by reason, and that no sound copy replaced.
    """

    table: str
    recorded: int = 0
    stored: int = 0
    quarantined: int = 0
    gaps: int = 0
    in_flight: int = 0
    retired: int = 0
    refused: dict[str, int] = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)
    sampled_out: int = 0
    unreadable: dict[str, int] = field(default_factory=dict)

    @property
    def adds_up(self) -> bool:
        """True if every recorded row is accounted for, once."""
        return not self.faults


def balance(lake: "Lake", spooled: "Iterable[SpoolFile]" = ()) -> list[TableBalance]:
    """Return the balance of every table that has rows, segments or files in the spool, by name.

    Parameters
    ----------
    spooled
        The spool's listing; without it nothing counts as in flight.
    """
    return reconcile(lake, [claims[0] for claims in not_taken_in(lake.store, list(spooled))])


def reconcile(lake: "Lake", waiting: "Collection[SpoolFile]") -> list[TableBalance]:
    """Return the same as `balance`, for who has looked already which files of the spool no plan took in."""
    accounts = read_accounts(lake, {item.name.incarnation for item in waiting if item.name})
    moved, retired = _booked_rows(lake.tables)
    streams = stream_balances(accounts, waiting)
    live = {
        table: rows
        for table, one in lake.contracts().items()
        if one.envelope and (rows := _live_rows(lake.store, table))
    }
    tables = (
        {table for table, _ in streams}
        | {row["table"] for row in accounts.odd}
        | {item.table for item in waiting}
        | {*live}
    )
    raw = still_in_quarantine(lake.tables, accounts.odd)
    refused, unreadable = _refused_counts(accounts.odd), _unreadable(raw, accounts.held)
    balances = [
        _table_balance(lake, table, streams, moved, retired, live.get(table, 0), refused[table], unreadable[table])
        for table in sorted(tables)
    ]
    return [*balances, *_rejects_balance(lake.store, accounts, raw, moved, retired["rejects"])]


def _booked_rows(tables: "Tables") -> tuple[dict[str, int], dict[str, int]]:
    """Return rows moved to quarantine by checks, and rows retired, per table, from the plans' own accounts."""
    moved: dict[str, int] = defaultdict(int)
    retired: dict[str, int] = defaultdict(int)
    accounts = {Rows.QUARANTINED: moved, Rows.RETIRED: retired}
    for row in read(tables, contract(LEDGER), ["kind", "tables"]).to_pylist():
        account = accounts.get(rows_effect(row["kind"]))
        if account is None:
            continue
        for table, rows in json.loads(row["tables"]).items():
            if account is not moved or table != "rejects":  # which has what the others lost, or less by what is back
                account[table] -= rows
    return moved, retired


def _table_balance(
    lake: "Lake",
    table: str,
    streams: dict[tuple[str, Stream], StreamBalance],
    moved: dict[str, int],
    retired: dict[str, int],
    live: int,
    refused: dict[str, int],
    unreadable: dict[str, int],
) -> TableBalance:
    mine = {stream: one for (name, stream), one in streams.items() if name == table}
    faults = _stream_faults(lake, table, mine)
    in_flight = sum(one.in_flight for one in mine.values())
    ingested = sum(one.stored for one in mine.values())
    quarantined = sum(one.rejected for one in mine.values()) + moved[table]
    expected = ingested - moved[table] - retired[table]
    if live != expected:
        faults.append(f"the table holds {live} rows, the plans say {expected}")
    faults += _file_faults(lake.store, table)
    gaps = sum(one.reported_gaps for one in mine.values())
    sampled_out = sum(one.sampled_out for one in mine.values())
    accounted = {stream: one.stored + one.rejected + one.in_flight for stream, one in mine.items()}
    recorded = gaps + sum(max(one.reported_rows, accounted[stream]) for stream, one in mine.items())
    lost = gaps - sampled_out
    return TableBalance(
        table, recorded, live, quarantined, lost, in_flight, retired[table], refused, faults, sampled_out, unreadable
    )


def _stream_faults(lake: "Lake", table: str, streams: "Mapping[Stream, StreamBalance]") -> list[str]:
    """Return what is wrong with streams of a table, each with the segment whose word it is."""
    wrong = {stream: fault for stream, one in sorted(streams.items()) if (fault := one.fault())}
    listed_faults = dict(list(wrong.items())[:MOST_LISTED])
    claims = claims_of(lake, {stream[3] for stream in listed_faults}) if listed_faults else []
    faults = []
    for stream, fault in listed_faults.items():
        mine = [row for row in claims if row["table"] == table and stream_of_row(row) == stream]
        last = max(mine, key=lambda row: row["said"], default=None)
        claim = Claim(
            table, stream, None if last is None or streams[stream].reported > last["said"] else last["segment"]
        )
        faults.append(f"run {stream[0]} attempt {stream[1]} rank {stream[2]}: {fault}, as {claim} says")
    if len(wrong) > len(listed_faults):
        faults.append(f"{len(wrong) - len(listed_faults)} more streams do not add up")
    return faults


def _refused_counts(odd: "Iterable[Row]") -> dict[str, dict[str, int]]:
    """Return how many segments of each table were refused, by reason."""
    counts: dict[str, dict[str, int]] = defaultdict(dict)
    for row in odd:
        reason = str(row["unreadable"])
        if reason.startswith(REFUSED):
            of_table, why = counts[row["table"]], reason.removeprefix(REFUSED)
            of_table[why] = of_table.get(why, 0) + 1
    return counts


def _unreadable(raw: "Iterable[Row]", held: "Mapping[SlotFile, int]") -> dict[str, dict[str, int]]:
    """Return how many segments of each table could not be read, by reason, of which no sound copy came either.

    A file whose name is no segment's is none of them.
    """
    counts: dict[str, dict[str, int]] = defaultdict(dict)
    for row in without_sound_copy(raw, held):
        reason = str(row["unreadable"])
        if row["rows"] is not None and not reason.startswith(REFUSED):
            counts[row["table"]][reason] = counts[row["table"]].get(reason, 0) + 1
    return counts


def _rejects_balance(
    store: "Store", accounts: Accounts, raw: "Iterable[Row]", moved: dict[str, int], retired: int
) -> "Iterator[TableBalance]":
    """Yield the balance of ``rejects`` where what was quarantined, and retention did not take, is not all there."""
    faults = []
    live = _live_rows(store, "rejects")
    refused = sum(row["rows_rejected"] for row in accounts.streams)
    expected = refused + sum(moved.values()) - retired
    if live != expected:
        faults.append(f"the table holds {live} rows, the plans say {expected}")
    faults += _file_faults(store, "rejects")
    kept = {path.rpartition("/")[2] for path in store.fs.find(store.path("quarantine"))}
    aside = {row["sha256"] for row in raw}
    if aside - kept:
        faults.append(f"{len(aside - kept)} unreadable segments are not in the lake's quarantine folder any more")
    if faults:
        yield TableBalance("rejects", stored=live, retired=retired, faults=faults)


def _live_rows(store: "Store", table: str) -> int:
    handle = delta_table(store, table)
    return 0 if handle is None else int(pc.sum(files(handle)["num_records"]).as_py() or 0)


def _file_faults(store: "Store", table: str) -> list[str]:
    """Return what is wrong with a table's data files: the log may name bytes that are not there."""
    handle = delta_table(store, table)
    if handle is None:
        return []
    listed = store.fs.find(store.path("tables", table), detail=True)
    there = {path: info["size"] for path, info in listed.items()}
    named = files(handle).select(["path", "size_bytes"]).to_pylist()
    bad = sum(there.get(store.path("tables", table, row["path"])) != row["size_bytes"] for row in named)
    return [f"{bad} data files are missing or not of their size"] if bad else []


def unsound_segments(lake: "Lake") -> list[Row]:
    """Return segments that nothing has put right, as rows of ``segments``; those that may be read yet among them.

    Raises what `ranklake.lake.query.sql.session` does.
    """
    odd, held = odd_segments(lake)
    waiting = [row for row in odd if may_be_read_yet(row["unreadable"])]
    return without_sound_copy([*waiting, *still_in_quarantine(lake.tables, odd)], held)


def still_in_quarantine(tables: "Tables", odd: Iterable[Row]) -> list[Row]:
    """Return those whose bytes the quarantine folder has: neither retention nor an erasure removed them."""
    raw = [row for row in odd if not may_be_read_yet(row["unreadable"])]
    taken, erased = (retired_dates(tables), erased_raw(tables)) if raw else ({}, frozenset())
    return [
        row
        for row in raw
        if row["sha256"] not in erased and taken.get(RAW + row["table"], {}).get(row["date"], 0) < row["plan"]
    ]


def without_sound_copy(odd: Iterable[Row], held: Mapping[SlotFile, int]) -> list[Row]:
    """Return those of whose slot file no sound segment has as many rows.

    Parameters
    ----------
    held
        Rows of the largest sound segment of each slot file.
    """
    return [
        row
        for row in odd
        if row["rows"] is None or held.get((row["table"], stream_of_row(row), row["segment"]), -1) < row["rows"]
    ]


_TOGETHER: Final = frozenset({LEDGER, "segments"})
"""Every ingest writes both."""
FIRST_COMMIT: Final = timedelta(minutes=10)
"""For how long files without a log are those of a first commit that is under way."""


def lost_tables(lake: "Lake") -> list[str]:
    """Return the tables without a log that something tells of, by name.

    That is rows by the ledger, files in the table's folder, or for the ledger and the table of segments one another.
    The first commit of a table, while it is under way, looks like the last two, so that files tell of a loss once one
    is older than `FIRST_COMMIT`. Raises `LakeUnreachableError`.
    """
    rows = Counter[str]()
    for row in read(lake.tables, contract(LEDGER), ["tables"]).to_pylist():
        rows.update(json.loads(row["tables"] or "{}"))
    counted = {name for name, count in rows.items() if count > 0}
    folder = lake.store.path("tables")
    there = {path.rpartition("/")[2] for path in _names(lake.store, folder)}
    without = (name for name in counted | there | _TOGETHER if not _names(lake.store, f"{folder}/{name}/_delta_log"))
    return sorted(name for name in without if name in counted or _has_old_files(lake.store, name))


def _has_old_files(store: "Store", table: str) -> bool:
    """Whether a file of a table, or of one that is written with it, is older than a first commit may take."""
    since = datetime.now(UTC) - FIRST_COMMIT
    tables = _TOGETHER if table in _TOGETHER else {table}
    files = (file for name in tables for file in listed(store.fs, store.path("tables", name)))
    return any(file.modified is None or file.modified < since for file in files)


def _names(store: "Store", folder: str) -> list[str]:
    try:
        return [str(path).rstrip("/") for path in store.fs.ls(folder, detail=False)]
    except FileNotFoundError:
        return []
