"""Sums over the table ``segments``, stream by stream, for `stream_balance`.

A rank's minute is a segment, and a year of a large job hundreds of millions: they are summed up where they lie, and
only what is odd about some comes here one by one.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from ranklake.lake.ingest.disowned import Claim, set_aside
from ranklake.lake.ingest.ingestion_index import Stream, stream_of_row
from ranklake.lake.query.sql import session
from ranklake.segments.segment import SAMPLED_OUT

if TYPE_CHECKING:
    from ranklake.lake.store.store import Lake

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
        rows (with gaps) and the most gaps that their recorder told of.
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
    held: dict[SlotFile, int] = {}
    if wanted:
        context.from_arrow(_numbers(wanted), name="wanted")
        for row in context.sql(_HELD).to_arrow_table().to_pylist():
            held[row["table"], stream_of_row(row), row["segment"]] = row["rows"]
    aside = set_aside(lake)
    if aside:
        believed = _believed(claims_of(lake, {claim.stream[3] for claim in aside}), aside)
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


_NOTHING: Final = {"said": 0, "said_gaps": 0}


def claims_of(lake: "Lake", incarnations: Collection[int]) -> list[Row]:
    """Return what each slot file of some processes says was recorded up to its end: ``said`` and ``said_gaps``."""
    context = session(lake, ["segments"], heavy=True)
    context.from_arrow(_numbers(incarnations), name="doubted")
    found: list[Row] = context.sql(_SEGMENTS).to_arrow_table().to_pylist()
    return found


def _numbers(incarnations: Collection[int]) -> pa.Table:
    return pa.table({"incarnation": pa.array(sorted(incarnations), pa.int64())})


def _believed(claims: list[Row], aside: list[Claim]) -> dict[tuple[str, Stream], dict[str, Any]]:
    """Return the most that streams say, by table and stream, where what is disowned does not count."""
    found: dict[tuple[str, Stream], dict[str, Any]] = {}
    for row in claims:
        if not _is_disowned(row, aside):
            so_far = found.setdefault((row["table"], stream_of_row(row)), dict(_NOTHING))
            so_far |= {name: max(so_far[name], row[name]) for name in _NOTHING}
    return found


def _is_disowned(row: Row, aside: list[Claim]) -> bool:
    return any(claim.covers(row["table"], stream_of_row(row), row["segment"]) for claim in aside)
