"""The invariant: rows recorded = stored + quarantined + sampled out + gaps + in flight (+ retired by retention).

What was recorded is read from what the recorders say of themselves (cumulative counts in segment footers, totals at
closing), what is stored from the Delta logs' own row counts and the files that they name; the table ``segments`` ties
the two together. So a lost segment, a lost tail, a lost file, a lost quarantine and a double commit each show.
"""

import json
from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import pyarrow.compute as pc

from ranklake.lake.contracts.load import contract, table_names
from ranklake.lake.delta.commit import files
from ranklake.lake.delta.read import read
from ranklake.lake.delta.tables import delta_table
from ranklake.lake.governance.retired import RAW
from ranklake.lake.governance.retired import retired as retired_dates
from ranklake.lake.ingest.disowned import Claim
from ranklake.lake.ingest.index_summary import not_taken_in
from ranklake.lake.ingest.ingestion_index import Stream, stream_of_row
from ranklake.lake.plans.kinds import Rows, booked
from ranklake.lake.plans.plan import LEDGER
from ranklake.lake.spool.gate import IRREGULAR, UNREAD
from ranklake.lake.status.stream_accounts import Accounts, Row, SlotFile, claims_of, read_accounts
from ranklake.lake.trust.writers import REFUSED

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping

    from ranklake.lake.spool.spool import Spooled
    from ranklake.lake.storage.store import Lake


MOST_GAPS: Final = 10**12
"""Rows that one process can have lost of a table: a million a second for eleven days."""
MOST_TOLD: Final = 20
"""Streams of a table that do not add up, and are named one by one."""
NOBODY: Final[Stream] = ("", -1, -1, -1)
"""Has the rows that were refused: they are no stream's."""


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

    @property
    def adds_up(self) -> bool:
        """True if every recorded row is accounted for, once."""
        return not self.faults


def balance(lake: "Lake", spooled: "Iterable[Spooled]" = ()) -> list[TableBalance]:
    """Return the balance of every table that has rows, segments or files in the spool, by name.

    Parameters
    ----------
    spooled
        The spool's listing; without it nothing counts as in flight.
    """
    return books(lake, [claims[0] for claims in not_taken_in(lake, list(spooled))])


def books(lake: "Lake", waiting: "Collection[Spooled]") -> list[TableBalance]:
    """Return the same as `balance`, for who has looked already which files of the spool no plan took in."""
    told = read_accounts(lake, {item.name.incarnation for item in waiting if item.name})
    moved, retired = _moved(lake)
    lanes = _lanes(told, waiting)
    live = {table: rows for table in table_names() if contract(table).envelope and (rows := _live_rows(lake, table))}
    tables = (
        {table for table, _ in lanes} | {row["table"] for row in told.odd} | {item.table for item in waiting} | {*live}
    )
    refused = _refused(told.odd)
    balances = [
        _balance(lake, table, lanes, moved, retired, live.get(table, 0), refused[table]) for table in sorted(tables)
    ]
    return [*balances, *_quarantine(lake, told, moved, retired["rejects"])]


@dataclass(slots=True)
class _Lane:
    """One stream of one table: what its recorder says, and what became of it.

    A recorder that gives up a sealed segment for lack of room counts its rows as gaps from then on. Footers that were
    sealed before still have them among the rows, but the sum of both only ever grows, and so do the gaps.
    """

    said: int = 0
    said_gaps: int = 0
    sampled_out: int = 0
    named_rows: int = 0
    stored: int = 0
    rejected: int = 0
    in_flight: int = 0
    closed: bool = False

    def add(self, row: Row) -> None:
        """Take in what became of segments of it."""
        self.stored += row["rows_stored"]
        self.rejected += row["rows_rejected"]
        self.said = max(self.said, int(row["said"]))
        self.said_gaps = max(self.said_gaps, int(row["said_gaps"]))

    @property
    def said_rows(self) -> int:
        return max(self.said - self.said_gaps, self.named_rows)

    @property
    def missing(self) -> int:
        """Rows that its recorder tells of, and nobody has."""
        return max(0, self.said_rows - self.stored - self.rejected - self.in_flight)

    def fault(self) -> str | None:
        if self.missing:
            return f"{self.missing} rows are missing"
        accounted = self.stored + self.rejected + self.in_flight
        if self.closed and accounted > self.said_rows:
            return f"{accounted - self.said_rows} rows too many"
        if self.said_gaps > MOST_GAPS:
            return f"{self.said_gaps} rows are said to be lost, more than a process can record"
        return None


def _lanes(told: Accounts, waiting: "Iterable[Spooled]") -> dict[tuple[str, Stream], _Lane]:
    lanes: dict[tuple[str, Stream], _Lane] = defaultdict(_Lane)
    ingested: dict[SlotFile, int] = defaultdict(int, told.held)
    refused: dict[tuple[str, Stream], int] = defaultdict(int)
    for row in told.streams:
        lanes[row["table"], stream_of_row(row)].add(row)
    # Of a slot file that no sound copy brought one damaged copy counts, and what was gone only where there is none;
    # where a sound one came, the damaged ones are nobody's rows.
    for row in sorted(told.odd, key=lambda row: row["unreadable"] in UNREAD):
        stream = stream_of_row(row)
        slot_file = (row["table"], stream, row["segment"])
        if str(row["unreadable"]).startswith(REFUSED):  # nobody knows whose rows these are
            lane = lanes[row["table"], NOBODY]
            lane.rejected += row["rows_rejected"]
            lane.named_rows += row["rows_rejected"]
            if row["incarnation"] is not None:
                refused[row["table"], stream] += max(0, row["rows_rejected"] - ingested.get(slot_file, 0))
            continue
        if row["incarnation"] is None or slot_file in ingested or row["unreadable"] == IRREGULAR:
            continue
        # Only its name is known; later footers of the stream say what came before it.
        lane = lanes[row["table"], stream]
        lane.add({**row, "said": row["rows"], "said_gaps": 0})
        lane.named_rows = max(lane.named_rows, row["rows"])
        if row["unreadable"] not in UNREAD:
            ingested[slot_file] = row["rows"]
    for row in told.closings:
        for table, rows, gaps in _totals(row["totals"]):
            closing = lanes[table, stream_of_row(row)]
            closing.said = max(closing.said, rows + gaps)
            closing.said_gaps = max(closing.said_gaps, gaps)
            closing.closed = True
    for place, rows in told.sampled_out.items():
        lanes[place].sampled_out = min(rows, lanes[place].said_gaps)
    _fly(lanes, ingested, waiting)
    _give_back(lanes, refused)
    return lanes


def _fly(lanes: dict[tuple[str, Stream], _Lane], ingested: dict[SlotFile, int], waiting: "Iterable[Spooled]") -> None:
    """Take in what waits in the spool: a slot file that is sent again brings only what none of its copies brought."""
    for item in waiting:
        if item.name is None:
            continue
        name = item.name
        stream = (name.run, name.attempt, name.rank, name.incarnation)
        slot_file = (item.table, stream, name.segment)
        lane = lanes[item.table, stream]
        lane.in_flight += max(0, name.rows - ingested[slot_file])
        ingested[slot_file] = max(ingested[slot_file], name.rows)


def _give_back(lanes: dict[tuple[str, Stream], _Lane], refused: "Mapping[tuple[str, Stream], int]") -> None:
    """Count among a stream's rows what its recorder tells of and nobody has, as far as it was refused in its name."""
    for (table, stream), rows in refused.items():
        own = min(rows, lanes[table, stream].missing)
        lanes[table, stream].rejected += own
        lanes[table, NOBODY].rejected -= own
        lanes[table, NOBODY].named_rows -= own


def _totals(text: str) -> "Iterator[tuple[str, int, int]]":
    """Yield table, rows and gaps that a recorder told of when it closed; what is none of it is passed over."""
    try:
        said = json.loads(text)
    except (ValueError, RecursionError):
        return
    for table, counts in said.items() if isinstance(said, dict) else ():
        if isinstance(counts, list) and len(counts) == 2 and all(type(count) is int for count in counts):  # noqa: PLR2004
            yield table, *counts


def _moved(lake: "Lake") -> tuple[dict[str, int], dict[str, int]]:
    """Return rows moved to quarantine by checks, and rows retired, per table, from the plans' own accounts."""
    moved: dict[str, int] = defaultdict(int)
    retired: dict[str, int] = defaultdict(int)
    accounts = {Rows.QUARANTINED: moved, Rows.RETIRED: retired}
    for row in read(lake, contract(LEDGER), ["kind", "tables"]).to_pylist():
        account = accounts.get(booked(row["kind"]))
        if account is None:
            continue
        for table, rows in json.loads(row["tables"]).items():
            account[table] -= rows
    return moved, retired


def _balance(
    lake: "Lake",
    table: str,
    lanes: dict[tuple[str, Stream], _Lane],
    moved: dict[str, int],
    retired: dict[str, int],
    live: int,
    refused: dict[str, int],
) -> TableBalance:
    mine = {stream: lane for (name, stream), lane in lanes.items() if name == table}
    faults = _stream_faults(lake, table, mine)
    in_flight = sum(lane.in_flight for lane in mine.values())
    ingested = sum(lane.stored for lane in mine.values())
    quarantined = sum(lane.rejected for lane in mine.values()) + moved[table]
    expected = ingested - moved[table] - retired[table]
    if live != expected:
        faults.append(f"the table holds {live} rows, the plans say {expected}")
    faults += _file_faults(lake, table)
    gaps = sum(lane.said_gaps for lane in mine.values())
    sampled_out = sum(lane.sampled_out for lane in mine.values())
    accounted = {stream: lane.stored + lane.rejected + lane.in_flight for stream, lane in mine.items()}
    recorded = gaps + sum(max(lane.said_rows, accounted[stream]) for stream, lane in mine.items())
    lost = gaps - sampled_out
    return TableBalance(
        table, recorded, live, quarantined, lost, in_flight, retired[table], refused, faults, sampled_out
    )


def _stream_faults(lake: "Lake", table: str, lanes: "Mapping[Stream, _Lane]") -> list[str]:
    """Return what is wrong with streams of a table, each with the segment whose word it is."""
    wrong = {stream: fault for stream, lane in sorted(lanes.items()) if (fault := lane.fault())}
    some = dict(list(wrong.items())[:MOST_TOLD])
    claims = claims_of(lake, {stream[3] for stream in some}) if some else []
    faults = []
    for stream, fault in some.items():
        mine = [row for row in claims if row["table"] == table and stream_of_row(row) == stream]
        last = max(mine, key=lambda row: row["said"], default=None)
        claim = Claim(table, stream, None if last is None or lanes[stream].said > last["said"] else last["segment"])
        faults.append(f"run {stream[0]} attempt {stream[1]} rank {stream[2]}: {fault}, as {claim} says")
    if len(wrong) > len(some):
        faults.append(f"{len(wrong) - len(some)} more streams do not add up")
    return faults


def _refused(odd: "Iterable[Row]") -> dict[str, dict[str, int]]:
    """Return how many segments of each table were refused, by reason."""
    counts: dict[str, dict[str, int]] = defaultdict(dict)
    for row in odd:
        reason = str(row["unreadable"])
        if reason.startswith(REFUSED):
            of_table, why = counts[row["table"]], reason.removeprefix(REFUSED)
            of_table[why] = of_table.get(why, 0) + 1
    return counts


def _quarantine(lake: "Lake", told: Accounts, moved: dict[str, int], retired: int) -> "Iterator[TableBalance]":
    """Yield the balance of ``rejects`` where what was quarantined, and retention did not take, is not all there."""
    faults = []
    taken = retired_dates(lake)
    live = _live_rows(lake, "rejects")
    refused = sum(row["rows_rejected"] for row in told.streams)
    expected = refused + sum(moved.values()) - retired
    if live != expected:
        faults.append(f"the table holds {live} rows, the plans say {expected}")
    faults += _file_faults(lake, "rejects")
    kept = {path.rpartition("/")[2] for path in lake.fs.find(lake.path("quarantine"))}
    raw = [row for row in told.odd if row["unreadable"] not in UNREAD]
    gone = {row["sha256"] for row in raw if taken.get(RAW + row["table"], {}).get(row["date"], 0) >= row["plan"]}
    aside = {row["sha256"] for row in raw} - gone
    if aside - kept:
        faults.append(f"{len(aside - kept)} unreadable segments are not in the lake's quarantine folder any more")
    if faults:
        yield TableBalance("rejects", stored=live, retired=retired, faults=faults)


def _live_rows(lake: "Lake", table: str) -> int:
    found = delta_table(lake, table)
    return 0 if found is None else int(pc.sum(files(found)["num_records"]).as_py() or 0)


def _file_faults(lake: "Lake", table: str) -> list[str]:
    """Return what is wrong with a table's data files: the log may name bytes that are not there."""
    found = delta_table(lake, table)
    if found is None:
        return []
    listed = lake.fs.find(lake.path("tables", table), detail=True)
    there = {path: info["size"] for path, info in listed.items()}
    named = files(found).select(["path", "size_bytes"]).to_pylist()
    bad = sum(there.get(lake.path("tables", table, row["path"])) != row["size_bytes"] for row in named)
    return [f"{bad} data files are missing or not of their size"] if bad else []
