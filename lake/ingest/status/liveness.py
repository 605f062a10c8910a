"""Liveness: which ranks of the latest attempt of each run train, hang, are silent, or have ended, and how.

A living rank is heard of once in an interval that it names itself (`rank_start` and `heartbeat` say it): by a segment
of any table while it trains, by a heartbeat while it does not. After `INTERVALS` of them without a word it is silent;
if it is heard of, and in as many no step and no phase began or ended, it hangs.
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
    """A rank that two processes, by their incarnations, recorded; the later began `since`."""

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
    """Return the ranks of the last two days that two processes recorded at a time. Raises what `query` raises."""
    since = ((now or datetime.now(UTC)) - LOOKS_BACK).date()
    text = files(__package__).joinpath("duplicate_ranks.sql").read_text(encoding="utf-8")
    return [DuplicateRank(**row) for row in query(lake, text, {"since": since}).to_pylist()]


INTERVALS: Final = 3
MOST_RANKS: Final = 2**20
"""A run that reports more has no ranks that are missing: each would be a line."""
_LONGEST_S: Final = 10 * 86_400.0
LOOKS_BACK: Final = timedelta(days=2)
NEEDS_A_LOOK: Final = frozenset({"silent", "hung", "missing", "abandoned"})
"""States that somebody should look into."""
OVER: Final = frozenset({"ended", "failed", "preempted"})
"""States that a rank has reported itself, and that are its last."""

Whose = tuple[str, int, int]


@dataclass(frozen=True, slots=True)
class RankState:
    """What is known of one rank.

    Attributes
    ----------
    state
        ``running``; ``hung``: it lives, and nothing in it begins or ends; ``silent``: nothing was heard of it for three
        intervals; ``missing``: nothing was ever heard of it, and of others of its run longer ago than that;
        ``waiting``: what it said last is in the spool, not yet in the lake; ``ended``; ``failed``; ``preempted``;
        ``abandoned``: its process died without a word, and its rows were recovered.
    heard
        When it last recorded anything; None if it never did.
    unheard_s, still_s
        Seconds since then; seconds without a step or phase that began, as its last heartbeat said, None if none did.
    step
        The last step that an event of it names.
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
    """Return the state of every rank that was heard of in the last two days, by run and rank.

    Parameters
    ----------
    spooled
        Files of the spool that are not ingested yet.
    now
        Default the wall clock. Clocks of hosts are taken to agree to within a fraction of the interval.

    Raises what `ranklake.lake.query.sql.query` raises.
    """
    moment, sent = now or datetime.now(UTC), _last_sent(spooled)
    text = files(__package__).joinpath("liveness.sql").read_text(encoding="utf-8")
    rows = query(lake, text, {"since": (moment - LOOKS_BACK).date()}).to_pylist()
    latest: dict[str, int] = defaultdict(int)
    for row in rows:
        latest[row["run"]] = max(latest[row["run"]], row["attempt"])
    current = [row for row in rows if row["attempt"] == latest[row["run"]]]
    states = [_liveness_of(row, moment, sent) for row in current]
    return sorted([*states, *_missing(current, moment)], key=lambda state: (state.run, state.rank))


def _last_sent(spooled: "Iterable[SpoolFile]") -> dict[Whose, datetime]:
    """Return when the last segment that is not ingested was written, by rank."""
    last_sent: dict[Whose, datetime] = {}
    for item in spooled:
        is_a_ranks = item.name is not None and item.name.rows > 0 and item.table != "annotations"  # of people, too
        if item.name is not None and is_a_ranks and item.modified is not None:
            rank = item.name.run, item.name.attempt, item.name.rank
            last_sent[rank] = max(item.modified, last_sent.get(rank, item.modified))
    return last_sent


def _liveness_of(row: Mapping[str, Any], now: datetime, sent: Mapping[Whose, datetime]) -> RankState:
    begun = row["start_ts"] or datetime.min.replace(tzinfo=UTC)
    limit_s = INTERVALS * _heartbeat_number(row, "interval_s", _LONGEST_S)
    heard = row["heard_ts"]
    unheard_s = max(0.0, (now - heard).total_seconds())
    still_s = _still_s(row)
    rank = row["run"], row["attempt"], row["rank"]
    ended = next((name for name in ("end_ts", "abandoned_ts") if row[name] and row[name] >= begun), None)
    if ended is not None:
        state = _ending(row, begun, abandoned=ended == "abandoned_ts")
    elif limit_s <= 0:
        state = "running"  # it was not asked to beat
    elif unheard_s > limit_s:
        arrived = sent.get(rank)
        is_waiting = arrived is not None and (now - arrived).total_seconds() <= limit_s
        state = "waiting" if is_waiting else "preempted" if _is_preempted(row, begun) else "silent"
    else:
        state = "hung" if still_s is not None and still_s > limit_s else "running"
    return RankState(*rank, state, heard, round(unheard_s, 3), still_s, row["step"])


def _ending(row: Mapping[str, Any], begun: datetime, *, abandoned: bool) -> str:
    if _is_preempted(row, begun):
        return "preempted"
    if abandoned:
        return "abandoned"
    return "failed" if row["failure_ts"] and row["failure_ts"] >= begun else "ended"


def _is_preempted(row: Mapping[str, Any], begun: datetime) -> bool:
    return row["preemption_ts"] is not None and row["preemption_ts"] >= begun


def _still_s(row: Mapping[str, Any]) -> float | None:
    """Return for how long nothing had begun at the last heartbeat; None if something was recorded since, or none came.

    Before the first step nobody knows how long it may take.
    """
    beat, progress = row["beat_ts"], row["progress_ts"]
    if beat is None or (progress is not None and progress > beat):
        return None
    facts = facts_in(row["beat"])
    return _number(facts, "still_s", _LONGEST_S) if facts.get("begun") else None


def _heartbeat_number(row: Mapping[str, Any], name: str, most: float) -> float:
    """Return a number that a rank says of itself when it starts, and with each heartbeat; 0 where it says none."""
    for details in (row["beat"], row["start"]):
        number = _number(facts_in(details), name, most)
        if number is not None:
            return number
    return 0


def _number(facts: Mapping[str, object], name: str, most: float) -> float | None:
    """Return a number of foreign JSON, from 0 up to a bound; None where it is none."""
    value = facts.get(name)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    return value if 0 <= value <= most else None


def _missing(rows: Iterable[Mapping[str, Any]], now: datetime) -> list[RankState]:
    """Return the ranks of which nothing was heard, though others of their run began long enough ago."""
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
