"""Every check kind by name, and what a check of its kind says of rows, as masks in Arrow.

What modules in `kinds/` define is registered automatically. A training process reads contracts by this module, and
does not wait for Arrow.
"""

from importlib import import_module
from pkgutil import iter_modules
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from ranklake.lake.contracts.checks import kinds
from ranklake.lake.contracts.checks.kind import CheckKind, Ranges
from ranklake.lake.contracts.model import Check

if TYPE_CHECKING:
    from collections.abc import Mapping

    import pyarrow as pa


def _kinds_by_name() -> dict[str, CheckKind]:
    modules = (import_module(f"{kinds.__name__}.{module.name}") for module in iter_modules(kinds.__path__))
    every = (value for module in modules for value in vars(module).values() if isinstance(value, CheckKind))
    return {kind.name: kind for kind in sorted(every, key=lambda kind: kind.name)}


KINDS: "Final[Mapping[str, CheckKind]]" = MappingProxyType(_kinds_by_name())
WRITTEN: Final = tuple(name for name, kind in KINDS.items() if kind.written)
"""Kinds that a contract may spell out."""


def kind_of(check: "Check") -> CheckKind:
    """Return the kind of a check."""
    return KINDS[check.kind]


def fault_text(check: "Check") -> str:
    """Return what a failing row, or the table, has wrong, in words that hold no value of a row."""
    return kind_of(check).wrong(check)


def promise(check: "Check") -> str:
    """Return in words what a failure of the check is."""
    kind = kind_of(check)
    return (kind.promise or kind.wrong)(check)


NO_RANGES: Final[Ranges] = {}


def failures(check: Check, table: "pa.Table", ranges: Ranges = NO_RANGES) -> "pa.ChunkedArray":
    """Return a mask, true where a row fails; it has no NULL. `ranges` are those of metrics, for what asks for them."""
    import pyarrow.compute as pc

    passes = kind_of(check).passes
    assert passes is not None, f"{check.kind} judges no single row"
    return pc.invert(pc.fill_null(passes(check, table, ranges), fill_value=True))


def judged_mask(check: Check, table: "pa.Table", ranges: Ranges = NO_RANGES) -> "pa.ChunkedArray | None":
    """Return a mask, true where the check can say something of a row; None where it always can."""
    kind = kind_of(check)
    if kind.judged is not None:
        return kind.judged(check, table, ranges)
    if not kind.null_passes:
        return None
    import pyarrow.compute as pc

    there = pc.is_valid(table[check.columns[0]])
    for name in check.columns[1:]:
        there = pc.and_(there, pc.is_valid(table[name]))
    return there


def judged_rows(check: Check, table: "pa.Table", ranges: Ranges = NO_RANGES) -> int:
    """Return how many rows the check can say something of."""
    import pyarrow.compute as pc

    mask = judged_mask(check, table, ranges)
    return int(table.num_rows if mask is None else pc.sum(mask).as_py() or 0)


def cannot_fail(check: Check, table: "pa.Table") -> bool:
    """Whether no row can fail a check; False where only a look at each row can tell.

    Nearly always all rows are good, and the extremes of a column or its distinct values show it, at a tenth of the cost
    of looking at each row.
    """
    import pyarrow as pa

    kind = kind_of(check)
    columns = [table.column(name) for name in check.columns]
    if not kind.null_passes:
        return kind.cleared(check, table)
    if any(column.null_count == len(column) for column in columns):
        return True
    if pa.types.is_dictionary(columns[0].type):
        words = pa.chunked_array([chunk.dictionary for chunk in columns[0].chunks], columns[0].type.value_type)
        return len(columns) == 1 and _all_pass(check, words)
    return kind.cleared(check, table)


def _all_pass(check: Check, values: "pa.ChunkedArray") -> bool:
    import pyarrow as pa
    import pyarrow.compute as pc

    return pc.any(failures(check, pa.table({check.columns[0]: values}))).as_py() is not True
