"""Contracts as frozen dataclasses, and units by UCUM's codes (https://ucum.org/ucum). Nothing here reads a file."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from ranklake.errors import did_you_mean
from ranklake.lake.contracts.errors import UnknownColumnError
from ranklake.lake.contracts.overlay import Overlay

UNITS: Final = frozenset(
    {"s", "ns", "By", "By/s", "Hz", "W", "J", "Cel", "FLOP", "FLOP/s", "ratio", "1", "metric", "none"}
)
"""Of contracts and of the registry."""

_COUNTED: Final = re.compile(r"\{[a-z_]+\}(/(?:[sh]|kW\.h))?")
_BASE: Final = frozenset({"s", "By", "bit", "Hz", "W", "J", "V", "A", "K", "m", "g", "N", "Pa", "W.h", "FLOP", "FLOPS"})
_PREFIXES: Final = ("", "n", "u", "m", "k", "M", "G", "T", "P", "Ki", "Mi", "Gi", "Ti", "Pi")
_OTHERS: Final = frozenset({"%", "min", "h", "d", "wk", "mo", "a", "Cel", "deg", "rad", "EUR", "USD", "[USD]", "[EUR]"})
_FREE: Final = re.compile(r"\{[^{}\s]{1,80}\}")


def is_known_unit(unit: str) -> bool:
    """Whether a contract may use a unit."""
    return unit in UNITS or bool(_COUNTED.fullmatch(unit))


def is_unit(unit: str) -> bool:
    """Whether a text is a unit that is known here: of a contract, UCUM's with a prefix, or their ratio."""
    return unit in UNITS or all(map(_is_part, unit.split("/")))


def _is_part(part: str) -> bool:
    if part in UNITS or part in _OTHERS or _FREE.fullmatch(part):
        return True
    return any(part.removeprefix(prefix) in _BASE for prefix in _PREFIXES if part.startswith(prefix))


TYPES: Final = ("string", "bool", "int32", "int64", "float32", "float64", "decimal", "timestamp", "date", "int64_list")
NUMBERS: Final = frozenset({"int32", "int64", "float32", "float64", "decimal"})
FLOATS: Final = frozenset({"float32", "float64"})
CLASSES: Final = ("operational", "pseudonymous", "personal", "secret")
SEVERITIES: Final = ("critical", "error", "warning", "info")
"""How bad a failed check is, worst first."""
ALARMS: Final = SEVERITIES[:2]
"""Severities that fail the command, and the flow."""
OVERLAY_IDS: Final = 10_000  # columns that an overlay adds have ids from here on; packaged ones stay below
_STAMP: Final = 1_000_000

Scalar = str | int | float | bool


@dataclass(frozen=True, slots=True)
class Check:
    """One promise about the data, judged per row or per table.

    Attributes
    ----------
    id
        Stable name, unique within the contract; results and reject reasons carry it.
    kind
        Name of its kind; `ranklake.lake.contracts.checks.kinds` defines each.
    severity
        One of `SEVERITIES`; those of `ALARMS` fail the command.
    on_fail
        ``quarantine`` takes the failing rows out (row kinds only); ``hold`` keeps the partition back from rollups;
        ``record`` leaves them and writes the result down.
    columns
        What it is about: one column for most kinds, none for ``row_count``.
    by
        Columns that tell the series of a partition apart, for kinds that judge series.
    min, max, values, pattern, tolerance
        Parameters of the kind; ends of timestamps and dates are ISO 8601 text.
    doc
        Why the promise holds, where that is not plain.
    """

    id: str
    kind: str
    severity: str = "error"
    on_fail: str = "record"
    columns: tuple[str, ...] = ()
    by: tuple[str, ...] = ()
    min: Scalar | None = None
    max: Scalar | None = None
    values: tuple[Scalar, ...] = ()
    pattern: str | None = None
    tolerance: float = 0.0
    doc: str = ""

    @property
    def quarantines(self) -> bool:
        """Whether rows that fail are taken out of the table."""
        return self.on_fail == "quarantine"


@dataclass(frozen=True, slots=True)
class Column:
    """One column of a table.

    Attributes
    ----------
    id
        Permanent number, unique in the table for ever: a new name under an old id is a rename.
    unit
        SI base units in UCUM's letters, ``ratio`` (part of a whole), ``1`` (another dimensionless quantity), a counted
        thing such as ``{row}``, ``metric`` (the unit of the metric that the row names), or ``none`` for a number that
        names or orders things instead of measuring them; None for what is not a number.
    class_
        ``operational``, ``pseudonymous``, ``personal`` or ``secret``.
    mask
        How those without clearance see it: ``nullify``, ``hash`` (keyed), ``redact`` (text kept, identifying parts
        removed); None for operational columns.
    aka
        The same quantity in other vocabularies (OpenTelemetry, DCGM, schedulers), units aside.
    since
        Contract version that brought it. ``deprecated`` and ``sunset`` are ISO dates.
    default
        What a missing value means where NULL would be wrong: written where a row has none, and read where a file has
        none (decision 097).
    format
        ``json`` for JSON text, else None.
    status
        ``active``, or ``planned`` for one that nothing records yet: NULL in all rows.
    """

    id: int
    name: str
    type: str
    class_: str
    doc: str
    unit: str | None = None
    required: bool = False
    mask: str | None = None
    since: int = 1
    deprecated: str | None = None
    sunset: str | None = None
    format: str | None = None
    default: Scalar | None = None
    status: str = "active"
    aka: tuple[str, ...] = ()
    checks: tuple[Check, ...] = ()

    @property
    def is_number(self) -> bool:
        """Whether its values are numbers."""
        return self.type in NUMBERS


@dataclass(frozen=True, slots=True)
class Tombstone:
    """A column that is gone: its id and name are never used again."""

    id: int
    name: str
    type: str
    retired_in: int
    reason: str


@dataclass(frozen=True, slots=True)
class Suppression:
    """A lint that is silenced for one item (a column, a check, or the table itself), with the reason."""

    code: str
    item: str
    reason: str


@dataclass(frozen=True, slots=True)
class RollupInput:
    """A table that an operator's rollup reads.

    Attributes
    ----------
    reach
        Which dates of it an output date depends on: that ``day``; ``days``, with those before and after; ``until``. Of
        a rollup of whole runs: ``run``.
    classified
        Columns that are not operational and that the query may read; it does not see others.
    """

    table: str
    reach: str
    classified: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class RollupFacts:
    """How an operator's derived table is computed; its query is a file of its own.

    Attributes
    ----------
    scope
        ``partition``: a date at a time. ``run``: whole runs.
    parameters
        Values for the query's ``$names``.
    sql
        Text of the query.
    """

    scope: str
    inputs: tuple[RollupInput, ...]
    parameters: tuple[tuple[str, float], ...] = ()
    sql: str = ""


@dataclass(frozen=True, slots=True)
class Contract:
    """One table's contract, envelope columns included.

    Attributes
    ----------
    grain
        The unique key, at least one column.
    partition, sort
        Partition columns; order of rows within a file.
    retention
        Name of the retention class, to which `retention/policies/` gives a period.
    envelope
        Whether the columns of `_envelope.yaml` come first: true of what ranks record.
    path
        The file it was read from.
    status
        ``active``, or ``planned`` for a table that nothing writes yet: no lake has it, and it may still change.
    series
        Columns that tell its series apart when rows are downsampled; none where they cannot be.
    rollup
        How it is computed, of an operator's derived table; None of any other.
    overlay
        Where it is from, of an operator's own table; None of a packaged one.
    decision
        The decision that its numbers serve, as a sentence; empty if nobody said.
    called
        What queries call it, if not by `table`: that is its folder, and stays what segments, plans and the audit trail
        know it by.
    extended, added_version
        The overlay that adds columns to it, of a packaged table that has some; and the version of these alone.
    """

    table: str
    version: int
    kind: str
    owner: str
    steward: str
    summary: str
    grain: tuple[str, ...]
    partition: tuple[str, ...]
    sort: tuple[str, ...]
    retention: str
    columns: tuple[Column, ...]
    checks: tuple[Check, ...] = ()
    retired: tuple[Tombstone, ...] = ()
    lint: tuple[Suppression, ...] = ()
    envelope: bool = False
    path: str = ""
    status: str = "active"
    series: tuple[str, ...] = ()
    rollup: RollupFacts | None = None
    decision: str = ""
    called: str = ""
    overlay: Overlay | None = field(default=None, repr=False, compare=False)
    extended: Overlay | None = field(default=None, repr=False, compare=False)
    added_version: int = 1
    _by_name: Mapping[str, Column] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_by_name", {column.name: column for column in self.columns})

    def __hash__(self) -> int:
        """Hash what nearly always tells contracts apart: they are keys of caches that are asked for each segment."""
        return hash((self.table, self.version))

    @property
    def name(self) -> str:
        """What queries call it."""
        return self.called or self.table

    @property
    def names(self) -> tuple[str, ...]:
        """Names of all columns, in order."""
        return tuple(self._by_name)

    @property
    def own_columns(self) -> tuple[Column, ...]:
        """The columns that an overlay added to a packaged table."""
        return tuple(column for column in self.columns if column.id >= OVERLAY_IDS)

    @property
    def stamp(self) -> int:
        """Both versions in one number: `version`, as long as added columns have their first (`versions_of_stamp`)."""
        return self.version + (self.added_version - 1) * _STAMP

    @property
    def operators(self) -> Overlay | None:
        """The overlay that has migrations of it, or of columns that it adds to it."""
        return self.overlay or self.extended

    @property
    def added(self) -> "Contract":
        """What an overlay adds to a packaged table, as a contract of its own: these columns, under their version."""
        retired = tuple(gone for gone in self.retired if gone.id >= OVERLAY_IDS)
        bare: dict[str, Any] = dict.fromkeys(("grain", "sort", "checks", "series"), ())
        return replace(
            self,
            version=self.added_version,
            added_version=1,
            columns=self.own_columns,
            retired=retired,
            called="",
            envelope=False,
            **bare,
        )

    @property
    def segment_columns(self) -> tuple[Column, ...]:
        """The columns that a segment holds: all but ``date``, which ingest derives."""
        return tuple(column for column in self.columns if column.name != "date")

    def __contains__(self, name: object) -> bool:
        return name in self._by_name

    def column(self, name: str) -> Column:
        """Return a column by name. Raises `UnknownColumnError`."""
        try:
            return self._by_name[name]
        except KeyError:
            raise UnknownColumnError(self.table, name, hint=did_you_mean(name, self._by_name)) from None

    def all_checks(self) -> Iterator[Check]:
        """Yield every check: those of the columns in their order, then those of the table."""
        for column in self.columns:
            yield from column.checks
        yield from self.checks


def versions_of_stamp(stamp: int) -> tuple[int, int]:
    """Return the version of a table, and that of columns that an overlay adds to it, of one number for both."""
    added, version = divmod(stamp, _STAMP)
    return version, added + 1


@dataclass(frozen=True, slots=True)
class Metric:
    """One named metric of the long tables, or of a column of a wide one.

    Attributes
    ----------
    kind
        ``gauge``, ``counter`` (never falls but when reset), ``delta`` (to be summed), ``ratio``.
    sampling
        When a value is due: ``step``, ``interval``, ``event`` or ``run`` (once a run attempt).
    min, max
        The valid range, inclusive; None is open.
    stored_in
        ``table.column`` of a metric that has a column of its own; ``scalars.value`` otherwise.
    status
        ``active``; ``planned`` for one that nothing records yet; ``requested`` for a signal that somebody asked for;
        ``deprecated``, ``retired`` or ``sunset`` for one that is to be recorded no more, as `ranklake metric` has it.
    when_retired
        What the edge does with values of one that is retired or sunset: ``flag``, ``quarantine`` or ``drop``.
    purpose, decision
        What it is recorded for, and the decision that it serves, as sentences; None if nobody said.
    steward, producer
        Who looks after its meaning, and what records it; None for what its table's contract says.
    """

    name: str
    unit: str
    kind: str
    owner: str
    sampling: str
    doc: str
    stored_in: str = "scalars.value"
    min: float | None = None
    max: float | None = None
    since: int = 1
    deprecated: str | None = None
    replaced_by: str | None = None
    status: str = "active"
    aka: tuple[str, ...] = ()
    purpose: str | None = None
    decision: str | None = None
    steward: str | None = None
    producer: str | None = None
    when_retired: str = "flag"

    @property
    def stage(self) -> str:
        """Its status; of an active one that has a replacement, or a day of deprecation, ``deprecated``."""
        return "deprecated" if self.status == "active" and (self.deprecated or self.replaced_by) else self.status
