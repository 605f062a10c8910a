"""Compares the schema in a table's Delta log with its contract, and updates the log to a newer contract.

No data file is changed. Readers return the default, or NULL, for a column that a file lacks.

The contract version is stored in the metadata of the column ``date``, which every table has. So one commit of delta-rs
can change columns, files and version together; a table property would need a second commit.
"""

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from deltalake import DeltaTable, Schema
from deltalake.exceptions import CommitFailedError
from deltalake.transaction import CommitProperties, Transaction

from ranklake.lake.contracts.arrow import STATISTICS_PROPERTY, arrow_schema, statistics_columns
from ranklake.lake.contracts.model import Column
from ranklake.lake.store.reachability import LakeError

if TYPE_CHECKING:
    from ranklake.lake.contracts.model import Contract

CONTRACT_VERSION: Final = "contract_version"
"""Key in the metadata of ``date``: the contract version of the table."""

ADDED_VERSION: Final = "added_version"
"""Key in the metadata of ``date``: the version of columns that an overlay adds to a packaged table."""

FOLLOWS: Final = "ranklake.follows"
"""Key in the metadata of commits that update the schema: the new contract version."""

NO_NUMBERS: Final[Mapping[str, int]] = MappingProxyType({})
_DATE: Final = "date"

Fields = list[dict[str, Any]]
"""Fields of a Delta schema, as in the JSON of the log."""


class UnmigratedTableError(LakeError):
    """The table has an older contract version and needs a migration.

    Attributes
    ----------
    table, version, known
        The table, its contract version, and the current version of its contract.
    """

    def __init__(self, table: str, actual: int, known: int, reason: str, where: str) -> None:
        super().__init__(
            f"table {table} has contract version {actual}, and {known} is due: {reason}",
            where=where,
            hint="run: ranklake migrate apply",
        )
        self.table, self.version, self.known = table, actual, known


@dataclass(frozen=True, slots=True)
class Difference:
    """Difference between a contract and the log of its table.

    Attributes
    ----------
    version
        Contract version in the log; 0 if the log has none.
    added_version
        Version in the log of columns that an overlay adds.
    migration
        Why the table needs a migration, as a clause; empty if updating the log is enough.
    """

    version: int
    added_version: int
    migration: str


def version_of(handle: DeltaTable) -> int:
    """Return the contract version in the log; 0 if the log has none."""
    return _version_in(handle, CONTRACT_VERSION, 0)


def added_version_of(handle: DeltaTable) -> int:
    """Return the version in the log of columns that an overlay adds; 1 if the log has none."""
    return _version_in(handle, ADDED_VERSION, 1)


def _version_in(handle: DeltaTable, key: str, default: int) -> int:
    metadata = next((field.metadata for field in handle.schema().fields if field.name == _DATE), {})
    return int(metadata.get(key, default))


def versioned_schema(contract: "Contract") -> Schema:
    """Return the Delta schema of a contract, with its versions in the metadata of ``date``."""
    schema = arrow_schema(contract)
    place = schema.get_field_index(_DATE)
    field = schema.field(place)
    return Schema.from_arrow(schema.set(place, field.with_metadata({**field.metadata, **_versions(contract)})))


def _versions(contract: "Contract") -> dict[str, str]:
    return {CONTRACT_VERSION: str(contract.version), ADDED_VERSION: str(contract.added_version)}


def fields_of(schema: Schema) -> Fields:
    """Return the fields of a Delta schema."""
    fields: Fields = json.loads(schema.to_json())["fields"]
    return fields


def difference(handle: DeltaTable, contract: "Contract") -> Difference | None:
    """Compare a contract with the log of its table. Returns None if nothing needs to change, which is the usual case.

    Columns in the log that the contract lacks belong to another overlay and are kept.
    """
    version, added = version_of(handle), added_version_of(handle)
    schema = handle.schema()
    logged = {field.name: field for field in schema.fields}
    lacking = tuple(name for name in contract.names if name not in logged)
    is_behind = version < contract.version or added < contract.added_version
    if not lacking and not is_behind:
        return None
    migration = _migration_reason(fields_of(schema), contract) if is_behind else ""
    if not migration and (lacking_and_required := [name for name in lacking if contract.column(name).required]):
        migration = f"{lacking_and_required[0]} is required, and stored rows lack it"
    return Difference(version, added, migration)


def refuse_unmigrated(handle: DeltaTable, contract: "Contract") -> Difference | None:
    """Return the result of `difference`. Raises `UnmigratedTableError` if the table needs a migration."""
    gap = difference(handle, contract)
    if gap is not None and gap.migration:
        raise _migration_error(handle, contract, gap.migration)
    return gap


def refuse_misread(handle: DeltaTable, contract: "Contract") -> None:
    """Raise `UnmigratedTableError` if columns of the contract have other names, types or units in the log.

    Reading the files with this contract would return NULL or numbers with another meaning.
    """
    if not _has_versions(handle, contract) and (reason := _migration_reason(fields_of(handle.schema()), contract)):
        raise _migration_error(handle, contract, reason)


def _has_versions(handle: DeltaTable, contract: "Contract") -> bool:
    return (version_of(handle), added_version_of(handle)) == (contract.version, contract.added_version)


def _migration_error(handle: DeltaTable, contract: "Contract", reason: str) -> UnmigratedTableError:
    added = added_version_of(handle)
    if added < contract.added_version:
        name, uri = f"{contract.table} with columns of yours", handle.table_uri
        return UnmigratedTableError(name, added, contract.added_version, reason, uri)
    return UnmigratedTableError(contract.table, version_of(handle), contract.version, reason, handle.table_uri)


def follow(handle: DeltaTable, contract: "Contract") -> bool:
    """Update the log of a table to its contract. Returns True if no update was needed.

    After False, this process or another has changed the table, and the caller must read it again. The commits change no
    files. The version is committed last, so that an interrupted update is completed by the next call. Raises
    `UnmigratedTableError` if the table needs a migration, and the errors of delta-rs.
    """
    gap = refuse_unmigrated(handle, contract)
    if gap is None:
        return True
    version, added = max(gap.version, contract.version), max(gap.added_version, contract.added_version)
    wanted = replace(contract, version=version, added_version=added)
    try:
        add_columns(handle, wanted)
        align(handle, wanted)
        set_versions(handle, wanted)
    except CommitFailedError:  # another process was faster
        pass
    return False


def add_columns(handle: DeltaTable, contract: "Contract") -> None:
    """Add the columns of a contract that the log lacks, in one commit. Raises the errors of delta-rs."""
    logged = {field.name for field in handle.schema().fields}
    lacking = [field for field in versioned_schema(contract).fields if field.name not in logged]
    if lacking:
        handle.alter.add_columns(lacking, commit_properties=_properties(contract))


def align(handle: DeltaTable, contract: "Contract") -> None:
    """Update nullability, metadata and statistics columns of existing columns to the contract.

    Makes one commit for each difference. Raises the errors of delta-rs.
    """
    targets = {field.name: field for field in Schema.from_arrow(arrow_schema(contract)).fields}
    for field in handle.schema().fields:
        wanted = targets.get(field.name)
        if wanted is None:
            continue
        if wanted.nullable and not field.nullable:
            handle.alter.drop_column_not_null(field.name, commit_properties=_properties(contract))
        if not wanted.metadata.items() <= field.metadata.items():
            handle.alter.set_column_metadata(field.name, wanted.metadata, commit_properties=_properties(contract))
    logged = handle.metadata().configuration.get(STATISTICS_PROPERTY, "")
    columns = {field.name for field in handle.schema().fields}
    foreign = (name for name in logged.split(",") if name in columns and name not in contract)
    statistics = ",".join([*statistics_columns(contract), *foreign])
    if statistics != logged:
        handle.alter.set_table_properties({STATISTICS_PROPERTY: statistics}, commit_properties=_properties(contract))


def set_versions(handle: DeltaTable, contract: "Contract", numbers: Mapping[str, int] = NO_NUMBERS) -> None:
    """Commit the versions of a contract, with transaction numbers of applications. Raises the errors of delta-rs."""
    properties = _properties(contract, numbers)
    handle.alter.set_column_metadata(_DATE, _versions(contract), commit_properties=properties)


def _properties(contract: "Contract", numbers: Mapping[str, int] = NO_NUMBERS) -> CommitProperties:
    transactions = [Transaction(name, number) for name, number in numbers.items()]
    return CommitProperties(custom_metadata={FOLLOWS: str(contract.version)}, app_transactions=transactions)


def as_read(handle: DeltaTable | None, contract: "Contract") -> "Contract":
    """Return the contract for reading a table: that of its log if the table needs a migration, else the given one.

    So SQL reads a table before its migration is applied, and older versions of it afterwards.
    """
    if handle is None:
        return contract
    if _has_versions(handle, contract) or not _migration_reason(fields_of(handle.schema()), contract):
        return contract
    logged = replace(contract, version=version_of(handle), added_version=added_version_of(handle))
    return as_logged(fields_of(handle.schema()), logged)


def as_logged(fields: Fields, like: "Contract", names: Collection[str] | None = None) -> "Contract":
    """Return the contract `like` with the columns of a log's fields; with `names`, only those columns."""
    known = {column.id: column for column in like.columns}
    columns = [_column(field, known) for field in fields if names is None or field["name"] in names]
    column_names = {column.name for column in columns}
    return replace(
        like,
        columns=tuple(columns),
        sort=tuple(name for name in like.sort if name in column_names),
        grain=tuple(name for name in like.grain if name in column_names),
        checks=tuple(check for check in like.checks if column_names.issuperset(check.columns)),
        retired=(),
    )


def _column(field: dict[str, Any], known: "Mapping[int, Column]") -> "Column":
    metadata = field["metadata"]
    like = known.get(int(metadata.get("id", 0)))
    default = metadata.get("default")
    return Column(
        int(metadata.get("id", 0)),
        field["name"],
        _type(field["type"]),
        metadata.get("class", like.class_ if like else "secret"),
        metadata.get("doc", ""),
        unit=metadata.get("unit"),
        required=not field["nullable"],
        mask=metadata.get("mask"),
        format=like.format if like else None,
        default=None if default is None else json.loads(default),
    )


def _type(delta_type: object) -> str:
    """Return the contract type of a Delta type."""
    if isinstance(delta_type, dict):
        return "int64_list"
    name = str(delta_type)
    return "decimal" if name.startswith("decimal") else _TYPES[name]


_TYPES: Final = {
    "string": "string",
    "boolean": "bool",
    "integer": "int32",
    "long": "int64",
    "float": "float32",
    "double": "float64",
    "timestamp": "timestamp",
    "date": "date",
}


def contract_fields(contract: "Contract") -> Fields:
    """Return a contract's columns as fields of a Delta schema."""
    return fields_of(Schema.from_arrow(arrow_schema(contract)))


def _migration_reason(fields: Fields, contract: "Contract") -> str:
    """Return why a table with these fields needs a migration to the contract, as a clause; empty if it does not."""
    columns = {str(column.id): column for column in contract.columns}
    types = {field["name"]: field["type"] for field in contract_fields(contract)}
    retired_ids = {str(tombstone.id) for tombstone in contract.retired}
    for field in fields:
        name, id_ = field["name"], str(field["metadata"].get("id", ""))
        column = columns.get(id_)
        if id_ in retired_ids:
            return f"{name} is dropped"
        if column is None:
            continue
        if column.name != name:
            return f"{name} is renamed {column.name}"
        if types[name] != field["type"]:
            return f"{name} changes its type"
        if field["metadata"].get("unit") != column.unit:
            return f"{name} changes its unit"
    return ""
