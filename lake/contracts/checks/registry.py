"""All check kinds by name, the checks that a contract implies, and masks of failing rows.

Check kinds that are defined in modules of `kinds/` are registered automatically. Training processes load contracts
through this module, so it imports pyarrow only inside functions.

Implied checks have ids with a colon, which explicit checks cannot have:

- ``required:<column>``: a required column is not NULL
- ``finite:<column>``: a float is neither NaN nor infinite
- ``ratio:<column>``: a ratio lies in 0..1, unless the contract defines another range for the column
- ``json:<column>``: JSON text can be parsed
- ``dated:date``: a captured row is in the partition of its UTC date
- ``metric:<metric>``: a metric with its own column lies in the registry's range
- ``metric:value``: each value of the long table lies in the registry's range for its metric
- ``refers:run``: the run of every captured row is in ``runs``
- ``volume:rows``: a date of a fact table has about as many rows as earlier dates
- ``no_secrets:text``: no operational text of a fact table looks like a credential
- ``protected:statistics``: the Delta log contains no statistics of classified columns
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
    """Yield the checks implied by types, units and formats of the columns, column by column."""
    on_fail = "quarantine" if contract.kind == "fact" else "record"
    for column in contract.columns:
        name = column.name
        has_range = any(check.kind == "between" for check in column.checks)
        if column.required:
            yield Check(f"required:{name}", "not_null", on_fail=on_fail, columns=(name,))
        if column.type in FLOATS:
            yield Check(f"finite:{name}", "finite", on_fail=on_fail, columns=(name,))
        if column.unit == "ratio" and not has_range:
            yield Check(f"ratio:{name}", "between", columns=(name,), min=0, max=1)
        if column.format == "json":
            yield Check(f"json:{name}", "json", columns=(name,))


def implied_checks(contract: Contract, metrics: Mapping[str, Metric], ranges: Ranges) -> Iterator[Check]:
    """Yield all checks implied by a contract and the metric registry. `ranges` is the result of `ranges_of`."""
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
    yield from _metric_checks(contract, metrics)
    if ranges:
        yield Check("metric:value", "metric_range", severity="warning", columns=("metric", "value"))


def _metric_checks(contract: Contract, metrics: Mapping[str, Metric]) -> Iterator[Check]:
    """Yield range checks of metrics with a column in this table, unless the contract has the same check."""
    for metric in metrics.values():
        table, _, name = metric.stored_in.partition(".")
        bounds = (metric.min, metric.max)
        if table != contract.table or name == "value" or name not in contract or bounds == (None, None):
            continue
        existing = [(check.min, check.max) for check in contract.column(name).checks if check.kind == "between"]
        if bounds not in existing:
            yield Check(f"metric:{metric.name}", "between", "warning", columns=(name,), min=bounds[0], max=bounds[1])


def ranges_of(contract: Contract, metrics: Mapping[str, Metric]) -> Ranges:
    """Return the valid range of each metric that is stored in this table's column ``value`` and has a range."""
    value_column = f"{contract.table}.value"
    ranges = {name: (metric.min, metric.max) for name, metric in metrics.items() if metric.stored_in == value_column}
    return {name: bounds for name, bounds in ranges.items() if bounds != (None, None)}


def _kinds_by_name() -> dict[str, CheckKind]:
    modules = (import_module(f"{kinds.__name__}.{module.name}") for module in iter_modules(kinds.__path__))
    defined = (value for module in modules for value in vars(module).values() if isinstance(value, CheckKind))
    return {kind.name: kind for kind in sorted(defined, key=lambda kind: kind.name)}


KINDS: "Final[Mapping[str, CheckKind]]" = MappingProxyType(_kinds_by_name())
WRITTEN: Final = tuple(name for name, kind in KINDS.items() if kind.written)
"""Names of the kinds that a contract may contain."""


def kind_of(check: "Check") -> CheckKind:
    """Return the kind of a check."""
    return KINDS[check.kind]


def fault_text(check: "Check") -> str:
    """Return a description of a failing row or table. It contains no value of a row."""
    return kind_of(check).fault(check)


def promise(check: "Check") -> str:
    """Return the description of a failure for the catalog."""
    kind = kind_of(check)
    return (kind.promise or kind.fault)(check)


NO_RANGES: Final[Ranges] = {}


def failures(check: Check, table: "pa.Table", ranges: Ranges = NO_RANGES) -> "pa.ChunkedArray":
    """Return a mask without NULL: true where a row fails. Only ``metric_range`` uses `ranges`."""
    import pyarrow.compute as pc

    passes = kind_of(check).passes
    assert passes is not None, f"{check.kind} does not check single rows"
    return pc.invert(pc.fill_null(passes(check, table, ranges), fill_value=True))


def judged_mask(check: Check, table: "pa.Table", ranges: Ranges = NO_RANGES) -> "pa.ChunkedArray | None":
    """Return a mask, true where the check applies to a row; None if it applies to all rows."""
    kind = kind_of(check)
    if kind.applies is not None:
        return kind.applies(check, table, ranges)
    if not kind.null_passes:
        return None
    import pyarrow.compute as pc

    has_values = pc.is_valid(table[check.columns[0]])
    for name in check.columns[1:]:
        has_values = pc.and_(has_values, pc.is_valid(table[name]))
    return has_values


def judged_rows(check: Check, table: "pa.Table", ranges: Ranges = NO_RANGES) -> int:
    """Return the number of rows to which the check applies."""
    import pyarrow.compute as pc

    mask = judged_mask(check, table, ranges)
    return int(table.num_rows if mask is None else pc.sum(mask).as_py() or 0)


def cannot_fail(check: Check, table: "pa.Table") -> bool:
    """Whether minimum and maximum, sum or distinct values prove that no row fails; False if unsure.

    In most tables all rows pass. Proving this from whole columns costs a tenth of checking each row.
    """
    import pyarrow as pa

    kind = kind_of(check)
    columns = [table.column(name) for name in check.columns]
    if not kind.null_passes:
        return kind.clears(check, table)
    if any(column.null_count == len(column) for column in columns):
        return True
    if pa.types.is_dictionary(columns[0].type):
        words = pa.chunked_array([chunk.dictionary for chunk in columns[0].chunks], columns[0].type.value_type)
        return len(columns) == 1 and _all_pass(check, words)
    return kind.clears(check, table)


def _all_pass(check: Check, values: "pa.ChunkedArray") -> bool:
    import pyarrow as pa
    import pyarrow.compute as pc

    return pc.any(failures(check, pa.table({check.columns[0]: values}))).as_py() is not True
