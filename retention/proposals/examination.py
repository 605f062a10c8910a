"""Examination: whether all approvals in the audit log hold, and anchors of the log, signed by a person's key.

Anchors of the audit trail: its head, signed by a person's SSH key, at the witness.

    <witness>/anchors/<rows>~<digest of the file>.json     {"statement": text that was signed, "signature": armoured}

A head says how many rows the trail has, and by the chain what each of them is. The witness already holds heads, for who
trusts its account. An anchor holds for who does not: whoever can write there, too, and makes a trail with heads of its
own, cannot sign it. Its time is the word of whoever signed.
"""

import hashlib
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

from ranklake.errors import RanklakeError
from ranklake.lake.audit import clock
from ranklake.lake.audit.chain import HeadError
from ranklake.lake.audit.proof import prove
from ranklake.lake.audit.trail import TABLE
from ranklake.lake.contracts.load import contract
from ranklake.lake.store.files import listed, locked_until, put_locked
from ranklake.lake.store.lake import Lake
from ranklake.lake.store.lake_config import MODES, SIGNED, UNSIGNED
from ranklake.lake.store.ssh_signatures import SignatureError, key_of, load_signers, sign, verify
from ranklake.lake.store.store import Store
from ranklake.lake.store.tables import Tables
from ranklake.lake.tables.live_files import files
from ranklake.lake.tables.read import read_some
from ranklake.lake.tables.tables import delta_table
from ranklake.retention.proposals.approvals import LOWERED, ApprovalRule, Judge, is_one_of, mode_of, normalize_name
from ranklake.retention.proposals.identities import DIGEST, Signing, lake_identity, name_of
from ranklake.retention.proposals.proposals import MODE, Step, every_step

if TYPE_CHECKING:
    from collections.abc import Mapping


FOLDER: Final = "anchors"
_FORMAT: Final = "ranklake anchor 1"
_NAME: Final = re.compile(r".*/(?P<rows>\d{10})~(?P<digest>[0-9a-f]{64})\.json")


class AnchorError(RanklakeError):
    """An anchor that cannot be made. Nothing was written."""


@dataclass(frozen=True, slots=True)
class Anchor:
    """A signed head: rows of the trail, digest of the last, and when it was signed. Who signed, the key says alone."""

    rows: int
    sha256: str
    at: str

    def text(self, lake: str) -> str:
        """Return what is signed, of a lake."""
        facts = {"format": _FORMAT, "lake": lake, "rows": self.rows, "sha256": self.sha256, "at": self.at}
        return json.dumps(facts, sort_keys=True) + "\n"


@dataclass(frozen=True, slots=True)
class AnchorStatus:
    """What became of the anchors: how many there are, the last that holds, whether they were verified, and faults."""

    count: int
    last: Anchor | None
    verified: bool
    faults: tuple[str, ...]

    def plain(self) -> dict[str, Any]:
        """Return plain JSON values."""
        last = None if self.last is None else {"rows": self.last.rows, "at": self.last.at}
        return {"count": self.count, "last": last, "verified": self.verified, "faults": list(self.faults)}


def anchor(lake: Lake, by: str | None, key: str) -> Anchor:
    """Verify the trail, sign its head and write that to the witness.

    Raises `AnchorError` without a witness or keys, for a trail that is empty or not whole; `SignatureError`, and what
    the stores raise.
    """
    section = lake.config.approvals
    if not lake.config.audit.witness:
        hint = "name a place that writers of the lake cannot write to: witness under [audit]"
        raise AnchorError("there is no second place for anchors", where="[audit] witness", hint=hint)
    if section.mode != SIGNED:
        hint = "name who may sign: allowed_signers under [approvals]"
        raise AnchorError("no signature could be verified", where="[approvals] allowed_signers", hint=hint)
    signing = Signing(key=key or section.key)
    name_of(lake, "ranklake audit anchor", by, signing)
    proof = prove(lake)
    if not proof.whole:
        raise AnchorError(f"the audit trail is broken: {proof.why}", where=lake.uri, hint="ranklake audit verify")
    digests = _digests(lake.tables)
    if not digests:
        raise AnchorError("the audit trail is empty", where=lake.uri, hint="there is nothing to sign yet")
    rows = max(digests) + 1
    made = Anchor(rows, digests[rows - 1], clock.now().isoformat(timespec="seconds"))
    text = made.text(lake_identity(lake.store))
    raw = json.dumps({"statement": text, "signature": sign(text, signing.key)}).encode()
    name_there = f"{FOLDER}/{rows:010d}~{hashlib.sha256(raw).hexdigest()}.json"
    if days := lake.config.audit.anchor_lock_days:
        put_locked(_witness(lake), name_there, raw, clock.now() + timedelta(days=days))
    else:
        _witness(lake).put_if_absent(name_there, raw)
    return made


def anchor_if_due(lake: Lake) -> Anchor | None:
    """Make an anchor where ``[audit] anchor_every_h`` asks for one and the last is older; None where none is due.

    A head that is anchored already is anchored again: that nothing came since is worth a signature, too. One that is
    dated after now, by a clock that was wrong or by who wants no more of them, puts none off. Raises what `anchor`
    does.
    """
    every = lake.config.audit.anchor_every_h
    if not every:
        return None
    last = last_anchor(lake)
    if last is not None and timedelta(0) <= clock.now() - last.signed < timedelta(hours=every):
        return None
    return anchor(lake, None, "")


@dataclass(frozen=True, slots=True)
class LastAnchor:
    """The anchor of the most rows that the witness has, as it says of itself: no signature was verified.

    Attributes
    ----------
    rows, signed
        How many rows of the trail it is of, and when it was signed.
    locked_until
        Until when the bucket keeps it; None where it does not, or does not say.
    """

    rows: int
    signed: datetime
    locked_until: datetime | None


def last_anchor(lake: Lake) -> LastAnchor | None:
    """Return the last anchor; None where there is none that can be read. Raises what the store raises."""
    if not lake.config.audit.witness:
        return None
    place = _witness(lake)
    paths = sorted(one.path for one in listed(place.fs, place.path(FOLDER)) if _NAME.fullmatch(one.path))
    rows = max((path.rpartition("/")[2][:10] for path in paths), default="")
    anchors = []
    for path in paths:
        if path.rpartition("/")[2].startswith(rows):
            try:
                facts = json.loads(json.loads(place.fs.cat_file(path))["statement"])
                anchors.append((datetime.fromisoformat(str(facts["at"])), int(facts["rows"]), path))
            except (ValueError, KeyError, TypeError, RecursionError):
                continue
    if not anchors:
        return None
    signed, count, path = max(anchors)
    name = f"{FOLDER}/{path.rpartition('/')[2]}"
    return LastAnchor(count, signed, locked_until(place, name) if lake.config.audit.anchor_lock_days else None)


def verify_anchors(lake: Lake) -> AnchorStatus:
    """Verify all anchors of the witness against the trail and the keys. Raises what the stores raise."""
    if not lake.config.audit.witness:
        return AnchorStatus(0, None, verified=False, faults=())
    place = _witness(lake)
    paths = sorted(one.path for one in listed(place.fs, place.path(FOLDER)) if one.path.endswith(".json"))
    if not paths or lake.config.approvals.mode != SIGNED:
        return AnchorStatus(len(paths), None, verified=False, faults=())
    digests = _digests(lake.tables)
    holding, faults = [], []
    for path in paths:
        try:
            holding.append(_verified_anchor(lake, path, place.fs.cat_file(path), digests))
        except (SignatureError, HeadError) as error:
            faults.append(f"{path.rpartition('/')[2][:18]}…: {error.what}")
    last = max(holding, key=lambda anchor: anchor.rows, default=None)
    return AnchorStatus(len(paths), last, verified=True, faults=tuple(faults))


def _verified_anchor(lake: Lake, path: str, raw: bytes, digests: "Mapping[int, str]") -> Anchor:
    """Return an anchor that holds. Raises `HeadError` or `SignatureError`, which say why it does not."""
    name = _NAME.fullmatch(path)
    if name is None or name["digest"] != hashlib.sha256(raw).hexdigest():
        raise HeadError("the anchor is not what was written under its name")
    try:
        body = json.loads(raw)
        facts = json.loads(body["statement"])
        anchor = Anchor(int(facts["rows"]), str(facts["sha256"]), str(facts["at"]))
        at, signature = datetime.fromisoformat(anchor.at), str(body["signature"])
        same = body["statement"] == anchor.text(lake_identity(lake.store)) and at.tzinfo is not None
    except (ValueError, KeyError, TypeError, RecursionError):
        raise HeadError("the anchor cannot be read") from None
    if not same or int(name["rows"]) != anchor.rows:
        raise HeadError("the anchor is of another lake, or of other rows")
    signers = load_signers(lake.config.approvals.allowed_signers)
    lines = signers.of_key(key_of(signature))
    verify(body["statement"], signature, signers, lines[0].name if lines else "", at)
    if digests.get(anchor.rows - 1) != anchor.sha256:
        raise HeadError(f"row {anchor.rows - 1} of the trail is not the one that was signed")
    return anchor


def _witness(lake: Lake) -> Store:
    return Store.at(lake.config.audit.witness, lake.store.storage)


def _digests(tables: Tables) -> dict[int, str]:
    """Return the digests of the trail's rows, by number."""
    handle = delta_table(tables.store, TABLE)
    digests: dict[int, str] = {}
    if handle is not None:
        for _, rows in read_some(tables, contract(TABLE), files(handle), ["seq", "sha256"]):
            digests |= dict(zip(rows["seq"].to_pylist(), rows["sha256"].to_pylist(), strict=True))
    return digests


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
