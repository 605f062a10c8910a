"""Which tables are checked, and as what."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from ranklake.errors import RanklakeError, did_you_mean
from ranklake.lake.contracts.errors import UnknownTableError
from ranklake.lake.store.reachability import LakeError
from ranklake.lake.tables.tables import latest

if TYPE_CHECKING:
    from ranklake.lake.contracts.model import Contract
    from ranklake.lake.store.tables import Tables

KINDS: Final = ("fact", "derived")
"""Kinds of tables that are checked: facts, before they are rolled up, and derived tables."""


class NotCheckedError(RanklakeError):
    """A table that no suite is compiled for. ``table`` is what was asked for."""

    def __init__(self, table: str, *, hint: str = "") -> None:
        super().__init__(f"no checks are run on table {table!r}", hint=hint)
        self.table = table


def select_contracts(
    contracts: "Mapping[str, Contract]", tables: Sequence[str] | None, kinds: Collection[str] = KINDS
) -> "dict[str, Contract]":
    """Return the contracts to check by table: all of some kinds, or those named.

    Raises `UnknownTableError` and `NotCheckedError`.
    """
    checkable = {name: one for name, one in contracts.items() if one.kind in KINDS}
    if tables is None:
        return {name: one for name, one in checkable.items() if one.kind in kinds}
    for name in tables:
        if name in contracts and name not in checkable:
            raise NotCheckedError(name, hint="name a fact or a derived table")
        if name not in contracts:
            raise UnknownTableError(name, hint=did_you_mean(name, checkable))
    return {name: checkable[name] for name in sorted(set(tables))}


def as_stored(tables: "Tables", contract: "Contract") -> "Contract":
    """Return the contract with the columns that the table has: it may be older than its contract.

    Raises `LakeError` where there is no table.
    """
    handle = latest(tables, contract.table)
    if handle is None:  # a listing that lacks what a moment ago was there
        raise LakeError(f"table {contract.table} is gone", where=tables.store.uri, hint="run it again")
    stored = {column.name for column in handle.schema().fields}
    checks = tuple(check for check in contract.checks if stored.issuperset(check.columns))
    return replace(contract, columns=tuple(one for one in contract.columns if one.name in stored), checks=checks)
