"""Masks: changes of a column's values for readers who may not see them.

    nullify          NULL
    hash             text: a pseudonym by a keyed hash, the same for the same text, so that joins match
    redact           text: credentials, addresses and home folders replaced, the rest kept
    keep:2           text: the first two characters; keep:2+4: and the last four; keep:domain: the part after an @
    bucket:10        numbers: the lower end of the bucket of this width
    truncate:month   times and dates: the beginning of the year, quarter, month, week, day, hour or minute

Contracts and roles use these names. Each mask keeps a value's type, and NULL stays NULL.
"""

import hmac
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from types import MappingProxyType
from typing import Final, Self

from ranklake.errors import RanklakeError, did_you_mean
from ranklake.segments.keys import Keyring, read_keyring

_FORM: Final = re.compile(r"p-([0-9a-f]{8})-([0-9a-f]{24})([0-9a-f]{8})")
_HASHED: Final = 24
_PROOF: Final = 8


class Pseudonyms:
    """Makes pseudonyms of texts. Its repr holds no key."""

    def __init__(self, ring: Keyring) -> None:
        oldest_first = tuple(dict.fromkeys(reversed(ring.keys)))
        self._keys = tuple((key.id, key.masking_secret) for key in oldest_first)
        self._places = {key_id: place for place, (key_id, _) in enumerate(self._keys)}

    @classmethod
    def of(cls, source: str) -> "Pseudonyms":
        """Return pseudonyms by a reference to a keyring. Raises `ranklake.segments.envelope.MissingKeyError`."""
        return cls(read_keyring(source))

    @property
    def key_ids(self) -> tuple[str, ...]:
        """Ids of the keys, oldest first; with other keys pseudonyms differ."""
        return tuple(key_id for key_id, _ in self._keys)

    def __call__(self, text: str) -> str:
        """Return the pseudonym of a text, or the present pseudonym for one of an older key."""
        place = self._made_by(text)
        for key_id, secret in self._keys[0 if place is None else place + 1 :]:
            digits = _mac(secret, b"text", text)[:_HASHED]
            text = f"p-{key_id}-{digits}{_mac(secret, b'proof', digits)[:_PROOF]}"
        return text

    def is_genuine(self, text: str) -> bool:
        """Whether a text is a pseudonym made with one of the keys."""
        return self._made_by(text) is not None

    def _made_by(self, text: str) -> int | None:
        match = _FORM.fullmatch(text)
        place = self._places.get(match[1]) if match else None
        if match is None or place is None:
            return None
        proof = _mac(self._keys[place][1], b"proof", match[2])[:_PROOF]
        return place if hmac.compare_digest(match[3], proof) else None


def _mac(secret: bytes, purpose: bytes, text: str) -> str:
    return hmac.digest(secret, purpose + b"\0" + text.encode("utf-8", "surrogatepass"), "sha256").hex()


_NUMBERS: Final = frozenset({"int32", "int64", "float32", "float64", "decimal", "int64_list"})
_TEXT: Final = frozenset({"string"})
_TIMES: Final = frozenset({"timestamp", "date"})
KINDS: Final[Mapping[str, frozenset[str] | None]] = MappingProxyType(
    {"nullify": None, "hash": _TEXT, "redact": _TEXT, "keep": _TEXT, "bucket": _NUMBERS, "truncate": _TIMES}
)
"""Types of contracts that a kind of mask fits; None: all."""
UNITS: Final = ("year", "quarter", "month", "week", "day", "hour", "minute")
_WITHIN_A_DAY: Final = frozenset({"hour", "minute"})
EXAMPLES: Final = "nullify, hash, redact, keep:2, keep:2+4, keep:domain, bucket:10, truncate:month"
_KEEP: Final = re.compile(r"(\d{1,3})(?:\+(\d{1,3}))?")
_WIDTH: Final = re.compile(r"\d{1,15}(?:\.\d{1,9})?")


class MaskError(RanklakeError):
    """An invalid mask, or one that does not fit the column's type."""


@dataclass(frozen=True, slots=True)
class Mask:
    """A mask.

    Attributes
    ----------
    kind
        One of `KINDS`.
    how
        Text after the colon: kept characters, width of a bucket, or unit of time; else empty.
    """

    kind: str
    how: str = ""

    @classmethod
    def parse(cls, written: object, where: str) -> Self:
        """Parse a mask; YAML's null is ``nullify``. Raises `MaskError`, at `where`."""
        text = "nullify" if written is None else str(written).strip()
        kind, colon, how = text.partition(":")
        kind, how = {"null": "nullify"}.get(kind.strip(), kind.strip()), how.strip()
        if kind not in KINDS:
            hint = did_you_mean(kind, KINDS)
            raise MaskError(f"unknown mask {text!r}", where=where, hint=f"{hint} Write {EXAMPLES}".strip())
        if kind not in _HOW:
            if colon:
                raise MaskError(f"mask {text!r} takes nothing behind the colon", where=where, hint=f"write {kind}")
            return cls(kind)
        if not _HOW[kind](how):
            raise MaskError(f"mask {text!r} is not understood", where=where, hint=f"write {_FORMS[kind]}")
        return cls(kind, how)

    @property
    def spec(self) -> str:
        """The mask in its written form."""
        return f"{self.kind}:{self.how}" if self.how else self.kind

    def applies_to(self, type_: str) -> bool:
        """Whether it fits values of a contract's type."""
        types = KINDS[self.kind]
        if type_ == "date" and self.how in _WITHIN_A_DAY:
            return False
        if self.kind == "bucket" and type_.startswith("int") and self.width % 1:
            return False
        return types is None or type_ in types

    @property
    def fitting(self) -> str:
        """Types that it fits, as text."""
        return ", ".join(sorted(KINDS[self.kind] or {"all"}))

    @property
    def kept(self) -> tuple[int, int]:
        """Of ``keep:2+4``: how many characters at each end."""
        match = _KEEP.fullmatch(self.how)
        return (int(match[1]), int(match[2] or 0)) if match else (0, 0)

    @property
    def width(self) -> Decimal:
        """Of ``bucket:10``: its width."""
        return Decimal(self.how)


def _is_width(how: str) -> bool:
    return _WIDTH.fullmatch(how) is not None and Decimal(how) > 0


def _is_keep(how: str) -> bool:
    match = _KEEP.fullmatch(how)
    return how == "domain" or (match is not None and int(match[1]) + int(match[2] or 0) > 0)


_HOW: Final[Mapping[str, Callable[[str], bool]]] = MappingProxyType(
    {"keep": _is_keep, "bucket": _is_width, "truncate": lambda how: how in UNITS}
)
_FORMS: Final = MappingProxyType(
    {
        "keep": "keep:2, keep:2+4 or keep:domain",
        "bucket": "bucket:10, or another width above 0",
        "truncate": f"truncate: and one of {', '.join(UNITS)}",
    }
)

NULLIFY: Final = Mask("nullify")
HASH: Final = Mask("hash")
BY_CLASS: Final[Mapping[str, Mask]] = MappingProxyType(
    {"operational": NULLIFY, "pseudonymous": HASH, "personal": Mask("redact"), "secret": NULLIFY}
)
"""Default masks of columns by class."""


def default_mask(mask: str | None, class_: str, type_: str) -> Mask:
    """Return a column's mask from its contract, else from its class; `NULLIFY` if that does not fit."""
    chosen = BY_CLASS[class_] if mask is None else Mask.parse(mask, "contract")
    return chosen if chosen.applies_to(type_) else NULLIFY
