"""Repeated steps: which runs hold a step twice, and whether two lives recorded it, or one life counted again."""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import date
from typing import TYPE_CHECKING, Final

from ranklake.lake.query.sql import query

if TYPE_CHECKING:
    from ranklake.lake.store.lake import Lake

_REPEATED: Final = """
SELECT run, attempt, sum(CASE WHEN lives > 1 THEN 1 ELSE 0 END) AS between,
    sum(CASE WHEN recorded > lives THEN 1 ELSE 0 END) AS within
FROM (
    SELECT run, attempt, rank, step, count(*) AS recorded, count(DISTINCT incarnation) AS lives
    FROM steps WHERE {} GROUP BY run, attempt, rank, step HAVING count(*) > 1
)
GROUP BY run, attempt ORDER BY run, attempt
"""
COUNTED_ANEW: Final = (
    "no attempt can part them; in the next recording count steps on, such as epoch * steps_per_epoch + i"
)
"""What can be done about steps that one life repeats."""


@dataclass(frozen=True, slots=True)
class RepeatedAttempt:
    """An attempt that holds steps twice.

    Attributes
    ----------
    between
        Steps of a rank that several lives recorded: renumbering parts them.
    within
        Steps of a rank that one life recorded more than once, as where its numbers begin again: nothing parts them.
    """

    run: str
    attempt: int
    between: int
    within: int


def repeated_in_run(lake: "Lake", run: str) -> list[RepeatedAttempt]:
    """Return the attempts of a run that hold steps twice, on any date. Raises what `query` raises."""
    return _query(lake, "run = $run", {"run": run})


def repeated_on_dates(lake: "Lake", days: Iterable[date]) -> list[RepeatedAttempt]:
    """Return the attempts that hold steps twice in the rows of some dates. Raises what `query` raises."""
    named = ", ".join(f"DATE '{day.isoformat()}'" for day in sorted(set(days)))
    return _query(lake, f"date IN ({named})", {}) if named else []


def _query(lake: "Lake", rows: str, params: dict[str, str]) -> list[RepeatedAttempt]:
    return [RepeatedAttempt(**row) for row in query(lake, _REPEATED.format(rows), params).to_pylist()]
