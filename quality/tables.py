"""Which tables are checked."""

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from ranklake.errors import RanklakeError, did_you_mean
from ranklake.lake.contracts.errors import UnknownTableError

if TYPE_CHECKING:
    from ranklake.lake.contracts.model import Contract

KINDS: Final = ("fact", "derived")
"""Kinds of tables that are checked: what was recorded, before it is rolled up, and what came of it."""


class NotCheckedError(RanklakeError):
    """A table that no suite is compiled for. ``table`` is what was asked for."""

    def __init__(self, table: str, *, mend: str = "") -> None:
        super().__init__(f"no checks are run on table {table!r}", mend=mend)
        self.table = table


def chosen(
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
            raise NotCheckedError(name, mend="name a fact or a derived table")
        if name not in contracts:
            raise UnknownTableError(name, mend=did_you_mean(name, checkable))
    return {name: checkable[name] for name in sorted(set(tables))}
