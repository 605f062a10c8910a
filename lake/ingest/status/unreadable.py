"""Segments that could not be read, or were refused, and that nothing has put right since.

What puts one right: a sound copy of its slot file, however it came (sent again, cut anew, released); a claim of the
table ``disowned`` that covers it; retention or an erasure that removed its bytes from quarantine.
"""

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from ranklake.lake.ingest.ingestion_index import stream_of_row
from ranklake.lake.ingest.spool.gate import may_be_read_yet
from ranklake.lake.ingest.status.stream_balance import Row, SlotFile, odd_segments
from ranklake.lake.store.governance import RAW, erased_raw, retired_dates

if TYPE_CHECKING:
    from ranklake.lake.store.lake import Lake
    from ranklake.lake.store.tables import Tables


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
