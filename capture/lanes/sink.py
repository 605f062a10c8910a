"""Sink: writes a run's rows, and counts rows that cannot be recorded. It never raises."""

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

from ranklake.capture.common.gaps import AFTER_CLOSE, BAD_VALUE, NOT_STARTED, UNEXPECTED, Gaps, Misuses, RefusedError
from ranklake.capture.common.monotonic import now
from ranklake.capture.common.values import BadValueError, DeviceValueError, repr_of
from ranklake.capture.lanes.records import RecordLane


class Sink:
    """Writes the rows of one run.

    Parameters
    ----------
    gaps
        Counts rows that are not recorded, and logs warnings.
    records
        The open files by table; None for a run that records nothing.
    misuses
        Counts and logs misuses.
    idle
        Counts the rows that a run without recording is given; None if the user disabled recording.

    Attributes
    ----------
    is_idle
        Whether the run never records.
    is_closed
        Whether the run has ended. Later rows are counted as gaps with this reason.
    """

    def __init__(
        self,
        gaps: Gaps,
        records: Mapping[str, RecordLane] | None = None,
        misuses: Misuses | None = None,
        idle: Gaps | None = None,
    ) -> None:
        self.gaps, self.idle = gaps, idle
        self._records, self._misuses = records, misuses
        self.is_idle = records is None
        self.is_closed = False

    @property
    def enabled(self) -> bool:
        """Whether rows are recorded now."""
        return self._records is not None and not self.is_closed

    def record(self, table: str, columns: Mapping[str, Any], at_ns: int | None = None) -> bool:
        """Write a row of one of `ranklake.capture.common.layouts.FRAME_LANES`; False if it was counted as a gap.

        Values are written without validation, so callers must follow the table's contract.

        Parameters
        ----------
        columns
            Values as types of JSON, by the contract's column names: times in microseconds since 1970, columns of JSON
            as text. None means NULL.
        at_ns
            Monotonic time of the row; by default now.
        """
        if self._records is None:
            self.miss(table)
            return False
        row = {column: value for column, value in columns.items() if value is not None}
        return self._records[table].append(now() if at_ns is None else at_ns, row)

    def masks(self, table: str, column: str) -> bool:
        """Whether a column is masked before it is written. Other columns must not be derived from its value then."""
        return self._records is not None and self._records[table].masks(column)

    @contextlib.contextmanager
    def recording(self, table: str) -> Iterator[None]:
        """Catch any exception of the block, and count one row of the table as a gap."""
        try:
            yield
        except RefusedError as refused:
            self.refuse(table, refused.reason, refused.detail)
        except (BadValueError, DeviceValueError, OverflowError, ValueError) as error:
            self.refuse(table, BAD_VALUE, str(error))
        except Exception as error:  # noqa: BLE001 - telemetry never raises into training
            self.trouble(f"recording in {table}", error, table)

    @contextlib.contextmanager
    def guarded(self, doing: str) -> Iterator[None]:
        """Catch any exception of the block and log it as a warning."""
        try:
            yield
        except Exception as error:  # noqa: BLE001 - telemetry never raises into training
            self.trouble(doing, error)

    def refuse(self, table: str, reason: str, detail: str = "") -> None:
        """Count a row that could not be recorded."""
        self.gaps.count(table, AFTER_CLOSE if self.is_closed else reason, 1, detail)

    def trouble(self, doing: str, error: BaseException, table: str = "") -> None:
        """Log an internal error; if a table is given, count the lost row as a gap."""
        if table:
            self.gaps.count(table, UNEXPECTED, 1, f"{doing}: {repr_of(error)}")
        else:
            self.gaps.warn(doing, f"{doing} failed: {repr_of(error)}")

    def miss(self, table: str, rows: int = 1) -> None:
        """Count rows that a run without recording was given."""
        if self.idle is not None:
            self.idle.count(table, NOT_STARTED, rows, "a run that came by pickle, or could not begin, records nothing")

    def misuse(self, topic: str, line: str) -> None:
        """Count a call that is recorded differently from what its caller may have meant, and log it once per topic."""
        if self._misuses is not None:
            self._misuses.report(topic, line)
