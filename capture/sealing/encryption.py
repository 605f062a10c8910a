"""Encryption: the key that this process seals segments with, or why there is none.

Segments are encrypted when they are sealed, so that what uploads them needs no key. It fails closed: where encryption
is asked for and the key cannot be had, nothing is sealed; rows wait in the local spool until it can.
"""

import threading
import time
from typing import Final

from ranklake.lake.contracts.envelope import EncryptionError, Key, MissingKeyError
from ranklake.lake.contracts.keys import MEND, find_key, read_keyring

TRY_AGAIN_S: Final = 10.0


class Encryption:
    """Where segments' key comes from; read when it is needed first, and then kept for this object's life.

    Parameters
    ----------
    source
        As `ranklake.lake.contracts.keys` reads it; empty: segments are not encrypted.
    """

    def __init__(self, source: str = "") -> None:
        self._source = source
        self._lock = threading.Lock()
        self._key: Key | None = None
        self._trouble: tuple[float, EncryptionError] | None = None

    @property
    def wanted(self) -> bool:
        """Whether segments are to be encrypted."""
        return bool(self._source)

    def key(self, *, wanted: bool = False) -> Key | None:
        """Return the key to encrypt with; None if segments are to be in clear.

        Parameters
        ----------
        wanted
            Whoever recorded the segments asked for encryption, whether this process is configured for it or not.

        Raises
        ------
        EncryptionError
            The key cannot be had. A source that failed is left alone for `TRY_AGAIN_S` before it is asked again.
        """
        if not self._source:
            if wanted:
                raise MissingKeyError("these segments are to be encrypted, and no key is configured here", mend=MEND)
            return None
        with self._lock:
            if self._trouble is not None and time.monotonic() < self._trouble[0]:
                raise self._trouble[1]
            if self._key is None:
                try:
                    key = read_keyring(self._source).active
                    key.cipher(bytes(32))  # whether the library is there
                except EncryptionError as error:
                    self._trouble = time.monotonic() + TRY_AGAIN_S, error
                    raise
                self._key = key
            return self._key

    def find(self, key_id: str) -> Key:
        """Return the key of a name, to decrypt with. Raises `EncryptionError`."""
        return find_key(self._source, key_id)
