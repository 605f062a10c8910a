"""A table's schema as its Delta log says it, held against the contract; and the commits by which the log follows.

Nothing here touches a data file: a column that files lack is NULL, or its default, for whoever reads them.

The contract's version stands in the metadata of the column ``date``, which every table has. So one commit of delta-rs
can change columns, files and version together; table properties would need a commit of their own.
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
"""In the metadata of ``date``: version of the contract that the table was made from, last followed, or migrated to."""

ADDED_VERSION: Final = "added_version"
"""Likewise of columns that an overlay adds to a table of ours."""

FOLLOWS: Final = "ranklake.follows"
"""What a commit that follows a contract says of itself: the version."""

NO_NUMBERS: Final[Mapping[str, int]] = MappingProxyType({})
_DATE: Final = "date"

Fields = list[dict[str, Any]]
"""Fields of a Delta schema, as the log's JSON has them."""


class UnmigratedTableError(LakeError):
    """A table of an older contract, which only a migration can bring to the one here.

    Attributes
    ----------
    table, found, known
        Its name, its contract's version, and the version here.
    """

    def __init__(self, table: str, actual: int, known: int, what: str, where: str) -> None:
        super().__init__(
            f"table {table} has contract version {actual}, and {known} is due: {what}",
            where=where,
            hint="run: ranklake migrate apply",
        )
        self.table, self.version, self.known = table, actual, known


@dataclass(frozen=True, slots=True)
class Difference:
    """What sets a contract apart from what the log of its table says.

    Attributes
    ----------
    version, added_version
        The contract's version, as the log says it; 0 where it says none. That of columns that an overlay adds.
    migration
        Why stored rows cannot follow by themselves, in a clause; empty where they can.
    """

    version: int
    added_version: int
    migration: str


def version_of(handle: DeltaTable) -> int:
    """Return the contract version that the log says; 0 where it says none."""
    return _version_in(handle, CONTRACT_VERSION, 0)


def added_version_of(handle: DeltaTable) -> int:
    """Return the version that the log says of columns that an overlay adds; the first where it says none."""
    return _version_in(handle, ADDED_VERSION, 1)


def _version_in(handle: DeltaTable, key: str, default: int) -> int:
    metadata = next((field.metadata for field in handle.schema().fields if field.name == _DATE), {})
    return int(metadata.get(key, default))


def versioned_schema(contract: "Contract") -> Schema:
    """Return the Delta schema of a contract, with its versions."""
    schema = arrow_schema(contract)
    place = schema.get_field_index(_DATE)
    field = schema.field(place)
    return Schema.from_arrow(schema.set(place, field.with_metadata({**field.metadata, **_versions(contract)})))


def _versions(contract: "Contract") -> dict[str, str]:
    return {CONTRACT_VERSION: str(contract.version), ADDED_VERSION: str(contract.added_version)}


def fields_of(schema: Schema) -> Fields:
    """Return a schema's fields."""
    fields: Fields = json.loads(schema.to_json())["fields"]
    return fields


def difference(handle: DeltaTable, contract: "Contract") -> Difference | None:
    """Hold a contract against the log of its table; None where there is nothing to do, as nearly always.

    What the log has beyond a contract of its own version is another's (an overlay's) and stays.
    """
    version, added = version_of(handle), added_version_of(handle)
    schema = handle.schema()
    there = {field.name: field for field in schema.fields}
    lacking = tuple(name for name in contract.names if name not in there)
    is_behind = version < contract.version or added < contract.added_version
    if not lacking and not is_behind:
        return None
    migration = _not_by_itself(fields_of(schema), contract) if is_behind else ""
    if not migration and (lacking_and_required := [name for name in lacking if contract.column(name).required]):
        migration = f"{lacking_and_required[0]} is required, and stored rows lack it"
    return Difference(version, added, migration)


def refuse_unmigrated(handle: DeltaTable, contract: "Contract") -> Difference | None:
    """Return what `difference` does. Raises `UnmigratedTableError` where only a migration helps."""
    gap = difference(handle, contract)
    if gap is not None and gap.migration:
        raise _migration_error(handle, contract, gap.migration)
    return gap


def refuse_misread(handle: DeltaTable, contract: "Contract") -> None:
    """Raise `UnmigratedTableError` where the log gives columns of the contract other names, types or units.

    Whoever read the files by the contract would find NULL, or numbers that mean something else.
    """
    if not _is_at(handle, contract) and (message := _not_by_itself(fields_of(handle.schema()), contract)):
        raise _migration_error(handle, contract, message)


def _is_at(handle: DeltaTable, contract: "Contract") -> bool:
    return (version_of(handle), added_version_of(handle)) == (contract.version, contract.added_version)


def _migration_error(handle: DeltaTable, contract: "Contract", what: str) -> UnmigratedTableError:
    added = added_version_of(handle)
    if added < contract.added_version:
        where, uri = f"{contract.table} with columns of yours", handle.table_uri
        return UnmigratedTableError(where, added, contract.added_version, what, uri)
    return UnmigratedTableError(contract.table, version_of(handle), contract.version, what, handle.table_uri)


def follow(handle: DeltaTable, contract: "Contract") -> bool:
    """Let the log of a table follow its contract; return whether it did not have to.

    After False the table has moved on, by these commits or another's: look again. They name no file, and the one that
    says the version is the last, so whoever dies in between leaves the rest to the next. Raises `UnmigratedTableError`
    where stored rows cannot follow by themselves, and what delta-rs raises.
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
    except CommitFailedError:  # another was faster
        pass
    return False


def add_columns(handle: DeltaTable, contract: "Contract") -> None:
    """Add the columns of a contract that the log lacks, in one commit. Raises what delta-rs raises."""
    there = {field.name for field in handle.schema().fields}
    lacking = [field for field in versioned_schema(contract).fields if field.name not in there]
    if lacking:
        handle.alter.add_columns(lacking, commit_properties=_properties(contract))


def align(handle: DeltaTable, contract: "Contract") -> None:
    """Bring along what the log says of columns that are there: nullability, metadata, and whose bounds it keeps.

    A commit for each of these that differs. Raises what delta-rs raises.
    """
    meant = {field.name: field for field in Schema.from_arrow(arrow_schema(contract)).fields}
    for field in handle.schema().fields:
        wanted = meant.get(field.name)
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
    """Log the versions of a contract, in one commit, with numbers of applications. Raises what delta-rs raises."""
    properties = _properties(contract, numbers)
    handle.alter.set_column_metadata(_DATE, _versions(contract), commit_properties=properties)


def _properties(contract: "Contract", numbers: Mapping[str, int] = NO_NUMBERS) -> CommitProperties:
    transactions = [Transaction(name, number) for name, number in numbers.items()]
    return CommitProperties(custom_metadata={FOLLOWS: str(contract.version)}, app_transactions=transactions)


def as_read(handle: DeltaTable | None, contract: "Contract") -> "Contract":
    """Return the contract by which a table of this handle is read: the log's own where only a migration parts the two.

    So SQL sees a table as it is, before its migration is applied and, by time travel, ever after.
    """
    if handle is None:
        return contract
    if _is_at(handle, contract) or not _not_by_itself(fields_of(handle.schema()), contract):
        return contract
    then = replace(contract, version=version_of(handle), added_version=added_version_of(handle))
    return as_logged(fields_of(handle.schema()), then)


def as_logged(fields: Fields, like: "Contract", names: Collection[str] | None = None) -> "Contract":
    """Return a contract with the columns that a log says, some or all, and all else like another's."""
    known = {column.id: column for column in like.columns}
    columns = [_column(field, known) for field in fields if names is None or field["name"] in names]
    there = {column.name for column in columns}
    return replace(
        like,
        columns=tuple(columns),
        sort=tuple(name for name in like.sort if name in there),
        grain=tuple(name for name in like.grain if name in there),
        checks=tuple(check for check in like.checks if there.issuperset(check.columns)),
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
    """Return the contract's name of a Delta type."""
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


def _not_by_itself(fields: Fields, contract: "Contract") -> str:
    """Return why stored rows cannot follow a newer contract by themselves; empty where they can."""
    meant = {str(column.id): column for column in contract.columns}
    types = {field["name"]: field["type"] for field in contract_fields(contract)}
    gone = {str(one.id) for one in contract.retired}
    for field in fields:
        name, id_ = field["name"], str(field["metadata"].get("id", ""))
        column = meant.get(id_)
        if id_ in gone:
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
