"""Rows of teams: those whose column ``team`` names one, else those of a run that is theirs.

A run is a team's where all rows of the table ``runs`` that tell of its team tell of this one: those that name a team,
and those of processes, which had none if they name none. So nobody takes a run from another team, nor gets to see it,
by recording that it is theirs, too: then neither sees it. Nor does anybody take one that ran without a team. What names
no team, and is of no such run, is nobody's. A derived row names one team of those that its run has, so there
both must be theirs.
"""

from collections.abc import Iterable
from typing import TYPE_CHECKING

from ranklake.lake.query.literal import literal

if TYPE_CHECKING:
    from ranklake.lake.contracts.model import Contract


def runs_of(teams: Iterable[str]) -> str:
    """Return the SELECT of the runs that are of some teams."""
    named = _named(teams)
    others = f"team NOT IN ({named}) OR team IS NULL AND pid IS NOT NULL"  # what imports add has no process
    theirs = f"count(team) > 0 AND count(*) FILTER (WHERE {others}) = 0"
    return f"SELECT run FROM runs GROUP BY run HAVING {theirs}"  # noqa: S608 - quoted


def of_teams(teams: Iterable[str], contract: "Contract") -> str:
    """Return what rows of a table must meet to be of some teams, in SQL; empty where no row of it is of any team."""
    by_run = f"run IN ({runs_of(teams)})"
    if "team" not in contract:
        return by_run if "run" in contract else ""
    own = f"team IN ({_named(teams)})"
    if "run" not in contract:
        return own
    if contract.kind == "derived":
        return f"({own} AND run IS NULL OR ({own} OR team IS NULL) AND {by_run})"
    return f"({own} OR team IS NULL AND {by_run})"


def _named(teams: Iterable[str]) -> str:
    return ", ".join(map(literal, sorted(teams)))
