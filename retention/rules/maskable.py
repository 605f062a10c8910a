"""Which columns may be masked where they are stored."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from ranklake.masking.masks import Mask, default_mask

if TYPE_CHECKING:
    from ranklake.lake.contracts.model import Contract

Shown = Mapping[str, Mask]
"""The masks of columns, by name."""


def maskable(contract: "Contract") -> Shown:
    """Return the columns of a table that may be masked where they are stored, with their masks.

    Classified columns of what ranks recorded: a derived table is computed again, and statistics in the log hold values
    of operational columns. What tells rows apart or sorts them stays.
    """
    if contract.kind != "fact" or not contract.envelope:
        return {}
    fixed = {*contract.grain, *contract.sort, *contract.partition, "run", "ts"}
    found = {
        one.name: default_mask(one.mask, one.class_, one.type)
        for one in contract.columns
        if one.class_ != "operational" and one.name not in fixed
    }
    return {name: mask for name, mask in found.items() if mask.kind != "nullify" or not contract.column(name).required}
