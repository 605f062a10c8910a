"""Sink: where a run's rows go, and where those that cannot be recorded are counted. Nothing in it raises."""

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

from ranklake.capture.common.gaps import AFTER_CLOSE, BAD_VALUE, NOT_STARTED, UNEXPECTED, Gaps, Misuses, RefusedError
from ranklake.capture.common.monotonic import now
from ranklake.capture.common.values import BadValueError, DeviceValueError, repr_of
from ranklake.capture.lanes.records import RecordLane


class Sink:
    """Takes the rows of one run.

    Parameters
    ----------
    gaps
        Counts what is not recorded, and warns of it.
    records
        The open files by table; None for a run that records nothing.
    misuses
        Tells of what callers may have meant otherwise.
    idle
        Counts what a run that records nothing is given; None where it is the user's wish.

    Attributes
    ----------
    is_idle
        Whether nothing is recorded from the beginning.
    is_closed
        Whether the run has ended: what comes now is counted as such.
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
        """Whether anything is recorded."""
        return self._records is not None and not self.is_closed

    def record(self, table: str, columns: Mapping[str, Any], at_ns: int | None = None) -> bool:
        """Write a row of one of `ranklake.capture.common.layouts.FRAME_LANES`; False if it was counted as a gap.

        For the sources of this room, which know the table's contract: what they give is written as it is.

        Parameters
        ----------
        columns
            By the contract's names, as JSON has them: times in microseconds since 1970, columns of JSON as text. None
            stands for NULL.
        at_ns
            Monotonic time of the row; by default now.
        """
        if self._records is None:
            self.miss(table)
            return False
        row = {column: value for column, value in columns.items() if value is not None}
        return self._records[table].append(now() if at_ns is None else at_ns, row)

    def masks(self, table: str, column: str) -> bool:
        """Whether a column is masked before it is written: nothing may be derived from it then."""
        return self._records is not None and self._records[table].masks(column)

    @contextlib.contextmanager
    def recording(self, table: str) -> Iterator[None]:
        """Count as a gap of the table what is raised within: telemetry never raises into training."""
        try:
            yield
        except RefusedError as refused:
            self.refuse(table, refused.reason, refused.detail)
        except (BadValueError, DeviceValueError, OverflowError, ValueError) as error:
            self.refuse(table, BAD_VALUE, str(error))
        except Exception as error:  # noqa: BLE001 - whatever it is
            self.trouble(f"recording in {table}", error, table)

    @contextlib.contextmanager
    def guarded(self, doing: str) -> Iterator[None]:
        """Report what is raised within; nothing reaches training."""
        try:
            yield
        except Exception as error:  # noqa: BLE001 - telemetry never raises into training
            self.trouble(doing, error)

    def refuse(self, table: str, reason: str, detail: str = "") -> None:
        """Count a row that could not be recorded."""
        self.gaps.count(table, AFTER_CLOSE if self.is_closed else reason, 1, detail)

    def trouble(self, doing: str, error: BaseException, table: str = "") -> None:
        """Tell of an error of our own; if it cost a row of a table, count it."""
        if table:
            self.gaps.count(table, UNEXPECTED, 1, f"{doing}: {repr_of(error)}")
        else:
            self.gaps.warn(doing, f"{doing} failed: {repr_of(error)}")

    def miss(self, table: str, rows: int = 1) -> None:
        """Count rows of a run that was never started."""
        if self.idle is not None:
            self.idle.count(table, NOT_STARTED, rows, "a run that came by pickle, or could not begin, records nothing")

    def misuse(self, topic: str, line: str) -> None:
        """Tell, once by topic, of what is recorded otherwise than its caller may have meant; and count it."""
        if self._misuses is not None:
            self._misuses.report(topic, line)
