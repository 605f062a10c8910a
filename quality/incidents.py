"""Incidents of quality: from when to when a check of a table had failures that stood. Derived from ``quality_results``.

An incident opens with the first partition on which a check fails or cannot be computed. It closes when no partition is
left on which it does: the rows were repaired, or moved to ``rejects``. What opens again within a day of its close is
the same incident: a check that flaps is counted once, with its number of flaps. The rules are in ``incidents.sql``.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import date, datetime
from typing import TYPE_CHECKING, Any, Final

from ranklake.errors import RanklakeError, did_you_mean
from ranklake.insight.runs.asking import sql_text
from ranklake.lake.query.sql import query

if TYPE_CHECKING:
    from ranklake.lake.store.lake import Lake

_EVERYTHING: Final = "TRUE"


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


def incidents(lake: "Lake") -> list[Incident]:
    """Return all incidents that the results of a lake tell: open ones first, the worst first, then the latest."""
    return [_incident(row) for row in query(lake, statement(_EVERYTHING)).to_pylist()]


def statement(where: str) -> str:
    """Return the SQL of one row per incident, by the rows of ``quality_results`` that a condition keeps."""
    return sql_text("ranklake.quality", "incidents").replace("{where}", where)


def _incident(row: Mapping[str, Any]) -> Incident:
    kept = {name: row[name] for name in Incident.__dataclass_fields__ if name != "partitions"}
    return Incident(**kept, partitions=tuple(row["dates"]))


BESIDE: Final = ("rejects", "quality_results")
"""Tables in which the rest of the evidence stands."""


class UnknownIncidentError(RanklakeError):
    """An incident that the results of checks do not tell."""


def evidence(lake: "Lake", incident: str) -> tuple[str, ...]:
    """Return the evidence of ``TABLE/CHECK`` as ``key=text``; of a check with several incidents, of all.

    Raises `UnknownIncidentError`.
    """
    known: dict[str, list[Incident]] = {}
    for known_incident in incidents(lake):
        known.setdefault(f"{known_incident.table}/{known_incident.check_id}", []).append(known_incident)
    if incident not in known:
        hint = did_you_mean(incident, known) if known else "no check has failures that stood"
        raise UnknownIncidentError(f"there is no incident {incident!r}", where="--where", hint=hint)
    matches = known[incident]
    first = min(day for known_incident in matches for day in known_incident.partitions)
    ends = [
        max([*known_incident.partitions, known_incident.closed.date()])
        for known_incident in matches
        if known_incident.closed is not None
    ]
    last = max(ends).isoformat() if len(ends) == len(matches) else ""
    tables = (matches[0].table, *BESIDE)
    return (*(f"table={name}" for name in tables), f"date={first.isoformat()}..{last}")
