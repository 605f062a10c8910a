"""What became of every segment, stream by stream: sums over the table ``segments``, for the books of `invariant`.

A rank's minute is a segment, and a year of a large job hundreds of millions: they are summed up where they lie, and
only what is odd about some comes here one by one.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from ranklake.lake.known import Stream, stream_of_row
from ranklake.lake.query import session

if TYPE_CHECKING:
    from ranklake.lake.store import Lake

SlotFile = tuple[str, Stream, int]
"""Table, stream, segment."""
Row = Mapping[str, Any]

_STREAMS: Final = """
SELECT
    "table", run, attempt, rank, incarnation,
    sum(rows_stored) AS rows_stored, sum(rows_rejected) AS rows_rejected,
    max(rows_before + rows + gap_rows_before + gap_rows) AS said,
    max(gap_rows_before + gap_rows) AS said_gaps
FROM segments
WHERE unreadable IS NULL
GROUP BY "table", run, attempt, rank, incarnation"""
_CLOSINGS: Final = "SELECT run, attempt, rank, incarnation, totals FROM segments WHERE totals IS NOT NULL"
_ODD: Final = """
SELECT "table", run, attempt, rank, incarnation, segment, sha256, unreadable, rows, rows_stored, rows_rejected
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
    closings
        What recorders said when they closed: whose, and ``totals`` as JSON.
    odd
        Segments that could not be read, each.
    held
        Rows of the largest sound segment of each slot file, as far as it was asked for.
    """

    streams: list[Row]
    closings: list[Row]
    odd: list[Row]
    held: dict[SlotFile, int]


def read_accounts(lake: "Lake", incarnations: Collection[int]) -> Accounts:
    """Return what became of the segments that plans took in.

    Parameters
    ----------
    incarnations
        Processes of whose slot files to tell what is held; those of odd segments come with them.

    Raises what `ranklake.lake.query.session` does.
    """
    context = session(lake, ["segments"], heavy=True)
    streams, closings, odd = (context.sql(text).to_arrow_table().to_pylist() for text in (_STREAMS, _CLOSINGS, _ODD))
    wanted = {*incarnations, *(row["incarnation"] for row in odd if row["incarnation"] is not None)}
    held: dict[SlotFile, int] = {}
    if wanted:
        context.from_arrow(pa.table({"incarnation": pa.array(sorted(wanted), pa.int64())}), name="wanted")
        for row in context.sql(_HELD).to_arrow_table().to_pylist():
            held[row["table"], stream_of_row(row), row["segment"]] = row["rows"]
    return Accounts(streams, closings, odd, held)
