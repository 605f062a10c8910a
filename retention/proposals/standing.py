"""Standing: whose approvals of a proposal count at a time, why others do not, and what is lacking."""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING
from unicodedata import normalize

from ranklake.lake.store.allowed_signers import Signers, load_signers
from ranklake.lake.store.approvals import COMMAND, SIGNED, UNSIGNED
from ranklake.lake.store.ssh_signatures import SignatureError, verify
from ranklake.retention.proposals.proposals import AnyKind, Proposal
from ranklake.retention.proposals.statements import DIGEST, Statement, lake_identity, moment
from ranklake.retention.proposals.steps import SKEW, Actions, Step
from ranklake.retention.proposals.tiers import Needed, needed

if TYPE_CHECKING:
    from ranklake.lake.store.store import Lake


@dataclass(frozen=True, slots=True)
class Standing:
    """What the trail says of a proposal's approvals.

    Attributes
    ----------
    approvals
        Those that count, one a name.
    authors
        Who proposed it, as far as that counts.
    refused
        Why others do not count, a clause each.
    needed, lacking
        What it takes; what of that is not there, in words, empty if all is.
    """

    approvals: tuple[Step, ...]
    authors: tuple[str, ...]
    refused: tuple[str, ...]
    needed: Needed
    lacking: str

    @property
    def approvers(self) -> list[str]:
        """Whose approvals count."""
        return [step.actor for step in self.approvals]


class Judge:
    """Says whether steps count, under a lake's mode. Keys are read once."""

    def __init__(self, lake: "Lake") -> None:
        section = lake.config.approvals
        self.mode = section.mode
        self.signers: Signers | None = load_signers(section.allowed_signers) if self.mode == SIGNED else None
        self._lake = lake_identity(lake)

    def doubt(self, step: Step, items_sha256: str, at: datetime) -> str:
        """Return why a step does not count at a time; empty if it does.

        Steps of older software carry no digest of the items; a proposal's name is one, so unsigned they count.
        """
        if step.details.get(DIGEST, items_sha256) != items_sha256:
            return "it is of other items"
        doubt = self._unsigned(step) if self.signers is None else self.of_signature(step, at)
        return doubt or _expired(step, at)

    def _unsigned(self, step: Step) -> str:
        weaker = self.mode == COMMAND and step.details.get("mode") not in {COMMAND, SIGNED}
        return "nobody checked the name" if weaker else ""

    def of_signature(self, step: Step, at: datetime) -> str:
        """Return what is wrong with a signature at a time; empty if it holds."""
        assert self.signers is not None
        signature = step.details.get("signature")
        try:
            statement = Statement.of_row(step.row, step.details)
        except (KeyError, TypeError, ValueError):
            statement = None
        if not isinstance(signature, str) or statement is None:
            return "it is not signed" if signature is None else "it does not say what was signed"
        faults = {
            "it was signed for another lake": statement.lake != self._lake,
            "it is dated in the future": statement.made > min(step.ts, at) + SKEW,
            "it was written down after it had expired": step.ts > statement.ends,
        }
        wrong = next((what for what, found in faults.items() if found), "")
        try:
            signer = verify(statement.text, signature, self.signers, step.actor, at)
        except SignatureError as error:
            return wrong or error.what
        said = step.details.get("roles", [])
        extra = sorted(set(said) - signer.roles) if isinstance(said, list) else ["?"]
        return wrong or (f"the key does not have the role {', '.join(map(str, extra))}" if extra else "")


def _expired(step: Step, at: datetime) -> str:
    try:
        ends = moment(str(step.details["expires"])) if "expires" in step.details else None
    except ValueError:
        return "it does not say when it ends"
    return f"it expired at {ends:%Y-%m-%d %H:%M} UTC" if ends is not None and at >= ends else ""


def stand(lake: "Lake", kind: AnyKind, proposal: Proposal, trail: Actions, at: datetime) -> Standing:
    """Return the standing of a proposal at a time. Raises `SignersError` and `SecretError`."""
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
            refused.append(f"the approval in row {step.seq} of the audit trail does not count: {doubt}")
        else:
            approvals.setdefault(plain(step.actor), step)
    unnamed = judge.mode == SIGNED and kind.authored and all(judge.of_signature(step, step.ts) for step in proposed)
    wanted = needed(lake.config.approvals, kind.action, proposal.risk)
    lacking = wanted.lacking(step.details.get("roles") or [] for step in approvals.values())
    if lacking and not rows.get(kind.approve):
        lacking = "the audit trail has no approval of it"
    if unnamed:
        lacking = f"nobody signed as its author: {kind.made_by} --key KEY"
    return Standing(tuple(approvals.values()), tuple(authors), tuple(refused), wanted, lacking)


def is_one_of(name: str, others: Iterable[str | None]) -> bool:
    """Say whether a name is one of others, however they are spelt."""
    return plain(name) in {plain(other) for other in others if other is not None}


def plain(name: str) -> str:
    """Return a name as names are compared: whatever its case, spaces, marks that nobody sees and form of Unicode."""
    folded = normalize("NFKC", normalize("NFKD", name).casefold())
    return "".join(one for one in folded if one.isprintable() and not one.isspace())
