"""Use of grants: checks whether a person may use a role now; requests, approves, revokes and reviews grants."""

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
"""How long an ended grant is still listed."""


class NotGrantedError(GrantError):
    """A person may not use a role."""


def current_grant(lake: "Lake", role: str, who: str) -> Grant:
    """Return the grant with which a person may use a role now. Raises `NotGrantedError` with the reason."""
    now = clock.now()
    grants = [
        grant
        for grant in register(lake).values()
        if grant.role == role and normalize_name(grant.to) == normalize_name(who)
    ]
    for grant in grants:
        if not grant.why_not(now):
            return grant
    hint = f"ask for one: ranklake grant {role} --to {who} --until 30d --reason TEXT"
    if not grants:
        raise NotGrantedError(f"{who} has no grant of role {role}", where="--role", hint=hint)
    last = grants[-1]
    message = f"{who}'s grant of role {role} is not in force: {last.why_not(now)}"
    if last.approved is None and last.until > now and last.revoked is None:
        to_approve = lake.config.approvals.by_somebody(GRANTS.to_approve(last.name))
        hint = f"have another person approve it: {to_approve}"
    raise NotGrantedError(message, where="--role", hint=hint)


def end_reason(lake: "Lake", role: str) -> str:
    """Return why nobody may use a role now, as a clause; empty if any grant of the role is in force."""
    now = clock.now()
    grants = [grant for grant in register(lake).values() if grant.role == role]
    if any(not grant.why_not(now) for grant in grants):
        return ""
    return f"no grant of role {role} is in force" if grants else f"role {role} is granted to nobody"


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
    """Request a role for a person until a time, or take it by break-glass for some hours; return the grant.

    Raises the errors of `ranklake.retention.grants.grant.request` and
    `ranklake.retention.proposals.lifecycle.propose`.
    """
    grant = request(lake, role, to, until, reason, by, break_glass=break_glass, again=again)
    lifecycle.propose(lake, GRANTS, grant.name, by, signing)
    return GRANTS.find(lake, grant.name)


def approve(
    lake: "Lake",
    name: str,
    by: str,
    reason: str | None = None,
    **options: Unpack[lifecycle.ApprovalOptions],
) -> tuple[Grant, bool]:
    """Approve a grant. Return the grant, and whether this call changed anything.

    Raises `GrantError` if the approver is the person who gets the role, or if the grant has ended, and the errors of
    `ranklake.retention.proposals.lifecycle.approve`.
    """
    grant = GRANTS.find(lake, name)
    if is_one_of(by, [grant.to]) and not options.get("single_operator"):
        hint = "have another person approve it, or say that there is one alone: --single-operator"
        raise GrantError("whoever gets a role may not approve that", where=name, hint=hint)
    if grant.revoked is not None or clock.now() >= grant.until:
        raise GrantError(f"nothing to approve: {grant.why_not(clock.now())}", where=name, hint=GRANTS.made_by)
    return lifecycle.approve(lake, GRANTS, name, by, reason, **options)


def revoke(lake: "Lake", name: str, by: str, reason: str) -> tuple[Grant, bool]:
    """End a grant now, without an approval, since this only removes rights. Return it, and whether this call did.

    Raises `ranklake.retention.proposals.proposals.UnknownProposalError`, and `GrantError` without a reason.
    """
    if not reason.strip():
        raise GrantError("revoking needs a reason", where="--reason", hint="say why")
    GRANTS.find(lake, name)
    is_new = record(lake, by, REVOKE, name, reason, unsigned_note(lake), once=True) is not None
    return GRANTS.find(lake, name), is_new


def review(lake: "Lake", name: str, by: str, reason: str, signing: Signing = NOT_SIGNING) -> tuple[Grant, bool]:
    """Record the review of a break-glass grant; return the grant, and whether this call did.

    Signed if the lake requires signatures. Raises `GrantError` if the grant needs no review, if the reason is empty, or
    if the reviewer is the person who took the role, and the errors of `identify`.
    """
    grant = GRANTS.find(lake, name)
    if not grant.is_break_glass:
        raise GrantError("it was approved, and needs no review", where=name, hint="'ranklake grants review' lists all")
    if is_one_of(by, [grant.to, *lifecycle.standing(lake, GRANTS, grant).authors]):
        raise GrantError("whoever took a role may not review that", where=name, hint="have another person do it")
    if not reason.strip():
        raise GrantError("a review says what was found", where="--reason", hint="write it")
    who = identify(lake, SignedSubject(GRANTS.action, name, grant.items_sha256), REVIEW_STEP, by, reason, signing)
    is_new = record(lake, who.name, REVIEW, name, who.reason, dict(who.details), once=True) is not None
    return GRANTS.find(lake, name), is_new


def in_order(grants: list[Grant], now: datetime) -> list[Grant]:
    """Return grants sorted for people: those in force first, then by end."""
    return sorted(grants, key=lambda grant: (bool(grant.why_not(now)), grant.until, grant.name))


def is_of_late(grant: Grant, now: datetime) -> bool:
    """Return whether to list a grant: it is in force, waits for a review, or ended within `RECENT`."""
    return grant.awaits_review() or now - min(grant.revoked or grant.until, grant.until) <= RECENT


UNUSED: Final = timedelta(days=30)
"""Time without use after which a review mentions a role."""


@dataclass(frozen=True, slots=True)
class Access:
    """The use of a grant that is in force or waits for a review.

    Attributes
    ----------
    grant
        The grant.
    queries, last_used
        Number of logged queries of this account with this role, and the time of the last one; None if there is none.
    logged_since
        First day of the log of queries.
    remarks
        Remarks for a reviewer, one clause each.
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
    """Return the use of all grants that are in force or wait for a review, those with remarks first."""
    now = clock.now()
    since = now - timedelta(days=lake.config.query.keep_days)
    query_times: dict[tuple[str, str], list[datetime]] = {}
    for use in logged_queries(lake.store, since.date()):
        if use.role is not None:
            query_times.setdefault((normalize_name(use.consumer), use.role), []).append(use.at)
    result = []
    grants = register(lake)
    for grant in grants.values():
        if grant.why_not(now) and not grant.awaits_review():
            continue
        key = (normalize_name(grant.to), grant.role)
        times = [time for time in query_times.get(key, []) if time >= (grant.proposed or since)]
        last = max(times, default=None)
        before = awaiting_review(grants.values(), grant.to).index(grant) if grant.awaits_review() else 0
        result.append(Access(grant, len(times), last, since, tuple(_remarks(grant, before, last, now))))
    return sorted(result, key=lambda use: (not use.remarks, use.grant.until, use.grant.name))


def _remarks(grant: Grant, before: int, last: datetime | None, now: datetime) -> list[str]:
    remarks = []
    if grant.awaits_review():
        remarks.append("taken without approval, and nobody reviewed it")
    if before:
        remarks.append(f"taken again, with {before} of the same person before it not reviewed")
    start = grant.approved or grant.proposed or now
    if not grant.why_not(now) and now - (last or start) > UNUSED:
        remarks.append(f"not used for {(now - (last or start)).days} days")
    return remarks
