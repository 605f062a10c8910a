"""Columns under keys of subjects: which they are, the subject of each value, sealing and unsealing their rows."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from ranklake.errors import did_you_mean
from ranklake.lake.store.reachability import LakeError
from ranklake.retention.subjects.keys import Lineage, RunSubject, SubjectName, know, sealed_by, today, unseal_text
from ranklake.retention.subjects.store import KeyStore

if TYPE_CHECKING:
    from ranklake.lake.contracts.model import Column, Contract
    from ranklake.lake.store.lake import Lake
    from ranklake.lake.store.store import Store

_REFERENCE: Final = re.compile(r"([a-z_][a-z0-9_]*)\.([a-z_][a-z0-9_]*)(?: by ([a-z_][a-z0-9_]*))?")
_CLASSES: Final = frozenset({"pseudonymous", "personal"})


class SubjectColumnError(LakeError):
    """A column under ``[subjects]`` that cannot be stored under keys of subjects."""


@dataclass(frozen=True, slots=True)
class SealedColumn:
    """A sealed column, and the column that names the subject of each value: itself, or another of the row.

    With ``run`` as the latter, the run is the subject.
    """

    table: str
    name: str
    by: str


def sealed_columns(
    contracts: Mapping[str, "Contract"], references: Sequence[str], lineage: Lineage | None = None
) -> tuple[SealedColumn, ...]:
    """Return the columns that a configuration names, under their names of today.

    Raises `SubjectColumnError` for the first that cannot be stored under keys. With `lineage`, former names count.
    """
    return tuple(_column(contracts, one, lineage) for one in references)


def _column(contracts: Mapping[str, "Contract"], reference: str, lineage: Lineage | None) -> SealedColumn:
    where, hint = "[subjects] columns", "write table.column, or table.column by another-column"
    match = _REFERENCE.fullmatch(" ".join(reference.split()))
    if match is None:
        raise SubjectColumnError(f"{reference!r} is no column", where=where, hint=hint)
    contract = contracts.get(match[1]) or next((one for one in contracts.values() if one.called == match[1]), None)
    if contract is None:
        raise SubjectColumnError(f"no table {match[1]!r}", where=where, hint=did_you_mean(match[1], contracts))
    table = contract.table
    name, by = (_current_name(contract, one, lineage) for one in (match[2], match[3] or match[2]))
    column = contract.column(name)
    message = unsealable_reason(contract, column)
    if not message and contract.column(by).type != "string":
        message = f"{table}.{by} is no text"
    if message:
        raise SubjectColumnError(message, where=where, hint="leave it out; 'ranklake erase' takes its rows as they are")
    return SealedColumn(table, name, by)


def _current_name(contract: "Contract", configured: str, lineage: Lineage | None) -> str:
    """Return the name of today of a column. Raises `SubjectColumnError` where it has none."""
    name = configured if lineage is None else lineage.current_name(contract, configured)
    if name in contract:
        return name
    message, hint = f"{contract.table} has no column {configured!r}", did_you_mean(configured, contract.names)
    if lineage is not None and lineage.is_gone(contract, configured):
        message = f"{contract.table}.{configured} is dropped"
        hint = "take it out; what took its place is in clear unless you name that"
    raise SubjectColumnError(message, where="[subjects] columns", hint=hint)


def unsealable_reason(contract: "Contract", column: "Column") -> str:
    """Return why a column cannot be stored under keys of subjects, in a clause; empty where it can."""
    name = f"{contract.table}.{column.name}"
    faults = {
        f"{contract.table} is not recorded by ranks": not contract.envelope,
        f"{name} is {column.class_}, and tells of nobody": column.class_ not in _CLASSES,
        f"{name} is no text": column.type != "string",
        f"{name} is {column.format}, and would not be any more": column.format is not None,
        f"{name} has checks, which sealed values would not pass": bool(column.checks),
        f"{name} tells rows apart": column.name in contract.grain,
    }
    return next((what for what, wrong in faults.items() if wrong), "")


def stored_under_keys(store: "Store", contract: "Contract") -> Mapping[int, str]:
    """Return the columns of a table that were ever stored under keys, by id, each with its name of then."""
    return Lineage(store).stored_columns(contract)


def columns_in_clear(lake: "Lake", contract: "Contract") -> frozenset[int]:
    """Return the ids of the columns of a table that a configuration wants in clear from now on."""
    return in_clear(lake, contract, Lineage(lake.store))


def in_clear(lake: "Lake", contract: "Contract", lineage: Lineage) -> frozenset[int]:
    """Return the ids of the columns of a table that a configuration wants in clear from now on."""
    references = (one.partition(".") for one in lake.config.subjects.clear)
    mine = [name for table, _, name in references if table in {contract.table, contract.name}]
    return frozenset().union(*(today(contract, lineage.current_name(contract, name)) for name in mine))


def sealer(lake: "Lake", contract: "Contract") -> Callable[[pa.Table], pa.Table] | None:
    """Return a function that seals rows of a table before they are stored; None where it has no such columns.

    Raises `SubjectKeysError` where columns of the table were stored under keys, and this process has none, and
    `SubjectColumnError` where its configuration lacks one of them, or calls it as another column is called today: it
    would store in clear what others seal. Raises `ranklake.segments.envelope.MissingKeyError`.
    """
    references, contracts, lineage = lake.config.subjects.columns, lake.contracts(), Lineage(lake.store)
    clear = in_clear(lake, contract, lineage)
    before = {name: one for name, one in lineage.sealed_columns(contract).items() if one.id not in clear}
    if before and not lake.config.subjects.keys:
        KeyStore(lake)  # which says what is missing
    every = sealed_columns(contracts, references, lineage)
    named = {f"{one.table}.{one.name}" for one in every}
    if both := sorted(
        column.name for column in contract.columns if column.id in clear and f"{contract.table}.{column.name}" in named
    ):
        message = f"{contract.table}.{both[0]} is to be under keys and in clear"
        raise SubjectColumnError(message, where="[subjects] clear", hint="name it in one of columns and clear")
    if lacking := sorted(before.keys() - named):
        then = lineage.stored_columns(contract)[before[lacking[0]].id]
        message = f"{lacking[0]} was stored under keys{'' if then == lacking[0] else f', as {then},'}"
        hint = "name it; if it is to be in clear from now on, name it in clear"
        raise SubjectColumnError(f"{message} and would be stored in clear", where="[subjects] columns", hint=hint)
    mine = [one for one in every if one.table == contract.table]
    if not mine:
        return None
    store = KeyStore(lake)
    ids = {f"{one.table}.{name}": today(contracts[one.table], name) for one in every for name in (one.name, one.by)}
    know(lake.store, {f"{one.table}.{one.name}": one.by for one in every}, ids)
    return lambda rows: sealed_rows(rows, mine, store)


def sealed_rows(rows: pa.Table, columns: Sequence[SealedColumn], store: KeyStore) -> pa.Table:
    """Return rows with columns sealed, each value under the key of its subject, or of the run where it has none.

    NULL and sealed values stay as they are.
    """
    named = {one.by: _texts(rows, one.by) for one in columns}
    runs = _texts(rows, "run")
    for column in columns:
        at = rows.schema.get_field_index(column.name)
        if at < 0 or pa.types.is_null(rows.schema.field(at).type):
            continue
        texts = _texts(rows, column.name)
        made: dict[tuple[SubjectName, str], str] = {}
        sealed: list[str | None] = []
        for text, owner, run in zip(texts, named[column.by], runs, strict=True):
            if text is None:
                sealed.append(None)
                continue
            has_owner = owner and owner.strip() and column.by != "run"
            subject: SubjectName = owner if has_owner else RunSubject(run or "")
            if (subject, text) not in made:
                made[subject, text] = text if _is_sealed(text, store) else store.of(subject).seal(text)
            sealed.append(made[subject, text])
        rows = rows.set_column(at, column.name, pa.array(sealed, pa.string()))
    return rows


def _texts(rows: pa.Table, name: str) -> list[Any]:
    """Return a column's texts; NULLs where it is not there."""
    return rows[name].to_pylist() if name in rows.column_names else [None] * rows.num_rows


def _is_sealed(text: str, store: KeyStore) -> bool:
    key_id = sealed_by(text)
    return key_id is not None and (key_id in store.forgotten or key_id in store.ids)


def unsealer(lake: "Lake") -> Callable[[pa.Array], pa.Array]:
    """Return a function that opens sealed texts: NULL where the key is forgotten or lost; other texts stay.

    Raises as `KeyStore`.
    """
    keys = KeyStore(lake).by_id()

    def clear(text: str | None) -> str | None:
        return text if text is None or sealed_by(text) is None else unseal_text(text, keys)

    def unsealed(values: pa.Array) -> pa.Array:
        dictionary = values.cast(pa.string()).dictionary_encode()
        shown = pa.array([clear(text) for text in dictionary.dictionary.to_pylist()], pa.string())
        return shown.take(dictionary.indices)

    return unsealed
