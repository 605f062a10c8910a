"""What columns are called today that were stored under keys by other names: by their ids, which migrations keep."""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from ranklake.retention.subjects.known import known

if TYPE_CHECKING:
    from ranklake.lake.contracts.model import Column, Contract
    from ranklake.lake.store.store import Lake

Ever = Callable[["Contract", str], frozenset[int]]
"""Ids of the columns of a table that ever had a name."""


def today(contract: "Contract", name: str) -> frozenset[int]:
    """Return the id of the column that has a name today."""
    return frozenset({contract.column(name).id}) if name in contract else frozenset()


class Lineage:
    """The columns of a lake that were ever stored under keys, as contracts have them now.

    Parameters
    ----------
    ever
        Tells of names that the lake remembers without ids; where migrations are not at hand, of names of today alone.

    Raises as `ranklake.retention.subjects.known.known`.
    """

    def __init__(self, lake: "Lake", ever: Ever = today) -> None:
        self._known = known(lake)
        self._ever = ever

    def ids(self, contract: "Contract", name: str) -> frozenset[int]:
        """Return the ids of the columns that a name stands for, or stood for when something was stored under keys."""
        return self._known.ids.get(f"{contract.table}.{name}") or self._ever(contract, name)

    def now(self, contract: "Contract", name: str) -> str:
        """Return what a column is called now; the name itself where it has it still, or nobody knows."""
        if name in contract:
            return name
        ids = self.ids(contract, name)
        found = [one.name for one in contract.columns if one.id in ids]
        return found[0] if len(found) == 1 else name

    def is_gone(self, contract: "Contract", name: str) -> bool:
        """Say whether a column was dropped."""
        return bool({one.id for one in contract.retired} & self.ids(contract, name))

    def stored(self, contract: "Contract") -> Mapping[int, str]:
        """Return the columns of a table that were ever stored under keys, by id, each as it was called then."""
        found: dict[int, str] = {}
        for said in sorted(self._known.columns):
            table, _, name = said.partition(".")
            if table == contract.table:
                found |= {id_: said for id_ in self.ids(contract, name) if id_ not in found}
        return found

    def sealed(self, contract: "Contract") -> "Mapping[str, Column]":
        """Return the columns of a contract that were ever stored under keys, by ``table.column`` as of today."""
        ids = self.stored(contract)
        return {f"{contract.table}.{one.name}": one for one in contract.columns if one.id in ids}
