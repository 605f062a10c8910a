"""A grant as a proposal, all of it in rows of the audit trail.

    grant.request   somebody is to have a role until a time, and why ──▶ a name that is a digest of it
    grant.propose   who asks for it
    grant.approve   who approves it, signed where the lake takes signatures
    grant.granted   it has enough approvals: it is in force from here to its end
    grant.revoke    it ended before
    grant.review    somebody looked at a grant that was taken without approval (break-glass)

Who gets the role stands in the column `subject` alone, which roles see hashed; the digest holds a random part, so that
nobody can guess a name by it. A grant changes no table, so nothing is applied.
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
"""How long a role can be taken without approval."""
REVIEW_WITHIN: Final = timedelta(hours=24)
"""How long somebody may take roles again and again while nobody reviews that."""
NAME: Final = re.compile(r"[^\s#\x00-\x1f\x7f-\x9f][^#\x00-\x1f\x7f-\x9f]{0,127}")
"""What somebody who gets something may be called."""
_ROWS: Final = (REQUEST, GRANTED, REVOKE, REVIEW)


class GrantError(RanklakeError):
    """A grant that cannot be, or that is not there. Nothing was written."""


@dataclass(frozen=True, slots=True)
class Grant(Proposal):
    """A role for somebody until a time.

    Attributes
    ----------
    role
        Which.
    to
        Who gets it: the name of an account, a person, a team. Pseudonymous data.
    until
        First moment at which it does not hold any more.
    salt
        Random part of its digest.
    reason
        Why it was asked for. Personal data.
    is_break_glass
        Whether it was taken without approval, for some hours.
    revoked, reviewed
        When somebody did; None if nobody did.
    doubt
        Why its approval does not count; empty where it does, or there is none.
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
        """Digest of all that it says."""
        return digest_of([[self.role, self.to, self.until.isoformat(), self.salt, self.is_break_glass]])

    @property
    def intact(self) -> bool:
        """Whether it says what its name stands for."""
        return self.name == f"grant-{self.items_sha256[:12]}"

    @property
    def facts(self) -> Mapping[str, Any]:
        """What the trail says of it when somebody proposes or approves it."""
        return {"role": self.role, "until": self.until.isoformat()}

    @property
    def outcome(self) -> Mapping[str, Any]:
        """Nothing is applied."""
        return {}

    @property
    def risk(self) -> Risk:
        """What it puts at stake: it can be revoked, and what was read is read."""
        return Risk(irreversible=False)

    def why_not(self, now: datetime) -> str:
        """Return why it is not in force at a moment, in a clause; empty if it is."""
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
        """Return whether it was taken without approval, and nobody has looked at that."""
        return self.is_break_glass and self.reviewed is None

    def plain(self, now: datetime) -> dict[str, Any]:
        """Return plain JSON values; reasons are in the audit log alone."""
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
    """Write down that somebody is to have a role, and return the grant; with `break_glass` it is in force at once.

    With `again` also where a role that they took waits for a review. Raises `GrantError` where it has no name, no
    reason, or no end that can be, or where they may not take one now.
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
    before = awaiting_review(register(lake).values(), name) if break_glass else []
    if before:
        _refuse_again(before, now, again=again)
    salt = secrets.token_hex(16)
    made = Grant("", role, name, until, salt, is_break_glass=break_glass)
    digest = made.items_sha256
    details = {**made.facts, "grant": f"grant-{digest[:12]}", "break_glass": break_glass}
    if before:
        details["not_reviewed_before"] = len(before)
    record(lake, by, REQUEST, f"{name}#{salt}", reason, details)
    return GRANTS.find(lake, str(details["grant"]))


def awaiting_review(grants: Iterable[Grant], who: str) -> list[Grant]:
    """Return the grants that somebody took without approval and that nobody has looked at, the oldest first."""
    return [grant for grant in grants if grant.awaits_review() and normalize_name(grant.to) == normalize_name(who)]


def _refuse_again(before: Sequence[Grant], now: datetime, *, again: bool) -> None:
    """Raise `GrantError` where somebody may not take a role after those that wait for a review."""
    first, so_far = before[0], len(before)
    review_it = f"have another person look at it: ranklake grants review {first.name} --reason TEXT"
    hours = int(REVIEW_WITHIN.total_seconds() // 3600)
    if now - (first.proposed or now) >= REVIEW_WITHIN:
        message = f"{first.name} was taken without approval over {hours} hours ago, and nobody reviewed it"
        raise GrantError(message, where="--break-glass", hint=review_it)
    if not again:
        message = f"{first.name} was taken without approval, and nobody reviewed it" + (
            f", nor {so_far - 1} after it" if so_far > 1 else ""
        )
        raise GrantError(message, where="--break-glass", hint=f"{review_it}; if nobody is there, say --again")


def register(lake: "Lake") -> dict[str, Grant]:
    """Return every grant that was asked for, by name, the oldest first."""
    rows = read(lake.tables, contract(TABLE), ["seq", "ts", "actor", "action", "subject", "reason", "details"])
    rows = rows.filter(pc.is_in(rows["action"], value_set=pa.array(_ROWS))).sort_by("seq").to_pylist()
    grants: dict[str, Grant] = {}
    later: dict[str, dict[str, Mapping[str, Any]]] = {}
    for row in rows:
        if row["action"] == REQUEST:
            made = _request_time(row)
            if made is not None:
                grants.setdefault(made.name, made)
        else:
            later.setdefault(row["subject"], {}).setdefault(row["action"], row)
    judged = _JudgedGrants(lake)
    return {name: judged.with_rows(one, later.get(name, {})) for name, one in grants.items()}


def _request_time(row: Mapping[str, Any]) -> Grant | None:
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


class _JudgedGrants:
    """Puts what became of them beside grants; a word that a row has no right to is none."""

    def __init__(self, lake: "Lake") -> None:
        self._lake = lake
        self._trail = recorded_actions(lake.tables, GRANTS)

    def with_rows(self, grant: Grant, rows: Mapping[str, Mapping[str, Any]]) -> Grant:
        """Return a grant with what the rows say."""
        granted = rows.get(GRANTED)
        doubt = self._of_taken(grant) if grant.is_break_glass else ""
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

    def _of_taken(self, grant: Grant) -> str:
        """Return why a row does not show a role taken without approval; empty where it does."""
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
