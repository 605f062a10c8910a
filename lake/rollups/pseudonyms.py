"""Pseudonyms of users in rollups, by a keyed hash: without the key nobody can tell or guess the user.

The key comes from where the environment variable RANKLAKE_PSEUDONYM_KEY says: ``file:``, ``env:`` or ``command:``, as
for encrypted segments (`ranklake.segments.keys`). Without it rollups hold users' names as they are told.
"""

import hashlib
import hmac
import os
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from ranklake.errors import RanklakeError
from ranklake.segments.envelope import MissingKeyError
from ranklake.segments.keys import read_keyring

if TYPE_CHECKING:
    from ranklake.segments.envelope import Key

KEY_VARIABLE: Final = "RANKLAKE_PSEUDONYM_KEY"
"""Environment variable with the source of the key."""
_PURPOSE: Final = b"ranklake pseudonym 1: "
_DIGITS: Final = 16


def pseudonym(key: "Key", name: str) -> str:
    """Return a user's pseudonym: ``u-`` and 64 bits of a keyed hash, in hex.

    Notes
    -----
    SHA-256 over one block of key and the SHA-256 over another and the name: HMAC (RFC 2104) with two derived keys, in
    the form that SQL can compute as well. A hash without a key would be undone by trying all names of a company.
    """
    inner, outer = _blocks(key)
    told = hashlib.sha256((inner + name).encode()).hexdigest()
    return "u-" + hashlib.sha256((outer + told).encode()).hexdigest()[:_DIGITS]


def pseudonym_key() -> "Key | None":
    """Return the key that is configured; None without one.

    Raises
    ------
    RanklakeError
        The variable is set, and gives no key: names in clear would be no answer to that.
    """
    source = os.environ.get(KEY_VARIABLE, "")
    if not source:
        return None
    try:
        return read_keyring(source).active
    except MissingKeyError as error:
        hint = "give file:/path, env:NAME or command:/path/to/helper, with 32 bytes in base64 or hex"
        raise RanklakeError(error.what, where=KEY_VARIABLE, hint=hint) from None


def pseudonym_table() -> pa.Table:
    """Return both blocks of the key for SQL, in one row; NULL without a key."""
    key = pseudonym_key()
    inner, outer = (None, None) if key is None else _blocks(key)
    return pa.table({"inner_key": pa.array([inner], pa.string()), "outer_key": pa.array([outer], pa.string())})


def _blocks(key: "Key") -> tuple[str, str]:
    """Return two derived keys as text; each is a whole block of SHA-256."""
    inner, outer = (hmac.digest(key.secret, _PURPOSE + part, "sha256").hex() for part in (b"inner", b"outer"))
    return inner, outer
