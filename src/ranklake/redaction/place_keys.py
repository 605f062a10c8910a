"""Keys of places: a lake's or a spool's address, as other programs may see it."""

import hashlib
import re
from typing import Final

from ranklake.redaction.redact import has_credential

_LONGEST: Final = 400
_UNFIT: Final = re.compile(r"[^A-Za-z0-9/._~=:+-]")


def place_key(uri: str) -> str:
    """Return the key of a place, a valid URI: stable, without user info, query or credentials.

    A place that cannot be written without one is replaced by a digest.

    >>> place_key("s3://key@bucket/lake?x=1")
    's3://bucket/lake'
    """
    head, _, rest = uri.partition("://") if "://" in uri else ("file", "", uri)
    host, slash, path = rest.partition("?")[0].partition("/")
    bare = f"{host.rpartition('@')[2]}{slash}{path}".rstrip("/")
    digest = hashlib.sha256(bare.encode()).hexdigest()
    cleaned = _UNFIT.sub("_", bare)
    key = f"{head.lower()}://{cleaned}" + ("" if cleaned == bare else f"~{digest[:8]}")
    return f"ranklake://{digest[:16]}" if has_credential(key) or len(key) > _LONGEST else key
