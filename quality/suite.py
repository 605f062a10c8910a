"""The suite of a table, with one expectation per check of its contract; and the tables that are checked.

A suite has the checks that a contract lists and the implied checks
(`ranklake.lake.contracts.checks.registry`). Each expectation has a stable id.
"""

import hashlib
import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, Final

from ranklake.errors import RanklakeError, did_you_mean
from ranklake.lake.contracts.checks.registry import fault_text, implied_checks, kind_of, promise, ranges_of
from ranklake.lake.contracts.errors import UnknownTableError
from ranklake.lake.store.reachability import LakeError
from ranklake.lake.tables.tables import latest
from ranklake.quality.forms import FORMS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ranklake.lake.contracts.checks.kind import Ranges, Watch
    from ranklake.lake.contracts.model import Check, Contract, Metric
    from ranklake.lake.store.tables import Tables
    from ranklake.quality.suites.conditions import Condition


KINDS: Final = ("fact", "derived")
"""Kinds of tables that are checked: facts before rollups read them, and derived tables."""


class NotCheckedError(RanklakeError):
    """A table that has no suite: a system table. ``table`` is the requested name."""

    def __init__(self, table: str, *, hint: str = "") -> None:
        super().__init__(f"no checks are run on table {table!r}", hint=hint)
        self.table = table


def select_contracts(
    contracts: "Mapping[str, Contract]", tables: Sequence[str] | None, kinds: Collection[str] = KINDS
) -> "dict[str, Contract]":
    """Return the contracts to check, by table: those in `tables`, or all of some kinds.

    Raises `UnknownTableError` and `NotCheckedError`.
    """
    checkable = {name: contract for name, contract in contracts.items() if contract.kind in KINDS}
    if tables is None:
        return {name: contract for name, contract in checkable.items() if contract.kind in kinds}
    for name in tables:
        if name in contracts and name not in checkable:
            raise NotCheckedError(name, hint="name a fact or a derived table")
        if name not in contracts:
            raise UnknownTableError(name, hint=did_you_mean(name, checkable))
    return {name: checkable[name] for name in sorted(set(tables))}


def as_stored(tables: "Tables", contract: "Contract") -> "Contract":
    """Return the contract with only those columns that the stored table has; the table may be older.

    Raises `LakeError` if the table does not exist.
    """
    handle = latest(tables, contract.table)
    if handle is None:  # deleted since the tables were listed
        raise LakeError(f"table {contract.table} is gone", where=tables.store.uri, hint="run it again")
    stored = {column.name for column in handle.schema().fields}
    checks = tuple(check for check in contract.checks if stored.issuperset(check.columns))
    return replace(
        contract, columns=tuple(column for column in contract.columns if column.name in stored), checks=checks
    )


OWN: Final = "suite:"
"""Prefix of check ids from users' suites; no check of a contract has it."""
ASKED: Final = "asked"
"""Kind of the checks that the scan does not compute: Great Expectations evaluates them, or they were refused."""

_WORDS: Final = 300
"""Characters of the description of a user's check: a set may have a million values."""
_WITHOUT_VALUES: Final = {
    "in_set": "{column} not one of {number} values",
    "between": "{column} outside its bounds",
    "length": "length of {column} outside its bounds",
    "matches": "{column} does not match its pattern",
}
"""Descriptions for classified columns, by kind of check: the parameters of these kinds may be values of the column."""


@dataclass(frozen=True, slots=True)
class Expectation:
    """A check of a table, as Great Expectations or the shared scan evaluates it.

    Attributes
    ----------
    check
        The check; its id identifies the results.
    kind
        Class in ``great_expectations.expectations``; for a check of a whole partition, the class of the same
        meaning.
    classified
        Whether it reads a column that is not operational. Values then appear in no result, log or error.
    numeric
        Whether failing values may be shown: only numbers and times of operational columns, as text may contain
        anything.
    quarantines
        Whether failing rows are moved to ``rejects``.
    mostly
        Share of checked rows that must pass; below 1 only in users' suites.
    asked
        Request to Great Expectations about the whole partition, as JSON; empty if the scan computes the check.
    refused
        Reason why it cannot be computed on any partition; empty if it can.
    where
        Condition on the rows that are checked, in a user's suite; None for all rows.
    """

    check: "Check"
    kind: str
    classified: bool
    numeric: bool
    quarantines: bool
    mostly: float = 1.0
    asked: str = ""
    refused: str = ""
    where: "Condition | None" = None

    @property
    def is_scanned(self) -> bool:
        """Whether the shared scan computes the check."""
        return self.check.kind != ASKED

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that the scan has to read."""
        return (*self.check.columns, *(self.where.columns if self.where is not None else ()))

    @property
    def is_own(self) -> bool:
        """Whether the check comes from a user's suite."""
        return self.check.id.startswith(OWN)

    @property
    def level(self) -> str:
        """The level of the check's kind; `ASKED` if the scan does not compute it."""
        return kind_of(self.check).level if self.is_scanned else ASKED

    @property
    def per_row(self) -> bool:
        """Whether the scan evaluates it row by row; otherwise it is about the whole partition."""
        return self.level not in {"table", "watch", ASKED}

    @property
    def judges_nothing(self) -> bool:
        """Whether a partition without values is checked rather than skipped."""
        return not self.is_scanned or FORMS[self.check.kind].judges_nothing

    @property
    def watch(self) -> "Watch | None":
        """The functions that evaluate whole partitions; None for other kinds."""
        return kind_of(self.check).watch if self.is_scanned else None

    @property
    def on_fail(self) -> str:
        """Action after a failure. A quarantine that this table does not support becomes ``record``."""
        quarantines = self.check.on_fail == "quarantine"
        return "record" if quarantines and not self.quarantines else self.check.on_fail

    @property
    def about(self) -> str | None:
        """The column, or several joined by commas; None for the table."""
        return ",".join(self.check.columns) or None

    @property
    def expected(self) -> str:
        """The expectation in words, without values of a classified column."""
        if self.mostly < 1:
            return f"in {self.mostly:.6%} of rows, not: {self.wrong}".replace(".000000%", "%")
        return f"no row: {self.wrong}" if self.level == "row" else f"not: {self.promised}"

    @property
    def promised(self) -> str:
        """The failure in words, as the contract's check describes it."""
        return promise(self.check) if self.is_scanned and not self.is_own else self.wrong

    @property
    def wrong(self) -> str:
        """The fault of a failing row or table, in words.

        Words of a contract are public. A user's suite on a classified column may list values, which are left out.
        """
        if not self.is_scanned:
            return f"{self.kind} is not met"
        if self.is_own and self.classified and self.check.kind in _WITHOUT_VALUES:
            return _WITHOUT_VALUES[self.check.kind].format(column=self.about, number=f"{len(self.check.values):,}")
        text = fault_text(self.check) + (f" where {self.where}" if self.where is not None else "")
        return f"{text[:_WORDS]}…" if self.is_own and len(text) > _WORDS else text

    @property
    def reason(self) -> str:
        """The reason that `ranklake.lake.contracts.edge.reject_reasons` records for a row that fails this check."""
        return f"{self.check.id.partition(':')[0]}: {self.wrong}"


@dataclass(frozen=True, slots=True)
class Suite:
    """The expectations of one table.

    Attributes
    ----------
    name
        Table, contract version and a digest of all expectations and the editions of their kinds. Partitions are
        checked again when it changes.
    ranges
        Valid range of each metric of the long table; empty for other tables.
    version
        Version of the contract.
    """

    table: str
    name: str
    expectations: tuple[Expectation, ...]
    ranges: "Ranges" = field(default_factory=dict)
    version: int | None = None


def compile_suite(contract: "Contract", metrics: "Mapping[str, Metric]", own: "Sequence[Expectation]" = ()) -> Suite:
    """Return the suite of a contract, extended by the given expectations of users' suites."""
    ranges = ranges_of(contract, metrics)
    checks = [*implied_checks(contract, metrics, ranges), *contract.all_checks()]
    expectations = (*(_expectation(contract, check) for check in checks), *own)
    editions = sorted(
        {
            (expectation.check.kind, kind_of(expectation.check).edition)
            for expectation in expectations
            if expectation.is_scanned
        }
    )
    facts = [[_facts(expectation) for expectation in expectations], editions, sorted(ranges.items())]
    digest = hashlib.sha256(json.dumps(facts, sort_keys=True, default=_members).encode()).hexdigest()[:12]
    return Suite(
        contract.table, f"{contract.table} v{contract.version} {digest}", expectations, ranges, contract.version
    )


def _facts(expectation: Expectation) -> dict[str, Any]:
    """Return the facts of an expectation for the suite's digest, without default values of users' fields."""
    defaults = {"mostly": 1.0, "asked": "", "refused": "", "where": None}
    return {name: value for name, value in _members(expectation).items() if defaults.get(name, expectation) != value}


def _members(item: Any) -> dict[str, Any]:  # noqa: ANN401 - any dataclass; other types raise
    """Return the fields of a dataclass by name. `asdict` would copy each value, for every suite of every check."""
    return {member.name: getattr(item, member.name) for member in fields(item)}


def _expectation(contract: "Contract", check: "Check") -> Expectation:
    columns = [contract.column(name) for name in (*check.columns, *check.by)]
    classified = any(column.class_ != "operational" for column in columns)
    form = FORMS[check.kind]
    numeric = form.shows and all(column.is_number or column.type == "timestamp" for column in columns)
    # Rows of derived tables are kept: the next rollup would restore them, and the fault is in the inputs or the SQL.
    quarantines = check.on_fail == "quarantine" and contract.kind == "fact"
    return Expectation(check, form.expectation, classified, numeric and not classified, quarantines)
