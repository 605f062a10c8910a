"""Access: who has which role, since when and until when, and when they last used it, by the log of queries."""

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

from ranklake.lake.audit import clock
from ranklake.lake.query.usage_log import noted
from ranklake.retention.grants.grant import Grant, awaiting_review, register
from ranklake.retention.proposals.standing import plain

if TYPE_CHECKING:
    from ranklake.lake.store.store import Lake

UNUSED: Final = timedelta(days=30)
"""How long a role may lie unused before a review names it."""


@dataclass(frozen=True, slots=True)
class Access:
    """A grant in force, or one that waits for a review, and its use.

    Attributes
    ----------
    grant
        Which.
    queries, last_used
        How many queries the log has of this account as this role, and when the last was; None for none.
    logged_since
        First day of which the log still tells.
    remarks
        What a reviewer should look at, a clause each.
    """

    grant: Grant
    queries: int
    last_used: datetime | None
    logged_since: datetime
    remarks: tuple[str, ...]

    def plain(self, now: datetime) -> dict[str, Any]:
        """Return plain JSON values."""
        last = None if self.last_used is None else self.last_used.isoformat()
        use = {"queries": self.queries, "last_used": last, "logged_since": self.logged_since.date().isoformat()}
        return {**self.grant.plain(now), **use, "remarks": list(self.remarks)}


def accesses(lake: "Lake") -> list[Access]:
    """Return who has what: grants in force, and taken ones that nobody reviewed."""
    now = clock.now()
    since = now - timedelta(days=lake.config.query.keep_days)
    asked: dict[tuple[str, str], list[datetime]] = {}
    for one in noted(lake, since.date()):
        if one.role is not None:
            asked.setdefault((plain(one.consumer), one.role), []).append(one.at)
    found = []
    known = register(lake)
    for grant in known.values():
        if grant.why_not(now) and not grant.awaits_review():
            continue
        times = [at for at in asked.get((plain(grant.to), grant.role), []) if at >= (grant.proposed or since)]
        last = max(times, default=None)
        before = awaiting_review(known.values(), grant.to).index(grant) if grant.awaits_review() else 0
        found.append(Access(grant, len(times), last, since, tuple(_remarks(grant, before, last, now))))
    return sorted(found, key=lambda one: (not one.remarks, one.grant.until, one.grant.name))


def _remarks(grant: Grant, before: int, last: datetime | None, now: datetime) -> list[str]:
    found = []
    if grant.awaits_review():
        found.append("taken without approval, and nobody reviewed it")
    if before:
        found.append(f"taken again, with {before} of the same person before it not reviewed")
    begun = grant.approved or grant.proposed or now
    if not grant.why_not(now) and now - (last or begun) > UNUSED:
        found.append(f"not used for {(now - (last or begun)).days} days")
    return found
