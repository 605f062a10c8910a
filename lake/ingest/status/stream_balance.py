"""The balance of each stream: what its recorder counted, compared with what became of its rows."""

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
_HELD: Final = """
SELECT "table", run, attempt, rank, incarnation, segment, max(rows) AS rows
FROM segments
WHERE unreadable IS NULL AND incarnation IN (SELECT incarnation FROM wanted)
GROUP BY "table", run, attempt, rank, incarnation, segment"""


@dataclass(frozen=True, slots=True)
class Accounts:
    """What the table ``segments`` says.

    Attributes
    ----------
    streams
        Of the sound segments of each table and stream: rows stored and rejected; ``said`` and ``said_gaps``, the most
        rows (with gaps) and the most gaps that their recorder reported.
    sampled_out
        Of each table and stream, how many of its gaps were wanted: sampling left them out.
    closings
        What recorders said when they closed: whose, and ``totals`` as JSON.
    odd
        Segments that could not be read, each.
    held
        Rows of the largest sound segment of each slot file, as far as it was asked for.
    aside
        What was disowned: what it says of itself is none of the above.
    """

    streams: list[Row]
    sampled_out: dict[tuple[str, Stream], int]
    closings: list[Row]
    odd: list[Row]
    held: dict[SlotFile, int]
    aside: list[Claim]


def read_accounts(lake: "Lake", incarnations: Collection[int]) -> Accounts:
    """Return what became of the segments that plans took in.

    Parameters
    ----------
    incarnations
        Processes of whose slot files to tell what is held; those of odd segments come with them.

    Raises what `ranklake.lake.query.sql.session` does.
    """
    context = session(lake, ["segments"], heavy=True)
    streams, closings, odd = (context.sql(text).to_arrow_table().to_pylist() for text in (_STREAMS, _CLOSINGS, _ODD))
    wanted = {*incarnations, *(row["incarnation"] for row in odd if row["incarnation"] is not None)}
    held = _held(context, wanted)
    aside = disowned_claims(lake.tables)
    if aside:
        believed = _claimed_counts(claims_of(lake, {claim.stream[3] for claim in aside}), aside)
        disowned = {claim.stream for claim in aside}
        streams = [
            {**row, **believed.get((row["table"], stream_of_row(row)), _NOTHING)}
            if stream_of_row(row) in disowned
            else row
            for row in streams
        ]
        closings = [row for row in closings if not _is_disowned(row, aside)]
        odd = [row for row in odd if not _is_disowned(row, aside)]
    sampled_out = {
        (row["table"], stream_of_row(row)): int(row["rows"] or 0)
        for row in context.sql(_SAMPLED_OUT).to_arrow_table().to_pylist()
    }
    return Accounts(streams, sampled_out, closings, odd, held, aside)


def odd_segments(lake: "Lake") -> tuple[list[Row], dict[SlotFile, int]]:
    """Return segments that could not be read and are not disowned, and the rows held of their processes' slot files.

    Raises what `ranklake.lake.query.sql.session` does.
    """
    context = session(lake, ["segments"], heavy=True)
    odd: list[Row] = context.sql(_ODD).to_arrow_table().to_pylist()
    aside = disowned_claims(lake.tables) if odd else []
    odd = [row for row in odd if not _is_disowned(row, aside)]
    return odd, _held(context, {row["incarnation"] for row in odd if row["incarnation"] is not None})


def _held(context: "SessionContext", incarnations: Collection[int]) -> dict[SlotFile, int]:
    """Return the rows of the largest sound segment of each slot file of some processes."""
    if not incarnations:
        return {}
    context.from_arrow(_numbers(incarnations), name="wanted")
    rows = context.sql(_HELD).to_arrow_table().to_pylist()
    return {(row["table"], stream_of_row(row), row["segment"]): row["rows"] for row in rows}


_NOTHING: Final = {"said": 0, "said_gaps": 0}


def claims_of(lake: "Lake", incarnations: Collection[int]) -> list[Row]:
    """Return what each slot file of some processes says was recorded up to its end: ``said`` and ``said_gaps``."""
    context = session(lake, ["segments"], heavy=True)
    context.from_arrow(_numbers(incarnations), name="doubted")
    claims: list[Row] = context.sql(_SEGMENTS).to_arrow_table().to_pylist()
    return claims


def _numbers(incarnations: Collection[int]) -> pa.Table:
    return pa.table({"incarnation": pa.array(sorted(incarnations), pa.int64())})


def _claimed_counts(claims: list[Row], aside: list[Claim]) -> dict[tuple[str, Stream], dict[str, Any]]:
    """Return the most that streams say, by table and stream, where what is disowned does not count."""
    believed: dict[tuple[str, Stream], dict[str, Any]] = {}
    for row in claims:
        if not _is_disowned(row, aside):
            so_far = believed.setdefault((row["table"], stream_of_row(row)), dict(_NOTHING))
            so_far |= {name: max(so_far[name], row[name]) for name in _NOTHING}
    return believed


def _is_disowned(row: Row, aside: list[Claim]) -> bool:
    return any(claim.covers(row["table"], stream_of_row(row), row["segment"]) for claim in aside)


MOST_GAPS: Final = 10**12
"""Rows that one process can have lost of a table: a million a second for eleven days."""
NOBODY: Final[Stream] = ("", -1, -1, -1)
"""Has the rows that were refused: they are no stream's."""


@dataclass(slots=True)
class StreamBalance:
    """One stream of one table: what its recorder says, and what became of it.

    A recorder that gives up a sealed segment for lack of room counts its rows as gaps from then on. Footers that were
    sealed before still have them among the rows, but the sum of both only ever grows, and so do the gaps.

    Attributes
    ----------
    reported, reported_gaps
        The most rows (with gaps), and gaps, that its recorder reports.
    sampled_out
        Of the gaps, those that were wanted.
    named_rows
        Rows of files that nobody could read, by their names.
    stored, rejected, in_flight
        What became of its rows.
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
        """Take in what became of segments of it."""
        self.stored += row["rows_stored"]
        self.rejected += row["rows_rejected"]
        self.reported = max(self.reported, int(row["said"]))
        self.reported_gaps = max(self.reported_gaps, int(row["said_gaps"]))

    @property
    def reported_rows(self) -> int:
        """Rows that its recorder reports, without those that it lost."""
        return max(self.reported - self.reported_gaps, self.named_rows)

    @property
    def missing(self) -> int:
        """Rows that its recorder reports, and nobody has."""
        return max(0, self.reported_rows - self.stored - self.rejected - self.in_flight)

    def fault(self) -> str | None:
        """Return what does not add up, in words."""
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
        What became of the segments that plans took in.
    waiting
        Files of the spool that no plan took in.
    """
    balances: dict[tuple[str, Stream], StreamBalance] = defaultdict(StreamBalance)
    ingested: dict[SlotFile, int] = defaultdict(int, accounts.held)
    refused: dict[tuple[str, Stream], int] = defaultdict(int)
    for row in accounts.streams:
        balances[row["table"], stream_of_row(row)].add(row)
    # Of a slot file that no sound copy brought one damaged copy counts, and what was gone only where there is none;
    # where a sound one came, the damaged ones are nobody's rows.
    for row in sorted(accounts.odd, key=lambda row: may_be_read_yet(row["unreadable"])):
        stream = stream_of_row(row)
        slot_file = (row["table"], stream, row["segment"])
        if str(row["unreadable"]).startswith(REFUSED):  # nobody knows whose rows these are
            balance = balances[row["table"], NOBODY]
            balance.rejected += row["rows_rejected"]
            balance.named_rows += row["rows_rejected"]
            if row["incarnation"] is not None:
                refused[row["table"], stream] += max(0, row["rows_rejected"] - ingested.get(slot_file, 0))
            continue
        if row["incarnation"] is None or slot_file in ingested or row["unreadable"] == IRREGULAR:
            continue
        # Only its name is known; later footers of the stream say what came before it.
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
    for place, rows in accounts.sampled_out.items():
        balances[place].sampled_out = min(rows, balances[place].reported_gaps)
    _add_in_flight(balances, ingested, waiting)
    _return_refused(balances, refused)
    return balances


def _add_in_flight(
    balances: dict[tuple[str, Stream], StreamBalance], ingested: "dict[SlotFile, int]", waiting: "Iterable[SpoolFile]"
) -> None:
    """Take in what waits in the spool: a slot file that is sent again brings only what none of its copies brought."""
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
    """Count among a stream's rows what its recorder tells of and nobody has, as far as it was refused in its name."""
    for (table, stream), rows in refused.items():
        own = min(rows, balances[table, stream].missing)
        balances[table, stream].rejected += own
        balances[table, NOBODY].rejected -= own
        balances[table, NOBODY].named_rows -= own


def _closing_counts(text: str) -> "Iterator[tuple[str, int, int]]":
    """Yield table, rows and gaps that a recorder reported when it closed; what is none of it is passed over."""
    try:
        totals = json.loads(text)
    except (ValueError, RecursionError):
        return
    for table, counts in totals.items() if isinstance(totals, dict) else ():
        if isinstance(counts, list) and len(counts) == 2 and all(type(count) is int for count in counts):  # noqa: PLR2004
            yield table, *counts
