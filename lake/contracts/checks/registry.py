"""Every check kind by name, and what a check of its kind says of rows, as masks in Arrow.

What modules in `kinds/` define is registered automatically. A training process reads contracts by this module, and
does not wait for Arrow.

Checks derived from a contract, under ids with a colon, which no explicit check can have.

- ``required:<column>``: a required column is not NULL
- ``finite:<column>``: a float is neither NaN nor infinite
- ``ratio:<column>``: a ratio lies in 0..1, unless the contract gives the column a range of its own
- ``json:<column>``: JSON text parses
- ``dated:date``: a captured row lies in the partition of its own UTC date
- ``metric:<metric>``: a metric that has a column of its own lies in the registry's range
- ``metric:value``: so does each value of the long table
- ``refers:run``: the run of every captured row is in ``runs``
- ``volume:rows``: a date of a fact table has about as many rows as dates before it
- ``no_secrets:text``: no operational text of a fact table looks like a credential
- ``protected:statistics``: the Delta log holds no statistics of classified columns
"""

from collections.abc import Iterator, Mapping
from importlib import import_module
from pkgutil import iter_modules
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from ranklake.lake.contracts.checks import kinds
from ranklake.lake.contracts.checks.kind import CheckKind, Ranges
from ranklake.lake.contracts.model import FLOATS, Check, Contract, Metric

if TYPE_CHECKING:
    import pyarrow as pa


_RUNS: Final = "runs"


def implied_by_columns(contract: Contract) -> Iterator[Check]:
    """Yield what follows from types, units and formats of the columns, column by column."""
    takes_out = "quarantine" if contract.kind == "fact" else "record"
    for column in contract.columns:
        name = column.name
        ranged = any(check.kind == "between" for check in column.checks)
        if column.required:
            yield Check(f"required:{name}", "not_null", on_fail=takes_out, columns=(name,))
        if column.type in FLOATS:
            yield Check(f"finite:{name}", "finite", on_fail=takes_out, columns=(name,))
        if column.unit == "ratio" and not ranged:
            yield Check(f"ratio:{name}", "between", columns=(name,), min=0, max=1)
        if column.format == "json":
            yield Check(f"json:{name}", "json", columns=(name,))


def implied_checks(contract: Contract, metrics: Mapping[str, Metric], ranges: Ranges) -> Iterator[Check]:
    """Yield all that follows from a contract and the metric registry, whose ranges of the long table are `ranges`."""
    yield from implied_by_columns(contract)
    if contract.envelope:
        yield Check("dated:date", "dated", columns=("ts", "date"))
        if contract.table != _RUNS:
            yield Check("refers:run", "refers", "warning", columns=("run",), values=(_RUNS,))
    if contract.kind == "fact":
        yield Check("volume:rows", "volume", "info")
        yield Check("no_secrets:text", "no_secrets")
    if any(column.class_ != "operational" for column in contract.columns):
        yield Check("protected:statistics", "protected")
    yield from _of_metrics(contract, metrics)
    if ranges:
        yield Check("metric:value", "metric_range", severity="warning", columns=("metric", "value"))


def _of_metrics(contract: Contract, metrics: Mapping[str, Metric]) -> Iterator[Check]:
    """Yield the ranges of metrics that have a column of this table, where the contract does not give them itself."""
    for metric in metrics.values():
        table, _, name = metric.stored_in.partition(".")
        ends = (metric.min, metric.max)
        if table != contract.table or name == "value" or name not in contract or ends == (None, None):
            continue
        own = [(check.min, check.max) for check in contract.column(name).checks if check.kind == "between"]
        if ends not in own:
            yield Check(f"metric:{metric.name}", "between", "warning", columns=(name,), min=ends[0], max=ends[1])


def ranges_of(contract: Contract, metrics: Mapping[str, Metric]) -> Ranges:
    """Return the valid range of each metric that this table's column ``value`` holds."""
    here = f"{contract.table}.value"
    ranges = {name: (one.min, one.max) for name, one in metrics.items() if one.stored_in == here}
    return {name: ends for name, ends in ranges.items() if ends != (None, None)}


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
