"""What an incident rests on, as conditions for a legal hold: rows of its table, those set aside, results of its checks.

A hold has one range of dates: from the first date that was hit to the last, or to the day on which the incident closed,
whichever is later; of an open one without an end. So rows that were taken out, and results, are held as of that day.
"""

from typing import TYPE_CHECKING, Final

from ranklake.errors import RanklakeError, did_you_mean
from ranklake.quality.incidents import Incident, incidents

if TYPE_CHECKING:
    from ranklake.lake.store.store import Lake

BESIDE: Final = ("rejects", "quality_results")
"""Tables in which the rest of the evidence stands."""


class UnknownIncidentError(RanklakeError):
    """An incident that the results of checks do not tell."""


def evidence(lake: "Lake", incident: str) -> tuple[str, ...]:
    """Return the evidence of ``TABLE/CHECK`` as ``key=text``; of a check with several incidents, of all.

    Raises `UnknownIncidentError`.
    """
    known: dict[str, list[Incident]] = {}
    for one in incidents(lake):
        known.setdefault(f"{one.table}/{one.check_id}", []).append(one)
    if incident not in known:
        hint = did_you_mean(incident, known) if known else "no check has failures that stood"
        raise UnknownIncidentError(f"there is no incident {incident!r}", where="--where", hint=hint)
    found = known[incident]
    first = min(day for one in found for day in one.partitions)
    ends = [max([*one.partitions, one.closed.date()]) for one in found if one.closed is not None]
    last = max(ends).isoformat() if len(ends) == len(found) else ""
    tables = (found[0].table, *BESIDE)
    return (*(f"table={name}" for name in tables), f"date={first.isoformat()}..{last}")
