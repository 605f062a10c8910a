"""Columns under keys of subjects: their configuration, and the sealing and unsealing of their values."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from ranklake.errors import did_you_mean
from ranklake.lake.store.reachability import LakeError
from ranklake.retention.subjects.keys import (
    Lineage,
    RunSubject,
    SubjectName,
    add_columns,
    current_id,
    sealed_by,
    unseal_text,
)
from ranklake.retention.subjects.store import KeyStore

if TYPE_CHECKING:
    from ranklake.lake.contracts.model import Column, Contract
    from ranklake.lake.store.lake import Lake
    from ranklake.lake.store.store import Store

_REFERENCE: Final = re.compile(r"([a-z_][a-z0-9_]*)\.([a-z_][a-z0-9_]*)(?: by ([a-z_][a-z0-9_]*))?")
_CLASSES: Final = frozenset({"pseudonymous", "personal"})


class SubjectColumnError(LakeError):
    """A column under ``[subjects]`` cannot be stored under keys of subjects."""


@dataclass(frozen=True, slots=True)
class SealedColumn:
    """A sealed column, and the column that names the subject of each value (`by`): itself or another.

    If `by` is ``run``, the run is the subject.
    """

    table: str
    name: str
    by: str


def sealed_columns(
    contracts: Mapping[str, "Contract"], references: Sequence[str], lineage: Lineage | None = None
) -> tuple[SealedColumn, ...]:
    """Return the configured columns with their current names. With `lineage`, former names are accepted.

    Raises `SubjectColumnError` for the first column that cannot be stored under keys.
    """
    return tuple(_column(contracts, reference, lineage) for reference in references)


def _column(contracts: Mapping[str, "Contract"], reference: str, lineage: Lineage | None) -> SealedColumn:
    where, hint = "[subjects] columns", "write table.column, or table.column by another-column"
    match = _REFERENCE.fullmatch(" ".join(reference.split()))
    if match is None:
        raise SubjectColumnError(f"{reference!r} is no column", where=where, hint=hint)
    by_name = (contract for contract in contracts.values() if contract.called == match[1])
    contract = contracts.get(match[1]) or next(by_name, None)
    if contract is None:
        raise SubjectColumnError(f"no table {match[1]!r}", where=where, hint=did_you_mean(match[1], contracts))
    table = contract.table
    name, by = (_current_name(contract, column, lineage) for column in (match[2], match[3] or match[2]))
    column = contract.column(name)
    message = unsealable_reason(contract, column)
    if not message and contract.column(by).type != "string":
        message = f"{table}.{by} is no text"
    if message:
        raise SubjectColumnError(message, where=where, hint="leave it out; 'ranklake erase' takes its rows as they are")
    return SealedColumn(table, name, by)


def _current_name(contract: "Contract", configured: str, lineage: Lineage | None) -> str:
    """Return the current name of a column. Raises `SubjectColumnError` if it has none."""
    name = configured if lineage is None else lineage.current_name(contract, configured)
    if name in contract:
        return name
    message, hint = f"{contract.table} has no column {configured!r}", did_you_mean(configured, contract.names)
    if lineage is not None and lineage.is_gone(contract, configured):
        message = f"{contract.table}.{configured} is dropped"
        hint = "take it out; what took its place is in clear unless you name that"
    raise SubjectColumnError(message, where="[subjects] columns", hint=hint)


def unsealable_reason(contract: "Contract", column: "Column") -> str:
    """Return why a column cannot be stored under keys of subjects, as a clause; empty if it can."""
    name = f"{contract.table}.{column.name}"
    rules = {
        f"{contract.table} is not recorded by ranks": not contract.envelope,
        f"{name} is {column.class_}, and tells of nobody": column.class_ not in _CLASSES,
        f"{name} is no text": column.type != "string",
        f"{name} is {column.format}, and would not be any more": column.format is not None,
        f"{name} has checks, which sealed values would not pass": bool(column.checks),
        f"{name} tells rows apart": column.name in contract.grain,
    }
    return next((text for text, is_broken in rules.items() if is_broken), "")


def stored_under_keys(store: "Store", contract: "Contract") -> Mapping[int, str]:
    """Return the columns of a table that were ever stored under keys: ``table.column`` of that time by id."""
    return Lineage(store).stored_columns(contract)


def columns_in_clear(lake: "Lake", contract: "Contract") -> frozenset[int]:
    """Return the ids of a table's columns that the configuration stores in clear again."""
    return _clear_ids(lake, contract, Lineage(lake.store))


def _clear_ids(lake: "Lake", contract: "Contract", lineage: Lineage) -> frozenset[int]:
    references = (reference.partition(".") for reference in lake.config.subjects.clear)
    names = [name for table, _, name in references if table in {contract.table, contract.name}]
    return frozenset().union(*(current_id(contract, lineage.current_name(contract, name)) for name in names))


def sealer(lake: "Lake", contract: "Contract") -> Callable[[pa.Table], pa.Table] | None:
    """Return a function that seals rows of a table before they are stored; None if the table has no sealed columns.

    Raises `SubjectKeysError` if columns of the table were stored under keys and this process has none. Raises
    `SubjectColumnError` if the configuration lacks such a column, since its values would be stored in clear, or if its
    former name is now another column's. Raises `ranklake.segments.envelope.MissingKeyError`.
    """
    references, contracts, lineage = lake.config.subjects.columns, lake.contracts(), Lineage(lake.store)
    clear = _clear_ids(lake, contract, lineage)
    required = {name: column for name, column in lineage.sealed_columns(contract).items() if column.id not in clear}
    if required and not lake.config.subjects.keys:
        KeyStore(lake)  # raises an error that names what is missing
    configured = sealed_columns(contracts, references, lineage)
    names = {f"{column.table}.{column.name}" for column in configured}
    clear_names = [column.name for column in contract.columns if column.id in clear]
    if both := sorted(name for name in clear_names if f"{contract.table}.{name}" in names):
        message = f"{contract.table}.{both[0]} is to be under keys and in clear"
        raise SubjectColumnError(message, where="[subjects] clear", hint="name it in one of columns and clear")
    if lacking := sorted(required.keys() - names):
        former = lineage.stored_columns(contract)[required[lacking[0]].id]
        message = f"{lacking[0]} was stored under keys{'' if former == lacking[0] else f', as {former},'}"
        hint = "name it; if it is to be in clear from now on, name it in clear"
        raise SubjectColumnError(f"{message} and would be stored in clear", where="[subjects] columns", hint=hint)
    of_table = [column for column in configured if column.table == contract.table]
    if not of_table:
        return None
    store = KeyStore(lake)
    pairs = [(column.table, name) for column in configured for name in (column.name, column.by)]
    ids = {f"{table}.{name}": current_id(contracts[table], name) for table, name in pairs}
    add_columns(lake.store, {f"{column.table}.{column.name}": column.by for column in configured}, ids)
    return lambda rows: sealed_rows(rows, of_table, store)


def sealed_rows(rows: pa.Table, columns: Sequence[SealedColumn], store: KeyStore) -> pa.Table:
    """Return rows with columns sealed, each value under the key of its subject, or of the run if it names none.

    NULL and sealed values are unchanged.
    """
    owners = {column.by: _texts(rows, column.by) for column in columns}
    runs = _texts(rows, "run")
    for column in columns:
        index = rows.schema.get_field_index(column.name)
        if index < 0 or pa.types.is_null(rows.schema.field(index).type):
            continue
        texts = _texts(rows, column.name)
        cache: dict[tuple[SubjectName, str], str] = {}
        sealed: list[str | None] = []
        for text, owner, run in zip(texts, owners[column.by], runs, strict=True):
            if text is None:
                sealed.append(None)
                continue
            has_owner = owner and owner.strip() and column.by != "run"
            subject: SubjectName = owner if has_owner else RunSubject(run or "")
            if (subject, text) not in cache:
                cache[subject, text] = text if _is_sealed(text, store) else store.of(subject).seal(text)
            sealed.append(cache[subject, text])
        rows = rows.set_column(index, column.name, pa.array(sealed, pa.string()))
    return rows


def _texts(rows: pa.Table, name: str) -> list[Any]:
    """Return a column's texts; NULLs if the column is missing."""
    return rows[name].to_pylist() if name in rows.column_names else [None] * rows.num_rows


def _is_sealed(text: str, store: KeyStore) -> bool:
    key_id = sealed_by(text)
    return key_id is not None and (key_id in store.forgotten or key_id in store.ids)


def unsealer(lake: "Lake") -> Callable[[pa.Array], pa.Array]:
    """Return a function that opens sealed texts: NULL if the key is deleted or lost; other texts are unchanged.

    Raises the errors of `KeyStore`.
    """
    keys = KeyStore(lake).by_id()

    def clear(text: str | None) -> str | None:
        return text if text is None or sealed_by(text) is None else unseal_text(text, keys)

    def unseal(values: pa.Array) -> pa.Array:
        dictionary = values.cast(pa.string()).dictionary_encode()
        texts = pa.array([clear(text) for text in dictionary.dictionary.to_pylist()], pa.string())
        return texts.take(dictionary.indices)

    return unseal
