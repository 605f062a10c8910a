"""Limits of one segment, against decompression bombs. Segments of capture and of the importers stay far below them.

The Parquet footer is checked before decoding, and the rows again while decoding, because a footer can contain false
numbers. A segment above a limit is handled like an unreadable one: its bytes go to quarantine, and ``ranklake replay``
can read them after the limit was raised.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, Self

from ranklake.segments.segment import DATES_PER_SEGMENT, NotASegmentError

if TYPE_CHECKING:
    import pyarrow.parquet as pq

DAY_US: Final = 86_400_000_000
_WORD_BYTES: Final = 8
"""Estimated size of a decoded value: a number, or an index into a dictionary."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Maximum contents of one segment, from ``[ingest]``."""

    segment_bytes: int = 512 * 2**20
    """Size of a segment's file, or of its member in a pack, in bytes. A worker reads it into memory. A larger segment
    is not read and waits in the spool."""
    decoded_bytes: int = 2 * 2**30
    """Approximate size of the decoded rows in bytes."""
    columns: int = 512
    """Number of columns; the widest table has about 80."""
    dates: int = DATES_PER_SEGMENT
    """Number of UTC dates of the rows. Each date is written to its own file."""
    row_group_rows: int = 2**24
    """Rows of one row group."""
    future_hours: int = 24
    """Hours by which a row's ``ts`` may be later than the plan that ingests it. Later rows go to quarantine."""

    def latest_us(self, ingested_at: datetime) -> int:
        """Return the latest ``ts`` (µs since 1970) of rows that are ingested at a time."""
        return int((ingested_at.timestamp() + self.future_hours * 3600) * 1_000_000)

    def to_plan(self) -> dict[str, dict[str, int]]:
        """Return the limits as an entry of a plan's body, so that repeating the plan gives the same result."""
        return {"limits": asdict(self)}

    @classmethod
    def from_plan(cls, body: Mapping[str, Any]) -> Self:
        """Return the limits of a plan's body. A limit that it lacks has its default."""
        limits = body.get("limits")
        known = {item.name for item in fields(cls)}
        facts = limits.items() if isinstance(limits, dict) else ()
        return cls(**{name: number for name, number in facts if name in known and isinstance(number, int)})

    def check(self, metadata: "pq.FileMetaData") -> None:
        """Raise `NotASegmentError` if the numbers of a Parquet footer exceed a limit. Decodes nothing."""
        columns = metadata.num_columns
        if columns > self.columns:
            raise NotASegmentError(f"{columns:,} columns, more than [ingest] columns = {self.columns:,} allows")
        rows = max((metadata.row_group(number).num_rows for number in range(metadata.num_row_groups)), default=0)
        if rows > self.row_group_rows:
            raise NotASegmentError(
                f"a row group of {rows:,} rows, more than [ingest] row_group_rows = {self.row_group_rows:,} allows"
            )
        self.check_decoded(decoded_bytes(metadata))

    def check_decoded(self, size_bytes: int) -> None:
        """Raise `NotASegmentError` if decoded rows exceed the limit for memory."""
        if size_bytes > self.decoded_bytes:
            raise NotASegmentError(
                f"{size_bytes:,} bytes decoded, more than [ingest] decoded_bytes = {self.decoded_bytes:,} allows"
            )

    def check_dates(self, days: set[int]) -> None:
        """Raise `NotASegmentError` if there are more dates than allowed. ``days`` are days since 1970."""
        if len(days) > self.dates:
            raise NotASegmentError(f"rows of {len(days):,} dates, more than [ingest] dates = {self.dates:,} allows")

    def spans_few_dates(self, extent: tuple[int, int] | None) -> bool:
        """Whether times within an extent (first and last, µs since 1970) certainly fall on few enough dates."""
        return extent is None or extent[1] // DAY_US - extent[0] // DAY_US < self.dates


def decoded_bytes(metadata: "pq.FileMetaData", more_columns: int = 0) -> int:
    """Estimate the size of decoded rows in bytes, from a Parquet footer and a number of additional columns."""
    pages = sum(metadata.row_group(number).total_byte_size for number in range(metadata.num_row_groups))
    return int(pages + metadata.num_rows * (metadata.num_columns + more_columns) * _WORD_BYTES)


DEFAULT: Final = Limits()
