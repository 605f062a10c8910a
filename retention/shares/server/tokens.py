"""Tokens of profiles and pages, and signatures of addresses of files and artifacts: what a keyed hash says, for a time.

    <base64 of JSON>.<HMAC-SHA256 under a key of [shares] key, for this purpose alone>

Nothing is stored: whoever has the key can make them, and nobody else. To end all of them, change the key.
"""

import base64
import binascii
import hmac
import json
from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final

from ranklake.errors import RanklakeError
from ranklake.segments.envelope import Key, MissingKeyError
from ranklake.segments.keys import Keyring, read_keyring

PROFILE: Final = b"ranklake sharing 1: profile"
FILE: Final = b"ranklake sharing 1: file"
LINK: Final = b"ranklake sharing 1: artifact"
VIEW: Final = b"ranklake sharing 1: pages"
_MOST: Final = 4096


class TokenError(RanklakeError):
    """A token that nobody made here, or that expired."""


def sharing_keys(source: str) -> Keyring:
    """Return the keys of ``[shares] key``. Raises `TokenError` where there are none."""
    if not source:
        hint = "name a keyring: file:/path, env:NAME or command:/path (openssl rand -base64 32)"
        raise TokenError("no key to make profiles with", where="[shares] key", hint=hint)
    try:
        return read_keyring(source)
    except MissingKeyError as error:
        raise TokenError(error.what, where=f"[shares] key: {error.where}", hint=error.hint) from None


def seal_token(keys: Keyring, purpose: bytes, facts: Mapping[str, Any]) -> str:
    """Return a token that says some facts, sealed with the newest key."""
    body = _base64_text(json.dumps(dict(facts), sort_keys=True, separators=(",", ":")).encode())
    return f"{body}.{_seal(keys.active, purpose, body)}"


def open_token(keys: Keyring, purpose: bytes, token: str, now: datetime) -> dict[str, Any]:
    """Return what a token says. Raises `TokenError` for one that no key made for this purpose, or that expired."""
    body, _, seal = token.partition(".")
    genuine = (
        len(token) <= _MOST
        and token.isascii()
        and any(hmac.compare_digest(_seal(key, purpose, body), seal) for key in keys.keys)
    )
    if not genuine:
        raise TokenError("this token was not made here")
    try:
        facts: dict[str, Any] = json.loads(base64.urlsafe_b64decode(body + "=" * (-len(body) % 4)))
        ends = datetime.fromisoformat(facts["until"])
        is_over = now >= ends  # a time without a zone cannot be compared
    except (ValueError, KeyError, TypeError, binascii.Error):
        raise TokenError("this token was not made here") from None
    if is_over:
        raise TokenError(f"this token expired at {ends:%Y-%m-%d %H:%M} UTC")
    return facts


def _seal(key: Key, purpose: bytes, body: str) -> str:
    return _base64_text(hmac.digest(hmac.digest(key.secret, purpose, "sha256"), body.encode(), "sha256"))


def _base64_text(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()
