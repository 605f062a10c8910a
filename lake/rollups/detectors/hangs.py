"""Detector of hangs: ranks on which nothing begins any more, which collective they wait in, and who did not arrive."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import Final, NamedTuple

import numpy as np

from ranklake.detection.declaration import COOLDOWN, Detection, Detector, Series
from ranklake.lake.contracts.json_text import facts_in
from ranklake.printable import ranks_text

_SECOND: Final = 1_000_000
_SHOWN: Final = 8


class Place(NamedTuple):
    """Where a rank is in the collectives of a group.

    Attributes
    ----------
    collective
        Name of the one that it began last.
    number
        Which of the group it is, from 1.
    ended
        Whether it has ended on this rank.
    """

    rank: int
    group: str
    collective: str
    number: int
    ended: bool


def hang(series: Series, thresholds: Mapping[str, float]) -> Iterator[Detection]:
    """Find reports of ranks that hang, those near each other as one.

    Collectives of a group are numbered alike on its ranks. Those that wait have begun a later one than those that did
    not arrive: these are named. Without torch's flight recorder, the ranks that hang are.
    """
    start = 0
    times = series["ts"]
    for end in range(1, len(series) + 1):
        if end < len(series) and times[end] - times[end - 1] <= thresholds[COOLDOWN] * _SECOND:
            continue
        ranks = sorted({int(rank) for rank in series["rank"][start:end]})
        places = list(_places(series, start, end))
        message, missing = _missing(places) or (f"Nothing begins any more on {ranks_text(ranks)}", [])
        steps = [int(step) for step in series["step"][start:end] if step == step]  # noqa: PLR0124 - NaN
        yield Detection(
            start=int(times[start]),
            end=int(times[end - 1]),
            message=message,
            effect=float(len(ranks)),
            step=min(steps, default=None),
            subject={"rank": missing[0]} if len(missing) == 1 else {},
            evidence={"ranks": ranks[:_SHOWN], "missing": missing[:_SHOWN], "collectives": len(places)},
        )
        start = end


def unanswered(series: Series, _: Mapping[str, float]) -> Iterator[Detection]:
    """Find reports of NCCL's RAS in which ranks do not answer or report an error; each report is one finding."""
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


def _places(series: Series, start: int, end: int) -> Iterator[Place]:
    """Yield where ranks are, by the last report of each."""
    last: dict[tuple[int, str], Place] = {}
    for number in range(start, end):
        facts = facts_in(series["attributes"][number])
        group, name = facts.get("group"), facts.get("collective")
        place, ended = facts.get("collective_number"), facts.get("ended")
        if isinstance(group, str) and isinstance(name, str) and isinstance(place, int):
            rank = int(series["rank"][number])
            last[rank, group] = Place(rank, group, name[:80], place, bool(ended))
    yield from last.values()


def _missing(places: Sequence[Place]) -> tuple[str, list[int]] | None:
    """Return who waits in what for whom, and the ranks that did not arrive; None where no group tells."""
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
        columns=("attributes", "step"),
        where="event IN ('hang', 'flight_recorder') AND severity = 'error'",
        grain=("run", "attempt"),
        order=("ts", "rank"),
        find=hang,
        effect="ranks",
        severity="error",
        runbook="collective-timeout",
        evidence_sql="""SELECT ts, rank, event, message, attributes FROM events
WHERE run = {run} AND attempt = {attempt} AND event IN ('hang', 'flight_recorder')
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
"""Every detector of hangs."""
