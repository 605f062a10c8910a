"""Who wrote the commits of a table's log, told by the lines that say so, without reading what they commit."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from ranklake.lake.contracts.delta import TARGET_FILE_PROPERTY
from ranklake.lake.tables.commit import APP_ID
from ranklake.lake.tables.table_schema import FOLLOWS

if TYPE_CHECKING:
    from deltalake import DeltaTable

    from ranklake.lake.store.store import Lake

OWN_CHOICE: Final = frozenset({TARGET_FILE_PROPERTY})
"""Properties that an operator may set to another value."""

_AT_ONCE: Final = 100


@dataclass(frozen=True, slots=True)
class Foreign:
    """A commit that ranklake did not write.

    Attributes
    ----------
    version, operation
        Its number in the log, and what it says that it did.
    has_files
        Whether files came or went.
    """

    version: int
    operation: str
    has_files: bool


def foreign_commits(lake: "Lake", table: str, handle: "DeltaTable", most: int) -> Iterator[Foreign]:
    """Yield those of the newest commits of a table that ranklake did not write, oldest first.

    Every commit of ranklake has a transaction of its own, but for the one that makes a table, and the one by which it
    follows its contract. Commits that were cleaned up meanwhile are passed over.
    """
    last = handle.version()
    versions = range(max(0, last + 1 - most), last + 1)
    for at in range(0, len(versions), _AT_ONCE):
        some = versions[at : at + _AT_ONCE]
        paths = [lake.path("tables", table, "_delta_log", f"{version:020}.json") for version in some]
        found = lake.fs.cat(paths, on_error="omit")
        for version, path in zip(some, paths, strict=True):
            if path in found and (one := foreign(version, found[path])) is not None:
                yield one


def foreign(version: int, raw: bytes) -> Foreign | None:
    """Return what a commit's bytes say of it if ranklake did not write it; None if it did. Nothing in them raises."""
    told: dict[str, Any] = {}
    has_files = False
    for line in raw.splitlines():
        has_files |= line.startswith((b'{"add"', b'{"remove"'))
        if line.startswith((b'{"commitInfo"', b'{"txn"')):
            if _part(line, "txn").get("appId") == APP_ID:
                return None
            told = _part(line, "commitInfo") or told
    operation = told.get("operation")
    operation = operation if isinstance(operation, str) else "unknown"
    if version == 0 and operation == "CREATE TABLE":
        return None
    if FOLLOWS in told and not has_files:
        return None
    if operation == "SET TBLPROPERTIES" and _properties(told) <= OWN_CHOICE:
        return None
    return Foreign(version, operation, has_files)


def _part(line: bytes, name: str) -> dict[str, Any]:
    """Return what a line of a commit says under a name; nothing where it is no object: others write, too."""
    try:
        found = json.loads(line).get(name)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _properties(told: dict[str, Any]) -> set[str]:
    """Return which properties a commit says that it set."""
    try:
        return set(json.loads(told["operationParameters"]["properties"]))
    except (KeyError, TypeError, ValueError, RecursionError):
        return {"unknown"}
