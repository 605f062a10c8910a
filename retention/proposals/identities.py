"""Identities: who proposes, approves or applies, and how their names are checked.

[approvals] allowed_signers   an SSH key signs a statement; verified immediately, at apply, and by ``audit verify``
[approvals] identity          a command prints the name of the person
neither                       any text is accepted; for lakes of one person, with a note in every output

A signature is made over a statement:

    statement ──ssh-keygen -Y sign──▶ signature ──▶ a row of the audit log, with all values of the statement

The statement contains the person, the step, the lake, the digest of the items, and the time of expiry. The signature is
therefore valid only for that proposal, lake, step and time. Verification builds the statement again from the audit row.
"""

import getpass
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self

from ranklake.errors import RanklakeError
from ranklake.lake.audit import clock
from ranklake.lake.store.lake_config import COMMAND, SIGNED, UNSIGNED, ApprovalsSection
from ranklake.lake.store.ssh_signatures import (
    NAMESPACE,
    SignatureError,
    Signers,
    load_signers,
    public_key,
    sign,
    verify,
)
from ranklake.retention.proposals.proposals import SKEW
from ranklake.segments.references import read_reference

if TYPE_CHECKING:
    from ranklake.lake.store.lake import Lake
    from ranklake.lake.store.store import Store

DIGEST: Final = "items_sha256"
"""Key in the details of an audit row for the digest of the items that were approved or begun."""
_FORMAT: Final = "ranklake approval 1"


class StatementError(RanklakeError):
    """A text is no statement, or a statement about something else. Nothing was written."""


@dataclass(frozen=True, slots=True)
class Statement:
    """The text that a person signs.

    Attributes
    ----------
    lake
        Identity of the lake, from its marker.
    kind, step, proposal, items_sha256
        Kind of the proposal, the step (``propose``, ``approve``, ``apply``), the proposal's name, and the digest of its
        items.
    signer, reason
        Name of the signer, and the reason.
    at, expires
        When the statement was made, and when it expires; ISO 8601, UTC, whole seconds.
    """

    lake: str
    kind: str
    step: str
    proposal: str
    items_sha256: str
    signer: str
    reason: str | None
    at: str
    expires: str

    @property
    def text(self) -> str:
        """The signed text, byte for byte."""
        return json.dumps({"statement": _FORMAT, **asdict(self)}, indent=1, sort_keys=True) + "\n"

    @property
    def details(self) -> dict[str, str]:
        """Values that the audit row stores in its details, since it has no columns for them."""
        return {"lake": self.lake, "at": self.at, "expires": self.expires}

    @property
    def made(self) -> datetime:
        """Time at which the statement was made."""
        return moment(self.at)

    @property
    def ends(self) -> datetime:
        """Time at which the statement expires."""
        return moment(self.expires)

    @classmethod
    def parse(cls, text: str, where: str) -> Self:
        """Return the statement in a text. Raises `StatementError` with `where`, the name of the file."""
        try:
            facts = json.loads(text)
            statement = cls(**{item.name: facts[item.name] for item in fields(cls)})
            is_statement = statement.text == text and statement.ends > statement.made
        except (ValueError, KeyError, TypeError, RecursionError):
            is_statement = False
        if not is_statement:
            hint = "write it anew with --statement, and sign that file as it is"
            raise StatementError("is no statement, or was edited", where=where, hint=hint)
        return statement

    @classmethod
    def of_row(cls, row: Mapping[str, Any], details: Mapping[str, Any]) -> Self:
        """Return the statement of an audit row. Raises `KeyError`, `TypeError` or `ValueError`."""
        kind, _, step = row["action"].rpartition(".")
        statement = cls(
            str(details["lake"]),
            kind,
            step,
            row["subject"],
            str(details[DIGEST]),
            row["actor"],
            row["reason"],
            str(details["at"]),
            str(details["expires"]),
        )
        if statement.ends <= statement.made:
            raise ValueError("ends before it begins")
        return statement


def moment(text: str) -> datetime:
    """Return the time in an ISO 8601 text, in UTC. Raises `ValueError`, also if the text has no time zone."""
    when = datetime.fromisoformat(text)
    if when.tzinfo is None:
        raise ValueError("no zone")
    return when.astimezone(UTC)


def owner(store: "Store") -> str:
    """Return the lake's identity for use outside the lake: its number, or its address if it has no number."""
    return lake_identity(store) or f"at {store.address}"


def lake_identity(store: "Store") -> str:
    """Return the random number in the lake's marker; empty if the marker has none."""
    return store.number


PROPOSE: Final = "propose"
APPROVE: Final = "approve"
APPLY: Final = "apply"


class SignedSubject(NamedTuple):
    """The subject of a step: the kind's action in the audit log, the proposal's name, the digest of its items."""

    kind: str
    proposal: str
    items_sha256: str


class NobodyError(RanklakeError):
    """No person is known: no signature, no name, and no answer of the identity command. Nothing was written."""


@dataclass(frozen=True, slots=True)
class Signing:
    """Signing options of a command.

    Attributes
    ----------
    key
        Path of a private key, or of a public key whose private key the SSH agent has; empty for ``[approvals] key``.
    signed
        Path of a statement that was signed on another machine; its signature is in the file with ``.sig`` appended.
    """

    key: str = ""
    signed: str = ""


NOT_SIGNING: Final = Signing()


@dataclass(frozen=True, slots=True)
class Identity:
    """The person who does a step.

    Attributes
    ----------
    name
        Pseudonymous data; stored only in the audit log and in registers.
    mode
        How the name was checked; one of `ranklake.lake.store.lake_config.MODES`.
    details
        Details for the audit row: mode, roles, and the signed values.
    reason
        The reason as given or signed.
    """

    name: str
    mode: str
    details: Mapping[str, Any] = field(default_factory=dict)
    reason: str | None = None

    @property
    def signature(self) -> str:
        """The signature; empty if there is none."""
        return str(self.details.get("signature", ""))


def name_of(
    lake: "Lake",
    what: str,
    by: str | None,
    signing: Signing = NOT_SIGNING,
    *,
    login: bool = True,
    elsewhere: bool = True,
) -> str:
    """Return the name of the person who runs a command, before anything is signed.

    Parameters
    ----------
    what
        The command as people type it, for the hint on how to sign.
    by
        The name given on the command line.
    login
        Whether an unsigned name defaults to the login name.
    elsewhere
        Whether the command accepts a statement signed on another machine, for the hint.

    Raises `NobodyError`, `SignatureError`, `SignersError` and `SecretError`.
    """
    section = lake.config.approvals
    given = " ".join((by or "").split())
    if section.mode == SIGNED:
        how = how_to_sign(what) if elsewhere else f"{what} --key ~/.ssh/id_ed25519"
        return _signer_name(load_signers(section.allowed_signers), how, given, _with_default(lake, signing))
    if signing.key or signing.signed:
        hint = "name the keys that may: allowed_signers under [approvals]; see docs/approvals.md"
        raise NobodyError("no allowed-signers file is configured, so no signature can be verified", hint=hint)
    if section.mode == COMMAND:
        return _ask_helper(section.identity)[0]
    if not given and not login:
        raise NobodyError("nobody is named", hint=f"{what} --by NAME")
    return given or getpass.getuser()


def doer(lake: "Lake", by: str | None) -> str:
    """Return the name of the person who does a step without a signature.

    This is the name from the identity command if one is configured, else the given name, else the login name. Raises
    `NobodyError` and `SecretError`.
    """
    section = lake.config.approvals
    given = " ".join((by or "").split())
    return _ask_helper(section.identity)[0] if section.mode == COMMAND else given or getpass.getuser()


def unsigned_note(lake: "Lake") -> dict[str, str]:
    """Return the details that mark a name of `doer` or `account` as unsigned; empty unless the lake is signed."""
    return {"mode": UNSIGNED} if lake.config.approvals.mode == SIGNED else {}


def account(lake: "Lake") -> str:
    """Return the name of the person who runs a command: by ``[approvals] identity``, else the login name.

    Raises `NobodyError` and `SecretError`.
    """
    return account_by(lake.config.approvals)


def account_by(section: ApprovalsSection) -> str:
    """Return the name as `account` does, from the configuration of a lake that is not open."""
    return _ask_helper(section.identity)[0] if section.mode == COMMAND else getpass.getuser()


def _with_default(lake: "Lake", signing: Signing) -> Signing:
    return signing if signing.key or signing.signed else Signing(key=lake.config.approvals.key)


def _signer_name(signers: Signers, how: str, given: str, signing: Signing) -> str:
    if signing.signed:
        name = Statement.parse(_text(signing.signed), signing.signed).signer
    elif signing.key:
        key = public_key(signing.key)
        lines = signers.of_key(key)
        if not lines:
            public = signing.key.removesuffix(".pub") + ".pub"
            hint = f"whoever keeps that file adds a line: a name, and after it what {public} holds"
            raise SignatureError(f"this key is not in {signers.file}", where=signing.key, hint=hint)
        name = lines[0].name
    else:
        raise NobodyError("this lake takes signatures only", hint=how)
    if given and given != name:
        raise SignatureError(f"the key is of {name}, not of {given}", hint="leave --by out")
    return name


def how_to_sign(what: str) -> str:
    """Return the commands that sign: on this machine, or on another one."""
    elsewhere = f"ssh-keygen -Y sign -n {NAMESPACE} -f KEY S.json; {what} --signed S.json"
    return f"{what} --key ~/.ssh/id_ed25519, or elsewhere: {what} --by YOU --statement > S.json; {elsewhere}"


def statement_of(lake: "Lake", about: SignedSubject, step: str, name: str, reason: str | None) -> Statement:
    """Return the statement that a person would sign now."""
    now = clock.now().replace(microsecond=0)
    ends = now + timedelta(hours=lake.config.approvals.expires_h)
    kind, proposal, digest = about
    identity = lake_identity(lake.store)
    return Statement(identity, kind, step, proposal, digest, name, reason, now.isoformat(), ends.isoformat())


def identify(
    lake: "Lake", about: SignedSubject, step: str, name: str, reason: str | None, signing: Signing
) -> Identity:
    """Return the identity for a step, with a verified signature if the lake requires signatures.

    Raises `SignatureError`, `StatementError`, `NobodyError`, `SignersError` and `SecretError`. Nothing is written then.
    """
    section = lake.config.approvals
    statement = statement_of(lake, about, step, name, reason)
    if section.mode == UNSIGNED:
        return Identity(name, UNSIGNED, {"mode": UNSIGNED, **statement.details}, reason)
    if section.mode == COMMAND:
        current_name, roles = _ask_helper(section.identity)
        if current_name != name:
            raise NobodyError("the helper of [approvals] identity says another name now", hint="run it again")
        return Identity(name, COMMAND, {"mode": COMMAND, "roles": roles, **statement.details}, reason)
    signing, signers = _with_default(lake, signing), load_signers(section.allowed_signers)
    if signing.signed:
        statement, signature = _signed_elsewhere(signing.signed, statement, timedelta(hours=section.expires_h))
    else:
        signature = sign(statement.text, signing.key)
    signer = verify(statement.text, signature, signers, name, clock.now())
    details = {"mode": SIGNED, "roles": sorted(signer.roles), **statement.details, "signature": signature}
    return Identity(name, SIGNED, details, statement.reason)


def _signed_elsewhere(path: str, expected: Statement, max_validity: timedelta) -> tuple[Statement, str]:
    """Return a statement that was signed on another machine, and its signature. Raises `StatementError`."""
    statement = Statement.parse(_text(path), path)
    for name in ("lake", "kind", "step", "proposal", "items_sha256", "signer"):
        if getattr(statement, name) != getattr(expected, name):
            hint = "write it anew with --statement, and have that signed"
            raise StatementError(f"the signed statement is of another {name}", where=path, hint=hint)
    if statement.made > expected.made + SKEW:
        raise StatementError("the statement is dated in the future", where=path, hint="set the clock, and sign again")
    if statement.ends <= expected.made:
        raise StatementError("the statement expired", where=path, hint="write it anew with --statement, and sign")
    if statement.ends - statement.made > max_validity:
        raise StatementError(
            "the statement is good for longer than [approvals] expires_h", where=path, hint="sign anew"
        )
    if statement.reason != expected.reason and expected.reason is not None:
        raise StatementError("the reason is not the signed one", where=path, hint="leave --reason out")
    return statement, _text(f"{path}.sig")


def _text(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError, ValueError):
        hint = f"sign it: ssh-keygen -Y sign -n {NAMESPACE} -f KEY {path.removesuffix('.sig')}"
        raise StatementError("cannot be read", where=path, hint=hint) from None


def _ask_helper(source: str) -> tuple[str, list[str]]:
    """Return name and roles that the identity command prints. Raises `NobodyError` and `SecretError`."""
    text, where = read_reference(source, "identity", "identity command")
    words = text.replace(",", " ").split()
    if not words:
        raise NobodyError("the identity command says nothing", where=where, hint="have it print NAME ROLE,ROLE")
    return words[0], sorted(words[1:])
