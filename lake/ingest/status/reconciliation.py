"""Reconciliation checks: rows recorded = stored + quarantined + sampled out + gaps + in flight + retired.

The recorded rows are from the recorders: cumulative counts in segment footers, and totals written at closing. The
stored rows are from the row counts in the Delta transaction logs, whose data files must exist. The table ``segments``
connects both. So the check finds lost segments, lost data files, lost quarantined bytes, rows that are missing at the
end of a stream, and rows that were committed twice.
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
    odd_segments,
    read_accounts,
    reported_counts,
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
"""Most streams of a table that are listed in faults one by one."""


@dataclass(frozen=True, slots=True)
class TableBalance:
    """Row counts of one table.

    Attributes
    ----------
    recorded
        Rows and gaps that the recorders report.
    sampled_out
        Rows that the recorders left out by sampling. The weights of recorded rows account for them.
    stored
        Live rows of the Delta table.
    quarantined
        Rows refused by ingest or moved to quarantine by checks.
    gaps
        Rows that the recorders could not record, without `sampled_out`.
    in_flight
        Rows in the spool that are not ingested yet.
    retired
        Rows removed by retention.
    refused
        Number of segments, by reason, without a valid signature or at a place where their writer may not write.
    faults
        Texts that say what does not add up; empty if all rows are accounted for.
    unreadable
        Number of damaged segments in the quarantine folder without a sound copy, by reason.
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
        """Whether every recorded row is accounted for exactly once."""
        return not self.faults


def balance(lake: "Lake", spooled: "Iterable[SpoolFile]" = ()) -> list[TableBalance]:
    """Return the balance of every table that has rows, segments or files in the spool, by name.

    Parameters
    ----------
    spooled
        Listing of the spool. Without it, no rows are counted as in flight.
    """
    return reconcile(lake, [copies[0] for copies in not_taken_in(lake.store, list(spooled))])


def reconcile(lake: "Lake", waiting: "Collection[SpoolFile]") -> list[TableBalance]:
    """Return the same as `balance`, given only the files of the spool that are not ingested yet."""
    accounts = read_accounts(lake, {item.name.incarnation for item in waiting if item.name})
    moved, retired = _moved_and_retired(lake.tables)
    streams = stream_balances(accounts, waiting)
    live = {
        table: rows
        for table, contract in lake.contracts().items()
        if contract.envelope and (rows := _live_rows(lake.store, table))
    }
    tables = (
        {table for table, _ in streams}
        | {row["table"] for row in accounts.odd}
        | {item.table for item in waiting}
        | {*live}
    )
    raw = still_in_quarantine(lake.tables, accounts.odd)
    refused, unreadable = _refused_counts(accounts.odd), _unreadable_counts(raw, accounts.largest_segments)
    balances = [
        _table_balance(lake, table, streams, moved, retired, live.get(table, 0), refused[table], unreadable[table])
        for table in sorted(tables)
    ]
    return [*balances, *_rejects_balance(lake.store, accounts, raw, moved, retired["rejects"])]


def _moved_and_retired(tables: "Tables") -> tuple[dict[str, int], dict[str, int]]:
    """Return the rows that checks moved to quarantine, and that retention removed, by table, from the ledger."""
    moved: dict[str, int] = defaultdict(int)
    retired: dict[str, int] = defaultdict(int)
    counts_by_effect = {Rows.QUARANTINED: moved, Rows.RETIRED: retired}
    for row in read(tables, contract(LEDGER), ["kind", "tables"]).to_pylist():
        counts = counts_by_effect.get(rows_effect(row["kind"]))
        if counts is None:
            continue
        for table, rows in json.loads(row["tables"]).items():
            if counts is not moved or table != "rejects":  # `rejects` gets the rows that other tables lose
                counts[table] -= rows
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
    table_streams = {stream: balance for (name, stream), balance in streams.items() if name == table}
    faults = _stream_faults(lake, table, table_streams)
    in_flight = sum(balance.in_flight for balance in table_streams.values())
    ingested = sum(balance.stored for balance in table_streams.values())
    quarantined = sum(balance.rejected for balance in table_streams.values()) + moved[table]
    expected = ingested - moved[table] - retired[table]
    if live != expected:
        faults.append(f"the table holds {live} rows, the plans say {expected}")
    faults += _file_faults(lake.store, table)
    gaps = sum(balance.reported_gaps for balance in table_streams.values())
    sampled_out = sum(balance.sampled_out for balance in table_streams.values())
    recorded = gaps + sum(
        max(balance.reported_rows, balance.stored + balance.rejected + balance.in_flight)
        for balance in table_streams.values()
    )
    lost = gaps - sampled_out
    return TableBalance(
        table, recorded, live, quarantined, lost, in_flight, retired[table], refused, faults, sampled_out, unreadable
    )


def _stream_faults(lake: "Lake", table: str, streams: "Mapping[Stream, StreamBalance]") -> list[str]:
    """Return the faults of a table's streams as texts, each with the segment that has the highest count."""
    all_faults = {stream: fault for stream, balance in sorted(streams.items()) if (fault := balance.fault())}
    listed_faults = dict(list(all_faults.items())[:MOST_LISTED])
    counts = reported_counts(lake, {stream[3] for stream in listed_faults}) if listed_faults else []
    faults = []
    for stream, fault in listed_faults.items():
        stream_counts = [row for row in counts if row["table"] == table and stream_of_row(row) == stream]
        highest = max(stream_counts, key=lambda row: row["said"], default=None)
        is_from_totals = highest is None or streams[stream].reported > highest["said"]
        claim = Claim(table, stream, None if highest is None or is_from_totals else highest["segment"])
        faults.append(f"run {stream[0]} attempt {stream[1]} rank {stream[2]}: {fault}, as {claim} says")
    if len(all_faults) > len(listed_faults):
        faults.append(f"{len(all_faults) - len(listed_faults)} more streams do not add up")
    return faults


def _refused_counts(odd: "Iterable[Row]") -> dict[str, dict[str, int]]:
    """Return the number of refused segments, by table and reason."""
    counts: dict[str, dict[str, int]] = defaultdict(dict)
    for row in odd:
        unreadable = str(row["unreadable"])
        if unreadable.startswith(REFUSED):
            table_counts, reason = counts[row["table"]], unreadable.removeprefix(REFUSED)
            table_counts[reason] = table_counts.get(reason, 0) + 1
    return counts


def _unreadable_counts(raw: "Iterable[Row]", largest_segments: "Mapping[SlotFile, int]") -> dict[str, dict[str, int]]:
    """Return the number of unreadable segments without a sound copy, by table and reason.

    Files that are no segments by their name are not counted.
    """
    counts: dict[str, dict[str, int]] = defaultdict(dict)
    for row in without_sound_copy(raw, largest_segments):
        reason = str(row["unreadable"])
        if row["rows"] is not None and not reason.startswith(REFUSED):
            counts[row["table"]][reason] = counts[row["table"]].get(reason, 0) + 1
    return counts


def _rejects_balance(
    store: "Store", accounts: Accounts, raw: "Iterable[Row]", moved: dict[str, int], retired: int
) -> "Iterator[TableBalance]":
    """Yield the balance of ``rejects`` if it has faults: missing rows, too many rows, or missing quarantined bytes."""
    faults = []
    live = _live_rows(store, "rejects")
    refused = sum(row["rows_rejected"] for row in accounts.streams)
    expected = refused + sum(moved.values()) - retired
    if live != expected:
        faults.append(f"the table holds {live} rows, the plans say {expected}")
    faults += _file_faults(store, "rejects")
    existing = {path.rpartition("/")[2] for path in store.fs.find(store.path("quarantine"))}
    missing = {row["sha256"] for row in raw} - existing
    if missing:
        faults.append(f"{len(missing)} unreadable segments are not in the lake's quarantine folder any more")
    if faults:
        yield TableBalance("rejects", stored=live, retired=retired, faults=faults)


def _live_rows(store: "Store", table: str) -> int:
    handle = delta_table(store, table)
    return 0 if handle is None else int(pc.sum(files(handle)["num_records"]).as_py() or 0)


def _file_faults(store: "Store", table: str) -> list[str]:
    """Return a text if data files in a table's Delta log are missing or have another size."""
    handle = delta_table(store, table)
    if handle is None:
        return []
    listing = store.fs.find(store.path("tables", table), detail=True)
    sizes = {path: info["size"] for path, info in listing.items()}
    live = files(handle).select(["path", "size_bytes"]).to_pylist()
    bad = sum(sizes.get(store.path("tables", table, row["path"])) != row["size_bytes"] for row in live)
    return [f"{bad} data files are missing or not of their size"] if bad else []


def unsound_segments(lake: "Lake") -> list[Row]:
    """Return unreadable segments without a sound copy, as rows of ``segments``.

    Segments that a later ingest tries again are among them. Segments that retention or an erasure has deleted are not.

    Raises what `ranklake.lake.query.sql.session` raises.
    """
    odd, largest_segments = odd_segments(lake)
    waiting = [row for row in odd if may_be_read_yet(row["unreadable"])]
    return without_sound_copy([*waiting, *still_in_quarantine(lake.tables, odd)], largest_segments)


def still_in_quarantine(tables: "Tables", odd: Iterable[Row]) -> list[Row]:
    """Return the rows whose bytes are in the quarantine folder: neither retention nor an erasure has deleted them."""
    raw = [row for row in odd if not may_be_read_yet(row["unreadable"])]
    retired, erased = (retired_dates(tables), erased_raw(tables)) if raw else ({}, frozenset())
    return [
        row
        for row in raw
        if row["sha256"] not in erased and retired.get(RAW + row["table"], {}).get(row["date"], 0) < row["plan"]
    ]


def without_sound_copy(odd: Iterable[Row], largest_segments: Mapping[SlotFile, int]) -> list[Row]:
    """Return the unreadable segments for which no sound segment of the same slot file has as many rows.

    Parameters
    ----------
    largest_segments
        Number of rows of the largest sound segment of each slot file.
    """
    return [
        row
        for row in odd
        if row["rows"] is None
        or largest_segments.get((row["table"], stream_of_row(row), row["segment"]), -1) < row["rows"]
    ]


_WRITTEN_TOGETHER: Final = frozenset({LEDGER, "segments"})
"""Tables that every ingest writes."""
FIRST_COMMIT: Final = timedelta(minutes=10)
"""Longest time between a table's first data file and its first commit."""


def lost_tables(lake: "Lake") -> list[str]:
    """Return the names of tables that had rows and have no Delta log any more.

    A table without a log is lost if the ledger counts rows of it, or if its folder has old files. The ledger and
    ``segments`` are written together: one is lost if the other has old files. Files are old after `FIRST_COMMIT`;
    before that, they may be files of the table's first commit. Raises `LakeUnreachableError`.
    """
    rows = Counter[str]()
    for row in read(lake.tables, contract(LEDGER), ["tables"]).to_pylist():
        rows.update(json.loads(row["tables"] or "{}"))
    with_rows = {name for name, count in rows.items() if count > 0}
    folder = lake.store.path("tables")
    with_folder = {path.rpartition("/")[2] for path in _names(lake.store, folder)}
    candidates = with_rows | with_folder | _WRITTEN_TOGETHER
    without_log = (name for name in candidates if not _names(lake.store, f"{folder}/{name}/_delta_log"))
    return sorted(name for name in without_log if name in with_rows or _has_old_files(lake.store, name))


def _has_old_files(store: "Store", table: str) -> bool:
    """Whether a table, or a table that is written together with it, has a file older than `FIRST_COMMIT`."""
    since = datetime.now(UTC) - FIRST_COMMIT
    tables = _WRITTEN_TOGETHER if table in _WRITTEN_TOGETHER else {table}
    files = (file for name in tables for file in listed(store.fs, store.path("tables", name)))
    return any(file.modified is None or file.modified < since for file in files)


def _names(store: "Store", folder: str) -> list[str]:
    try:
        return [str(path).rstrip("/") for path in store.fs.ls(folder, detail=False)]
    except FileNotFoundError:
        return []
