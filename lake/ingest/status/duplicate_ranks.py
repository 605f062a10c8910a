"""Ranks that two processes recorded at the same time, such as on two nodes that both used rank 0."""

from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.resources import files
from typing import TYPE_CHECKING

from ranklake.lake.ingest.status.liveness import LOOKS_BACK
from ranklake.lake.query.sql import query

if TYPE_CHECKING:
    from ranklake.lake.store.store import Lake


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
        whose = f"rank {self.rank} of run {self.run} attempt {self.attempt}"
        both = f"{self.earlier:016x} and {self.later:016x}"
        hint = (
            f"give each process its rank, or its run another name; 'ranklake renumber {self.run}' parts what is there"
        )
        return f"{whose} was recorded by two processes at a time, {both}: {hint}"


def duplicate_ranks(lake: "Lake", now: datetime | None = None) -> list[DuplicateRank]:
    """Return the ranks of the last two days that two processes recorded at a time. Raises what `query` raises."""
    since = ((now or datetime.now(UTC)) - LOOKS_BACK).date()
    text = files(__package__).joinpath("duplicate_ranks.sql").read_text(encoding="utf-8")
    return [DuplicateRank(**row) for row in query(lake, text, {"since": since}).to_pylist()]
