"""Use of grants: whether somebody may use a role now, and why not; ends and reviews of grants."""

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Final, Unpack

from ranklake.lake.audit import clock
from ranklake.lake.audit.trail import record
from ranklake.lake.query.usage import logged_queries
from ranklake.retention.grants.grant import (
    GRANTS,
    REVIEW,
    REVOKE,
    Grant,
    GrantError,
    awaiting_review,
    register,
    request,
)
from ranklake.retention.proposals import lifecycle
from ranklake.retention.proposals.approvals import is_one_of, normalize_name
from ranklake.retention.proposals.identities import NOT_SIGNING, SignedSubject, Signing, identify, unsigned_note

if TYPE_CHECKING:
    from ranklake.lake.store.lake import Lake


REVIEW_STEP: Final = "review"
RECENT: Final = timedelta(days=30)
"""How long a grant that ended is shown at a look."""


class NotGrantedError(GrantError):
    """A role that somebody may not use."""


def current_grant(lake: "Lake", role: str, who: str) -> Grant:
    """Return the grant by which somebody uses a role now. Raises `NotGrantedError`, which says why none holds."""
    now = clock.now()
    mine = [
        one for one in register(lake).values() if one.role == role and normalize_name(one.to) == normalize_name(who)
    ]
    for grant in mine:
        if not grant.why_not(now):
            return grant
    ask = f"ask for one: ranklake grant {role} --to {who} --until 30d --reason TEXT"
    if not mine:
        raise NotGrantedError(f"{who} has no grant of role {role}", where="--role", hint=ask)
    message = f"{who}'s grant of role {role} is not in force: {mine[-1].why_not(now)}"
    waits = mine[-1].approved is None and mine[-1].until > now and mine[-1].revoked is None
    to_approve = lake.config.approvals.by_somebody(GRANTS.to_approve(mine[-1].name))
    hint = f"have another person approve it: {to_approve}" if waits else ask
    raise NotGrantedError(message, where="--role", hint=hint)


def end_reason(lake: "Lake", role: str) -> str:
    """Return why nobody may use a role now, in a clause; empty where somebody may."""
    now = clock.now()
    mine = [one for one in register(lake).values() if one.role == role]
    if any(not one.why_not(now) for one in mine):
        return ""
    return f"no grant of role {role} is in force" if mine else f"role {role} is granted to nobody"


def ask(  # noqa: PLR0913 - what a grant says, and how it is taken
    lake: "Lake",
    role: str,
    to: str,
    until: datetime,
    reason: str,
    by: str,
    *,
    break_glass: bool = False,
    again: bool = False,
    signing: Signing = NOT_SIGNING,
) -> Grant:
    """Ask that somebody gets a role until a time, or take it for some hours; return the grant.

    Raises what `ranklake.retention.grants.grant.request` and `ranklake.retention.proposals.lifecycle.propose` do.
    """
    made = request(lake, role, to, until, reason, by, break_glass=break_glass, again=again)
    lifecycle.propose(lake, GRANTS, made.name, by, signing)
    return GRANTS.find(lake, made.name)


def approve(
    lake: "Lake",
    name: str,
    by: str,
    reason: str | None = None,
    **options: Unpack[lifecycle.ApprovalOptions],
) -> tuple[Grant, bool]:
    """Approve a grant; return it, and whether this call did it. Nobody approves a role for himself.

    Raises `GrantError` for who gets it and for a grant that ended, and what
    `ranklake.retention.proposals.lifecycle.approve` does.
    """
    grant = GRANTS.find(lake, name)
    if is_one_of(by, [grant.to]) and not options.get("single_operator"):
        hint = "have another person approve it, or say that there is one alone: --single-operator"
        raise GrantError("whoever gets a role may not approve that", where=name, hint=hint)
    if grant.revoked is not None or clock.now() >= grant.until:
        raise GrantError(f"nothing to approve: {grant.why_not(clock.now())}", where=name, hint=GRANTS.made_by)
    return lifecycle.approve(lake, GRANTS, name, by, reason, **options)


def revoke(lake: "Lake", name: str, by: str, reason: str) -> tuple[Grant, bool]:
    """End a grant now; return it, and whether this call did it. Whoever may write the trail may: it takes rights away.

    Raises `ranklake.retention.proposals.proposals.UnknownProposalError`, and `GrantError` without a reason.
    """
    if not reason.strip():
        raise GrantError("revoking needs a reason", where="--reason", hint="say why")
    GRANTS.find(lake, name)
    fresh = record(lake, by, REVOKE, name, reason, unsigned_note(lake), once=True) is not None
    return GRANTS.find(lake, name), fresh


def review(lake: "Lake", name: str, by: str, reason: str, signing: Signing = NOT_SIGNING) -> tuple[Grant, bool]:
    """Say that somebody looked at a grant that was taken without approval; return it, and whether this call did.

    Signed where the lake takes signatures, since whoever took the role may not do it. Raises `GrantError` for a grant
    that needs none, without a word on it, and for who took it, and what `identify` does.
    """
    grant = GRANTS.find(lake, name)
    if not grant.is_break_glass:
        raise GrantError("it was approved, and needs no review", where=name, hint="'ranklake grants review' lists all")
    if is_one_of(by, [grant.to, *lifecycle.standing(lake, GRANTS, grant).authors]):
        raise GrantError("whoever took a role may not review that", where=name, hint="have another person do it")
    if not reason.strip():
        raise GrantError("a review says what was found", where="--reason", hint="write it")
    who = identify(lake, SignedSubject(GRANTS.action, name, grant.items_sha256), REVIEW_STEP, by, reason, signing)
    fresh = record(lake, who.name, REVIEW, name, who.reason, dict(who.details), once=True) is not None
    return GRANTS.find(lake, name), fresh


def in_order(grants: list[Grant], now: datetime) -> list[Grant]:
    """Return grants as people look at them: those in force first, those that end soonest before others."""
    return sorted(grants, key=lambda grant: (bool(grant.why_not(now)), grant.until, grant.name))


def is_of_late(grant: Grant, now: datetime) -> bool:
    """Return whether a look at grants shows one: it holds, waits for somebody, or ended in the last `RECENT`."""
    return grant.awaits_review() or now - min(grant.revoked or grant.until, grant.until) <= RECENT


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
    for use in logged_queries(lake.store, since.date()):
        if use.role is not None:
            asked.setdefault((normalize_name(use.consumer), use.role), []).append(use.at)
    result = []
    known = register(lake)
    for grant in known.values():
        if grant.why_not(now) and not grant.awaits_review():
            continue
        times = [at for at in asked.get((normalize_name(grant.to), grant.role), []) if at >= (grant.proposed or since)]
        last = max(times, default=None)
        before = awaiting_review(known.values(), grant.to).index(grant) if grant.awaits_review() else 0
        result.append(Access(grant, len(times), last, since, tuple(_remarks(grant, before, last, now))))
    return sorted(result, key=lambda use: (not use.remarks, use.grant.until, use.grant.name))


def _remarks(grant: Grant, before: int, last: datetime | None, now: datetime) -> list[str]:
    remarks = []
    if grant.awaits_review():
        remarks.append("taken without approval, and nobody reviewed it")
    if before:
        remarks.append(f"taken again, with {before} of the same person before it not reviewed")
    begun = grant.approved or grant.proposed or now
    if not grant.why_not(now) and now - (last or begun) > UNUSED:
        remarks.append(f"not used for {(now - (last or begun)).days} days")
    return remarks
