"""Examination: whether all approvals in the trail hold: who signed, what, in time, and enough of them."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ranklake.lake.store.lake_config import MODES, SIGNED, UNSIGNED
from ranklake.retention.proposals.approvals import LOWERED, ApprovalRule, Judge, is_one_of, mode_of, normalize_name
from ranklake.retention.proposals.identities import DIGEST
from ranklake.retention.proposals.proposals import MODE, Step, every_step

if TYPE_CHECKING:
    from ranklake.lake.store.lake import Lake


@dataclass(frozen=True, slots=True)
class ExaminationResult:
    """The result.

    Attributes
    ----------
    mode, said
        How names are checked by the configuration here, and by the trail's last word.
    signed, unsigned
        Steps of proposals, with a signature and without.
    verified
        Whether signatures were verified; not where no keys are configured.
    faults
        What is wrong, a clause each.
    notes
        What somebody should know, likewise.
    """

    mode: str
    said: str
    signed: int
    unsigned: int
    verified: bool
    faults: tuple[str, ...]
    notes: tuple[str, ...]


@dataclass(slots=True)
class _Walk:
    """What is known half-way through the trail."""

    judge: Judge
    mode: str = UNSIGNED
    signatures: dict[str, int] = field(default_factory=dict)
    authors: dict[tuple[str, str], list[str]] = field(default_factory=dict)
    approvals: dict[tuple[str, str], list[Step]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def of_mode(self, step: Step) -> Iterator[str]:
        """Yield faults of a row that says the mode; afterwards that is it."""
        mode = mode_of(step)
        if MODES.index(mode) < MODES.index(self.mode):
            fault = f"row {step.seq} says that approvals are {mode} from then on, after they were {self.mode}"
            doubt = self._lowering_fault(step) if self.mode == SIGNED else ""
            if doubt:
                yield f"{fault}: {doubt}"
            else:
                self.notes.append(fault)
        self.mode = mode

    def _lowering_fault(self, step: Step) -> str:
        """Return why a row may not lower the mode of a lake with signatures; empty if it may, or nobody can say."""
        signature = step.details.get("signature")
        if not isinstance(signature, str):
            return "it is not signed"
        if step.details.get(DIGEST) != LOWERED.items_sha256:
            return "something else was signed"
        if self.signatures.setdefault(signature, step.seq) != step.seq:
            return f"it repeats the signature of row {self.signatures[signature]}"
        return self.judge.of_signature(step, step.ts) if self.judge.signers is not None else ""

    def of_step(self, step: Step) -> Iterator[str]:
        """Yield faults of a step of a proposal."""
        signature = step.details.get("signature")
        where = f"row {step.seq} ({step.action} of {step.subject})"
        doubt = ""
        if signature is None and self.mode == SIGNED:
            doubt = "it is not signed, and approvals were"
        elif signature is not None and str(signature) in self.signatures:
            doubt = f"it repeats the signature of row {self.signatures[str(signature)]}"
        elif signature is not None and self.judge.signers is not None:
            doubt = self.judge.of_signature(step, step.ts)
        if signature is not None:
            self.signatures.setdefault(str(signature), step.seq)
        if doubt:
            yield f"{where}: {doubt}"
            return
        about = (step.subject, str(step.details.get(DIGEST)))
        done = step.action.rpartition(".")[2]
        if done == "propose":
            self.authors.setdefault(about, []).append(step.actor)
        elif done == "approve":
            if is_one_of(step.actor, self.authors.get(about, [])) and self.mode != UNSIGNED:
                yield f"{where}: its author gave it"
            else:
                self.approvals.setdefault(about, []).append(step)
        elif self.mode == SIGNED and done != "hold":  # which needs nobody's approval
            yield from (f"{where}: {what}" for what in self._of_begin(step, self.approvals.get(about, [])))

    def _of_begin(self, step: Step, approvals: list[Step]) -> Iterator[str]:
        """Yield what a begun proposal lacked when it was begun."""
        held: dict[str, Step] = {}
        for approval in approvals:
            doubt = self.judge.doubt(approval, str(step.details.get(DIGEST)), step.ts) if self.judge.signers else ""
            if not doubt:
                held[normalize_name(approval.actor)] = approval
        lacking = ApprovalRule.from_details(step.details).lacking(
            one.details.get("roles") or [] for one in held.values()
        )
        if lacking:
            yield f"it was begun, and then {lacking}"
        if normalize_name(step.actor) in held:
            yield "whoever approved it began it"


def examine(lake: "Lake") -> ExaminationResult:
    """Examine all approvals of a trail. Whether it is whole is another question.

    Raises what reading the configured keys raises.
    """
    walk = _Walk(Judge(lake))
    steps, back = every_step(lake.tables)
    faults: list[str] = []
    counted = {True: 0, False: 0}
    for step in steps:
        if step.action == MODE:
            faults += walk.of_mode(step)
        elif DIGEST in step.details or step.action.endswith(".approve"):
            counted["signature" in step.details] += 1
            faults += walk.of_step(step)
    now = lake.config.approvals.mode
    if MODES.index(now) < MODES.index(walk.mode):
        faults.append(f"approvals are {walk.mode} by the audit trail, and {now} is configured here")
    verified = walk.judge.signers is not None or not counted[True]
    if not verified:
        walk.notes.append("signatures were not verified: no [approvals] allowed_signers is configured here")
    walk.notes += [f"row {row} is dated before the row before it, of {when:%Y-%m-%d %H:%M}" for row, when in back]
    return ExaminationResult(now, walk.mode, counted[True], counted[False], verified, tuple(faults), tuple(walk.notes))
