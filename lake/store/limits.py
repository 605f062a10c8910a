"""Limits of one segment: they stop a decompression bomb, and admit everything that capture and the importers make.

They are checked before anything is decoded, by the Parquet footer, and again while decoding, because a footer can
claim anything. A segment beyond a limit is set aside like one that cannot be read: its bytes stay in quarantine, and
``ranklake replay`` reads them after the limit was raised.
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
"""What a value takes when it is decoded: a number, or a place in a dictionary."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Maximum contents of one segment, from ``[ingest]``."""

    segment_bytes: int = 512 * 2**20
    """Bytes of its file, or of its member in a pack; a worker holds them in memory. A larger one is not read, and
    waits."""
    decoded_bytes: int = 2 * 2**30
    """Approximate bytes of its decoded rows."""
    columns: int = 512
    """Columns; the widest table has some eighty."""
    dates: int = DATES_PER_SEGMENT
    """UTC dates of its rows; each becomes a file of its own."""
    row_group_rows: int = 2**24
    """Rows of one row group."""
    future_hours: int = 24
    """Hours by which a row's ts may be later than the plan that ingests it; rows beyond go to quarantine."""

    def last_us(self, taken_in: datetime) -> int:
        """Return the last moment (microseconds since 1970) that rows may have which are taken in at a time."""
        return int((taken_in.timestamp() + self.future_hours * 3600) * 1_000_000)

    def for_plan(self) -> dict[str, dict[str, int]]:
        """Return the limits that a plan records, so that carrying it out again gives the same result."""
        return {"limits": asdict(self)}

    @classmethod
    def of_plan(cls, body: Mapping[str, Any]) -> Self:
        """Return the limits that a plan was made under; the default of one that it does not say."""
        given = body.get("limits")
        known = {item.name for item in fields(cls)}
        facts = given.items() if isinstance(given, dict) else ()
        return cls(**{name: number for name, number in facts if name in known and isinstance(number, int)})

    def check(self, metadata: "pq.FileMetaData") -> None:
        """Raise `NotASegmentError` where a Parquet footer tells of more; nothing was decoded yet."""
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
        """Raise `NotASegmentError` where decoded rows take more room."""
        if size_bytes > self.decoded_bytes:
            raise NotASegmentError(
                f"{size_bytes:,} bytes decoded, more than [ingest] decoded_bytes = {self.decoded_bytes:,} allows"
            )

    def check_dates(self, days: set[int]) -> None:
        """Raise `NotASegmentError` where there are more dates than allowed."""
        if len(days) > self.dates:
            raise NotASegmentError(f"rows of {len(days):,} dates, more than [ingest] dates = {self.dates:,} allows")

    def spans_few_dates(self, extent: tuple[int, int] | None) -> bool:
        """Say whether moments between two (microseconds since 1970) cannot fall on too many dates."""
        return extent is None or extent[1] // DAY_US - extent[0] // DAY_US < self.dates


def decoded_bytes(metadata: "pq.FileMetaData", more_columns: int = 0) -> int:
    """Return about what rows take once decoded, as a Parquet footer says it, with so many columns more."""
    pages = sum(metadata.row_group(number).total_byte_size for number in range(metadata.num_row_groups))
    return int(pages + metadata.num_rows * (metadata.num_columns + more_columns) * _WORD_BYTES)


DEFAULT: Final = Limits()
