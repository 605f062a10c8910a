"""Names of places and tables for other programs: the same for each run, without what is a credential."""

import hashlib
import re
from typing import Final

from ranklake.redaction.redact import has_credential

_LONGEST: Final = 400
_UNFIT: Final = re.compile(r"[^A-Za-z0-9/._~=:+-]")
"""What no key of an asset may hold, and more."""


def place_key(uri: str) -> str:
    """Return the key of a place, a valid URI: the same for each run, without user info, query or what is a credential.

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


def dataset_name(place: str, table: str = "") -> tuple[str, str]:
    """Return namespace and name of a table, or of the place itself, as OpenLineage names them.

    >>> dataset_name("s3://bucket/lake", "steps"), dataset_name("/srv/spool")
    (('s3://bucket', 'lake/tables/steps'), ('file', '/srv/spool'))
    """
    scheme, _, rest = place_key(place).partition("://")
    host, _, path = rest.partition("/")
    below = f"/tables/{table}" if table else ""
    return ("file", f"/{path}{below}") if scheme == "file" else (f"{scheme}://{host}", f"{path}{below}".lstrip("/"))
