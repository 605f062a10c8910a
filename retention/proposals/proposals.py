"""Proposals: actions that one person proposes and another approves, and that one plan of the lake applies.

    propose ─▶ a name, which is a digest of the items ─▶ approve: a row in the audit log, then one in the register
        ─▶ apply: check that the items are the approved ones, and that they still fit the lake
        ─▶ audit row (begun) ─▶ one numbered plan of the lake ─▶ audit row (applied)

A kind of proposal names its register and the actions in the audit log. `ranklake.retention.proposals.lifecycle`
approves and applies all kinds. `ranklake.retention.proposals.approvals` checks what the audit log says about them.
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
    """What a proposal changes or deletes, as far as the approval tiers ask for it.

    Attributes
    ----------
    bytes
        Bytes that are affected; None if unknown.
    classes
        Retention classes of the affected tables.
    irreversible
        Whether the action cannot be undone.
    """

    bytes: int | None = None
    classes: frozenset[str] = frozenset()
    irreversible: bool = True


@dataclass(frozen=True, slots=True)
class Proposal(ABC):
    """A proposed action and its state.

    Attributes
    ----------
    name
        A digest of the items. Proposals with equal items are the same proposal.
    proposed, approved, applied
        Time of the step; None if it has not happened.
    proposer, approver
        Names of people. They are pseudonymous data and appear in no output. None if unknown.
    expires
        After this time the proposal can be neither approved nor applied; None if it never expires.
    plan
        Number of the lake's plan that applied the proposal.
    single_operator
        Whether the same person approved and applied it.
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
    """Name of the state before the approval."""

    @property
    @abstractmethod
    def items_sha256(self) -> str:
        """Digest of all fields of all items. An approval is for this digest."""

    @property
    @abstractmethod
    def intact(self) -> bool:
        """Whether the items match the digest in the name."""

    @property
    @abstractmethod
    def facts(self) -> Mapping[str, Any]:
        """Details of its audit rows for approval and begin: plain JSON values, no personal data."""

    @property
    @abstractmethod
    def outcome(self) -> Mapping[str, Any]:
        """Details of its audit row after the application: plain JSON values, no personal data."""

    @property
    def risk(self) -> Risk:
        """The risk that ``[[approvals.tiers]]`` compares with its limits."""
        return Risk()

    @property
    def void_because(self) -> str:
        """Why it can no longer be applied; empty if nothing shows that without reading rows."""
        return ""

    @property
    def state(self) -> str:
        """``altered``, `first_state`, ``approved`` or ``applied``."""
        if not self.intact:
            return "altered"
        return "applied" if self.applied else "approved" if self.approved else self.first_state

    @property
    def times(self) -> dict[str, str | None]:
        """Times of proposal, approval and application, as plain JSON values."""
        moments = {"proposed": self.proposed, "approved": self.approved, "applied": self.applied}
        return {name: None if when is None else when.isoformat() for name, when in moments.items()}


AnyProposal = TypeVar("AnyProposal", bound=Proposal)


@dataclass(frozen=True, slots=True)
class ProposalKind(Generic[AnyProposal]):
    """A kind of proposal.

    Attributes
    ----------
    noun
        Name for people, such as ``retention plan``.
    action
        First word of the actions in the audit log, such as ``retention``.
    command
        The command with the subcommands ``plan``, ``approve`` and ``apply``.
    register
        Returns all proposals by name, oldest first. A proposal is applied when the lake's plan for it is finished.
    add_approval
        Writes an approval into the register; returns False if the register has one already.
    authored
        Whether a person proposes it, who then may not approve it. False for proposals that ship with ranklake.
    planning
        The command that proposes; empty for the subcommand ``plan``.
    words
        Templates of the arguments after `command` that approve and apply; ``{}`` is the proposal's name.
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
        """The command that proposes."""
        return self.planning or f"{self.command} plan"

    def to_approve(self, name: str) -> str:
        """Return the command that approves a proposal."""
        return f"{self.command} {self.words[0].format(name)}"

    def to_apply(self, name: str) -> str:
        """Return the command that applies a proposal."""
        return f"{self.command} {self.words[1].format(name)}"

    @property
    def propose(self) -> str:
        """Action of the audit row that names an author."""
        return f"{self.action}.propose"

    @property
    def approve(self) -> str:
        """Action of the audit row of an approval."""
        return f"{self.action}.approve"

    @property
    def begin(self) -> str:
        """Action of the audit row before the application."""
        return f"{self.action}.apply"

    @property
    def applied(self) -> str:
        """Action of the audit row after the application."""
        return f"{self.action}.applied"

    def find(self, lake: "Lake", name: str) -> AnyProposal:
        """Return a proposal by name.

        Raises `UnknownProposalError`, and `AlteredProposalError` if its items do not match its name.
        """
        proposals = self.register(lake)
        if name not in proposals:
            raise UnknownProposalError(self, name, proposals)
        if not proposals[name].intact:
            raise AlteredProposalError(self, name)
        return proposals[name]


AnyKind = ProposalKind[Any]


class ProposalError(RanklakeError):
    """A step of a proposal was refused. ``proposal`` is its name. Nothing was changed."""

    def __init__(self, proposal: str, what: str, *, hint: str, where: str | None = None) -> None:
        super().__init__(what, where=proposal if where is None else where, hint=hint)
        self.proposal = proposal


class UnknownProposalError(ProposalError):
    """No proposal has this name."""

    def __init__(self, kind: AnyKind, proposal: str, known: Iterable[str]) -> None:
        hint = did_you_mean(proposal, known) or f"make one with '{kind.made_by}'"
        super().__init__(proposal, f"unknown {kind.noun} {proposal!r}", hint=hint, where="")


class AlteredProposalError(ProposalError):
    """The items of a proposal do not match the digest in its name."""

    def __init__(self, kind: AnyKind, proposal: str) -> None:
        hint = "nothing was changed; see 'ranklake audit show' for what was approved, and plan again"
        super().__init__(proposal, f"the items of this {kind.noun} were altered", hint=hint)


class ExpiredProposalError(ProposalError):
    """A proposal expired before it was approved or applied."""

    def __init__(self, kind: AnyKind, proposal: str, expires: datetime) -> None:
        message = f"this {kind.noun} expired at {expires:%Y-%m-%d %H:%M} UTC"
        super().__init__(proposal, message, hint=f"plan again with '{kind.made_by}'")


class NotApprovedError(ProposalError):
    """A proposal lacks approvals.

    Parameters
    ----------
    section
        The lake's ``[approvals]``, for the hint on how to approve.
    lacking
        Which approvals are missing, in words.
    """

    def __init__(self, kind: AnyKind, proposal: str, section: ApprovalsSection, lacking: str = "") -> None:
        hint = section.by_somebody(kind.to_approve(proposal))
        message = f"this plan is not approved: {lacking}" if lacking else "this plan is not approved"
        super().__init__(proposal, message, hint=hint)


class SameOperatorError(ProposalError):
    """The same person tried to do two steps of a proposal that need two people."""

    def __init__(self, proposal: str, did: str, may_not: str, *, may_be_alone: bool = True) -> None:
        hint = f"have another person {may_not} it"
        if may_be_alone:
            hint += ", or say that there is one alone: --single-operator"
        super().__init__(proposal, f"whoever {did} this plan may not {may_not} it, too", hint=hint)


class VoidProposalError(ProposalError):
    """A proposal no longer fits the lake; ``where`` names the item that changed."""

    def __init__(self, kind: AnyKind, proposal: str, what: str, item: str = "") -> None:
        where = f"{proposal}: {item}" if item else proposal
        super().__init__(proposal, what, hint=f"plan again with '{kind.made_by}'", where=where)


def digest_of(items: Iterable[Any]) -> str:
    """Return the SHA-256 of items as hex, independent of their order. Items are plain JSON values."""
    facts = sorted(json.dumps(item, sort_keys=True, default=str) for item in items)
    return hashlib.sha256("\n".join(facts).encode()).hexdigest()


MODE: Final = "approvals.mode"
"""Action of an audit row that sets how names of people are checked from that row on."""
SKEW: Final = timedelta(minutes=5)
"""Accepted difference between clocks."""
_COLUMNS: Final = ("seq", "ts", "actor", "action", "subject", "reason", "details")


@dataclass(frozen=True, slots=True)
class Step:
    """A row of the audit log about a proposal or about the mode: its columns, and its details as plain values."""

    seq: int
    ts: datetime
    actor: str
    action: str
    subject: str
    reason: str | None
    details: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, row: Mapping[str, Any]) -> "Step":
        """Return the step of a row. Unreadable details become an empty mapping."""
        try:
            details = json.loads(row["details"] or "{}")
        except ValueError:
            details = {}
        facts = {name: row[name] for name in _COLUMNS}
        return cls(**{**facts, "details": details if isinstance(details, dict) else {}})

    @property
    def row(self) -> dict[str, Any]:
        """The columns as a mapping, for `ranklake.retention.proposals.identities`."""
        return {name: getattr(self, name) for name in _COLUMNS}


class Actions(dict[str, dict[str, list[Step]]]):
    """Steps by subject and action, in the order of the audit log; `end` is the time of the log's last row."""

    end: datetime | None = None


def recorded_actions(tables: "Tables", kind: AnyKind) -> Actions:
    """Return the audit log's steps of a kind of proposal and of the mode. Does not verify the log's hash chain."""
    rows = read(tables, contract(TABLE), list(_COLUMNS))
    actions = Actions()
    names = pa.array([kind.propose, kind.approve, kind.begin, kind.applied, MODE])
    for step in _steps(rows.filter(pc.is_in(rows["action"], value_set=names))):
        actions.setdefault(step.subject, {}).setdefault(step.action, []).append(step)
    if rows.num_rows:
        actions.end = rows["ts"][pc.index(rows["seq"], pc.max(rows["seq"])).as_py()].as_py()
    return actions


def all_steps(tables: "Tables") -> tuple[list[Step], list[tuple[int, datetime]]]:
    """Return the steps of all proposals and legal holds, and the rows whose time goes back by more than `SKEW`.

    Each of these rows comes as its number and the time of the row before.
    """
    rows = read(tables, contract(TABLE), list(_COLUMNS)).sort_by("seq")
    of_proposals = pc.match_substring_regex(rows["action"], rf"^{MODE}$|\.(propose|approve|apply|hold)$")
    times = rows["ts"].cast(pa.int64()).to_numpy()
    backward = (times[:-1] - times[1:] > SKEW / timedelta(microseconds=1)).nonzero()[0].tolist()
    return list(_steps(rows.filter(of_proposals))), [
        (rows["seq"][index + 1].as_py(), rows["ts"][index].as_py()) for index in backward
    ]


def _steps(rows: pa.Table) -> Iterator[Step]:
    return map(Step.of, rows.sort_by("seq").to_pylist())
