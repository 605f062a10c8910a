"""Checks rows, one column at a time in Arrow, and returns masks of those that fail."""

from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from ranklake.lake.contracts.checks.kind import Ranges
from ranklake.lake.contracts.checks.registry import kind_of
from ranklake.lake.contracts.model import Check

NO_RANGES: Final[Ranges] = {}


def failures(check: Check, table: pa.Table, ranges: Ranges = NO_RANGES) -> pa.ChunkedArray:
    """Return a mask, true where a row fails; it has no NULL. `ranges` are those of metrics, for what asks for them."""
    passes = kind_of(check).passes
    assert passes is not None, f"{check.kind} judges no single row"
    return pc.invert(pc.fill_null(passes(check, table, ranges), fill_value=True))


def judged(check: Check, table: pa.Table, ranges: Ranges = NO_RANGES) -> pa.ChunkedArray | None:
    """Return a mask, true where the check can say something of a row; None where it always can."""
    kind = kind_of(check)
    if kind.judged is not None:
        return kind.judged(check, table, ranges)
    if not kind.null_passes:
        return None
    there = pc.is_valid(table[check.columns[0]])
    for name in check.columns[1:]:
        there = pc.and_(there, pc.is_valid(table[name]))
    return there


def checked(check: Check, table: pa.Table, ranges: Ranges = NO_RANGES) -> int:
    """Return how many rows the check can say something of."""
    mask = judged(check, table, ranges)
    return int(table.num_rows if mask is None else pc.sum(mask).as_py() or 0)


def cleared(check: Check, table: pa.Table) -> bool:
    """Say whether no row can fail a check; False where only a look at each row can tell.

    Nearly always all rows are good, and the extremes of a column or its distinct values show it, at a tenth of the cost
    of looking at each row.
    """
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


def _all_pass(check: Check, values: pa.ChunkedArray) -> bool:
    return pc.any(failures(check, pa.table({check.columns[0]: values}))).as_py() is not True
