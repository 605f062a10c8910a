"""Keys: the keys with which this process encrypts and signs segments.

Segments are encrypted and signed when they are sealed, so uploading needs no key. If a configured key cannot be read,
nothing is sealed, and rows wait in the local spool until the key is available.
"""

import threading
import time
from typing import Final, NamedTuple

from ranklake.segments.envelope import EncryptionError, Key, MissingKeyError
from ranklake.segments.keys import KEY_HINT, find_key, read_keyring

TRY_AGAIN_S: Final = 10.0


class ActiveKeys(NamedTuple):
    """The keys for encrypting and signing a segment; None for a step that is not configured."""

    encryption: Key | None = None
    signing: Key | None = None


NO_KEYS: Final = ActiveKeys()


class SealingKeys:
    """The configured keys. Each key is read when it is first needed, and then kept.

    Parameters
    ----------
    encryption, signing
        Sources for `ranklake.segments.keys`; empty to not encrypt, or not sign.
    """

    def __init__(self, encryption: str = "", signing: str = "") -> None:
        self._encryption = _ActiveKey(encryption, "encrypted", ciphers=True)
        self._signing = _ActiveKey(signing, "signed", ciphers=False)

    @property
    def encrypts(self) -> bool:
        """Whether segments must be encrypted."""
        return bool(self._encryption.source)

    @property
    def signs(self) -> bool:
        """Whether segments must be signed."""
        return bool(self._signing.source)

    def active(self, *, encrypted: bool = False, signed: bool = False) -> ActiveKeys:
        """Return the keys to seal with.

        Parameters
        ----------
        encrypted, signed
            Whether the process that recorded the rows requires it, even if this process is not configured for it.

        Raises
        ------
        EncryptionError
            A key cannot be read. After a failure, the source is not read again for `TRY_AGAIN_S`.
        """
        return ActiveKeys(self._encryption.key(is_required=encrypted), self._signing.key(is_required=signed))

    def find(self, key_id: str) -> Key:
        """Return the key with an id, for decryption. Raises `EncryptionError`."""
        return find_key(self._encryption.source, key_id)


class _ActiveKey:
    """The active key of one source."""

    def __init__(self, source: str, action: str, *, ciphers: bool) -> None:
        self.source = source
        self._action, self._ciphers = action, ciphers
        self._lock = threading.Lock()
        self._key: Key | None = None
        self._last_error: tuple[float, EncryptionError] | None = None

    def key(self, *, is_required: bool) -> Key | None:
        if not self.source:
            if is_required:
                problem = f"these segments must be {self._action}, but no key is configured here"
                raise MissingKeyError(problem, hint=KEY_HINT)
            return None
        with self._lock:
            if self._last_error is not None and time.monotonic() < self._last_error[0]:
                raise self._last_error[1]
            if self._key is None:
                try:
                    key = read_keyring(self.source).active
                    if self._ciphers:
                        key.cipher(bytes(32))  # raises if the library is missing
                except EncryptionError as error:
                    self._last_error = time.monotonic() + TRY_AGAIN_S, error
                    raise
                self._key = key
            return self._key
