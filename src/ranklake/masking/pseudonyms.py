"""Pseudonyms: keyed hashes in the place of texts, which stay comparable when a key is rotated.

    p-<key id>-<24 hex digits of HMAC-SHA256><8 hex digits that only who has the key can make>

A keyring lists the newest key first. A text is hashed with the oldest key, the result with the next, and so on. So a
pseudonym that was stored under an old key is brought to today's without the text that it stands for, and equals what
the text itself becomes today. Keys therefore stay in the keyring: without the oldest, every pseudonym is another.

The last digits tell a genuine pseudonym from a text that looks like one: that is hashed as any other.
"""

import hmac
import re
from typing import Final

from ranklake.segments.keys import Keyring, read_keyring

_FORM: Final = re.compile(r"p-([0-9a-f]{8})-([0-9a-f]{24})([0-9a-f]{8})")
_HASHED: Final = 24
_PROOF: Final = 8


class Pseudonyms:
    """Gives texts their pseudonyms. Its repr holds no key."""

    def __init__(self, ring: Keyring) -> None:
        oldest_first = tuple(dict.fromkeys(reversed(ring.keys)))
        self._keys = tuple((key.id, key.masking_secret) for key in oldest_first)
        self._places = {key_id: place for place, (key_id, _) in enumerate(self._keys)}

    @classmethod
    def of(cls, source: str) -> "Pseudonyms":
        """Return those of a reference to a keyring. Raises `ranklake.segments.envelope.MissingKeyError`."""
        return cls(read_keyring(source))

    @property
    def key_ids(self) -> tuple[str, ...]:
        """Ids of the keys, oldest first; with other keys pseudonyms differ."""
        return tuple(key_id for key_id, _ in self._keys)

    def __call__(self, text: str) -> str:
        """Return the pseudonym of a text, or what a pseudonym of an older key has become."""
        place = self._made_by(text)
        for key_id, secret in self._keys[0 if place is None else place + 1 :]:
            digits = _mac(secret, b"text", text)[:_HASHED]
            text = f"p-{key_id}-{digits}{_mac(secret, b'proof', digits)[:_PROOF]}"
        return text

    def is_genuine(self, text: str) -> bool:
        """Whether a text is a pseudonym that one of the keys made."""
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
