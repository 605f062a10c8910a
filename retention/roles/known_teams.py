"""Known teams: those that the lake has rows of, to tell a misspelt team of a role from one that has not begun."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ranklake.errors import did_you_mean
from ranklake.lake.query.sql import query

if TYPE_CHECKING:
    from ranklake.lake.query.roles import Role
    from ranklake.lake.store.store import Lake


@dataclass(frozen=True, slots=True)
class UnknownTeam:
    """A team that a role is bound to, and of which the lake has no rows.

    Attributes
    ----------
    role, team
        Names.
    mend
        The nearest known name, or all.
    """

    role: str
    team: str
    hint: str

    @property
    def line(self) -> str:
        """What to tell of it, in one line."""
        return f"role {self.role}: no run and no job is of team {self.team!r} yet"


def unknown_teams(lake: "Lake", roles: Iterable["Role"]) -> list[UnknownTeam]:
    """Return the teams of roles that neither runs nor jobs name. Asks nothing where no role has teams.

    Raises what a query does.
    """
    bound = [one for one in roles if one.teams]
    if not bound:
        return []
    text = "SELECT team FROM runs WHERE team IS NOT NULL UNION SELECT team FROM jobs WHERE team IS NOT NULL"
    known = set(query(lake, text).column("team").to_pylist())
    return [
        UnknownTeam(role.name, team, did_you_mean(team, sorted(known)) if known else "the lake has no team so far")
        for role in bound
        for team in sorted(role.teams - known)
    ]
