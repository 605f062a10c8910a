"""Writers: who may put segments where in a spool, and how ingest recognizes them.

    <spool>/segments/…            the prefix ""
    <spool>/team-a/segments/…     the prefix "team-a"

An operator configures for a prefix which runs may use it, whether its segments must be signed or encrypted, and where
the signing keys are. Some of that is checked by a segment's name, before a plan names it (`Writers.against`), the rest
by its bytes (`signer_of`). A segment that violates it is *refused*: set aside like a damaged one, with a reason that
begins with `REFUSED`. It claims neither slots nor its digest, so the genuine one, wherever it is, is still ingested.
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
    """A segment that nobody vouches for, or that its writer was not allowed to write."""


@dataclass(frozen=True, slots=True)
class Prefix:
    """Rules for a prefix of the spool, from ``[[spool.prefixes]]``."""

    prefix: str = ""
    """Folder below the spool, whose ``segments/`` ingest lists; empty for the spool itself."""
    team: str = ""
    """Team that it belongs to, for information only."""
    runs: tuple[str, ...] = ()
    """Patterns (``*``, ``?``) of the runs that may use it, and no other prefix. Empty: any run that no other claims."""
    require_signed: bool = False
    """Refuse segments that are not signed."""
    require_encryption: bool = False
    """Refuse segments that are not encrypted."""
    keys: str = ""
    """Where the signing keys are: ``file:/path``, ``env:NAME`` or ``command:/path``; all of them are accepted."""

    def __post_init__(self) -> None:
        if self.prefix != self.prefix.strip("/") or not {"..", "segments"}.isdisjoint(self.prefix.split("/")):
            raise ValueError("prefix must be a folder below the spool, without slashes at its ends or segments in it")

    def allows(self, run: str) -> bool:
        """Whether its patterns match a run."""
        return any(fnmatchcase(run, pattern) for pattern in self.runs)


@dataclass(frozen=True, slots=True)
class Rule:
    """What a plan asks of the bytes of segments of a prefix.

    Attributes
    ----------
    prefix, signed
        Which; and whether each must be signed.
    keys
        Ids of the keys that sign; none: nobody looks at signatures.
    source
        Where they are; not in the plan.
    """

    prefix: str
    signed: bool
    keys: tuple[str, ...]
    source: str = ""

    def facts(self) -> dict[str, Any]:
        """Return what a plan says of it."""
        return {"prefix": self.prefix, "signed": self.signed, "keys": list(self.keys)}


@dataclass(frozen=True, slots=True)
class Writers:
    """What the operator says of all prefixes of a spool; by default nothing."""

    prefixes: tuple[Prefix, ...] = ()

    def __post_init__(self) -> None:
        seen: set[str] = set()
        for prefix in self.prefixes:
            if prefix.require_signed and not prefix.keys:
                raise ValueError(f"prefixes: {prefix.prefix!r} has require_signed and no keys to check signatures with")
            if prefix.prefix in seen:
                raise ValueError(f"prefixes: {prefix.prefix!r} appears twice")
            seen.add(prefix.prefix)

    def prefix_of(self, below: str) -> Prefix | None:
        """Return the prefix of a path below the spool's root, such as ``team-a/segments/…``; None if it has none."""
        return next((one for one in self.prefixes if below.startswith(f"{one.prefix}/segments/".lstrip("/"))), None)

    def refusal(self, below: str, name: SegmentName) -> str:
        """Return why a segment of that name may not lie at a path below the spool's root; empty if it may."""
        own = self.prefix_of(below)
        mine = own is not None and own.allows(name.run)
        if own is not None and own.runs and not mine:
            return WRONG_RUN
        if not mine and any(other.allows(name.run) for other in self.prefixes):
            return OTHERS_RUN
        if own is not None and own.require_encryption and not name.key_id:
            return NOT_ENCRYPTED
        return ""

    def rules(self) -> tuple[dict[str, Rule], dict[str, str]]:
        """Return the rule of each prefix, and by prefix why its keys cannot be read.

        Raises `MissingKeyError` where two prefixes share a key: what is signed for one would pass for the other.
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
        """Return the rules that a plan holds, with the places of their keys.

        Raises `MissingKeyError` where one of the keys is not at hand: the plan then waits for who has them.
        """
        sources = {one.prefix: one.keys for one in self.prefixes}
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
    """Keys and rules by which a task verifies segments.

    Attributes
    ----------
    encryption_key
        Where the keys of encrypted segments are, never a key.
    rules
        What the plan asks, in its order.
    """

    encryption_key: str = ""
    rules: tuple[Rule, ...] = ()

    def signer_of(self, clear: bytes, footer: SegmentFooter, name: SegmentName, row: PlannedSegment) -> str | None:
        """Return the id of the key that signed a segment which a row of a plan names, as `signer_of` does."""
        place = row.get("rule", -1)
        rule = self.rules[place] if 0 <= place < len(self.rules) else None
        return signer_of(clear, footer, name, rule, wanted=row.get("sign", False))


NOT_ASKED: Final = Authenticator()


def signer_of(clear: bytes, footer: SegmentFooter, name: SegmentName, rule: Rule | None, *, wanted: bool) -> str | None:
    """Return the id of the key that signed a segment; None if nobody did, or nobody asks.

    Parameters
    ----------
    clear
        The Parquet file, decrypted.
    footer, name
        Its own, which agree.
    wanted
        Whether it must be signed whatever its prefix says: others of its stream are.

    Raises
    ------
    RefusedSegmentError
        It is not signed and should be, or its signature does not hold.
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
