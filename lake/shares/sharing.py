"""Sharing: makes shares, keeps them up to date, and ends them, each with its rows in the audit trail.

share.create    before the first row is copied: which role, where to
share.refresh   after a refresh that changed something: how many rows and files
share.drop      before a share is deleted: why;  share.dropped  when it is gone
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from ranklake.errors import did_you_mean
from ranklake.lake.audit.trail import record
from ranklake.lake.query.roles import Role
from ranklake.lake.shares.place import ShareError, claim, open_place, share_uri
from ranklake.lake.shares.refresh import Refreshed, refresh, refuse_unshareable
from ranklake.lake.shares.register import Share, enter, shares, strike
from ranklake.lake.shares.withdrawal import drop

if TYPE_CHECKING:
    from ranklake.lake.plans.plan import Progress
    from ranklake.lake.plans.workers import Workers
    from ranklake.lake.storage.store import Lake

CREATE: Final = "share.create"
REFRESH: Final = "share.refresh"
DROP: Final = "share.drop"
DROPPED: Final = "share.dropped"
Refusal = Callable[[str], str]
"""Says why a role may not be shared any more; empty where it may."""


@dataclass(frozen=True, slots=True)
class Dropped:
    """A share that went: its role, its place, why, and how many files."""

    share: Share
    why: str
    files: int

    def plain(self) -> dict[str, Any]:
        """Return plain JSON values."""
        place = {"share": self.share.name, "role": self.share.role, "uri": self.share.uri}
        return {**place, "why": self.why, "files": self.files}


@dataclass(frozen=True, slots=True)
class Kept:
    """What keeping shares did: those that were refreshed, and those that went."""

    refreshed: tuple[Refreshed, ...]
    dropped: tuple[Dropped, ...]

    def plain(self) -> dict[str, Any]:
        """Return plain JSON values."""
        return {name: [one.plain() for one in getattr(self, name)] for name in ("refreshed", "dropped")}


def share(
    lake: "Lake", role: Role, to: str, by: str, workers: "Workers", progress: "Progress | None" = None
) -> Refreshed:
    """Share what a role sees below a place, or bring that share up to date.

    Raises `ShareError`, `ranklake.lake.query.roles.RoleError`, and what `refresh` does.
    """
    uri = share_uri(open_place(lake, to).address, role.name)
    refuse_unshareable(lake, role)
    claim(lake, open_place(lake, uri), role.name)
    known = next((one for one in shares(lake) if (one.role, one.uri) == (role.name, uri)), None)
    if known is None:
        record(lake, by, CREATE, role.name, None, {"to": uri})
        known = enter(lake, role.name, uri)
    return _refreshed(lake, known, role, by, workers, progress)


def keep(
    lake: "Lake",
    roles: Mapping[str, Role],
    by: str,
    workers: "Workers",
    wanted: Iterable[tuple[str, str]] = (),
    *,
    refusal: Refusal = lambda _: "",
    progress: "Progress | None" = None,
) -> Kept:
    """Bring all shares up to date; drop those whose role is gone or may not be shared any more.

    Parameters
    ----------
    roles
        All roles that are defined.
    wanted
        Role and place of shares that the configuration names: they are made where they are not there.

    Raises what `share` does. Shares that end go before others are refreshed.
    """
    named = list(wanted)
    for name, _ in named:
        if name not in roles:
            raise ShareError(f"unknown role {name!r}", where="[shares] roles", mend=did_you_mean(name, roles))
    dropped = []
    for one in shares(lake):
        why = "the role is gone" if one.role not in roles else refusal(one.role)
        if why:
            dropped.append(end(lake, one, by, why))
    refreshed = [share(lake, roles[name], to, by, workers, progress) for name, to in named if not refusal(name)]
    done = {one.share.name for one in refreshed}
    others = [one for one in shares(lake) if one.name not in done]
    refreshed += [_refreshed(lake, one, roles[one.role], by, workers, progress) for one in others]
    return Kept(tuple(refreshed), tuple(dropped))


def end(lake: "Lake", one: Share, by: str, why: str) -> Dropped:
    """Drop a share, and say so before and after. Raises `ShareError` where its place is another's."""
    which = f"{one.name} {one.since}"
    record(lake, by, DROP, one.role, why, {"to": one.uri}, once=True, once_for=which)
    gone = drop(lake, one)
    record(lake, by, DROPPED, one.role, None, {"to": one.uri, "files": gone}, once=True, once_for=which)
    strike(lake, one)
    return Dropped(one, why, gone)


def _refreshed(
    lake: "Lake", one: Share, role: Role, by: str, workers: "Workers", progress: "Progress | None"
) -> Refreshed:
    done = refresh(lake, one, role, workers, progress)
    if done.is_changed:
        changed = [table for table in done.tables if table.is_changed]
        facts = {
            "to": one.uri,
            "tables": [table.table for table in changed],
            "rows_added": sum(table.rows_added for table in changed),
            "files_removed": sum(table.files_removed for table in changed),
            "taken_back": list(done.taken_back),
        }
        record(lake, by, REFRESH, role.name, None, facts)
    return done
