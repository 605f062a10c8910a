"""The balance of each stream: the rows that its recorder counted, compared with the rows that the lake has."""

import json
from collections import defaultdict
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from ranklake.lake.ingest.disowned import Claim, disowned_claims
from ranklake.lake.ingest.ingestion_index import Stream, stream_of_row
from ranklake.lake.ingest.spool.gate import IRREGULAR, may_be_read_yet
from ranklake.lake.query.sql import session
from ranklake.lake.store.writers import REFUSED
from ranklake.segments.segment import SAMPLED_OUT

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from ranklake.lake.ingest.spool.packs import SpoolFile
    from ranklake.lake.query.engine import SessionContext
    from ranklake.lake.store.lake import Lake

SlotFile = tuple[str, Stream, int]
"""Table, stream, segment."""
Row = Mapping[str, Any]

_STREAMS: Final = """
SELECT
    "table", run, attempt, rank, incarnation,
    sum(rows_stored) AS rows_stored, sum(rows_rejected) AS rows_rejected,
    max(CAST(rows_before AS DECIMAL(38, 0)) + rows + gap_rows_before + gap_rows) AS said,
    max(CAST(gap_rows_before AS DECIMAL(38, 0)) + gap_rows) AS said_gaps
FROM segments
WHERE unreadable IS NULL
GROUP BY "table", run, attempt, rank, incarnation"""
_SEGMENTS: Final = """
SELECT "table", run, attempt, rank, incarnation, segment,
    max(CAST(rows_before AS DECIMAL(38, 0)) + rows + gap_rows_before + gap_rows) AS said,
    max(CAST(gap_rows_before AS DECIMAL(38, 0)) + gap_rows) AS said_gaps
FROM segments
WHERE unreadable IS NULL AND incarnation IN (SELECT incarnation FROM doubted)
GROUP BY "table", run, attempt, rank, incarnation, segment"""
_SAMPLED_OUT: Final = f"""
SELECT "table", run, attempt, rank, incarnation, sum(rows) AS rows
FROM (
    SELECT "table", run, attempt, rank, incarnation, segment,
        max(CAST(regexp_match(gaps, '"{SAMPLED_OUT}": ([0-9]+)')[1] AS DECIMAL(38, 0))) AS rows
    FROM segments
    WHERE unreadable IS NULL AND gap_rows > 0 AND gaps LIKE '%"{SAMPLED_OUT}": %'
    GROUP BY "table", run, attempt, rank, incarnation, segment
)
GROUP BY "table", run, attempt, rank, incarnation"""  # noqa: S608 - a constant
_CLOSINGS: Final = """
SELECT "table", run, attempt, rank, incarnation, segment, totals FROM segments WHERE totals IS NOT NULL"""
_ODD: Final = """
SELECT "table", run, attempt, rank, incarnation, segment, sha256, unreadable, rows, rows_stored, rows_rejected,
    plan, date
FROM segments
WHERE unreadable IS NOT NULL"""
_LARGEST: Final = """
SELECT "table", run, attempt, rank, incarnation, segment, max(rows) AS rows
FROM segments
WHERE unreadable IS NULL AND incarnation IN (SELECT incarnation FROM wanted)
GROUP BY "table", run, attempt, rank, incarnation, segment"""


@dataclass(frozen=True, slots=True)
class Accounts:
    """Row counts from the table ``segments``.

    Attributes
    ----------
    streams
        Per table and stream, from sound segments: rows stored and rejected; ``said`` and ``said_gaps``, the highest
        counts of recorded rows (gaps included) and of gaps in the footers.
    sampled_out
        By table and stream, the number of gaps that are rows left out by sampling.
    closings
        Segments that a recorder wrote when it closed: the stream, and ``totals`` as JSON.
    odd
        Segments that could not be read.
    largest_segments
        Number of rows of the largest sound segment of each slot file, for the requested processes.
    disowned
        Disowned claims. Their counts are not in the other attributes.
    """

    streams: list[Row]
    sampled_out: dict[tuple[str, Stream], int]
    closings: list[Row]
    odd: list[Row]
    largest_segments: dict[SlotFile, int]
    disowned: list[Claim]


def read_accounts(lake: "Lake", incarnations: Collection[int]) -> Accounts:
    """Read the row counts of all ingested segments.

    Parameters
    ----------
    incarnations
        Processes for `Accounts.largest_segments`. The processes of unreadable segments are added.

    Raises what `ranklake.lake.query.sql.session` raises.
    """
    context = session(lake, ["segments"], heavy=True)
    streams, closings, odd = (context.sql(text).to_arrow_table().to_pylist() for text in (_STREAMS, _CLOSINGS, _ODD))
    wanted = {*incarnations, *(row["incarnation"] for row in odd if row["incarnation"] is not None)}
    largest_segments = _largest_segments(context, wanted)
    disowned = disowned_claims(lake.tables)
    if disowned:
        counts = _accepted_counts(reported_counts(lake, {claim.stream[3] for claim in disowned}), disowned)
        disowned_streams = {claim.stream for claim in disowned}
        streams = [
            {**row, **counts.get((row["table"], stream_of_row(row)), _NO_ROWS)}
            if stream_of_row(row) in disowned_streams
            else row
            for row in streams
        ]
        closings = [row for row in closings if not _is_disowned(row, disowned)]
        odd = [row for row in odd if not _is_disowned(row, disowned)]
    sampled_out = {
        (row["table"], stream_of_row(row)): int(row["rows"] or 0)
        for row in context.sql(_SAMPLED_OUT).to_arrow_table().to_pylist()
    }
    return Accounts(streams, sampled_out, closings, odd, largest_segments, disowned)


def odd_segments(lake: "Lake") -> tuple[list[Row], dict[SlotFile, int]]:
    """Return unreadable segments that are not disowned, and `Accounts.largest_segments` for their processes.

    Raises what `ranklake.lake.query.sql.session` raises.
    """
    context = session(lake, ["segments"], heavy=True)
    odd: list[Row] = context.sql(_ODD).to_arrow_table().to_pylist()
    disowned = disowned_claims(lake.tables) if odd else []
    odd = [row for row in odd if not _is_disowned(row, disowned)]
    return odd, _largest_segments(context, {row["incarnation"] for row in odd if row["incarnation"] is not None})


def _largest_segments(context: "SessionContext", incarnations: Collection[int]) -> dict[SlotFile, int]:
    """Return the number of rows of the largest sound segment of each slot file of some processes."""
    if not incarnations:
        return {}
    context.from_arrow(_numbers(incarnations), name="wanted")
    rows = context.sql(_LARGEST).to_arrow_table().to_pylist()
    return {(row["table"], stream_of_row(row), row["segment"]): row["rows"] for row in rows}


_NO_ROWS: Final = {"said": 0, "said_gaps": 0}


def reported_counts(lake: "Lake", incarnations: Collection[int]) -> list[Row]:
    """Return the counts of recorded rows in each slot file of some processes: ``said`` and ``said_gaps``."""
    context = session(lake, ["segments"], heavy=True)
    context.from_arrow(_numbers(incarnations), name="doubted")
    counts: list[Row] = context.sql(_SEGMENTS).to_arrow_table().to_pylist()
    return counts


def _numbers(incarnations: Collection[int]) -> pa.Table:
    return pa.table({"incarnation": pa.array(sorted(incarnations), pa.int64())})


def _accepted_counts(slot_files: list[Row], disowned: list[Claim]) -> dict[tuple[str, Stream], dict[str, Any]]:
    """Return the highest counts by table and stream, from slot files that are not disowned."""
    counts: dict[tuple[str, Stream], dict[str, Any]] = {}
    for row in slot_files:
        if not _is_disowned(row, disowned):
            highest = counts.setdefault((row["table"], stream_of_row(row)), dict(_NO_ROWS))
            highest |= {name: max(highest[name], row[name]) for name in _NO_ROWS}
    return counts


def _is_disowned(row: Row, disowned: list[Claim]) -> bool:
    return any(claim.covers(row["table"], stream_of_row(row), row["segment"]) for claim in disowned)


MOST_GAPS: Final = 10**12
"""Most rows of a table that one process can lose: a million a second for eleven days."""
NOBODY: Final[Stream] = ("", -1, -1, -1)
"""Stream of refused rows, whose true stream is unknown."""


@dataclass(slots=True)
class StreamBalance:
    """Balance of one stream of one table: the counts of its recorder, and the rows that the lake has.

    A recorder that deletes a sealed segment because the disk is full counts its rows as gaps from then on. Earlier
    footers still count them as rows. But the sum of rows and gaps never decreases, and neither do the gaps. So the
    highest values are the current ones.

    Attributes
    ----------
    reported, reported_gaps
        Highest count of rows (gaps included), and of gaps, that its recorder reports.
    sampled_out
        Number of gaps that are rows left out by sampling.
    named_rows
        Number of rows of unreadable files, from their names.
    stored, rejected, in_flight
        Number of rows in the table, in the quarantine, and in the spool.
    closed
        Whether its recorder wrote its totals when it closed.
    """

    reported: int = 0
    reported_gaps: int = 0
    sampled_out: int = 0
    named_rows: int = 0
    stored: int = 0
    rejected: int = 0
    in_flight: int = 0
    closed: bool = False

    def add(self, row: "Row") -> None:
        """Add the counts of segments of the stream."""
        self.stored += row["rows_stored"]
        self.rejected += row["rows_rejected"]
        self.reported = max(self.reported, int(row["said"]))
        self.reported_gaps = max(self.reported_gaps, int(row["said_gaps"]))

    @property
    def reported_rows(self) -> int:
        """Number of rows that its recorder reports, without gaps."""
        return max(self.reported - self.reported_gaps, self.named_rows)

    @property
    def missing(self) -> int:
        """Number of reported rows that are nowhere: not stored, not in the quarantine, not in the spool."""
        return max(0, self.reported_rows - self.stored - self.rejected - self.in_flight)

    def fault(self) -> str | None:
        """Return a text that says what does not add up; None if all rows are accounted for."""
        if self.missing:
            return f"{self.missing} rows are missing"
        accounted = self.stored + self.rejected + self.in_flight
        if self.closed and accounted > self.reported_rows:
            return f"{accounted - self.reported_rows} rows too many"
        if self.reported_gaps > MOST_GAPS:
            return f"{self.reported_gaps} rows are said to be lost, more than a process can record"
        return None


def stream_balances(accounts: "Accounts", waiting: "Iterable[SpoolFile]") -> dict[tuple[str, Stream], StreamBalance]:
    """Return the balance of every stream of every table.

    Parameters
    ----------
    accounts
        Row counts of ingested segments.
    waiting
        Files of the spool that are not ingested yet.
    """
    balances: dict[tuple[str, Stream], StreamBalance] = defaultdict(StreamBalance)
    ingested: dict[SlotFile, int] = defaultdict(int, accounts.largest_segments)
    refused: dict[tuple[str, Stream], int] = defaultdict(int)
    for row in accounts.streams:
        balances[row["table"], stream_of_row(row)].add(row)
    # If a slot file has a sound segment, its damaged copies do not count. Otherwise one damaged copy counts. A file
    # that was never read counts only if there is no damaged copy either, so it is sorted last.
    for row in sorted(accounts.odd, key=lambda row: may_be_read_yet(row["unreadable"])):
        stream = stream_of_row(row)
        slot_file = (row["table"], stream, row["segment"])
        if str(row["unreadable"]).startswith(REFUSED):  # the true stream of these rows is unknown
            balance = balances[row["table"], NOBODY]
            balance.rejected += row["rows_rejected"]
            balance.named_rows += row["rows_rejected"]
            if row["incarnation"] is not None:
                refused[row["table"], stream] += max(0, row["rows_rejected"] - ingested.get(slot_file, 0))
            continue
        if row["incarnation"] is None or slot_file in ingested or row["unreadable"] == IRREGULAR:
            continue
        # Only the name can be read. The counts before it are in later footers of the stream.
        balance = balances[row["table"], stream]
        balance.add({**row, "said": row["rows"], "said_gaps": 0})
        balance.named_rows = max(balance.named_rows, row["rows"])
        if not may_be_read_yet(row["unreadable"]):
            ingested[slot_file] = row["rows"]
    for row in accounts.closings:
        for table, rows, gaps in _closing_counts(row["totals"]):
            closing = balances[table, stream_of_row(row)]
            closing.reported = max(closing.reported, rows + gaps)
            closing.reported_gaps = max(closing.reported_gaps, gaps)
            closing.closed = True
    for key, rows in accounts.sampled_out.items():
        balances[key].sampled_out = min(rows, balances[key].reported_gaps)
    _add_in_flight(balances, ingested, waiting)
    _return_refused(balances, refused)
    return balances


def _add_in_flight(
    balances: dict[tuple[str, Stream], StreamBalance], ingested: "dict[SlotFile, int]", waiting: "Iterable[SpoolFile]"
) -> None:
    """Add the rows in the spool. Of a slot file that was sent again, only rows beyond the ingested ones count."""
    for item in waiting:
        if item.name is None:
            continue
        name = item.name
        stream = (name.run, name.attempt, name.rank, name.incarnation)
        slot_file = (item.table, stream, name.segment)
        balance = balances[item.table, stream]
        balance.in_flight += max(0, name.rows - ingested[slot_file])
        ingested[slot_file] = max(ingested[slot_file], name.rows)


def _return_refused(
    balances: dict[tuple[str, Stream], StreamBalance], refused: "Mapping[tuple[str, Stream], int]"
) -> None:
    """Move refused rows from `NOBODY` to the stream in their name, as far as that stream has missing rows."""
    for (table, stream), rows in refused.items():
        moved = min(rows, balances[table, stream].missing)
        balances[table, stream].rejected += moved
        balances[table, NOBODY].rejected -= moved
        balances[table, NOBODY].named_rows -= moved


def _closing_counts(text: str) -> "Iterator[tuple[str, int, int]]":
    """Yield table, rows and gaps that a recorder reported when it closed. Invalid entries are skipped."""
    try:
        totals = json.loads(text)
    except (ValueError, RecursionError):
        return
    for table, counts in totals.items() if isinstance(totals, dict) else ():
        if isinstance(counts, list) and len(counts) == 2 and all(type(count) is int for count in counts):  # noqa: PLR2004
            yield table, *counts
