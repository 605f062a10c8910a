"""Options of object stores: where they are, and what they are when a task needs them.

Prefect writes the parameters of flows into its database in clear, so what has credentials in it is never one.
A reference is

    file:/etc/ranklake/ranklake.toml   the section [storage] of that file
    env:NAME                           that variable, a JSON object of options
"""

import json
import os
import tomllib
from pathlib import Path

from ranklake.errors import RanklakeError

MEND = "name a place: file:/path/to/ranklake.toml for its section [storage], or env:NAME for a JSON object"


class StorageReferenceError(RanklakeError):
    """A reference that gives no options. Nothing that was read stands in the message."""


def storage_options(reference: str) -> dict[str, str]:
    """Return the options that a reference stands for now; none for an empty one. Raises `StorageReferenceError`."""
    kind, _, place = reference.partition(":")
    if not reference:
        return {}
    if kind not in _READERS or not place:
        raise StorageReferenceError("the reference to storage options is not understood", mend=MEND)
    try:
        found = _READERS[kind](place)
    except (OSError, ValueError, KeyError):
        found = None
    if not isinstance(found, dict):
        raise StorageReferenceError("no storage options can be read", where=f"{kind}:{place}", mend=MEND)
    return {str(name): str(value) for name, value in found.items()}


def _of_file(place: str) -> object:
    return tomllib.loads(Path(place).read_text(encoding="utf-8")).get("storage", {})


def _of_variable(place: str) -> object:
    return json.loads(os.environ[place])


_READERS = {"file": _of_file, "env": _of_variable}
