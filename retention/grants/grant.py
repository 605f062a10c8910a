"""Grants: a person gets a role until a time. A grant is a proposal that exists only as rows of the audit log.

    grant.request   the role, the person, the end and the reason ──▶ a name, which is a digest of them
    grant.propose   the author
    grant.approve   an approver, signed if the lake requires signatures
    grant.granted   all approvals are there: the grant is in force until its end
    grant.revoke    it ended early
    grant.review    a person reviewed a grant that was taken without approval (break-glass)

The person's name is only in the column `subject`, which roles see hashed. The digest has a random part, so that the
name cannot be guessed from it. A grant changes no table, so no plan applies it.
"""

import json
import re
import secrets
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from ranklake.errors import RanklakeError
from ranklake.lake.audit import clock
from ranklake.lake.audit.trail import TABLE, record
from ranklake.lake.contracts.load import contract
from ranklake.lake.tables.read import read
from ranklake.retention.proposals.approvals import Judge, approval_status, normalize_name
from ranklake.retention.proposals.identities import DIGEST
from ranklake.retention.proposals.proposals import Proposal, ProposalKind, Risk, digest_of, recorded_actions

if TYPE_CHECKING:
    from ranklake.lake.store.lake import Lake

REQUEST: Final = "grant.request"
GRANTED: Final = "grant.granted"
REVOKE: Final = "grant.revoke"
REVIEW: Final = "grant.review"
BREAK_GLASS_MOST: Final = timedelta(hours=4)
"""Longest time for which a role can be taken without approval."""
REVIEW_WITHIN: Final = timedelta(hours=24)
"""Time after an unreviewed break-glass grant in which the same person may take further ones."""
NAME: Final = re.compile(r"[^\s#\x00-\x1f\x7f-\x9f][^#\x00-\x1f\x7f-\x9f]{0,127}")
"""Form of the name of a person who gets a role."""
_ROWS: Final = (REQUEST, GRANTED, REVOKE, REVIEW)


class GrantError(RanklakeError):
    """A grant is invalid or does not exist. Nothing was written."""


@dataclass(frozen=True, slots=True)
class Grant(Proposal):
    """A role for a person until a time.

    Attributes
    ----------
    role
        Name of the role.
    to
        Name of the account, person or team that gets it. Pseudonymous data.
    until
        Time from which it is no longer in force.
    salt
        Random part of its digest.
    reason
        Reason of the request. Personal data.
    is_break_glass
        Whether it was taken without approval, for some hours.
    revoked, reviewed
        Time of the step; None if it has not happened.
    doubt
        Why its approval does not count; empty if it counts or if there is none.
    """

    role: str
    to: str
    until: datetime
    salt: str
    _: KW_ONLY
    reason: str = field(default="", repr=False)
    is_break_glass: bool = False
    revoked: datetime | None = None
    reviewed: datetime | None = None
    doubt: str = ""

    @property
    def items_sha256(self) -> str:
        """Digest of role, person, end, salt and break-glass. An approval is for this digest."""
        return digest_of([[self.role, self.to, self.until.isoformat(), self.salt, self.is_break_glass]])

    @property
    def intact(self) -> bool:
        """Whether its values match the digest in the name."""
        return self.name == f"grant-{self.items_sha256[:12]}"

    @property
    def facts(self) -> Mapping[str, Any]:
        """Details of its audit rows."""
        return {"role": self.role, "until": self.until.isoformat()}

    @property
    def outcome(self) -> Mapping[str, Any]:
        """Empty, since a grant is not applied."""
        return {}

    @property
    def risk(self) -> Risk:
        """A grant can be revoked, although data that was read cannot be taken back."""
        return Risk(irreversible=False)

    def why_not(self, now: datetime) -> str:
        """Return why it is not in force at a time, as a clause; empty if it is."""
        if not self.intact:
            return "it was altered"
        if self.revoked is not None:
            return f"it was revoked at {self.revoked:%Y-%m-%d %H:%M} UTC"
        if now >= self.until:
            return f"it ended at {self.until:%Y-%m-%d %H:%M} UTC"
        if self.doubt:
            return self.doubt
        return "" if self.approved is not None or self.is_break_glass else "nobody approved it"

    def awaits_review(self) -> bool:
        """Return whether it was taken without approval and has not been reviewed."""
        return self.is_break_glass and self.reviewed is None

    def plain(self, now: datetime) -> dict[str, Any]:
        """Return plain JSON values, without the reason."""
        times = ("proposed", "approved", "until", "revoked", "reviewed")
        when = {name: None if (at := getattr(self, name)) is None else at.isoformat() for name in times}
        facts = {"grant": self.name, "role": self.role, "to": self.to, "break_glass": self.is_break_glass}
        return {**facts, **when, "in_force": not self.why_not(now), "why_not": self.why_not(now) or None}


def request(
    lake: "Lake",
    role: str,
    to: str,
    until: datetime,
    reason: str,
    by: str,
    *,
    break_glass: bool = False,
    again: bool = False,
) -> Grant:
    """Record the request of a role in the audit log, and return the grant.

    Parameters
    ----------
    break_glass
        Whether the grant is in force immediately, without approval.
    again
        Whether to allow a break-glass grant although an earlier one of the person is not reviewed.

    Raises `GrantError` if name, reason or end are invalid, or if the person may not take a role now.
    """
    name, now = " ".join(to.split()), clock.now()
    if not NAME.fullmatch(name):
        raise GrantError("nobody gets the role", where="--to", hint="name an account, a person or a team, without #")
    if not reason.strip():
        raise GrantError("a grant needs a reason", where="--reason", hint="say what it is for")
    if until <= now:
        raise GrantError(f"{until:%Y-%m-%d %H:%M} UTC is past", where="--until", hint="name a time to come")
    if break_glass and until > now + BREAK_GLASS_MOST:
        hours = int(BREAK_GLASS_MOST.total_seconds() // 3600)
        message = f"without approval a role is had for {hours} hours at most"
        raise GrantError(message, where="--until", hint=f"write --until {hours}h or less")
    unreviewed = awaiting_review(register(lake).values(), name) if break_glass else []
    if unreviewed:
        _refuse_repeated(unreviewed, now, again=again)
    salt = secrets.token_hex(16)
    new = Grant("", role, name, until, salt, is_break_glass=break_glass)
    digest = new.items_sha256
    details = {**new.facts, "grant": f"grant-{digest[:12]}", "break_glass": break_glass}
    if unreviewed:
        details["not_reviewed_before"] = len(unreviewed)
    record(lake, by, REQUEST, f"{name}#{salt}", reason, details)
    return GRANTS.find(lake, str(details["grant"]))


def awaiting_review(grants: Iterable[Grant], who: str) -> list[Grant]:
    """Return a person's unreviewed break-glass grants, the oldest first."""
    return [grant for grant in grants if grant.awaits_review() and normalize_name(grant.to) == normalize_name(who)]


def _refuse_repeated(unreviewed: Sequence[Grant], now: datetime, *, again: bool) -> None:
    """Raise `GrantError` if a person with unreviewed break-glass grants may not take another one."""
    first, count = unreviewed[0], len(unreviewed)
    review_it = f"have another person look at it: ranklake grants review {first.name} --reason TEXT"
    hours = int(REVIEW_WITHIN.total_seconds() // 3600)
    if now - (first.proposed or now) >= REVIEW_WITHIN:
        message = f"{first.name} was taken without approval over {hours} hours ago, and nobody reviewed it"
        raise GrantError(message, where="--break-glass", hint=review_it)
    if not again:
        message = f"{first.name} was taken without approval, and nobody reviewed it" + (
            f", nor {count - 1} after it" if count > 1 else ""
        )
        raise GrantError(message, where="--break-glass", hint=f"{review_it}; if nobody is there, say --again")


def register(lake: "Lake") -> dict[str, Grant]:
    """Return all requested grants by name, the oldest first."""
    rows = read(lake.tables, contract(TABLE), ["seq", "ts", "actor", "action", "subject", "reason", "details"])
    rows = rows.filter(pc.is_in(rows["action"], value_set=pa.array(_ROWS))).sort_by("seq").to_pylist()
    grants: dict[str, Grant] = {}
    later: dict[str, dict[str, Mapping[str, Any]]] = {}
    for row in rows:
        if row["action"] == REQUEST:
            grant = _requested_grant(row)
            if grant is not None:
                grants.setdefault(grant.name, grant)
        else:
            later.setdefault(row["subject"], {}).setdefault(row["action"], row)
    states = _GrantStates(lake)
    return {name: states.with_rows(grant, later.get(name, {})) for name, grant in grants.items()}


def _requested_grant(row: Mapping[str, Any]) -> Grant | None:
    """Return the grant in a request row; None if its details are invalid."""
    to, _, salt = row["subject"].rpartition("#")
    try:
        details = json.loads(row["details"] or "")
        until = datetime.fromisoformat(details["until"])
        name, role, break_glass = str(details["grant"]), str(details["role"]), details["break_glass"] is True
    except (ValueError, KeyError, TypeError):
        return None
    return Grant(
        name, role, to, until, salt, reason=row["reason"] or "", is_break_glass=break_glass, proposed=row["ts"]
    )


class _GrantStates:
    """Adds approvals, revocations and reviews to grants. Rows without valid approvals do not count."""

    def __init__(self, lake: "Lake") -> None:
        self._lake = lake
        self._trail = recorded_actions(lake.tables, GRANTS)

    def with_rows(self, grant: Grant, rows: Mapping[str, Mapping[str, Any]]) -> Grant:
        """Return a grant with the state from its later rows, given by action."""
        granted = rows.get(GRANTED)
        doubt = self._break_glass_doubt(grant) if grant.is_break_glass else ""
        if granted is not None and grant.intact:
            doubt = approval_status(self._lake, GRANTS, grant, self._trail, granted["ts"]).lacking
        return replace(
            grant,
            approved=granted["ts"] if granted is not None and grant.intact else None,
            approver=granted["actor"] if granted else None,
            revoked=rows[REVOKE]["ts"] if REVOKE in rows else None,
            reviewed=rows[REVIEW]["ts"] if REVIEW in rows else None,
            doubt=doubt,
        )

    def _break_glass_doubt(self, grant: Grant) -> str:
        """Return why a break-glass grant does not count; empty if it counts."""
        judge = Judge(self._lake)
        steps = self._trail.get(grant.name, {}).get(GRANTS.propose, [])
        if judge.signers is None or any(not judge.of_signature(step, step.ts) for step in steps):
            return ""
        return "nobody signed that they take it"


def _add_approval(lake: "Lake", grant: Grant, by: str) -> bool:
    return record(lake, by, GRANTED, grant.name, None, {DIGEST: grant.items_sha256}, once=True) is not None


GRANTS: Final = ProposalKind(
    noun="grant",
    action="grant",
    command="ranklake grants",
    register=register,
    add_approval=_add_approval,
    planning="ranklake grant ROLE --to NAME --until TIME --reason TEXT",
)
"""Grants as proposals: `ranklake.retention.proposals.lifecycle` proposes and approves them."""
