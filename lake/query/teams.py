"""Rows of teams: those whose column ``team`` names one, else those of a run that is theirs.

A run is a team's where all rows of the table ``runs`` that name a team for it name this one. So nobody takes a run
from another team, nor gets to see it, by recording that it is theirs, too: then neither sees it. What names no team,
and is of no such run, is nobody's.
"""

from collections.abc import Iterable
from typing import TYPE_CHECKING

from ranklake.lake.query.literal import literal

if TYPE_CHECKING:
    from ranklake.lake.contracts.model import Contract


def of_teams(teams: Iterable[str], contract: "Contract") -> str:
    """Return what rows of a table must meet to be of some teams, in SQL; empty where no row of it is of any team."""
    named = ", ".join(map(literal, sorted(teams)))
    theirs = f"count(team) > 0 AND count(*) FILTER (WHERE team NOT IN ({named})) = 0"
    by_run = f"run IN (SELECT run FROM runs GROUP BY run HAVING {theirs})"  # noqa: S608 - quoted
    if "team" not in contract:
        return by_run if "run" in contract else ""
    own = f"team IN ({named})"
    return f"({own} OR team IS NULL AND {by_run})" if "run" in contract else own
