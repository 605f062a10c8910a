"""Finds changes of tables by other software: foreign commits, columns and properties that differ from the contracts.

A table of an older contract version has not drifted: its log is updated automatically, or `ranklake migrate apply` is
due.
"""

import json
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from deltalake import DeltaTable

from ranklake.lake.contracts.arrow import STATISTICS_PROPERTY, TARGET_FILE_PROPERTY, table_configuration
from ranklake.lake.migrations.registry import added_at, contract_at
from ranklake.lake.migrations.steps.step import MigrationError
from ranklake.lake.tables.commit import APP_ID
from ranklake.lake.tables.table_schema import (
    FOLLOWS,
    added_version_of,
    contract_fields,
    fields_of,
    version_of,
)
from ranklake.lake.tables.tables import latest, reading_log

if TYPE_CHECKING:
    from ranklake.lake.contracts.model import Contract
    from ranklake.lake.store.lake import Lake
    from ranklake.lake.store.store import Store

READER: Final = 1
WRITER: Final = 2
"""Versions of the Delta protocol of our tables. Tables with higher versions use features that readers may lack."""


@dataclass(frozen=True, slots=True)
class Drift:
    """One change of a table by other software.

    Attributes
    ----------
    severity
        ``error`` if rows may be lost, misread or exposed; else ``warning``.
    message, hint
        The change, as a clause, and how to fix it.
    """

    table: str
    severity: str
    message: str
    hint: str

    def plain(self) -> dict[str, str]:
        """Return plain JSON values."""
        return {"table": self.table, "severity": self.severity, "what": self.message, "hint": self.hint}


def drift(lake: "Lake", tables: Collection[str] | None = None, commits: int = 50) -> list[Drift]:
    """Return the changes of some tables (default: all) by other software. Read-only. Raises `LakeUnreachableError`.

    Parameters
    ----------
    commits
        Number of the newest commits of each table to examine.
    """
    contracts = lake.contracts()
    folders = _folders(lake.store)
    result = []
    for name in sorted(folders if tables is None else folders & set(tables)):
        if name not in contracts:
            hint = "name the overlay that has it, or take the folder out of the lake"
            result.append(Drift(name, "warning", "no contract knows the table", hint))
        elif (handle := latest(lake.tables, name)) is not None:
            contract = _as_of(contracts[name], handle)
            for deviations in (
                _columns(handle, contract),
                _properties(handle, contract),
                _commits(lake.store, name, handle, commits),
            ):
                result += [Drift(name, *deviation) for deviation in deviations]
    return result


Deviation = tuple[str, str, str]
"""Severity, message, hint."""


def _folders(store: "Store") -> set[str]:
    place = store.path("tables")
    if not store.fs.exists(place):
        return set()
    names = [path.rstrip("/").rpartition("/")[2] for path in store.fs.ls(place, detail=False)]
    return {name for name in names if store.fs.exists(store.path("tables", name, "_delta_log"))}


def _as_of(contract: "Contract", handle: DeltaTable) -> "Contract":
    """Return the contract, with an overlay's columns, at the versions in the table's log."""
    version, added = version_of(handle), added_version_of(handle)
    is_current = not 0 < version < contract.version
    if is_current and added >= contract.added_version:
        return contract
    try:
        before = contract_at(contract.table, contract.version if is_current else version, contract.overlay)
        if contract.extended is None:
            return before
        own = added_at(contract.table, min(added, contract.added_version), contract.extended)
    except MigrationError:  # there is no snapshot if columns were only added
        return contract
    return replace(before, columns=(*before.columns, *own.columns), retired=(*before.retired, *own.retired))


def _columns(handle: DeltaTable, contract: "Contract") -> Iterator[Deviation]:
    expected = {field["metadata"]["id"]: field for field in contract_fields(contract)}
    names = {field["name"]: id_ for id_, field in expected.items()}
    retired = {str(tombstone.id): tombstone.name for tombstone in contract.retired}
    seen: dict[str, str] = {}
    for field in fields_of(handle.schema()):
        name, id_ = field["name"], str(field["metadata"].get("id", ""))
        if id_ in seen:
            yield (
                "error",
                f"columns {seen[id_]} and {name} have one id, {id_}",
                "restore the table, or drop the later one",
            )
        elif not id_:
            message = "lost what ranklake says of it" if name in names else "is no contract's: another tool added it"
            hint = "restore the table's schema" if name in names else "declare it in an overlay, or drop it there"
            yield "error" if name in names else "warning", f"column {name} {message}", hint
        elif id_ in retired:
            yield "warning", f"column {name} is retired, and still there", "run: ranklake migrate plan"
        elif id_ not in expected:
            yield "warning", f"column {name} (id {id_}) is in no contract here", "name the overlay, or upgrade ranklake"
        else:
            yield from _column(field, expected[id_])
        seen[id_ or name] = name
    if list(handle.metadata().partition_columns) != list(contract.partition):
        message = f"partitioned by {', '.join(handle.metadata().partition_columns) or 'nothing'}"
        yield "error", f"{message}, and not by {', '.join(contract.partition)}", "restore the table from a backup"


def _column(field: Mapping[str, Any], expected: Mapping[str, Any]) -> Iterator[Deviation]:
    hint = "restore the table's schema from before that commit; a contract changes by a migration"
    pairs = [("name", field["name"], expected["name"]), ("type", field["type"], expected["type"])]
    pairs += [(key, field["metadata"].get(key), expected["metadata"].get(key)) for key in ("unit", "class")]
    for key, actual, wanted in pairs:
        if actual != wanted:
            yield "error", f"column {expected['name']}: its {key} is {actual}, and the contract says {wanted}", hint
    if expected["nullable"] and not field["nullable"]:
        yield "warning", f"column {expected['name']} may not be NULL, and the contract lets it", hint


def _properties(handle: DeltaTable, contract: "Contract") -> Iterator[Deviation]:
    with reading_log(handle):
        configuration, protocol = handle.metadata().configuration, handle.protocol()
    expected = table_configuration(contract)
    for key in sorted(configuration.keys() - expected.keys()):
        yield (
            "warning",
            f"property {key} is {configuration[key]}, and ranklake sets none",
            f"unset it, if nobody needs it: {key}",
        )
    for key in sorted(configuration.keys() & expected.keys() - OPERATOR_PROPERTIES - {STATISTICS_PROPERTY}):
        if configuration[key] != expected[key]:
            severity = "error" if key == "delta.enableDeletionVectors" else "warning"
            yield (
                severity,
                f"property {key} is {configuration[key]}, and ranklake sets {expected[key]}",
                f"set it back: {expected[key]}",
            )
    classes = {column.name: column.class_ for column in contract.columns}
    for name in configuration.get(STATISTICS_PROPERTY, "").split(","):
        if name and classes.get(name, "operational") != "operational":
            hint = f"take it out of {STATISTICS_PROPERTY}, and write the files anew that came meanwhile"
            yield "error", f"bounds of {name} ({classes[name]}) go into the log, which outlives its rows", hint
    features = [*(protocol.reader_features or []), *(protocol.writer_features or [])]
    if protocol.min_reader_version > READER or protocol.min_writer_version > WRITER:
        versions = f"reader {protocol.min_reader_version}, writer {protocol.min_writer_version}"
        suffix = f" ({', '.join(dict.fromkeys(features))})" if features else ""
        yield (
            "error",
            f"the table asks for more of Delta: {versions}{suffix}",
            "restore it; readers may find NULL or nothing",
        )


def _commits(store: "Store", table: str, handle: DeltaTable, most: int) -> Iterator[Deviation]:
    for commit in foreign_commits(store, table, handle, most):
        message = f"version {commit.version} ({commit.operation}) is not a commit of ranklake"
        if commit.has_files:
            yield "error", message, "find out who wrote there; 'ranklake status' tells whether rows are missing"
        else:
            yield "warning", message, "find out who wrote there; it changed no rows"


OPERATOR_PROPERTIES: Final = frozenset({TARGET_FILE_PROPERTY})
"""Table properties that an operator may set."""

_BATCH: Final = 100


@dataclass(frozen=True, slots=True)
class Foreign:
    """A commit of other software.

    Attributes
    ----------
    version, operation
        Version in the log, and the operation in its `commitInfo`.
    has_files
        Whether the commit adds or removes files.
    """

    version: int
    operation: str
    has_files: bool


def foreign_commits(store: "Store", table: str, handle: "DeltaTable", most: int) -> Iterator[Foreign]:
    """Yield the commits of other software among the `most` newest ones of a table, oldest first.

    Every commit of ranklake contains a transaction, except those that create a table or update its schema. Commits that
    the log does not contain any more are skipped.
    """
    last = handle.version()
    versions = range(max(0, last + 1 - most), last + 1)
    for at in range(0, len(versions), _BATCH):
        batch = versions[at : at + _BATCH]
        paths = [store.path("tables", table, "_delta_log", f"{version:020}.json") for version in batch]
        contents = store.fs.cat(paths, on_error="omit")
        for version, path in zip(batch, paths, strict=True):
            if path in contents and (commit := foreign(version, contents[path])) is not None:
                yield commit


def foreign(version: int, raw: bytes) -> Foreign | None:
    """Parse the bytes of a commit. Returns None if ranklake wrote it. Never raises, whatever the bytes are."""
    info: dict[str, Any] = {}
    has_files = False
    for line in raw.splitlines():
        has_files |= line.startswith((b'{"add"', b'{"remove"'))
        if line.startswith((b'{"commitInfo"', b'{"txn"')):
            if _part(line, "txn").get("appId") == APP_ID:
                return None
            info = _part(line, "commitInfo") or info
    operation = info.get("operation")
    operation = operation if isinstance(operation, str) else "unknown"
    if version == 0 and operation == "CREATE TABLE":
        return None
    if FOLLOWS in info and not has_files:
        return None
    if operation == "SET TBLPROPERTIES" and _changed_properties(info) <= OPERATOR_PROPERTIES:
        return None
    return Foreign(version, operation, has_files)


def _part(line: bytes, name: str) -> dict[str, Any]:
    """Return the object under a key in a line of a commit; an empty dictionary if there is none."""
    try:
        part = json.loads(line).get(name)
    except (ValueError, RecursionError):
        return {}
    return part if isinstance(part, dict) else {}


def _changed_properties(info: dict[str, Any]) -> set[str]:
    """Return the names of the properties that a commit sets, from its `commitInfo`."""
    try:
        return set(json.loads(info["operationParameters"]["properties"]))
    except (KeyError, TypeError, ValueError, RecursionError):
        return {"unknown"}
