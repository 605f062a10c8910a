"""A segment on its way through an ingest task: what it declares, and what became of its rows."""

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from ranklake.lake.contracts.model import Contract
from ranklake.lake.ingest.segment_columns import conformed
from ranklake.lake.ingest.spool.gate import may_be_read_yet
from ranklake.lake.ingest.spool.packs import pack_of
from ranklake.lake.store.store import Lake
from ranklake.printable import printable_name
from ranklake.segments.segment import (
    NotASegmentError,
    SegmentFooter,
    SegmentName,
)

PART_ROWS: Final = 262_144

PART_BYTES: Final = 256 * 2**20
"""Decoded rows, about, that are held at a time of a segment that is read in parts."""


@dataclass(slots=True)
class IncomingSegment:
    """A segment on its way through a task.

    Attributes
    ----------
    path, sha256, size_bytes
        As the plan names it; of damaged bytes the digest that they have.
    name, footer
        What it says of itself; None where it says nothing.
    unreadable
        Why it cannot be read; None for a sound one.
    rows_stored, rows_rejected, rows_duplicate
        What became of its rows.
    slots
        Which slots they have, as `ranklake.lake.ingest.deduplication` says it.
    first, last
        The least and the greatest moment of them.
    signed_by
        Id of the key whose signature on it held.
    copies
        Other files that claim its digest, found damaged like it: each is settled, or it would be news for ever.
    """

    path: str
    sha256: str
    size_bytes: int
    name: SegmentName | None
    footer: SegmentFooter | None = None
    unreadable: str | None = None
    rows_stored: int = 0
    rows_rejected: int = 0
    rows_duplicate: int = 0
    slots: str = ""
    first: datetime | None = None
    last: datetime | None = None
    signed_by: str | None = None
    copies: "list[IncomingSegment]" = field(default_factory=list)
    _file: pq.ParquetFile | None = None
    _part_rows: int = PART_ROWS
    _whole: pa.Table | None = field(default=None, repr=False)

    @property
    def slot_file(self) -> tuple[int, int]:
        """Incarnation and number of the slot file; of a sound segment."""
        assert self.name is not None
        return self.name.incarnation, self.name.segment

    def parts(self, target: Contract) -> Iterator[pa.Table]:
        """Yield the rows under the contract's types, some hundred thousand at a time; once.

        Columns without any value are left out, and text that is stored with a dictionary keeps it.
        """
        if self._whole is not None:
            whole, self._whole = self._whole, None
            yield whole
        elif self._file is not None:
            file, self._file = self._file, None
            for batch in file.iter_batches(self._part_rows, use_threads=False):
                assert self.footer is not None, "rows of a segment that was not read"
                yield conformed(pa.table(batch), target, self.footer)

    def outcome(self, table: str) -> dict[str, Any]:
        """Return its row of the table ``segments``, without plan and date."""
        name, footer = self.name, self.footer
        in_quarantine = self.unreadable is not None and not may_be_read_yet(self.unreadable) and name is not None
        return {
            "sha256": self.sha256,
            "table": printable_name(table),
            "uri_name": printable_name(self.path),
            "run": name.run if name else None,
            "attempt": name.attempt if name else None,
            "rank": name.rank if name else None,
            "incarnation": name.incarnation if name else None,
            "segment": name.segment if name else None,
            "rows": name.rows if name else None,
            "rows_before": footer.rows_before if footer else None,
            "gap_rows": sum(footer.gaps.values()) if footer else None,
            "gap_rows_before": footer.gaps_before if footer else None,
            "gaps": json.dumps(footer.gaps, sort_keys=True) if footer else None,
            "totals": json.dumps(footer.totals, sort_keys=True) if footer and footer.totals else None,
            "final": footer.final if footer else None,
            "unreadable": self.unreadable,
            "contract_version": footer.contract_version if footer else None,
            "bytes": self.size_bytes,
            "ts_min": self.first,
            "ts_max": self.last,
            "rows_stored": self.rows_stored,
            # the name says how many rows lie in quarantine
            "rows_rejected": name.rows if in_quarantine and name else self.rows_rejected,
            "rows_duplicate": self.rows_duplicate,
            "pack": pack_of(self.path),
            "slots": self.slots if self.unreadable is None else None,
            "signed_by": self.signed_by,
        }


def recorded_table(lake: Lake, name: str) -> Contract | None:
    """Return the contract of a table that ranks record, or None: no rank writes derived or system tables."""
    found = lake.contracts().get(name)
    return found if found is not None and found.envelope else None


def unreadable(error: Exception) -> str:
    """Return the reason, never the text: a message can quote a value."""
    return f"not readable as Parquet ({type(error).__name__})"


def into_quarantine(lake: Lake, segment: IncomingSegment, raw: bytes) -> None:
    """Keep the bytes of a segment that is set aside, under their digest."""
    segment.sha256 = hashlib.sha256(raw).hexdigest()
    lake.put_if_absent(f"quarantine/{segment.sha256}", raw)


def refuse(lake: Lake, segment: IncomingSegment, raw: bytes, why: str) -> None:
    """Set a segment aside that was found sound; nothing that it says counts."""
    segment.unreadable, segment.footer, segment.signed_by = why, None, None
    segment.first = segment.last = None
    into_quarantine(lake, segment, raw)


def segment_name(path: str) -> SegmentName | None:
    """Return what the name in a path says of a segment; None if it is no segment's."""
    try:
        return SegmentName.parse(path.rpartition("/")[2])
    except NotASegmentError:
        return None
