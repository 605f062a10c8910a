"""Proposals: actions that a person must answer for: proposed, approved by another person, applied once.

    propose ─▶ a name that is a digest of its items ─▶ approve: a row in the audit trail, then one in the register
        ─▶ apply: is it what was approved, and is the lake still as proposed? ─▶ audit row (begun)
        ─▶ one numbered plan of the lake ─▶ audit row (applied)

A kind of proposal says where its register is and what its actions are called in the trail; the way from proposal to
plan is the same for all of them (`ranklake.retention.proposals.lifecycle`), and so is what the trail must say
(`ranklake.retention.proposals.approvals`).
"""

import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import KW_ONLY, dataclass, field
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, ClassVar, Final, Generic, TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from ranklake.errors import RanklakeError, did_you_mean
from ranklake.lake.audit.trail import TABLE
from ranklake.lake.contracts.load import contract
from ranklake.lake.store.lake_config import ApprovalsSection
from ranklake.lake.tables.read import read

if TYPE_CHECKING:
    from ranklake.lake.store.lake import Lake
    from ranklake.lake.store.tables import Tables


@dataclass(frozen=True, slots=True)
class Risk:
    """What a proposal puts at stake.

    Attributes
    ----------
    bytes
        What it is about; None where it is not known.
    classes
        Retention classes that it touches.
    irreversible
        Whether it cannot be undone.
    """

    bytes: int | None = None
    classes: frozenset[str] = frozenset()
    irreversible: bool = True


@dataclass(frozen=True, slots=True)
class Proposal(ABC):
    """What is proposed, and what became of it.

    Attributes
    ----------
    name
        Its identity: a digest of what would be done, so equal proposals are one.
    proposed, approved, applied
        When; None if not.
    proposer, approver
        Who; pseudonymous data, which goes into no output. None if it was not asked for, or not yet.
    expires
        From when on it can be neither approved nor applied; None for never.
    plan
        Number of the lake's plan that applied it.
    single_operator
        Whether whoever approved it applied it, too.
    """

    name: str
    _: KW_ONLY
    proposed: datetime | None = None
    proposer: str | None = None
    expires: datetime | None = None
    approved: datetime | None = None
    approver: str | None = None
    applied: datetime | None = None
    plan: int | None = None
    single_operator: bool = False

    first_state: ClassVar[str] = "proposed"
    """What the state before the approval is called."""

    @property
    @abstractmethod
    def items_sha256(self) -> str:
        """Digest of all that its items say, for whoever approves them."""

    @property
    @abstractmethod
    def intact(self) -> bool:
        """Whether its items are those that its name stands for."""

    @property
    @abstractmethod
    def facts(self) -> Mapping[str, Any]:
        """What the audit trail says of it when it is approved and begun: plain JSON values, no personal data."""

    @property
    @abstractmethod
    def outcome(self) -> Mapping[str, Any]:
        """What the audit trail says when it was applied; likewise."""

    @property
    def risk(self) -> Risk:
        """What it puts at stake, for the tiers of ``[[approvals.tiers]]``."""
        return Risk()

    @property
    def void_because(self) -> str:
        """Why it cannot be applied any more, whoever approves it; empty if that is not known without a look at rows."""
        return ""

    @property
    def state(self) -> str:
        """altered, proposed (or what the kind calls it), approved or applied."""
        if not self.intact:
            return "altered"
        return "applied" if self.applied else "approved" if self.approved else self.first_state

    @property
    def times(self) -> dict[str, str | None]:
        """When it was proposed, approved and applied, as plain JSON values."""
        moments = {"proposed": self.proposed, "approved": self.approved, "applied": self.applied}
        return {name: None if when is None else when.isoformat() for name, when in moments.items()}


AnyProposal = TypeVar("AnyProposal", bound=Proposal)


@dataclass(frozen=True, slots=True)
class ProposalKind(Generic[AnyProposal]):
    """A kind of proposal.

    Attributes
    ----------
    noun
        What people call one, such as ``retention plan``.
    action
        First word of its actions in the audit trail, such as ``retention``.
    command
        The command whose subcommands ``plan``, ``approve`` and ``apply`` are for it.
    register
        Returns every proposal by name, oldest first. One is applied when the lake's plan that applies it is finished.
    add_approval
        Writes an approval into the register; returns False if one stands there already.
    authored
        Whether somebody makes it, who may not approve it; else it comes with the release.
    planning
        The command that makes one; empty for the subcommand ``plan``.
    words
        What stands behind the command, and around a proposal's name, to approve it, and to apply it.
    """

    noun: str
    action: str
    command: str
    register: Callable[["Lake"], Mapping[str, AnyProposal]]
    add_approval: Callable[["Lake", AnyProposal, str], bool]
    authored: bool = True
    planning: str = ""
    words: tuple[str, str] = ("approve {}", "apply {}")

    @property
    def made_by(self) -> str:
        """The command that makes one."""
        return self.planning or f"{self.command} plan"

    def to_approve(self, name: str) -> str:
        """Return the command that approves one."""
        return f"{self.command} {self.words[0].format(name)}"

    def to_apply(self, name: str) -> str:
        """Return the command that applies one."""
        return f"{self.command} {self.words[1].format(name)}"

    @property
    def propose(self) -> str:
        """What the audit trail calls it that somebody made one."""
        return f"{self.action}.propose"

    @property
    def approve(self) -> str:
        """What the audit trail calls an approval."""
        return f"{self.action}.approve"

    @property
    def begin(self) -> str:
        """What the audit trail calls it that applying one is about to begin."""
        return f"{self.action}.apply"

    @property
    def applied(self) -> str:
        """What the audit trail calls it that one was applied."""
        return f"{self.action}.applied"

    def find(self, lake: "Lake", name: str) -> AnyProposal:
        """Return a proposal.

        Raises `UnknownProposalError`, and `AlteredProposalError` where its items are not its own.
        """
        known = self.register(lake)
        if name not in known:
            raise UnknownProposalError(self, name, known)
        if not known[name].intact:
            raise AlteredProposalError(self, name)
        return known[name]


AnyKind = ProposalKind[Any]


class ProposalError(RanklakeError):
    """A proposal that is not carried out. ``proposal`` is its name; nothing was changed."""

    def __init__(self, proposal: str, what: str, *, hint: str, where: str | None = None) -> None:
        super().__init__(what, where=proposal if where is None else where, hint=hint)
        self.proposal = proposal


class UnknownProposalError(ProposalError):
    """No proposal has this name."""

    def __init__(self, kind: AnyKind, proposal: str, known: Iterable[str]) -> None:
        hint = did_you_mean(proposal, known) or f"make one with '{kind.made_by}'"
        super().__init__(proposal, f"unknown {kind.noun} {proposal!r}", hint=hint, where="")


class AlteredProposalError(ProposalError):
    """A proposal whose items are not those that its name stands for."""

    def __init__(self, kind: AnyKind, proposal: str) -> None:
        hint = "nothing was changed; see 'ranklake audit show' for what was approved, and plan again"
        super().__init__(proposal, f"the items of this {kind.noun} were altered", hint=hint)


class ExpiredProposalError(ProposalError):
    """A proposal that nobody approved, or applied, in time."""

    def __init__(self, kind: AnyKind, proposal: str, expires: datetime) -> None:
        message = f"this {kind.noun} expired at {expires:%Y-%m-%d %H:%M} UTC"
        super().__init__(proposal, message, hint=f"plan again with '{kind.made_by}'")


class NotApprovedError(ProposalError):
    """A proposal that nobody approved.

    Parameters
    ----------
    section
        Of the lake: whether names or keys tell who approves.
    lacking
        What its approval lacks.
    """

    def __init__(self, kind: AnyKind, proposal: str, section: ApprovalsSection, lacking: str = "") -> None:
        hint = section.by_somebody(kind.to_approve(proposal))
        message = f"this plan is not approved: {lacking}" if lacking else "this plan is not approved"
        super().__init__(proposal, message, hint=hint)


class SameOperatorError(ProposalError):
    """Whoever does the next thing about a proposal did the one before."""

    def __init__(self, proposal: str, did: str, may_not: str, *, may_be_alone: bool = True) -> None:
        hint = f"have another person {may_not} it"
        if may_be_alone:
            hint += ", or say that there is one alone: --single-operator"
        super().__init__(proposal, f"whoever {did} this plan may not {may_not} it, too", hint=hint)


class VoidProposalError(ProposalError):
    """A proposal that no longer says what is to be done; ``where`` is what of it is not as proposed."""

    def __init__(self, kind: AnyKind, proposal: str, what: str, item: str = "") -> None:
        where = f"{proposal}: {item}" if item else proposal
        super().__init__(proposal, what, hint=f"plan again with '{kind.made_by}'", where=where)


def digest_of(items: Iterable[Any]) -> str:
    """Return a digest of items, given as plain values, in any order."""
    facts = sorted(json.dumps(item, sort_keys=True, default=str) for item in items)
    return hashlib.sha256("\n".join(facts).encode()).hexdigest()


MODE: Final = "approvals.mode"
"""Action of a row that says how the lake knows who acts, from then on."""
SKEW: Final = timedelta(minutes=5)
"""How much clocks may differ."""
_COLUMNS: Final = ("seq", "ts", "actor", "action", "subject", "reason", "details")


@dataclass(frozen=True, slots=True)
class Step:
    """A row of the trail about a proposal, or about the mode. Its columns, and its details as plain values."""

    seq: int
    ts: datetime
    actor: str
    action: str
    subject: str
    reason: str | None
    details: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, row: Mapping[str, Any]) -> "Step":
        """Return the step of a row; details that cannot be read are none."""
        try:
            details = json.loads(row["details"] or "{}")
        except ValueError:
            details = {}
        facts = {name: row[name] for name in _COLUMNS}
        return cls(**{**facts, "details": details if isinstance(details, dict) else {}})

    @property
    def row(self) -> dict[str, Any]:
        """The columns, as `ranklake.retention.proposals.identities` takes them."""
        return {name: getattr(self, name) for name in _COLUMNS}


class Actions(dict[str, dict[str, list[Step]]]):
    """Steps by subject and action, each list in the order of the trail; `end` is when its last row was written."""

    end: datetime | None = None


def recorded_actions(tables: "Tables", kind: AnyKind) -> Actions:
    """Return what the trail says of proposals of a kind, and of the mode. Whether it is whole is another question."""
    rows = read(tables, contract(TABLE), list(_COLUMNS))
    actions = Actions()
    wanted = pa.array([kind.propose, kind.approve, kind.begin, kind.applied, MODE])
    for step in _steps(rows.filter(pc.is_in(rows["action"], value_set=wanted))):
        actions.setdefault(step.subject, {}).setdefault(step.action, []).append(step)
    if rows.num_rows:
        actions.end = rows["ts"][pc.index(rows["seq"], pc.max(rows["seq"])).as_py()].as_py()
    return actions


def every_step(tables: "Tables") -> tuple[list[Step], list[tuple[int, datetime]]]:
    """Return the steps of all kinds of proposals, legal holds, and rows that are dated before the one before them.

    The latter by more than clocks may differ (`SKEW`), each with when the row before was written.
    """
    rows = read(tables, contract(TABLE), list(_COLUMNS)).sort_by("seq")
    of_proposals = pc.match_substring_regex(rows["action"], rf"^{MODE}$|\.(propose|approve|apply|hold)$")
    times = rows["ts"].cast(pa.int64()).to_numpy()
    back = (times[:-1] - times[1:] > SKEW / timedelta(microseconds=1)).nonzero()[0].tolist()
    return list(_steps(rows.filter(of_proposals))), [
        (rows["seq"][place + 1].as_py(), rows["ts"][place].as_py()) for place in back
    ]


def _steps(rows: pa.Table) -> Iterator[Step]:
    return map(Step.of, rows.sort_by("seq").to_pylist())
