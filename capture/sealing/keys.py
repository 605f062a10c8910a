"""Keys: the keys with which this process encrypts and signs segments, or why there are none.

Segments are encrypted and signed when they are sealed, so that what uploads them needs no key. It fails closed: where
either is asked for and its key cannot be read, nothing is sealed; rows wait in the local spool until it can.
"""

import threading
import time
from typing import Final, NamedTuple

from ranklake.segments.envelope import EncryptionError, Key, MissingKeyError
from ranklake.segments.keys import KEY_HINT, find_key, read_keyring

TRY_AGAIN_S: Final = 10.0


class ActiveKeys(NamedTuple):
    """What a segment is encrypted and signed with; None for neither."""

    encryption: Key | None = None
    signing: Key | None = None


NO_KEYS: Final = ActiveKeys()


class SealingKeys:
    """Where the keys come from; each is read when it is needed first, and then kept for this object's life.

    Parameters
    ----------
    encryption, signing
        Sources as `ranklake.segments.keys` reads them; empty: segments are not encrypted, or not signed.
    """

    def __init__(self, encryption: str = "", signing: str = "") -> None:
        self._encryption = _ActiveKey(encryption, "encrypted", ciphers=True)
        self._signing = _ActiveKey(signing, "signed", ciphers=False)

    @property
    def encrypts(self) -> bool:
        """Whether segments are to be encrypted."""
        return bool(self._encryption.source)

    @property
    def signs(self) -> bool:
        """Whether segments are to be signed."""
        return bool(self._signing.source)

    def active(self, *, encrypted: bool = False, signed: bool = False) -> ActiveKeys:
        """Return the keys to seal with.

        Parameters
        ----------
        encrypted, signed
            Whoever recorded the segments asked for it, whether this process is configured for it or not.

        Raises
        ------
        EncryptionError
            A key cannot be read. A source that failed is left alone for `TRY_AGAIN_S` before it is asked again.
        """
        return ActiveKeys(self._encryption.key(wanted=encrypted), self._signing.key(wanted=signed))

    def find(self, key_id: str) -> Key:
        """Return the key of a name, to decrypt with. Raises `EncryptionError`."""
        return find_key(self._encryption.source, key_id)


class _ActiveKey:
    """The active key of one source."""

    def __init__(self, source: str, done: str, *, ciphers: bool) -> None:
        self.source = source
        self._done, self._ciphers = done, ciphers
        self._lock = threading.Lock()
        self._key: Key | None = None
        self._trouble: tuple[float, EncryptionError] | None = None

    def key(self, *, wanted: bool) -> Key | None:
        if not self.source:
            if wanted:
                lack = f"these segments are to be {self._done}, and no key is configured here"
                raise MissingKeyError(lack, hint=KEY_HINT)
            return None
        with self._lock:
            if self._trouble is not None and time.monotonic() < self._trouble[0]:
                raise self._trouble[1]
            if self._key is None:
                try:
                    key = read_keyring(self.source).active
                    if self._ciphers:
                        key.cipher(bytes(32))  # whether the library is there
                except EncryptionError as error:
                    self._trouble = time.monotonic() + TRY_AGAIN_S, error
                    raise
                self._key = key
            return self._key
