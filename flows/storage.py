"""Options of object stores: where they are, and what they are when a task needs them.

Prefect writes the parameters of flows into its database in clear, so what has credentials in it is never one.
A reference is one as `ranklake.segments.references` reads it, to a JSON object of options or to a ``ranklake.toml``,
whose section [storage] counts:

    file:/etc/ranklake/ranklake.toml
    env:NAME
    command:/path/to/helper argument
"""

import json
import tomllib

from ranklake.errors import RanklakeError
from ranklake.segments.references import SecretError, is_reference, read_reference

REFERENCE_HINT = "name a ranklake.toml or a JSON object of options by file:/path, env:NAME or command:/path/to/helper"


class StorageReferenceError(RanklakeError):
    """A reference that gives no options. Nothing that was read stands in the message."""


def storage_options(reference: str) -> dict[str, str]:
    """Return the options that a reference stands for now; none for an empty one. Raises `StorageReferenceError`."""
    if not reference:
        return {}
    if not is_reference(reference):
        raise StorageReferenceError("the reference to storage options is not valid", hint=REFERENCE_HINT)
    try:
        text, where = read_reference(reference, "storage options", "command for storage options")
    except SecretError as error:
        raise StorageReferenceError(error.what, where=error.where, hint=REFERENCE_HINT) from None
    try:
        result = json.loads(text) if text.lstrip().startswith("{") else tomllib.loads(text).get("storage", {})
    except (ValueError, RecursionError):
        result = None
    if not isinstance(result, dict):
        raise StorageReferenceError("no storage options can be read", where=where, hint=REFERENCE_HINT)
    return {str(name): str(value) for name, value in result.items()}
