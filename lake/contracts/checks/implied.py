"""Checks derived from a contract, under ids with a colon, which no explicit check can have.

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
from typing import Final

from ranklake.lake.contracts.checks.kind import Ranges
from ranklake.lake.contracts.model import FLOATS, Check, Contract, Metric

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
