"""Detector of hangs: ranks on which nothing begins any more, the collective they wait in, and the missing ranks."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import Final, NamedTuple

import numpy as np

from ranklake.detection.declaration import COOLDOWN, Detection, Detector, Series
from ranklake.lake.contracts.json_text import facts_in
from ranklake.printable import ranks_text

_SECOND: Final = 1_000_000
_SHOWN: Final = 8
_OVER: Final = "hang_end"
_MOST_STILL_S: Final = 1e9


class Place(NamedTuple):
    """The last collective of a rank in a process group.

    Attributes
    ----------
    collective
        Name of the collective that the rank began last.
    number
        Number of the collective in the group, from 1.
    ended
        Whether the collective has ended on this rank.
    """

    rank: int
    group: str
    collective: str
    number: int
    ended: bool


def hang(series: Series, thresholds: Mapping[str, float]) -> Iterator[Detection]:
    """Find hangs from the reports of ranks. Reports within the cool-down are one detection.

    Collectives of a process group have the same numbers on all its ranks. Ranks that wait have begun a later collective
    than the missing ranks, which the message names. Without torch's flight recorder, the missing ranks are those with
    the earliest last step.
    """
    start = 0
    times = series["ts"]
    for end in range(1, len(series) + 1):
        if end < len(series) and times[end] - times[end - 1] <= thresholds[COOLDOWN] * _SECOND:
            continue
        reports = [n for n in range(start, end) if series["event"][n] != _OVER]
        start = end
        if not reports:
            continue
        ranks = sorted({int(series["rank"][n]) for n in reports})
        places = list(_places(series, reports))
        message, missing = _missing(places) or _behind(series, reports, ranks)
        steps = [int(series["step"][n]) for n in reports if not np.isnan(series["step"][n])]
        yield Detection(
            start=min(int(times[n]) - _still_us(series["attributes"][n]) for n in reports),
            end=_resumed_us(series, reports, ranks),
            message=message,
            effect=float(len(ranks)),
            step=min(steps, default=None),
            subject={"rank": missing[0]} if len(missing) == 1 else {},
            evidence={"ranks": ranks[:_SHOWN], "missing": missing[:_SHOWN], "collectives": len(places)},
        )


def _still_us(attributes: str | None) -> int:
    """Return the time without progress before a report, in microseconds; 0 if the report does not have it."""
    seconds = facts_in(attributes).get("still_s")
    return int(seconds * _SECOND) if isinstance(seconds, int | float) and 0 <= seconds < _MOST_STILL_S else 0


def _resumed_us(series: Series, reports: Sequence[int], ranks: Sequence[int]) -> int | None:
    """Return when the last of the ranks continued, in microseconds since 1970; None if a rank still hangs.

    Recorders that do not report the time without progress do not report the end either. Then it is the last report.
    """
    if not any(_still_us(series["attributes"][n]) for n in reports):
        return int(series["ts"][reports[-1]])
    ends: dict[int, int] = {}
    for n in range(reports[0], len(series)):
        rank = int(series["rank"][n])
        if rank in ranks and series["event"][n] == _OVER:
            ends.setdefault(rank, int(series["ts"][n]))
    return max(ends.values()) if len(ends) == len(ranks) else None


def _behind(series: Series, reports: Sequence[int], ranks: Sequence[int]) -> tuple[str, list[int]]:
    """Return a message and the ranks whose last step is before that of the others."""
    message = f"Nothing begins any more on {ranks_text(ranks)}"
    last = {int(series["rank"][n]): series["step"][n] for n in reports}
    lowest = min(last.values())
    missing = sorted(rank for rank, step in last.items() if step == lowest)
    if len(missing) == len(last) or np.isnan(list(last.values())).any():
        return message, []
    is_one = len(missing) == 1
    return f"{message}; {ranks_text(missing)} {'is' if is_one else 'are'} behind, at step {int(lowest)}", missing


def unanswered(series: Series, _: Mapping[str, float]) -> Iterator[Detection]:
    """Find reports of NCCL's RAS in which ranks do not answer or report an error; each report is one detection."""
    times = series["ts"]
    for at in np.unique(times).tolist():
        places = np.flatnonzero(times == at).tolist()
        facts = {place: facts_in(series["attributes"][place]) for place in places}
        missing = sorted({int(series["rank"][place]) for place in places if facts[place].get("missing")})
        failed = sorted({int(series["rank"][place]) for place in places} - set(missing))
        parts = [f"{ranks_text(missing)} {'does' if len(missing) == 1 else 'do'} not answer"] if missing else []
        if failed:
            parts.append(f"{ranks_text(failed)} {'reports' if len(failed) == 1 else 'report'} an error")
        ranks = [*missing, *failed]
        yield Detection(
            start=at,
            end=at,
            message=f"NCCL's RAS: {', '.join(parts)}",
            effect=float(len(ranks)),
            subject={"rank": ranks[0]} if len(ranks) == 1 else {},
            evidence={"missing": missing[:_SHOWN], "failed": failed[:_SHOWN]},
        )


def _places(series: Series, reports: Sequence[int]) -> Iterator[Place]:
    """Yield the last collective of each rank and group, from its last report."""
    last: dict[tuple[int, str], Place] = {}
    for number in reports:
        facts = facts_in(series["attributes"][number])
        group, name = facts.get("group"), facts.get("collective")
        place, ended = facts.get("collective_number"), facts.get("ended")
        if isinstance(group, str) and isinstance(name, str) and isinstance(place, int):
            rank = int(series["rank"][number])
            last[rank, group] = Place(rank, group, name[:80], place, bool(ended))
    yield from last.values()


def _missing(places: Sequence[Place]) -> tuple[str, list[int]] | None:
    """Return a message about waiting ranks, and the missing ranks; None if no process group shows it."""
    by_group = sorted(places, key=lambda place: (place.group, place.rank))
    for _, group in groupby(by_group, key=lambda place: place.group):
        ranks = list(group)
        latest = max(ranks, key=lambda place: place.number)
        waiting = [place.rank for place in ranks if place.number == latest.number and not place.ended]
        missing = [place.rank for place in ranks if place.number < latest.number]
        if waiting and missing:
            waits = "waits" if len(waiting) == 1 else "wait"
            collective = f"collective {latest.number:,} of their group, {latest.collective}"
            return (
                f"{ranks_text(waiting, capital=True)} {waits} in {collective}; {ranks_text(missing)} did not begin it",
                missing,
            )
        if len(waiting) > 1:
            collective = f"{latest.collective}, collective {latest.number:,} of their group"
            return f"All of {ranks_text(waiting)} wait in {collective}: none of them is missing", []
    return None


DETECTORS: Final = (
    Detector(
        name="hang",
        watches="ranks on which no step or phase begins any more",
        finds="a rank says that nothing began for so long (the setting hang_s), or dumps the flight recorder",
        table="events",
        columns=("event", "attributes", "step"),
        where="event = 'hang_end' OR (event IN ('hang', 'flight_recorder') AND severity = 'error')",
        grain=("run", "attempt"),
        order=("ts", "rank"),
        find=hang,
        effect="ranks",
        severity="error",
        runbook="collective-timeout",
        evidence_sql="""SELECT ts, rank, event, message, attributes FROM events
WHERE run = {run} AND attempt = {attempt} AND event IN ('hang', 'hang_end', 'flight_recorder')
  AND date BETWEEN {date} AND {end_date} ORDER BY ts, rank""",
        min_effect=1,
        cooldown_s=600,
        false_positive_target=0,
    ),
    Detector(
        name="nccl_ras",
        watches="reports of NCCL's RAS subsystem",
        finds="a rank of a communicator does not answer, or reports an error",
        table="events",
        columns=("attributes",),
        where="event = 'nccl_ras' AND severity = 'error'",
        grain=("run", "attempt"),
        order=("ts", "rank"),
        find=unanswered,
        effect="ranks",
        severity="error",
        runbook="collective-timeout",
        evidence_sql="""SELECT ts, rank, severity, attributes FROM events
WHERE run = {run} AND attempt = {attempt} AND event = 'nccl_ras'
  AND date BETWEEN {date} AND {end_date} ORDER BY ts, rank""",
        min_effect=1,
        cooldown_s=600,
        false_positive_target=0,
    ),
)
"""Detectors of hangs."""
