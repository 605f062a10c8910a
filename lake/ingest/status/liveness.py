"""Liveness: which ranks of each run's latest attempt are running, hung, silent or ended.

A living rank records something in each heartbeat interval: rows of any table while it trains, else a heartbeat. The
events `rank_start` and `heartbeat` contain the interval. A rank is silent if it has recorded nothing for `INTERVALS`
intervals. It is hung if it records, but no step or phase has begun or ended for as long.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from importlib.resources import files
from typing import TYPE_CHECKING, Any, Final

from ranklake.lake.contracts.json_text import facts_in
from ranklake.lake.query.sql import query

if TYPE_CHECKING:
    from ranklake.lake.ingest.spool.packs import SpoolFile
    from ranklake.lake.store.lake import Lake


@dataclass(frozen=True, slots=True)
class DuplicateRank:
    """A rank that two processes recorded at the same time; `earlier` and `later` are their incarnations.

    `since` is when the later process started.
    """

    run: str
    attempt: int
    rank: int
    earlier: int
    later: int
    since: datetime

    def __str__(self) -> str:
        rank_name = f"rank {self.rank} of run {self.run} attempt {self.attempt}"
        both = f"{self.earlier:016x} and {self.later:016x}"
        hint = (
            f"give each process its rank, or its run another name; 'ranklake renumber {self.run}' parts what is there"
        )
        return f"{rank_name} was recorded by two processes at a time, {both}: {hint}"


def duplicate_ranks(lake: "Lake", now: datetime | None = None) -> list[DuplicateRank]:
    """Return the ranks that two processes recorded at the same time in the last two days. Raises as `query`."""
    since = ((now or datetime.now(UTC)) - WINDOW).date()
    text = files(__package__).joinpath("duplicate_ranks.sql").read_text(encoding="utf-8")
    return [DuplicateRank(**row) for row in query(lake, text, {"since": since}).to_pylist()]


INTERVALS: Final = 3
MOST_RANKS: Final = 2**20
"""If a run reports a larger world size, no ranks are reported as missing, since each would be a line of output."""
_LONGEST_S: Final = 10 * 86_400.0
WINDOW: Final = timedelta(days=2)
"""Only events and segments of this last period are read."""
NEEDS_A_LOOK: Final = frozenset({"silent", "hung", "missing", "abandoned"})
"""States that an operator should investigate."""
OVER: Final = frozenset({"ended", "failed", "preempted"})
"""Final states that a rank has reported itself."""

RankKey = tuple[str, int, int]
"""Run, attempt, rank."""


@dataclass(frozen=True, slots=True)
class RankState:
    """State of one rank.

    Attributes
    ----------
    state
        - ``running``
        - ``hung``: it records, but no step or phase begins or ends
        - ``silent``: it has recorded nothing for three intervals
        - ``missing``: it has never recorded anything, though other ranks of its run started over three intervals ago
        - ``waiting``: its last rows are in the spool and not yet in the lake
        - ``ended``, ``failed``, ``preempted``: as the rank reported
        - ``abandoned``: its process died without an end event, and its rows were recovered
    heard
        Time of its last row; None if it has none.
    unheard_s, still_s
        Seconds since its last row; seconds since a step or phase last began, from its last heartbeat, None if unknown.
    step
        The highest step in its events.
    """

    run: str
    attempt: int
    rank: int
    state: str
    heard: datetime | None = None
    unheard_s: float | None = None
    still_s: float | None = None
    step: int | None = None


def liveness(lake: "Lake", spooled: "Iterable[SpoolFile]" = (), now: datetime | None = None) -> list[RankState]:
    """Return the state of every rank with an event in the last two days, and of missing ranks, by run and rank.

    Parameters
    ----------
    spooled
        Files of the spool that are not ingested yet.
    now
        Default the wall clock. Clocks of hosts must agree to within a fraction of the heartbeat interval.

    Raises what `ranklake.lake.query.sql.query` raises.
    """
    moment, sent = now or datetime.now(UTC), _last_sent(spooled)
    text = files(__package__).joinpath("liveness.sql").read_text(encoding="utf-8")
    rows = query(lake, text, {"since": (moment - WINDOW).date()}).to_pylist()
    latest: dict[str, int] = defaultdict(int)
    for row in rows:
        latest[row["run"]] = max(latest[row["run"]], row["attempt"])
    current = [row for row in rows if row["attempt"] == latest[row["run"]]]
    states = [_liveness_of(row, moment, sent) for row in current]
    return sorted([*states, *_missing(current, moment)], key=lambda state: (state.run, state.rank))


def _last_sent(spooled: "Iterable[SpoolFile]") -> dict[RankKey, datetime]:
    """Return when each rank's last segment in the spool was written."""
    last_sent: dict[RankKey, datetime] = {}
    for item in spooled:
        has_rank_rows = (
            item.name is not None and item.name.rows > 0 and item.table != "annotations"
        )  # users write these
        if item.name is not None and has_rank_rows and item.modified is not None:
            rank = item.name.run, item.name.attempt, item.name.rank
            last_sent[rank] = max(item.modified, last_sent.get(rank, item.modified))
    return last_sent


def _liveness_of(row: Mapping[str, Any], now: datetime, sent: Mapping[RankKey, datetime]) -> RankState:
    started = row["start_ts"] or datetime.min.replace(tzinfo=UTC)
    limit_s = INTERVALS * _heartbeat_number(row, "interval_s", _LONGEST_S)
    heard = row["heard_ts"]
    unheard_s = max(0.0, (now - heard).total_seconds())
    still_s = _still_s(row)
    rank = row["run"], row["attempt"], row["rank"]
    end = next((name for name in ("end_ts", "abandoned_ts") if row[name] and row[name] >= started), None)
    if end is not None:
        state = _final_state(row, started, abandoned=end == "abandoned_ts")
    elif limit_s <= 0:
        # heartbeats are turned off, or the run is imported: then a failure is the last that is known of it
        has_failed = row["start_ts"] is None and (row["failure_ts"] or row["preemption_ts"])
        state = _final_state(row, started, abandoned=False) if has_failed else "running"
    elif unheard_s > limit_s:
        arrived = sent.get(rank)
        is_waiting = arrived is not None and (now - arrived).total_seconds() <= limit_s
        state = "waiting" if is_waiting else "preempted" if _is_preempted(row, started) else "silent"
    else:
        state = "hung" if still_s is not None and still_s > limit_s else "running"
    return RankState(*rank, state, heard, round(unheard_s, 3), still_s, row["step"])


def _final_state(row: Mapping[str, Any], started: datetime, *, abandoned: bool) -> str:
    if _is_preempted(row, started):
        return "preempted"
    if abandoned:
        return "abandoned"
    return "failed" if row["failure_ts"] and row["failure_ts"] >= started else "ended"


def _is_preempted(row: Mapping[str, Any], started: datetime) -> bool:
    return row["preemption_ts"] is not None and row["preemption_ts"] >= started


def _still_s(row: Mapping[str, Any]) -> float | None:
    """Return the seconds without a new step or phase at the last heartbeat; None if unknown.

    It is unknown without a heartbeat, if a step or phase was recorded after it, and before the first step, which may
    take any time.
    """
    beat, progress = row["beat_ts"], row["progress_ts"]
    if beat is None or (progress is not None and progress > beat):
        return None
    facts = facts_in(row["beat"])
    return _number(facts, "still_s", _LONGEST_S) if facts.get("begun") else None


def _heartbeat_number(row: Mapping[str, Any], name: str, most: float) -> float:
    """Return a number from a rank's last heartbeat, or else from its start event; 0 if neither has it."""
    for details in (row["beat"], row["start"]):
        number = _number(facts_in(details), name, most)
        if number is not None:
            return number
    return 0


def _number(facts: Mapping[str, object], name: str, most: float) -> float | None:
    """Return a number from foreign JSON; None if it is no number, negative, or above `most`."""
    value = facts.get(name)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    return value if 0 <= value <= most else None


def _missing(rows: Iterable[Mapping[str, Any]], now: datetime) -> list[RankState]:
    """Return the ranks without any event, in runs in which other ranks started long enough ago."""
    missing = []
    by_run: dict[tuple[str, int], list[Mapping[str, Any]]] = defaultdict(list)
    for row in rows:
        by_run[row["run"], row["attempt"]].append(row)
    for (run, attempt), heard in by_run.items():
        begins = [row["start_ts"] for row in heard if row["start_ts"]]
        limit_s = INTERVALS * max(_heartbeat_number(row, "interval_s", _LONGEST_S) for row in heard)
        if begins and limit_s and (now - min(begins)).total_seconds() > limit_s:
            expected = range(int(max(_heartbeat_number(row, "world_size", MOST_RANKS) for row in heard)))
            missing += [RankState(run, attempt, rank, "missing") for rank in set(expected) - {r["rank"] for r in heard}]
    return missing
