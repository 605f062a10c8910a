"""Examination of all approvals in the audit log, and anchors of the log.

An anchor is a head of the audit log, signed by a person's SSH key and stored at the witness:

    <witness>/anchors/<rows>~<digest of the file>.json     {"statement": text that was signed, "signature": armoured}

A head is the number of rows and the digest of the last row; through the hash chain it fixes every row. The witness
stores unsigned heads, too. An anchor also protects against somebody who can write to the witness: that person could
forge a log with matching heads, but cannot sign it. The time in an anchor is as the signer's machine had it.
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
from ranklake.retention.proposals.proposals import MODE, Step, all_steps

if TYPE_CHECKING:
    from collections.abc import Mapping


FOLDER: Final = "anchors"
_FORMAT: Final = "ranklake anchor 1"
_NAME: Final = re.compile(r".*/(?P<rows>\d{10})~(?P<digest>[0-9a-f]{64})\.json")


class AnchorError(RanklakeError):
    """An anchor cannot be made. Nothing was written."""


@dataclass(frozen=True, slots=True)
class Anchor:
    """A signed head: the number of rows, the digest of the last row, and the time. The key identifies the signer."""

    rows: int
    sha256: str
    at: str

    def text(self, lake: str) -> str:
        """Return the text to sign, for a lake's identity."""
        facts = {"format": _FORMAT, "lake": lake, "rows": self.rows, "sha256": self.sha256, "at": self.at}
        return json.dumps(facts, sort_keys=True) + "\n"


@dataclass(frozen=True, slots=True)
class AnchorStatus:
    """Result of verifying anchors: their number, the last valid one, whether keys were available, and the faults."""

    count: int
    last: Anchor | None
    verified: bool
    faults: tuple[str, ...]

    def plain(self) -> dict[str, Any]:
        """Return plain JSON values."""
        last = None if self.last is None else {"rows": self.last.rows, "at": self.last.at}
        return {"count": self.count, "last": last, "verified": self.verified, "faults": list(self.faults)}


def anchor(lake: Lake, by: str | None, key: str) -> Anchor:
    """Verify the audit log, sign its head, and write the anchor to the witness.

    Raises `AnchorError` if no witness or keys are configured, or if the log is empty or broken; `SignatureError`; and
    the errors of the stores.
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
        raise AnchorError(f"the audit log is broken: {proof.why}", where=lake.uri, hint="ranklake audit verify")
    digests = _digests(lake.tables)
    if not digests:
        raise AnchorError("the audit log is empty", where=lake.uri, hint="there is nothing to sign yet")
    rows = max(digests) + 1
    new_anchor = Anchor(rows, digests[rows - 1], clock.now().isoformat(timespec="seconds"))
    text = new_anchor.text(lake_identity(lake.store))
    raw = json.dumps({"statement": text, "signature": sign(text, signing.key)}).encode()
    path = f"{FOLDER}/{rows:010d}~{hashlib.sha256(raw).hexdigest()}.json"
    if days := lake.config.audit.anchor_lock_days:
        put_locked(_witness(lake), path, raw, clock.now() + timedelta(days=days))
    else:
        _witness(lake).put_if_absent(path, raw)
    return new_anchor


def anchor_if_due(lake: Lake) -> Anchor | None:
    """Make an anchor if the last one is older than ``[audit] anchor_every_h``; return None if none is due.

    An unchanged head is anchored again, which proves that no row was added. An anchor that is dated in the future does
    not delay the next one. Raises the errors of `anchor`.
    """
    interval_h = lake.config.audit.anchor_every_h
    if not interval_h:
        return None
    last = last_anchor(lake)
    if last is not None and timedelta(0) <= clock.now() - last.signed < timedelta(hours=interval_h):
        return None
    return anchor(lake, None, "")


@dataclass(frozen=True, slots=True)
class LastAnchor:
    """The anchor with the most rows at the witness, as stored: its signature was not verified.

    Attributes
    ----------
    rows, signed
        Number of rows of the audit log that it covers, and when it was signed.
    locked_until
        Until when the bucket's object lock protects it; None without a lock.
    """

    rows: int
    signed: datetime
    locked_until: datetime | None


def last_anchor(lake: Lake) -> LastAnchor | None:
    """Return the last readable anchor; None if there is none. Raises the errors of the store."""
    if not lake.config.audit.witness:
        return None
    place = _witness(lake)
    paths = sorted(file.path for file in listed(place.fs, place.path(FOLDER)) if _NAME.fullmatch(file.path))
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
    """Verify all anchors at the witness against the audit log and the keys. Raises the errors of the stores."""
    if not lake.config.audit.witness:
        return AnchorStatus(0, None, verified=False, faults=())
    place = _witness(lake)
    paths = sorted(file.path for file in listed(place.fs, place.path(FOLDER)) if file.path.endswith(".json"))
    if not paths or lake.config.approvals.mode != SIGNED:
        return AnchorStatus(len(paths), None, verified=False, faults=())
    digests = _digests(lake.tables)
    valid, faults = [], []
    for path in paths:
        try:
            valid.append(_verified_anchor(lake, path, place.fs.cat_file(path), digests))
        except (SignatureError, HeadError) as error:
            faults.append(f"{path.rpartition('/')[2][:18]}…: {error.what}")
    last = max(valid, key=lambda anchor: anchor.rows, default=None)
    return AnchorStatus(len(paths), last, verified=True, faults=tuple(faults))


def _verified_anchor(lake: Lake, path: str, raw: bytes, digests: "Mapping[int, str]") -> Anchor:
    """Return a valid anchor. Raises `HeadError` or `SignatureError` with the reason if it is invalid."""
    name = _NAME.fullmatch(path)
    if name is None or name["digest"] != hashlib.sha256(raw).hexdigest():
        raise HeadError("the anchor is not what was written under its name")
    try:
        body = json.loads(raw)
        facts = json.loads(body["statement"])
        anchor = Anchor(int(facts["rows"]), str(facts["sha256"]), str(facts["at"]))
        at, signature = datetime.fromisoformat(anchor.at), str(body["signature"])
        is_ours = body["statement"] == anchor.text(lake_identity(lake.store)) and at.tzinfo is not None
    except (ValueError, KeyError, TypeError, RecursionError):
        raise HeadError("the anchor cannot be read") from None
    if not is_ours or int(name["rows"]) != anchor.rows:
        raise HeadError("the anchor is of another lake, or of other rows")
    signers = load_signers(lake.config.approvals.allowed_signers)
    lines = signers.of_key(key_of(signature))
    verify(body["statement"], signature, signers, lines[0].name if lines else "", at)
    if digests.get(anchor.rows - 1) != anchor.sha256:
        raise HeadError(f"row {anchor.rows - 1} of the audit log is not the one that was signed")
    return anchor


def _witness(lake: Lake) -> Store:
    return Store.at(lake.config.audit.witness, lake.store.storage)


def _digests(tables: Tables) -> dict[int, str]:
    """Return the digests of the audit log's rows, by row number."""
    handle = delta_table(tables.store, TABLE)
    digests: dict[int, str] = {}
    if handle is not None:
        for _, rows in read_some(tables, contract(TABLE), files(handle), ["seq", "sha256"]):
            digests |= dict(zip(rows["seq"].to_pylist(), rows["sha256"].to_pylist(), strict=True))
    return digests


@dataclass(frozen=True, slots=True)
class ExaminationResult:
    """Result of `examine`.

    Attributes
    ----------
    mode, said
        How names are checked: by the configuration, and by the last mode row of the audit log.
    signed, unsigned
        Number of steps of proposals with and without a signature.
    verified
        Whether signatures were verified; False if no keys are configured.
    faults
        Problems, one clause each.
    notes
        Remarks, one clause each.
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
    """State while the audit log is read row by row."""

    judge: Judge
    mode: str = UNSIGNED
    signatures: dict[str, int] = field(default_factory=dict)
    authors: dict[tuple[str, str], list[str]] = field(default_factory=dict)
    approvals: dict[tuple[str, str], list[Step]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def of_mode(self, step: Step) -> Iterator[str]:
        """Yield the faults of a row that sets the mode, and adopt its mode."""
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
        """Return why a row may not weaken the mode of a signed lake.

        Empty if it may, or if no keys are configured to verify its signature.
        """
        signature = step.details.get("signature")
        if not isinstance(signature, str):
            return "it is not signed"
        if step.details.get(DIGEST) != LOWERED.items_sha256:
            return "something else was signed"
        if self.signatures.setdefault(signature, step.seq) != step.seq:
            return f"it repeats the signature of row {self.signatures[signature]}"
        return self.judge.of_signature(step, step.ts) if self.judge.signers is not None else ""

    def of_step(self, step: Step) -> Iterator[str]:
        """Yield the faults of a step of a proposal."""
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
        key = (step.subject, str(step.details.get(DIGEST)))
        verb = step.action.rpartition(".")[2]
        if verb == "propose":
            self.authors.setdefault(key, []).append(step.actor)
        elif verb == "approve":
            if is_one_of(step.actor, self.authors.get(key, [])) and self.mode != UNSIGNED:
                yield f"{where}: its author gave it"
            else:
                self.approvals.setdefault(key, []).append(step)
        elif self.mode == SIGNED and verb != "hold":  # a legal hold needs no approval
            yield from (f"{where}: {fault}" for fault in self._of_begin(step, self.approvals.get(key, [])))

    def _of_begin(self, step: Step, approvals: list[Step]) -> Iterator[str]:
        """Yield what was missing when an application began."""
        valid: dict[str, Step] = {}
        for approval in approvals:
            doubt = self.judge.doubt(approval, str(step.details.get(DIGEST)), step.ts) if self.judge.signers else ""
            if not doubt:
                valid[normalize_name(approval.actor)] = approval
        lacking = ApprovalRule.from_details(step.details).lacking(
            approval.details.get("roles") or [] for approval in valid.values()
        )
        if lacking:
            yield f"it was begun, and then {lacking}"
        if normalize_name(step.actor) in valid:
            yield "whoever approved it began it"


def examine(lake: "Lake") -> ExaminationResult:
    """Examine all approvals in the audit log. Does not verify the log's hash chain.

    Raises the errors of reading the configured keys.
    """
    walk = _Walk(Judge(lake))
    steps, backward_rows = all_steps(lake.tables)
    faults: list[str] = []
    counts = {True: 0, False: 0}
    for step in steps:
        if step.action == MODE:
            faults += walk.of_mode(step)
        elif DIGEST in step.details or step.action.endswith(".approve"):
            counts["signature" in step.details] += 1
            faults += walk.of_step(step)
    mode = lake.config.approvals.mode
    if MODES.index(mode) < MODES.index(walk.mode):
        faults.append(f"approvals are {walk.mode} by the audit log, and {mode} is configured here")
    verified = walk.judge.signers is not None or not counts[True]
    if not verified:
        walk.notes.append("signatures were not verified: no [approvals] allowed_signers is configured here")
    walk.notes += [
        f"row {row} is dated before the row before it, of {when:%Y-%m-%d %H:%M}" for row, when in backward_rows
    ]
    return ExaminationResult(mode, walk.mode, counts[True], counts[False], verified, tuple(faults), tuple(walk.notes))
