"""A partition as a check finds it, and what each expectation on it came to."""

from dataclasses import dataclass, field, replace
from datetime import date
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from ranklake.lake.tables.live_files import FILE_SCHEMA

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(slots=True)
class Tally:
    """What an expectation came to so far.

    Attributes
    ----------
    checked, failed
        Rows judged, rows that failed.
    seen
        A few failing values (operational numbers), or what a check of the whole partition observed.
    error
        Why it could not be computed; empty if it could.
    absent
        The table does not have a column of it yet.
    parts
        What a watch summed up of each batch, until it is judged.
    expected, measured, unknown
        What a watch expected, measured, or why it could say nothing (`ranklake.lake.contracts.checks.kind.Finding`).
    again
        Whether a watch left out what is too young to be judged.
    passed
        The verdict, where the counts alone do not give it.
    seconds
        Time that the scan of the partition took.
    runs
        Runs of rows that failed, where a failure alarms.
    """

    checked: int = 0
    failed: int = 0
    seen: list[str] = field(default_factory=list)
    error: str = ""
    absent: bool = False
    parts: list[Any] = field(default_factory=list)
    expected: str = ""
    measured: "Mapping[str, float] | None" = None
    unknown: str = ""
    again: bool = False
    passed: bool | None = None
    seconds: float | None = None
    runs: set[str] = field(default_factory=set)


@dataclass(frozen=True, slots=True)
class Partition:
    """A partition as it was found: its files (rows of `lake.delta.live_files.files`) at a version of its table."""

    day: date
    version: int
    files: pa.Table

    @property
    def rows(self) -> int:
        """Return its rows, by the Delta log."""
        return int(pc.sum(self.files["num_records"]).as_py() or 0)

    def slim(self) -> "Partition":
        """Return it without the log's statistics: a scan asks none, and they are most of what a task would weigh."""
        return replace(self, files=self.files.select(FILE_SCHEMA.names).combine_chunks())
