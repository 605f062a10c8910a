"""The envelope of an encrypted segment, how the Parquet bytes get in and out; and the signature of a segment.

    magic (8) · key id (4) · seed (32) · AES-256-GCM of the Parquet file, its tag (16) at the end

Sealing the same slots again has to give the same bytes, so nothing is random. The seed is a keyed hash of the message
and of its bond; key and nonce of the one message come from the seed. Two messages share a key and a nonce
only if seeds of 256 bits collide, which takes some 2^128 segments; until then a key may encrypt without limit. Decision
015 says more.

What a segment is bound to (its table and its name without the digest) is authenticated, too: the bytes open under no
other name. Sizes, names and row counts are in clear.

A signature is a MAC in the footer, by which ingest knows that a holder of the key wrote the segment:

    HMAC-SHA256(key, length of bond · bond · where the MAC stands · the Parquet file with zeros where the MAC stands)

The file is written with zeros in the MAC's place, which are then overwritten: one pass, and nothing moves. So the MAC
covers rows and footer, byte for byte; the bond (table, run, attempt, rank, incarnation, segment and rows, as
`ranklake.segments.segment.SegmentName.bond` has them) covers what the segment is called. An encrypted segment is
signed first: the MAC is in what is encrypted, and who cannot decrypt cannot check it either. Decision 015 says more.
"""

import hashlib
import hmac
import struct
from dataclasses import dataclass, field
from typing import Any, Final

from ranklake.errors import RanklakeError

MAGIC: Final = b"RLSEALED"
KEY_BYTES: Final = 32
ID_BYTES: Final = 4
_HEAD: Final = struct.Struct(f"8s{ID_BYTES}s32s")
_NONCE_BYTES: Final = 12
_PURPOSE: Final = b"ranklake segment 1: "
"""Prefix of each derivation, so that a key's id, seeds and message keys have nothing in common."""


class EncryptionError(RanklakeError):
    """Something about encrypted segments that is for a person to fix."""


class MissingKeyError(EncryptionError):
    """No available key opens a segment, or none is there to encrypt with."""


class NotAuthenticError(EncryptionError):
    """Bytes that the right key does not open: they were changed, or belong to another segment."""


@dataclass(frozen=True, slots=True)
class Key:
    """A key of 256 bits.

    Attributes
    ----------
    id
        Eight hex digits derived from the key: no other key has them, and they reveal nothing about it.
    """

    secret: bytes = field(repr=False)

    def __post_init__(self) -> None:
        if len(self.secret) != KEY_BYTES:
            raise MissingKeyError(f"a key must have {KEY_BYTES} bytes")

    @property
    def id(self) -> str:
        """Name the key."""
        return self._derive(b"id")[:ID_BYTES].hex()

    def _derive(self, purpose: bytes) -> bytes:
        return hmac.digest(self.secret, _PURPOSE + purpose, "sha256")

    @property
    def plan_secret(self) -> bytes:
        """What plans' MACs are made with; see `ranklake.lake.plans.plan`."""
        return self._derive(b"plan")

    @property
    def signing_secret(self) -> bytes:
        """What segments' MACs are made with; see `ranklake.segments.envelope`."""
        return self._derive(b"sign")

    @property
    def masking_secret(self) -> bytes:
        """What pseudonyms are made with; see `ranklake.masking.masks`."""
        return self._derive(b"mask")

    @property
    def subject_secret(self) -> bytes:
        """What subjects are looked up by; see `ranklake.retention.subjects.store`."""
        return self._derive(b"subject")

    @property
    def backup_secret(self) -> bytes:
        """What objects of encrypted backups are called by; see `ranklake.retention.backup.place`."""
        return self._derive(b"backup")

    def seed(self, clear: bytes, bound_to: bytes) -> bytes:
        """Return the keyed hash of a message and of what it is bound to."""
        message = len(bound_to).to_bytes(8) + bound_to + hashlib.sha256(clear).digest()
        return hmac.digest(self._derive(b"seed"), message, "sha256")

    def cipher(self, seed: bytes) -> Any:  # noqa: ANN401 - a class of a library that may be absent
        """Return AES-GCM under the one message's key. Raises `EncryptionError` without the library."""
        try:
            from cryptography.hazmat.primitives.ciphers.aead import AESGCM  # optional, and slow to import
        except ImportError as error:
            hint = "pip install 'ranklake[encryption]'"
            raise EncryptionError("encrypted segments need the package cryptography", hint=hint) from error
        return AESGCM(hmac.digest(self._derive(b"message"), seed, "sha256"))


def encrypt(key: Key, clear: bytes, bound_to: bytes) -> bytes:
    """Return the envelope around some bytes: the same for the same bytes, key and bond.

    Raises `EncryptionError` if the library is not there.
    """
    seed = key.seed(clear, bound_to)
    head = _HEAD.pack(MAGIC, bytes.fromhex(key.id), seed)
    return head + bytes(key.cipher(seed).encrypt(seed[:_NONCE_BYTES], clear, head + bound_to))


def decrypt(key: Key, raw: bytes, bound_to: bytes) -> bytes:
    """Return the bytes in an envelope.

    Raises
    ------
    NotAuthenticError
        The bytes are no envelope of this key's, were changed, or are bound to something else.
    EncryptionError
        The library is not there.
    """
    if len(raw) < _HEAD.size:
        raise NotAuthenticError("not an encrypted segment")
    magic, key_id, seed = _HEAD.unpack_from(raw)
    if magic != MAGIC or key_id.hex() != key.id:
        raise NotAuthenticError("not an encrypted segment of this key")
    cipher = key.cipher(seed)
    try:
        clear = bytes(cipher.decrypt(seed[:_NONCE_BYTES], raw[_HEAD.size :], raw[: _HEAD.size] + bound_to))
    except Exception as error:  # InvalidTag, whose class is the library's
        raise NotAuthenticError("the encrypted bytes are not authentic") from error
    if not hmac.compare_digest(seed, key.seed(clear, bound_to)):  # GCM alone lets a message open under two keys
        raise NotAuthenticError("the encrypted bytes are not authentic")
    return clear


BLANK: Final = "0" * 64
"""What stands in the footer while the MAC is not known."""
_BEFORE: Final = b'"mac":"'
_PLACE_BYTES: Final = 8


class NoPlaceError(ValueError):
    """The bytes have no place for a MAC where one was expected."""


def sign(key: Key, unsigned: bytes, bond: bytes) -> tuple[bytes, str]:
    """Return a segment's bytes with the MAC in its place, and the MAC.

    Parameters
    ----------
    unsigned
        A Parquet file whose footer has `BLANK` for its MAC, and the key's id.
    bond
        What the segment is bound to.

    Raises `NoPlaceError` where there is no such footer.
    """
    at = _place(unsigned, BLANK)
    mac = _mac(key, unsigned, at, bond)
    return b"".join((memoryview(unsigned)[:at], mac.encode(), memoryview(unsigned)[at + len(mac) :])), mac


def is_signed_by(key: Key, signed: bytes, mac: str, bond: bytes) -> bool:
    """Whether a MAC, which the footer of a segment holds, is that of these bytes under a key and a bond."""
    try:
        at = _place(signed, mac)
    except NoPlaceError:
        return False
    return hmac.compare_digest(_mac(key, signed, at, bond), mac)


def _place(raw: bytes, mac: str) -> int:
    if len(mac) != len(BLANK) or not mac.isascii():
        raise NoPlaceError("not a MAC")
    at = raw.rfind(_BEFORE + mac.encode() + b'"')
    if at < 0:
        raise NoPlaceError("no footer with that MAC")
    return at + len(_BEFORE)


def _mac(key: Key, raw: bytes, at: int, bond: bytes) -> str:
    whole = memoryview(raw)
    digest = hmac.new(key.signing_secret, len(bond).to_bytes(_PLACE_BYTES) + bond, "sha256")
    digest.update(at.to_bytes(_PLACE_BYTES))
    digest.update(whole[:at])
    digest.update(BLANK.encode())
    digest.update(whole[at + len(BLANK) :])
    return digest.hexdigest()
