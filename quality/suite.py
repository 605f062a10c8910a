"""A table's suite: each promise of its contract as one expectation with a stable id; and which tables are checked.

Beside the checks that a contract spells out there are those that follow from it:
`ranklake.lake.contracts.checks.registry`.
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
"""Kinds of tables that are checked: facts, before they are rolled up, and derived tables."""


class NotCheckedError(RanklakeError):
    """A table that no suite is compiled for. ``table`` is what was asked for."""

    def __init__(self, table: str, *, hint: str = "") -> None:
        super().__init__(f"no checks are run on table {table!r}", hint=hint)
        self.table = table


def select_contracts(
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
            raise NotCheckedError(name, hint="name a fact or a derived table")
        if name not in contracts:
            raise UnknownTableError(name, hint=did_you_mean(name, checkable))
    return {name: checkable[name] for name in sorted(set(tables))}


def as_stored(tables: "Tables", contract: "Contract") -> "Contract":
    """Return the contract with the columns that the table has: it may be older than its contract.

    Raises `LakeError` where there is no table.
    """
    handle = latest(tables, contract.table)
    if handle is None:  # a listing that lacks what a moment ago was there
        raise LakeError(f"table {contract.table} is gone", where=tables.store.uri, hint="run it again")
    stored = {column.name for column in handle.schema().fields}
    checks = tuple(check for check in contract.checks if stored.issuperset(check.columns))
    return replace(contract, columns=tuple(one for one in contract.columns if one.name in stored), checks=checks)


OWN: Final = "suite:"
"""How ids of checks begin that come from users' suites; no contract's id does."""
ASKED: Final = "asked"
"""The kind of checks that no scan computes: Great Expectations is asked, or nobody can be."""

_WORDS: Final = 300
"""Characters that a user's check gets to say what is wrong: a set may have a million values."""
_UNTOLD: Final = {
    "in_set": "{column} not one of {number} values",
    "between": "{column} outside its bounds",
    "length": "length of {column} outside its bounds",
    "matches": "{column} does not match its pattern",
}
"""Kinds with parameters that may be values of a column, and what is said instead where that is classified."""


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
    mostly
        Share of judged rows that must pass, in a user's suite.
    asked
        What Great Expectations is asked of the whole partition, as JSON; empty where the scan computes it.
    refused
        Why it cannot be computed on any partition; empty if it can.
    where
        Which rows it is about, in a user's suite; all if None.
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
        """Whether the shared scan computes it."""
        return self.check.kind != ASKED

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that the scan has to read for it."""
        return (*self.check.columns, *(self.where.columns if self.where is not None else ()))

    @property
    def is_own(self) -> bool:
        """Whether it is of a user's suite."""
        return self.check.id.startswith(OWN)

    @property
    def level(self) -> str:
        """What it is about, as the level of its kind: ``asked`` where the scan does not compute it."""
        return kind_of(self.check).level if self.is_scanned else ASKED

    @property
    def per_row(self) -> bool:
        """Whether the scan judges it row by row; else it is about the whole partition."""
        return self.level not in {"table", "watch", ASKED}

    @property
    def judges_nothing(self) -> bool:
        """Whether a partition without a value to judge is judged all the same."""
        return not self.is_scanned or FORMS[self.check.kind].judges_nothing

    @property
    def watch(self) -> "Watch | None":
        """How its kind judges partitions as wholes, if it does."""
        return kind_of(self.check).watch if self.is_scanned else None

    @property
    def on_fail(self) -> str:
        """What a failure leads to, where the contract asks for what this table cannot give, too."""
        quarantines = self.check.on_fail == "quarantine"
        return "record" if quarantines and not self.quarantines else self.check.on_fail

    @property
    def about(self) -> str | None:
        """The column, several joined by commas, None for the table."""
        return ",".join(self.check.columns) or None

    @property
    def expected(self) -> str:
        """What is expected, in words; without a value of it."""
        if self.mostly < 1:
            return f"in {self.mostly:.6%} of rows, not: {self.wrong}".replace(".000000%", "%")
        return f"no row: {self.wrong}" if self.level == "row" else f"not: {self.promised}"

    @property
    def promised(self) -> str:
        """What a failure is, in words."""
        return promise(self.check) if self.is_scanned and not self.is_own else self.wrong

    @property
    def wrong(self) -> str:
        """What a failing row, or the table, has wrong; without a value of it.

        A contract's words are what its authors publish. A user's suite on a classified column may list its values.
        """
        if not self.is_scanned:
            return f"{self.kind} is not met"
        if self.is_own and self.classified and self.check.kind in _UNTOLD:
            return _UNTOLD[self.check.kind].format(column=self.about, number=f"{len(self.check.values):,}")
        text = fault_text(self.check) + (f" where {self.where}" if self.where is not None else "")
        return f"{text[:_WORDS]}…" if self.is_own and len(text) > _WORDS else text

    @property
    def reason(self) -> str:
        """The reason that `ranklake.lake.contracts.edge.reject_reasons` gives a row for this check."""
        return f"{self.check.id.partition(':')[0]}: {self.wrong}"


@dataclass(frozen=True, slots=True)
class Suite:
    """The expectations of one table.

    Attributes
    ----------
    name
        Table, contract version and a digest of all that is expected, with the editions of the kinds of checks: when
        it changes, partitions are checked again.
    ranges
        Valid range of each metric of the long table; empty for others.
    version
        Of the contract.
    """

    table: str
    name: str
    expectations: tuple[Expectation, ...]
    ranges: "Ranges" = field(default_factory=dict)
    version: int | None = None


def compile_suite(contract: "Contract", metrics: "Mapping[str, Metric]", own: "Sequence[Expectation]" = ()) -> Suite:
    """Return a contract's suite, to which those that users wrote for the table are added."""
    ranges = ranges_of(contract, metrics)
    checks = [*implied_checks(contract, metrics, ranges), *contract.all_checks()]
    expectations = (*(_expectation(contract, check) for check in checks), *own)
    editions = sorted({(one.check.kind, kind_of(one.check).edition) for one in expectations if one.is_scanned})
    facts = [[_facts(one) for one in expectations], editions, sorted(ranges.items())]
    digest = hashlib.sha256(json.dumps(facts, sort_keys=True, default=_members).encode()).hexdigest()[:12]
    return Suite(
        contract.table, f"{contract.table} v{contract.version} {digest}", expectations, ranges, contract.version
    )


def _facts(expectation: Expectation) -> dict[str, Any]:
    """Return what an expectation asks for; what only users' suites say is left out of all others."""
    unsaid = {"mostly": 1.0, "asked": "", "refused": "", "where": None}
    return {name: value for name, value in _members(expectation).items() if unsaid.get(name, expectation) != value}


def _members(item: Any) -> dict[str, Any]:  # noqa: ANN401 - what JSON does not know; anything but a dataclass raises
    """Return a dataclass's members as they are: `asdict` would copy each of them, for every suite of every check."""
    return {member.name: getattr(item, member.name) for member in fields(item)}


def _expectation(contract: "Contract", check: "Check") -> Expectation:
    columns = [contract.column(name) for name in (*check.columns, *check.by)]
    classified = any(column.class_ != "operational" for column in columns)
    form = FORMS[check.kind]
    numeric = form.shows and all(column.is_number or column.type == "timestamp" for column in columns)
    # Rows of derived tables stay: the next rollup would bring them back; what is wrong is in their inputs or their SQL.
    takes_out = check.on_fail == "quarantine" and contract.kind == "fact"
    return Expectation(check, form.expectation, classified, numeric and not classified, takes_out)
