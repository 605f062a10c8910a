"""Approvals of a proposal: which count at a time, why others do not, which are missing, and whether they are signed.

The mode is how names are checked: signed, by a command, or unsigned. Each change of the mode is a row of the audit log.
A weaker mode needs its own row with a reason.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, Self
from unicodedata import normalize

from ranklake.errors import RanklakeError
from ranklake.lake.audit import clock
from ranklake.lake.audit import trail as audit
from ranklake.lake.audit.proof import prove
from ranklake.lake.plans.verification import refusal, verify_application, verify_files
from ranklake.lake.store.lake_config import COMMAND, DEFAULT_TIERS, MODES, SIGNED, UNSIGNED, ApprovalsSection
from ranklake.lake.store.ssh_signatures import SignatureError, Signers, load_signers, verify
from ranklake.retention.proposals.identities import DIGEST, Identity, SignedSubject, Statement, lake_identity, moment
from ranklake.retention.proposals.proposals import (
    MODE,
    SKEW,
    Actions,
    AnyKind,
    AnyProposal,
    Proposal,
    ProposalError,
    ProposalKind,
    Risk,
    Step,
    digest_of,
    recorded_actions,
)

if TYPE_CHECKING:
    from ranklake.lake.plans.plan import Plan
    from ranklake.lake.store.lake import Lake

SUBJECT: Final = "approvals"
_FACTS: Final = frozenset({"mode", "signers_sha256"})
LOWERED: Final = SignedSubject(SUBJECT, SUBJECT, digest_of([UNSIGNED]))
"""The signed subject of a step to the unsigned mode."""
UNSIGNED_NOTE: Final = "approvals are unsigned here: nobody checks names (docs/approvals.md)"
"""Note in every output of an unsigned lake."""


class DowngradeError(RanklakeError):
    """The configured mode is weaker than the mode in the audit log. Nothing was written."""

    def __init__(self, step: Step, now: str) -> None:
        keys = {"signed": "allowed_signers", "command": "identity"}
        was = mode_of(step)
        message = (
            f"approvals of this lake are {was} since row {step.seq} of the audit log, and {now} is configured here"
        )
        hint = (
            f"configure {keys.get(was, 'it')} under [approvals] again, or say that nobody does so any more: "
            "ranklake approvals downgrade --by NAME --reason TEXT"
        )
        super().__init__(message, hint=hint)


class ClockError(RanklakeError):
    """A clock that is behind the audit log's last row. It would make expired approvals look valid.

    Nothing was written.
    """

    def __init__(self, now: datetime, end: datetime) -> None:
        message = f"this machine's clock says {now:%Y-%m-%d %H:%M} UTC, and the audit log ends at {end:%Y-%m-%d %H:%M}"
        super().__init__(message, hint="set the clock; 'ranklake audit show' shows who wrote that row")


def last_mode(trail: Actions) -> Step | None:
    """Return the last audit row that sets the mode; None if the lake was always unsigned."""
    return next(reversed(trail.get(SUBJECT, {}).get(MODE, [])), None)


def mode_of(step: Step | None) -> str:
    """Return the mode that an audit row sets; `UNSIGNED` without a row."""
    mode = UNSIGNED if step is None else step.details.get("mode")
    return mode if mode in MODES else SIGNED  # an unknown mode counts as the strictest


def refuse_downgrade(lake: "Lake", trail: Actions) -> None:
    """Raise `DowngradeError` if the configured mode is weaker than the recorded one.

    Raises `ClockError` if this machine's clock is behind the audit log.
    """
    now = clock.now()
    if lake.config.approvals.mode != UNSIGNED and trail.end is not None and now < trail.end - SKEW:
        raise ClockError(now, trail.end)
    mode, last = lake.config.approvals.mode, last_mode(trail)
    if last is not None and MODES.index(mode) < MODES.index(mode_of(last)):
        raise DowngradeError(last, mode)


def note_mode(lake: "Lake", trail: Actions, by: str) -> None:
    """Record the mode in the audit log if the mode or the file of allowed signers changed."""
    section, last = lake.config.approvals, last_mode(trail)
    facts = {"mode": section.mode}
    if section.mode == SIGNED:
        facts["signers_sha256"] = load_signers(section.allowed_signers).sha256
    recorded = {name: last.details[name] for name in _FACTS & last.details.keys()} if last else {"mode": UNSIGNED}
    if facts != recorded:
        audit.record(lake, by, MODE, SUBJECT, None, facts)


def downgrade(lake: "Lake", trail: Actions, who: Identity, reason: str) -> bool:
    """Record in the audit log that names are no longer checked; return False if the lake is unsigned already."""
    if mode_of(last_mode(trail)) == UNSIGNED:
        return False
    details = {**who.details, "mode": UNSIGNED, "by_mode": who.mode, DIGEST: LOWERED.items_sha256}
    audit.record(lake, who.name, MODE, SUBJECT, reason, details)
    return True


@dataclass(frozen=True, slots=True)
class ApprovalRule:
    """How many different approvers a proposal needs, and the roles of which at least one must approve."""

    approvers: int = 1
    roles: tuple[str, ...] = ()

    @property
    def plain(self) -> dict[str, Any]:
        """Plain JSON values for the audit log."""
        return {"approvers": self.approvers, "roles": list(self.roles)}

    @classmethod
    def from_details(cls, details: Mapping[str, Any]) -> Self:
        """Return the rule in the details of an audit row; one approver if they have none."""
        facts = details.get("needed")
        if not isinstance(facts, dict):
            return cls()
        approvers, roles = facts.get("approvers"), facts.get("roles")
        return cls(approvers if isinstance(approvers, int) else 1, tuple(roles) if isinstance(roles, list) else ())

    def lacking(self, approvers: Iterable[Iterable[str]]) -> str:
        """Return which approvals are missing, in words; empty if none.

        Parameters
        ----------
        approvers
            The roles of each approver so far.
        """
        held = [frozenset(roles) for roles in approvers]
        parts = []
        if len(held) < self.approvers:
            parts.append(f"it has {len(held)} of {self.approvers} approvals")
        parts += [f"nobody of role {role} approved it" for role in self.roles if not any(role in x for x in held)]
        return ", ".join(parts)


def approval_count(section: ApprovalsSection, kind: str, risk: Risk) -> ApprovalRule:
    """Return the rule for a proposal. In an unsigned lake one approval is enough, since names are not checked."""
    if section.mode == UNSIGNED:
        return ApprovalRule()
    approvers, roles = 1, set[str]()
    for tier in section.tiers or DEFAULT_TIERS:
        if (
            (not tier.kinds or kind in tier.kinds)
            and (not tier.classes or not risk.classes.isdisjoint(tier.classes))
            and (not tier.over_bytes or (risk.bytes is not None and risk.bytes >= tier.over_bytes))
            and (not tier.irreversible or risk.irreversible)
        ):
            approvers = max(approvers, tier.approvers)
            roles |= {tier.role} - {""}
    return ApprovalRule(approvers, tuple(sorted(roles)))


@dataclass(frozen=True, slots=True)
class ApprovalStatus:
    """The approvals of a proposal, by the audit log.

    Attributes
    ----------
    approvals
        Approvals that count, one per name.
    authors
        Names of the proposers.
    refused
        One clause for each approval that does not count, with the reason.
    needed
        The rule for this proposal.
    lacking
        Which approvals are missing, in words; empty if none.
    """

    approvals: tuple[Step, ...]
    authors: tuple[str, ...]
    refused: tuple[str, ...]
    needed: ApprovalRule
    lacking: str

    @property
    def approvers(self) -> list[str]:
        """Names of the people whose approvals count."""
        return [step.actor for step in self.approvals]


class Judge:
    """Decides whether steps count under a lake's mode. Reads the allowed signers once."""

    def __init__(self, lake: "Lake") -> None:
        section = lake.config.approvals
        self.mode = section.mode
        self.signers: Signers | None = load_signers(section.allowed_signers) if self.mode == SIGNED else None
        self._lake = lake_identity(lake.store)

    def doubt(self, step: Step, items_sha256: str, at: datetime) -> str:
        """Return why a step does not count at a time; empty if it counts."""
        if step.details.get(DIGEST) != items_sha256:
            return "it is of other items"
        doubt = self._unsigned_reason(step) if self.signers is None else self.of_signature(step, at)
        return doubt or _expiry_reason(step, at)

    def _unsigned_reason(self, step: Step) -> str:
        weaker = self.mode == COMMAND and step.details.get("mode") not in {COMMAND, SIGNED}
        return "nobody checked the name" if weaker else ""

    def of_signature(self, step: Step, at: datetime) -> str:
        """Return why a step's signature is invalid at a time; empty if it is valid."""
        assert self.signers is not None
        signature = step.details.get("signature")
        try:
            statement = Statement.of_row(step.row, step.details)
        except (KeyError, TypeError, ValueError):
            statement = None
        if not isinstance(signature, str) or statement is None:
            return "it is not signed" if signature is None else "it does not say what was signed"
        rules = {
            "it was signed for another lake": statement.lake != self._lake,
            "it is dated in the future": statement.made > min(step.ts, at) + SKEW,
            "it was written down after it had expired": step.ts > statement.ends,
        }
        problem = next((text for text, is_broken in rules.items() if is_broken), "")
        try:
            signer = verify(statement.text, signature, self.signers, step.actor, at)
        except SignatureError as error:
            return problem or error.what
        signed_roles = step.details.get("roles", [])
        extra = sorted(set(signed_roles) - signer.roles) if isinstance(signed_roles, list) else ["?"]
        return problem or (f"the key does not have the role {', '.join(map(str, extra))}" if extra else "")


def _expiry_reason(step: Step, at: datetime) -> str:
    try:
        ends = moment(str(step.details["expires"])) if "expires" in step.details else None
    except ValueError:
        return "it does not say when it ends"
    return f"it expired at {ends:%Y-%m-%d %H:%M} UTC" if ends is not None and at >= ends else ""


def approval_status(lake: "Lake", kind: AnyKind, proposal: Proposal, trail: Actions, at: datetime) -> ApprovalStatus:
    """Return the approvals of a proposal at a time. Raises `SignersError` and `SecretError`."""
    judge = Judge(lake)
    rows = trail.get(proposal.name, {})
    proposed = [step for step in rows.get(kind.propose, []) if step.details.get(DIGEST) == proposal.items_sha256]
    authors = [step.actor for step in proposed] + ([proposal.proposer] if proposal.proposer else [])
    approvals: dict[str, Step] = {}
    refused: list[str] = []
    for step in rows.get(kind.approve, []):
        doubt = judge.doubt(step, proposal.items_sha256, at)
        if not doubt and judge.mode != UNSIGNED and is_one_of(step.actor, authors):
            doubt = "its author gave it"
        if doubt:
            refused.append(f"the approval in row {step.seq} of the audit log does not count: {doubt}")
        else:
            approvals.setdefault(normalize_name(step.actor), step)
    needs_author = judge.mode == SIGNED and kind.authored
    rule = approval_count(lake.config.approvals, kind.action, proposal.risk)
    lacking = rule.lacking(step.details.get("roles") or [] for step in approvals.values())
    if lacking and not rows.get(kind.approve):
        lacking = "the audit log has no approval of it"
    if needs_author and all(judge.of_signature(step, step.ts) for step in proposed):
        lacking = f"nobody signed as its author: {kind.made_by} --key KEY"
    return ApprovalStatus(tuple(approvals.values()), tuple(authors), tuple(refused), rule, lacking)


def is_one_of(name: str, others: Iterable[str | None]) -> bool:
    """Return whether a name equals one of the others after `normalize_name`."""
    return normalize_name(name) in {normalize_name(other) for other in others if other is not None}


def normalize_name(name: str) -> str:
    """Return a name for comparison: case folded, in NFKC, without spaces and invisible characters."""
    folded = normalize("NFKC", normalize("NFKD", name).casefold())
    return "".join(character for character in folded if character.isprintable() and not character.isspace())


class NoEvidenceError(ProposalError):
    """The audit log does not prove that a proposal was approved."""

    def __init__(self, proposal: str, what: str) -> None:
        hint = "nothing was changed; see 'ranklake audit verify' and 'ranklake audit show', then plan again"
        super().__init__(proposal, what, hint=hint)


def verify_approved(
    lake: "Lake",
    plan: "Plan",
    kind: ProposalKind[AnyProposal],
    register: str,
    action: str,
    agrees: Callable[[AnyProposal], bool],
) -> None:
    """Check that an unfinished plan applies a proposal exactly as approved, and records nothing else.

    Parameters
    ----------
    kind, register
        The kind of the proposal, and the table with its register. The plan's facts name the proposal under the kind's
        noun.
    action
        Verb for messages about the plan's rows, such as ``remove``.
    agrees
        Whether the plan does what the proposal says.

    Raises `ranklake.lake.plans.plan.RefusedPlanError`.
    """
    verify_files(lake, plan)
    key = kind.noun.replace(" ", "_")
    name = plan.body["facts"][key]
    try:
        proposal = kind.find(lake, name)
        require(lake, kind, proposal, begun=True)
    except RanklakeError as error:
        message = f"the plan would {action} rows without approval: {name}: {error.what}"
        raise refusal(lake.store, plan, message) from error
    if not agrees(proposal) or proposal.approved is None:
        raise refusal(lake.store, plan, f"the plan would {action} other rows than were approved: {name}")
    verify_application(lake.store, plan, register, key, name)


def missing_evidence(kind: AnyKind, proposal: Proposal, trail: Actions) -> str:
    """Return why the audit log has no approval of a proposal's items; empty if it has one."""
    rows = trail.get(proposal.name, {}).get(kind.approve, [])
    if not rows:
        return "the audit log has no approval of it"
    if all(row.details.get(DIGEST) != proposal.items_sha256 for row in rows):
        return "what was approved under this name had other items"
    return ""


def require(lake: "Lake", kind: AnyKind, proposal: Proposal, *, begun: bool = False) -> ApprovalStatus:
    """Require that an intact audit log proves enough approvals of a proposal's items; return those approvals.

    With `begun`, the log must also have the row that began the application. Raises `NoEvidenceError`, `DowngradeError`
    if approvals were signed but the configuration here does not verify signatures, and the errors of reading the keys.
    """
    proof = prove(lake)
    if not proof.whole:
        raise NoEvidenceError(proposal.name, f"the audit log is broken: {proof.why}")
    trail = recorded_actions(lake.tables, kind)
    refuse_downgrade(lake, trail)
    message = missing_evidence(kind, proposal, trail)
    begins = trail.get(proposal.name, {}).get(kind.begin, [])
    if not message and begun and not begins:
        message = "the audit log does not say that it was begun"
    if message:
        raise NoEvidenceError(proposal.name, message)
    # A begun application is judged by the time of its begin: a later driver may finish it after the approval expired.
    status = approval_status(lake, kind, proposal, trail, begins[-1].ts if begun else clock.now())
    if status.lacking:
        raise NoEvidenceError(proposal.name, "; ".join([status.lacking, *status.refused]))
    if begun and lake.config.approvals.mode == SIGNED:
        last, judge = begins[-1], Judge(lake)
        doubt = judge.doubt(last, proposal.items_sha256, last.ts)
        if not doubt and is_one_of(last.actor, status.approvers):
            doubt = "whoever approved it began it"
        if doubt:
            raise NoEvidenceError(proposal.name, f"row {last.seq} of the audit log, which began it: {doubt}")
    return status
