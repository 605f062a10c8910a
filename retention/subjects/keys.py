"""The key of a subject, and texts that it sealed.

    s-<key id, 16 hex digits>-<AES-SIV of length and text, base64url>

The same text under the same key is sealed alike, so that joins, groups and masks go on. Whoever has not the key cannot
tell what a sealed text says, nor try whether it says something: the key is random, and made from nothing. The length
is reported to 16 bytes.
"""

import base64
import hmac
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final
from unicodedata import normalize

from ranklake.errors import RanklakeError
from ranklake.segments.envelope import EncryptionError


@dataclass(frozen=True, slots=True)
class RunSubject:
    """The subject of values of which no person is named: their run, whose name tells cases apart."""

    run: str


SubjectName = str | RunSubject
"""A person, by name, or a run."""


def folded(name: str) -> str:
    """Return a person's name as it is compared: case, form of its letters, and spaces around it do not count."""
    return normalize("NFC", normalize("NFD", name.strip()).casefold()).strip()


def lookup_text(subject: SubjectName) -> str:
    """Return what a subject's key is looked up by; no person's begins with a space, and every run's does."""
    return f" run {subject.run}" if isinstance(subject, RunSubject) else folded(subject)


KEY_BYTES: Final = 32
FORM: Final = re.compile(r"s-([0-9a-f]{16})-([A-Za-z0-9_-]{43,})")
SEALED: Final = re.compile(FORM.pattern.encode())
"""A sealed text among other bytes."""
_ID_DIGITS: Final = 16
_BLOCK: Final = 16
_HEAD_BYTES: Final = 4
_PURPOSE: Final = b"ranklake subject 1: "


class NotSealedError(RanklakeError):
    """A text that this key did not seal."""


@dataclass(frozen=True, slots=True)
class SubjectKey:
    """A subject's key of 256 bits. Its repr holds no key."""

    secret: bytes = field(repr=False)

    @property
    def id(self) -> str:
        """Name the key; it says nothing about it, nor about the subject."""
        return self._derive(b"id").hex()[:_ID_DIGITS]

    def seal(self, text: str) -> str:
        """Return a text as it is stored. Raises `EncryptionError` without the library."""
        raw = text.encode("utf-8", "surrogatepass")
        clear = len(raw).to_bytes(_HEAD_BYTES) + raw
        clear += bytes(-len(clear) % _BLOCK)
        return f"s-{self.id}-{base64.urlsafe_b64encode(self._cipher().encrypt(clear, None)).decode().rstrip('=')}"

    def unseal(self, sealed: str) -> str:
        """Return the text that was sealed. Raises `NotSealedError`, which quotes nothing, and `EncryptionError`."""
        match = FORM.fullmatch(sealed)
        if match is None or match[1] != self.id:
            raise NotSealedError("not sealed with this key")
        cipher = self._cipher()
        try:
            clear = cipher.decrypt(base64.urlsafe_b64decode(f"{match[2]}{'=' * (-len(match[2]) % 4)}"), None)
        except Exception:  # noqa: BLE001 - InvalidTag, whose class is the library's; no base64
            raise NotSealedError("not sealed with this key") from None
        size = int.from_bytes(clear[:_HEAD_BYTES])
        return bytes(clear[_HEAD_BYTES : _HEAD_BYTES + size]).decode("utf-8", "surrogatepass")

    def _derive(self, purpose: bytes, digest: str = "sha256") -> bytes:
        return hmac.digest(self.secret, _PURPOSE + purpose, digest)

    def _cipher(self) -> Any:  # noqa: ANN401 - a class of a library that may be absent
        try:
            from cryptography.hazmat.primitives.ciphers.aead import AESSIV  # optional, and slow to import
        except ImportError as error:
            hint = "pip install 'ranklake[encryption]'"
            raise EncryptionError("columns under keys of subjects need the package cryptography", hint=hint) from error
        return AESSIV(self._derive(b"seal", "sha512"))


def opened(text: str, keys: Mapping[str, SubjectKey]) -> str | None:
    """Return what a sealed text says; None where none of some keys, by their ids, sealed it."""
    key = keys.get(sealed_by(text) or "")
    try:
        return None if key is None else key.unseal(text)
    except NotSealedError:
        return None


def sealed_by(text: str) -> str | None:
    """Return the id of the key that a text names as its own; None where it has not the form."""
    match = FORM.fullmatch(text)
    return match[1] if match else None
