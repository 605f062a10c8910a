"""Incidents of quality: from when to when a check of a table had failures that stood. Derived from ``quality_results``.

An incident opens with the first partition on which a check fails or cannot be computed. It closes when no partition is
left on which it does: the rows were mended, moved to ``rejects`` or are gone. What opens again within a day of its
close is the same incident: a check that flaps is counted once, and how often it flapped is told.
"""

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from datetime import date, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

from ranklake.lake.contracts.load import contract
from ranklake.lake.contracts.model import SEVERITIES
from ranklake.lake.delta.read import read
from ranklake.quality.results import RESULTS

if TYPE_CHECKING:
    from ranklake.lake.storage.store import Lake

SETTLED: Final = timedelta(days=1)
"""How long a check stays sound before its next failure is another incident."""
_COLUMNS: Final = (
    *("table", "check_id", "column", "severity", "partition_date", "status", "rows_failed", "quarantined_rows"),
    *("message", "ts"),
)


@dataclass(frozen=True, slots=True)
class Incident:
    """One incident.

    Attributes
    ----------
    severity
        The worst that the check had in the meantime.
    opened, closed
        When a check found it, and when one found that it is over; None while it is open.
    partitions
        Dates that were hit, in order.
    rows_failed
        The most rows that failed at once on the dates that were hit.
    flaps
        How often it closed and opened again.
    message
        The last that was said; no value of a classified column.
    """

    table: str
    check_id: str
    column: str | None
    severity: str
    opened: datetime
    closed: datetime | None
    partitions: tuple[date, ...]
    rows_failed: int
    flaps: int
    message: str | None

    def plain(self) -> dict[str, Any]:
        """Return plain JSON values."""
        return {
            **asdict(self),
            "opened": self.opened.isoformat(),
            "closed": None if self.closed is None else self.closed.isoformat(),
            "partitions": [day.isoformat() for day in self.partitions],
        }


@dataclass(slots=True)
class _Open:
    """An incident on its way; `standing` has the failed rows of each date on which it stands."""

    severity: str
    opened: datetime
    closed: datetime | None
    partitions: set[date]
    standing: dict[date, int]
    rows_failed: int
    flaps: int
    message: str | None


def incidents(lake: "Lake") -> list[Incident]:
    """Return all incidents that the results of a lake tell: open ones first, the worst first, then the latest."""
    return incidents_of(read(lake, contract(RESULTS), list(_COLUMNS)).to_pylist())


def incidents_of(results: Iterable[dict[str, Any]], settled: timedelta = SETTLED) -> list[Incident]:
    """Return the incidents that rows of ``quality_results`` tell, in whatever order these come."""
    known: dict[tuple[str, str, str | None], list[_Open]] = {}
    for row in sorted(results, key=lambda one: (one["ts"], one["partition_date"])):
        key = (row["table"], row["check_id"], row["column"])
        of = known.get(key, [])
        rows = row["rows_failed"] or 0
        stands = row["status"] == "errored" or (row["status"] == "failed" and row["quarantined_rows"] < max(rows, 1))
        if stands:
            _hit(known.setdefault(key, []), row, rows, settled)
        elif of and row["status"] != "skipped":
            _mended(of[-1], row)
    found = [_finished(*key, one) for key, of in known.items() for one in of]
    newest = sorted(found, key=lambda one: one.opened, reverse=True)
    return sorted(newest, key=lambda one: (one.closed is not None, SEVERITIES.index(one.severity)))


def _hit(of: list[_Open], row: dict[str, Any], rows: int, settled: timedelta) -> None:
    """Note that a check fails on a date: it belongs to the last incident, or opens one."""
    last = of[-1] if of else None
    if last is None or (last.closed is not None and row["ts"] - last.closed > settled):
        last = _Open(row["severity"], row["ts"], None, set(), {}, 0, 0, None)
        of.append(last)
    elif last.closed is not None:
        last.closed = None
        last.flaps += 1
    last.partitions.add(row["partition_date"])
    last.standing[row["partition_date"]] = rows
    last.rows_failed = max(last.rows_failed, sum(last.standing.values()))
    last.severity = min(last.severity, row["severity"], key=SEVERITIES.index)
    last.message = row["message"]


def _mended(last: _Open, row: dict[str, Any]) -> None:
    """Note that a check passes on a date, or that all failing rows are out of the table."""
    if last.closed is None and last.standing.pop(row["partition_date"], None) is not None and not last.standing:
        last.closed = row["ts"]


def _finished(table: str, check_id: str, column: str | None, one: _Open) -> Incident:
    return Incident(
        table,
        check_id,
        column,
        one.severity,
        one.opened,
        one.closed,
        tuple(sorted(one.partitions)),
        one.rows_failed,
        one.flaps,
        one.message,
    )
