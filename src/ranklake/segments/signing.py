"""The signature of a segment: a MAC in its footer, by which ingest knows that a holder of the key wrote it.

    HMAC-SHA256(key, length of bond · bond · where the MAC stands · the Parquet file with zeros where the MAC stands)

The file is written with zeros in the MAC's place, which are then overwritten: one pass, and nothing moves. So the MAC
covers rows and footer, byte for byte; the bond (table, run, attempt, rank, incarnation, segment and rows, as
`ranklake.segments.segment.SegmentName.bond` has them) covers what the segment is called. An encrypted segment is
signed first: the MAC is in what is encrypted, and who cannot decrypt cannot check it either. Decision 015 says more.
"""

import hmac
from typing import Final

from ranklake.segments.envelope import Key

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
    """Say whether a MAC, which the footer of a segment holds, is that of these bytes under a key and a bond."""
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
