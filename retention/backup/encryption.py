"""Encryption of backups: bytes leave this machine as envelopes under a key that the operator names by reference.

The envelope is that of segments (`ranklake.segments.envelope`): the same bytes give the same one, so contents stay
addressed and nothing is copied twice. An object's name is a keyed hash of its digest: whoever reads the place cannot
tell whether content that they know is there. Sizes, numbers and times of backups are in clear.
"""

import hmac
from dataclasses import dataclass, field
from typing import Final

from ranklake.lake.store.store import Store
from ranklake.segments.envelope import Key, decrypt, encrypt

_BOND: Final = "ranklake backup: "


@dataclass(frozen=True)
class EncryptedPlace(Store):
    """A place of backups, and the key that opens them."""

    key: Key | None = field(default=None, repr=False, compare=False)


def key_of(place: Store) -> Key | None:
    """Return the key of a place; None where its files are in clear."""
    return place.key if isinstance(place, EncryptedPlace) else None


def with_key(place: Store, key: Key) -> EncryptedPlace:
    """Return a place whose files are read and written under a key."""
    return EncryptedPlace(place.uri, place.storage, place.fs, place.root, key)


def address(place: Store, sha256: str) -> str:
    """Return what the object of a digest is called in a place."""
    key = key_of(place)
    return sha256 if key is None else hmac.digest(key.backup_secret, sha256.encode(), "sha256").hex()


def read_file(place: Store, name: str) -> bytes:
    """Return the bytes of a file of a place.

    Raises `FileNotFoundError`, and `ranklake.segments.envelope.NotAuthenticError` for what is not what was written.
    """
    raw, key = bytes(place.fs.cat_file(place.path(name))), key_of(place)
    return raw if key is None else decrypt(key, raw, _bond(name))


def write_file(place: Store, name: str, raw: bytes) -> int:
    """Write a file unless its name is taken; return the bytes that were written, 0 for none."""
    key = key_of(place)
    written = raw if key is None else encrypt(key, raw, _bond(name))
    return len(written) if place.put_if_absent(name, written) else 0


def _bond(name: str) -> bytes:
    """Return what an envelope is bound to: it opens under no other name, and as no segment."""
    return f"{_BOND}{name}".encode()
