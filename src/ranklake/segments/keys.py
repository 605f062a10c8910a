"""Keys for encryption of segments, read from a keyring by a reference (`ranklake.segments.references`).

A keyring is text: a key on each line (or after a comma), 32 bytes in base64 or hex; ``#`` begins a comment. The first
key encrypts, and all keys decrypt. To rotate keys, write the new key before the others.

Messages of this module contain no text that was read, and no part of an invalid source.
"""

import base64
import binascii
import functools
import re
from dataclasses import dataclass
from typing import Final, Self

from ranklake.segments.envelope import KEY_BYTES, Key, MissingKeyError
from ranklake.segments.references import FORMS, SecretError, is_reference, read_reference

KEY_HINT: Final = f"encryption_key must be {FORMS}"
_HEX: Final = re.compile(r"[0-9a-fA-F]{64}")


@dataclass(frozen=True, slots=True)
class Keyring:
    """Keys, the one to encrypt with first; at least one."""

    keys: tuple[Key, ...]

    @property
    def active(self) -> Key:
        """The key that encrypts."""
        return self.keys[0]

    @property
    def ids(self) -> frozenset[str]:
        """Ids of all keys."""
        return frozenset(key.id for key in self.keys)

    def get(self, key_id: str) -> Key:
        """Return a key by its id. Raises `MissingKeyError`."""
        for key in self.keys:
            if key.id == key_id:
                return key
        raise MissingKeyError(f"key {key_id} is not available", hint="add it to the keyring")

    @classmethod
    def parse(cls, text: str, where: str) -> Self:
        """Read a keyring's text. Raises `MissingKeyError`, with the line number but not its text."""
        keys = []
        for number, line in enumerate(text.splitlines(), 1):
            for word in line.partition("#")[0].replace(",", " ").split():
                secret = _secret(word)
                if secret is None:
                    hint = "a key is 32 random bytes in base64 or hex, such as: openssl rand -base64 32"
                    raise MissingKeyError(f"line {number} of the keyring holds no key", where=where, hint=hint)
                keys.append(Key(secret))
        if not keys:
            raise MissingKeyError("the keyring is empty", where=where, hint="make a key: openssl rand -base64 32")
        return cls(tuple(keys))


def read_keyring(source: str) -> Keyring:
    """Read the keys of a source. Raises `MissingKeyError`."""
    if not is_reference(source):
        raise MissingKeyError("the source of the encryption key is not valid", hint=KEY_HINT)
    try:
        text, where = read_reference(source, "keyring", "key command")
    except SecretError as error:
        raise MissingKeyError(error.what, where=error.where, hint=error.hint) from None
    return Keyring.parse(text, where)


def find_key(source: str, key_id: str) -> Key:
    """Return a key by its id; a source is cached, and read again for an unknown id.

    Raises `MissingKeyError`.
    """
    if not source:
        raise MissingKeyError(f"a segment needs the key {key_id}", hint=f"name its source: {KEY_HINT}")
    try:
        return _cached_keys(source).get(key_id)
    except MissingKeyError:
        _cached_keys.cache_clear()
        return _cached_keys(source).get(key_id)


def has_key(source: str, key_id: str) -> bool:
    """Whether a source has a key; False, too, if it cannot be read."""
    try:
        find_key(source, key_id)
    except MissingKeyError:
        return False
    return True


@functools.lru_cache(maxsize=4)
def _cached_keys(source: str) -> Keyring:
    return read_keyring(source)


def _secret(word: str) -> bytes | None:
    plain = word.replace("-", "+").replace("_", "/")
    try:
        raw = bytes.fromhex(word) if _HEX.fullmatch(word) else base64.b64decode(plain, validate=True)
    except (binascii.Error, ValueError):
        return None
    return raw if len(raw) == KEY_BYTES else None
