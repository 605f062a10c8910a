"""Merkle: the tree over the digests of files, with one digest in memory for each of its levels (RFC 6962, 2.1)."""

import hashlib
import struct
from typing import Final

_LENGTH: Final = struct.Struct(">Q")


def leaf(path: bytes, size_bytes: int, digest: bytes) -> bytes:
    """Return the hash of a file's leaf."""
    return hashlib.sha256(b"\0" + _LENGTH.pack(len(path)) + path + _LENGTH.pack(size_bytes) + digest).digest()


class MerkleTree:
    """The root over leaves that come one by one; holds one digest for each level."""

    def __init__(self) -> None:
        self._peaks: list[tuple[int, bytes]] = []  # (leaves below, digest), of falling powers of two

    def add(self, digest: bytes) -> None:
        """Add the next leaf."""
        leaves = 1
        while self._peaks and self._peaks[-1][0] == leaves:
            digest = _node(self._peaks.pop()[1], digest)
            leaves *= 2
        self._peaks.append((leaves, digest))

    def root(self) -> bytes:
        """Return the root over the leaves so far."""
        if not self._peaks:
            return hashlib.sha256().digest()
        digest = self._peaks[-1][1]
        for _, left in reversed(self._peaks[:-1]):
            digest = _node(left, digest)
        return digest


def _node(left: bytes, right: bytes) -> bytes:
    return hashlib.sha256(b"\1" + left + right).digest()
