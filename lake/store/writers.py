"""Writers of a spool: which runs may write below which prefix, and how ingest authenticates their segments.

    <spool>/segments/…            the prefix ""
    <spool>/team-a/segments/…     the prefix "team-a"

For each prefix an operator configures which runs may use it, whether segments must be signed or encrypted, and where
the signing keys are. A segment's name is checked before a plan includes the segment (`Writers.refusal`), its bytes are
checked by `signer_of`. A segment that violates a rule is *refused*: it goes to quarantine like a damaged one, with a
reason that begins with `REFUSED`. It does not claim its slots or its digest, so the genuine segment is still ingested.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, Final

from ranklake.errors import RanklakeError
from ranklake.lake.store.planned_segment import PlannedSegment
from ranklake.segments.envelope import MissingKeyError, is_signed_by
from ranklake.segments.keys import find_key, has_key, read_keyring
from ranklake.segments.segment import SegmentFooter, SegmentName

REFUSED: Final = "refused: "
NOT_SIGNED: Final = f"{REFUSED}not signed"
UNKNOWN_SIGNER: Final = f"{REFUSED}signed with a key that is none of its prefix"
FORGED: Final = f"{REFUSED}its signature does not hold"
NOT_ENCRYPTED: Final = f"{REFUSED}not encrypted"
WRONG_RUN: Final = f"{REFUSED}a run that may not come by this prefix"
OTHERS_RUN: Final = f"{REFUSED}a run that comes by another prefix"
OTHERS_INCARNATION: Final = f"{REFUSED}another stream has its incarnation"
CONFLICT: Final = f"{REFUSED}other rows for slots that came before"


class RefusedSegmentError(RanklakeError):
    """A segment has no valid signature although it needs one."""


@dataclass(frozen=True, slots=True)
class Prefix:
    """Rules for a prefix of the spool, from ``[[spool.prefixes]]``."""

    prefix: str = ""
    """Folder below the spool whose ``segments/`` ingest lists; empty for the spool itself."""
    team: str = ""
    """Team to which the prefix belongs, for information only."""
    runs: tuple[str, ...] = ()
    """Patterns (``*``, ``?``) of runs that must use this prefix. Empty: all runs that match no other prefix."""
    require_signed: bool = False
    """Refuse segments that are not signed."""
    require_encryption: bool = False
    """Refuse segments that are not encrypted."""
    keys: str = ""
    """Keyring of the signing keys: ``file:/path``, ``env:NAME`` or ``command:/path``. All keys are accepted."""

    def __post_init__(self) -> None:
        if self.prefix != self.prefix.strip("/") or not {"..", "segments"}.isdisjoint(self.prefix.split("/")):
            raise ValueError("prefix must be a folder below the spool, without slashes at its ends or segments in it")

    def allows(self, run: str) -> bool:
        """Whether its patterns match a run."""
        return any(fnmatchcase(run, pattern) for pattern in self.runs)


@dataclass(frozen=True, slots=True)
class Rule:
    """A plan's rule for the segments of a prefix.

    Attributes
    ----------
    signed
        Whether each segment must be signed.
    keys
        Ids of the accepted signing keys. If empty, signatures are not checked.
    source
        Reference to the keyring. A plan does not contain it.
    """

    prefix: str
    signed: bool
    keys: tuple[str, ...]
    source: str = ""

    def facts(self) -> dict[str, Any]:
        """Return the rule as a plan contains it."""
        return {"prefix": self.prefix, "signed": self.signed, "keys": list(self.keys)}


@dataclass(frozen=True, slots=True)
class Writers:
    """The operator's rules for all prefixes of a spool; none by default."""

    prefixes: tuple[Prefix, ...] = ()

    def __post_init__(self) -> None:
        names: set[str] = set()
        for prefix in self.prefixes:
            if prefix.require_signed and not prefix.keys:
                raise ValueError(f"prefixes: {prefix.prefix!r} has require_signed and no keys to check signatures with")
            if prefix.prefix in names:
                raise ValueError(f"prefixes: {prefix.prefix!r} appears twice")
            names.add(prefix.prefix)

    def prefix_of(self, below: str) -> Prefix | None:
        """Return the configured prefix of a path relative to the spool, such as ``team-a/segments/…``; None if none."""
        return next(
            (known for known in self.prefixes if below.startswith(f"{known.prefix}/segments/".lstrip("/"))), None
        )

    def refusal(self, below: str, name: SegmentName) -> str:
        """Return why a segment with this name is refused at a path relative to the spool; empty if it is accepted."""
        own = self.prefix_of(below)
        is_allowed = own is not None and own.allows(name.run)
        if own is not None and own.runs and not is_allowed:
            return WRONG_RUN
        if not is_allowed and any(other.allows(name.run) for other in self.prefixes):
            return OTHERS_RUN
        if own is not None and own.require_encryption and not name.key_id:
            return NOT_ENCRYPTED
        return ""

    def rules(self) -> tuple[dict[str, Rule], dict[str, str]]:
        """Return the rule of each prefix, and for prefixes whose keys cannot be read the reason.

        Raises `MissingKeyError` if two prefixes share a key, because each would accept segments signed for the other.
        """
        rules: dict[str, Rule] = {}
        missing: dict[str, str] = {}
        owner: dict[str, str] = {}
        for prefix in self.prefixes:
            try:
                ids = tuple(sorted(read_keyring(prefix.keys).ids)) if prefix.keys else ()
            except MissingKeyError as error:
                missing[prefix.prefix] = str(error)
                continue
            for key_id in ids:
                if owner.setdefault(key_id, prefix.prefix) != prefix.prefix:
                    message = f"the prefixes {owner[key_id]!r} and {prefix.prefix!r} share the key {key_id}"
                    raise MissingKeyError(message, where="[[spool.prefixes]]", hint="give each prefix keys of its own")
            rules[prefix.prefix] = Rule(prefix.prefix, prefix.require_signed, ids, prefix.keys)
        return rules, missing

    def from_plan(self, facts: Sequence[Mapping[str, Any]]) -> tuple[Rule, ...]:
        """Return a plan's rules with the references to their keyrings.

        Raises `MissingKeyError` if a key is missing on this machine. The plan then waits for a process that has it.
        """
        sources = {prefix.prefix: prefix.keys for prefix in self.prefixes}
        rules = []
        for fact in facts:
            rule = Rule(fact["prefix"], fact["signed"], tuple(fact["keys"]), sources.get(fact["prefix"], ""))
            lacking = next((key_id for key_id in rule.keys if not has_key(rule.source, key_id)), None)
            if lacking is not None:
                message = f"the plan needs the key {lacking} of the prefix {rule.prefix!r} to check signatures"
                raise MissingKeyError(message, hint="name its source by keys in [[spool.prefixes]]")
            rules.append(rule)
        return tuple(rules)


@dataclass(frozen=True, slots=True)
class Authenticator:
    """Keys and rules with which a task verifies segments.

    Attributes
    ----------
    encryption_key
        Reference to the keyring of encrypted segments, never a key.
    rules
        The plan's rules, in its order.
    """

    encryption_key: str = ""
    rules: tuple[Rule, ...] = ()

    def signer_of(self, clear: bytes, footer: SegmentFooter, name: SegmentName, row: PlannedSegment) -> str | None:
        """Return the id of the key that signed a segment, with the rule of its row in the plan; see `signer_of`."""
        place = row.get("rule", -1)
        rule = self.rules[place] if 0 <= place < len(self.rules) else None
        return signer_of(clear, footer, name, rule, wanted=row.get("sign", False))


NO_SIGNERS: Final = Authenticator()


def signer_of(clear: bytes, footer: SegmentFooter, name: SegmentName, rule: Rule | None, *, wanted: bool) -> str | None:
    """Return the id of the key that signed a segment; None if it is unsigned, or signatures are not checked.

    Parameters
    ----------
    clear
        The decrypted Parquet file.
    footer, name
        The segment's footer and name, which must agree.
    wanted
        Whether the segment must be signed even if its rule does not require it, because others of its stream are.

    Raises
    ------
    RefusedSegmentError
        The segment is unsigned although it must be signed, or its signature is invalid.
    """
    if rule is None or not rule.keys:
        return None
    if not footer.signer:
        if rule.signed or wanted:
            raise RefusedSegmentError(NOT_SIGNED)
        return None
    if footer.signer not in rule.keys:
        raise RefusedSegmentError(UNKNOWN_SIGNER)
    if not is_signed_by(find_key(rule.source, footer.signer), clear, str(footer.mac), name.bond(footer.table)):
        raise RefusedSegmentError(FORGED)
    return footer.signer
