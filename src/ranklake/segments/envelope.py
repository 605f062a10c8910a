"""The envelope of an encrypted segment: what stands around the Parquet bytes, and how they get in and out.

    magic (8) · key id (4) · seed (32) · AES-256-GCM of the Parquet file, its tag (16) at the end

Sealing the same slots again has to give the same bytes, so no dice are thrown. The seed is a keyed hash of what is
encrypted and of whose it is; key and nonce of the one message come from the seed. Two messages share a key and a nonce
only if seeds of 256 bits collide, which takes some 2^128 segments; until then a key may encrypt without limit. Decision
015 says more.

What a segment is bound to (its table and its name without the digest) is authenticated, too: the bytes open under no
other name. Sizes, names and row counts are in clear.
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
"""Set before what a key is asked for, so that its id, its seeds and its message keys have nothing in common."""


class EncryptionError(RanklakeError):
    """Something about encrypted segments that is for a person to mend."""


class MissingKeyError(EncryptionError):
    """No key that is there opens a segment, or there is none to encrypt with."""


class NotAuthenticError(EncryptionError):
    """Bytes that the right key does not open: they were changed, or belong to another segment."""


@dataclass(frozen=True, slots=True)
class Key:
    """A key of 256 bits.

    Attributes
    ----------
    id
        Eight hex digits made from the key, so that a key cannot go by another's id. It says nothing about the key.
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
        """What plans' MACs are made with; see `ranklake.lake.plans.signature`."""
        return self._derive(b"plan")

    @property
    def signing_secret(self) -> bytes:
        """What segments' MACs are made with; see `ranklake.segments.signing`."""
        return self._derive(b"sign")

    @property
    def masking_secret(self) -> bytes:
        """What pseudonyms are made with; see `ranklake.masking.pseudonyms`."""
        return self._derive(b"mask")

    @property
    def subject_secret(self) -> bytes:
        """What subjects are looked up by; see `ranklake.retention.subjects.store`."""
        return self._derive(b"subject")

    def seed(self, clear: bytes, bound_to: bytes) -> bytes:
        """Return the keyed hash of a message and of what it is bound to."""
        said = len(bound_to).to_bytes(8) + bound_to + hashlib.sha256(clear).digest()
        return hmac.digest(self._derive(b"seed"), said, "sha256")

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
