"""Encryption and signatures of segments.

    magic (8) · key id (4) · seed (32) · AES-256-GCM of the Parquet file, its tag (16) at the end

Sealing the same slots again must give the same bytes, so no part is random. The seed is a keyed hash of the message and
its bond. The key and nonce of a message are derived from its seed. Two messages share key and nonce only if 256-bit
seeds collide, which takes about 2^128 segments; a key needs no other limit. See decision 015.

The bond of a segment (its table and its name without the digest) is authenticated, too: the bytes cannot be decrypted
under another name. Sizes, names and row counts are in clear.

A signature is a MAC in the footer, which proves to ingest that a holder of the key wrote the segment:

    HMAC-SHA256(key, length of bond · bond · position of the MAC · the Parquet file with zeros in place of the MAC)

The file is written with zeros in the MAC's place, which are then overwritten, so that no other byte changes. The MAC
therefore covers rows and footer. The bond (table, run, attempt, rank, incarnation, segment and rows, by
`ranklake.segments.segment.SegmentName.bond`) covers the segment's name. An encrypted segment is signed before
encryption, so only holders of the encryption key can verify it. See decision 015.
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
"""Prefix of each derivation, so that a key's id, its seeds and message keys are independent."""


class EncryptionError(RanklakeError):
    """An error of encryption that a person has to fix."""


class MissingKeyError(EncryptionError):
    """No key to decrypt a segment, or to encrypt with, is available."""


class NotAuthenticError(EncryptionError):
    """Bytes that the right key cannot decrypt: they were changed, or belong to another segment."""


@dataclass(frozen=True, slots=True)
class Key:
    """A key of 256 bits.

    Attributes
    ----------
    id
        Eight hex digits derived from the key, which identify it and reveal nothing about it.
    """

    secret: bytes = field(repr=False)

    def __post_init__(self) -> None:
        if len(self.secret) != KEY_BYTES:
            raise MissingKeyError(f"a key must have {KEY_BYTES} bytes")

    @property
    def id(self) -> str:
        """Id of the key."""
        return self._derive(b"id")[:ID_BYTES].hex()

    def _derive(self, purpose: bytes) -> bytes:
        return hmac.digest(self.secret, _PURPOSE + purpose, "sha256")

    @property
    def plan_secret(self) -> bytes:
        """Derived key for plans' MACs; see `ranklake.lake.plans.plan`."""
        return self._derive(b"plan")

    @property
    def signing_secret(self) -> bytes:
        """Derived key for segments' MACs; see `ranklake.segments.envelope`."""
        return self._derive(b"sign")

    @property
    def masking_secret(self) -> bytes:
        """Derived key for pseudonyms; see `ranklake.masking.masks`."""
        return self._derive(b"mask")

    @property
    def subject_secret(self) -> bytes:
        """Derived key for looking up subjects; see `ranklake.retention.subjects.store`."""
        return self._derive(b"subject")

    @property
    def backup_secret(self) -> bytes:
        """Derived key for names of objects in encrypted backups; see `ranklake.retention.backup.place`."""
        return self._derive(b"backup")

    def seed(self, clear: bytes, bound_to: bytes) -> bytes:
        """Return the keyed hash of a message and its bond."""
        message = len(bound_to).to_bytes(8) + bound_to + hashlib.sha256(clear).digest()
        return hmac.digest(self._derive(b"seed"), message, "sha256")

    def cipher(self, seed: bytes) -> Any:  # noqa: ANN401 - a class of a library that may be absent
        """Return AES-GCM with a message's own key. Raises `EncryptionError` without the library."""
        try:
            from cryptography.hazmat.primitives.ciphers.aead import AESGCM  # optional, and slow to import
        except ImportError as error:
            hint = "pip install 'ranklake[encryption]'"
            raise EncryptionError("encrypted segments need the package cryptography", hint=hint) from error
        return AESGCM(hmac.digest(self._derive(b"message"), seed, "sha256"))


def encrypt(key: Key, clear: bytes, bound_to: bytes) -> bytes:
    """Return the envelope around some bytes: the same for the same bytes, key and bond.

    Raises `EncryptionError` if the library is not installed.
    """
    seed = key.seed(clear, bound_to)
    head = _HEAD.pack(MAGIC, bytes.fromhex(key.id), seed)
    return head + bytes(key.cipher(seed).encrypt(seed[:_NONCE_BYTES], clear, head + bound_to))


def decrypt(key: Key, raw: bytes, bound_to: bytes) -> bytes:
    """Return the bytes in an envelope.

    Raises
    ------
    NotAuthenticError
        The bytes are not an envelope of this key, were changed, or have another bond.
    EncryptionError
        The library is not installed.
    """
    if len(raw) < _HEAD.size:
        raise NotAuthenticError("not an encrypted segment")
    magic, key_id, seed = _HEAD.unpack_from(raw)
    if magic != MAGIC or key_id.hex() != key.id:
        raise NotAuthenticError("not an encrypted segment of this key")
    cipher = key.cipher(seed)
    try:
        clear = bytes(cipher.decrypt(seed[:_NONCE_BYTES], raw[_HEAD.size :], raw[: _HEAD.size] + bound_to))
    except Exception as error:  # the library's InvalidTag
        raise NotAuthenticError("the encrypted bytes are not authentic") from error
    if not hmac.compare_digest(
        seed, key.seed(clear, bound_to)
    ):  # with GCM alone, a message can be valid under two keys
        raise NotAuthenticError("the encrypted bytes are not authentic")
    return clear


BLANK: Final = "0" * 64
"""Placeholder of the MAC in the footer."""
_BEFORE: Final = b'"mac":"'
_PLACE_BYTES: Final = 8


class NoPlaceError(ValueError):
    """The bytes have no placeholder for a MAC."""


def sign(key: Key, unsigned: bytes, bond: bytes) -> tuple[bytes, str]:
    """Return a segment's bytes with the MAC in its place, and the MAC.

    Parameters
    ----------
    unsigned
        A Parquet file whose footer has `BLANK` for its MAC, and the key's id.
    bond
        The segment's bond.

    Raises `NoPlaceError` without such a footer.
    """
    at = _mac_position(unsigned, BLANK)
    mac = _mac(key, unsigned, at, bond)
    return b"".join((memoryview(unsigned)[:at], mac.encode(), memoryview(unsigned)[at + len(mac) :])), mac


def is_signed_by(key: Key, signed: bytes, mac: str, bond: bytes) -> bool:
    """Whether a MAC in the footer of a segment is valid for these bytes, a key and a bond."""
    try:
        at = _mac_position(signed, mac)
    except NoPlaceError:
        return False
    return hmac.compare_digest(_mac(key, signed, at, bond), mac)


def _mac_position(raw: bytes, mac: str) -> int:
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
