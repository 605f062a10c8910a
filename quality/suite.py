"""A table's suite: every promise of its contract as one expectation with a stable check id. Pure; reads no data.

Beside the checks that a contract spells out there are those that follow from it, under ids with a colon, which no
contract's own check can have:

    required:<column>     a required column is not NULL                        takes rows out, as ingest does
    finite:<column>       a float is neither NaN nor infinite                  takes rows out, as ingest does
    ratio:<column>        a ratio lies in 0..1, unless the contract gives the column a range of its own
    json:<column>         JSON text parses
    dated:date            a captured row lies in the partition of its own UTC date
    metric:<metric>       a metric that has a column of its own lies in the registry's range
    metric:value          so does each value of the long table
"""

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Final

from ranklake.lake.contracts.model import FLOATS, Check
from ranklake.quality.rules import RULES, Ranges

if TYPE_CHECKING:
    from ranklake.lake.contracts.model import Contract, Metric

_TABLE: Final = {"unique": "ExpectCompoundColumnsToBeUnique", "row_count": "ExpectTableRowCountToBeBetween"}


@dataclass(frozen=True, slots=True)
class Expectation:
    """One expectation.

    Attributes
    ----------
    check
        The promise; its id names the results.
    kind
        Class in ``great_expectations.expectations``, or of the same meaning there for what is computed over a whole
        partition.
    classified
        Whether a column it reads is not operational: then its values appear in no result, log or error.
    numeric
        Whether failing values may be shown: operational numbers and times only, as text may hold anything.
    quarantines
        Whether failing rows are taken out of the table.
    """

    check: Check
    kind: str
    classified: bool
    numeric: bool
    quarantines: bool

    @property
    def per_row(self) -> bool:
        """Whether Great Expectations judges it row by row; else it is about the whole partition."""
        return self.check.kind in RULES

    @property
    def about(self) -> str | None:
        """The column, several joined by commas, None for the table."""
        return ",".join(self.check.columns) or None

    @property
    def wrong(self) -> str:
        """What a failing row, or the table, has wrong; without a value of it."""
        check = self.check
        if check.kind == "unique":
            return f"rows repeat a key of {', '.join(check.columns)}"
        if check.kind == "row_count":
            return f"row count outside {_open(check.min)} to {_open(check.max)}"
        return RULES[check.kind].describe(check)

    @property
    def reason(self) -> str:
        """The reason that `ranklake.lake.contracts.edge.judge` gives a row for this check."""
        return f"{self.check.id.partition(':')[0]}: {self.wrong}"


@dataclass(frozen=True, slots=True)
class Suite:
    """The expectations of one table.

    Attributes
    ----------
    name
        Table, contract version and a digest of all that is expected: when it changes, partitions are checked anew.
    ranges
        Valid range of each metric of the long table; empty for others.
    """

    table: str
    name: str
    expectations: tuple[Expectation, ...]
    ranges: Ranges = field(default_factory=dict)


def compile_suite(contract: "Contract", metrics: "Mapping[str, Metric]") -> Suite:
    """Return a contract's suite."""
    ranges = {name: (one.min, one.max) for name, one in metrics.items() if _stored(one) == (contract.table, "value")}
    ranges = {name: ends for name, ends in ranges.items() if ends != (None, None)}
    checks = [*_derived(contract, metrics, ranges), *contract.all_checks()]
    expectations = tuple(_expectation(contract, check) for check in checks)
    facts = [[asdict(one) for one in expectations], sorted(ranges.items())]
    digest = hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:12]
    return Suite(contract.table, f"{contract.table} v{contract.version} {digest}", expectations, ranges)


def _derived(contract: "Contract", metrics: "Mapping[str, Metric]", ranges: Ranges) -> Iterator[Check]:
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
    if contract.envelope:
        yield Check("dated:date", "dated", columns=("ts", "date"))
    yield from _of_metrics(contract, metrics)
    if ranges:
        yield Check("metric:value", "metric_range", severity="warning", columns=("metric", "value"))


def _of_metrics(contract: "Contract", metrics: "Mapping[str, Metric]") -> Iterator[Check]:
    """Yield the ranges of metrics that have a column of this table, where the contract does not give them itself."""
    for metric in metrics.values():
        table, name = _stored(metric)
        ends = (metric.min, metric.max)
        if table != contract.table or name == "value" or name not in contract or ends == (None, None):
            continue
        own = [(check.min, check.max) for check in contract.column(name).checks if check.kind == "between"]
        if ends not in own:
            yield Check(f"metric:{metric.name}", "between", "warning", columns=(name,), min=ends[0], max=ends[1])


def _stored(metric: "Metric") -> tuple[str, str]:
    table, _, column = metric.stored_in.partition(".")
    return table, column


def _expectation(contract: "Contract", check: Check) -> Expectation:
    columns = [contract.column(name) for name in check.columns]
    classified = any(column.class_ != "operational" for column in columns)
    numeric = check.kind == "between" and all(column.is_number or column.type == "timestamp" for column in columns)
    kind = RULES[check.kind].expectation if check.kind in RULES else _TABLE[check.kind]
    # Rows of derived tables stay: the next rollup would bring them back; what is wrong is in their inputs or their SQL.
    takes_out = check.on_fail == "quarantine" and contract.kind == "fact"
    return Expectation(check, kind, classified, numeric and not classified, takes_out)


def _open(end: object) -> object:
    return "…" if end is None else end
