"""Contracts, checks and metrics as frozen dataclasses; units in UCUM codes (https://ucum.org/ucum). Reads no file."""

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
"""Units that contracts and the metric registry may use, beside counted things such as ``{row}``."""

_COUNTED: Final = re.compile(r"\{[a-z_]+\}(/(?:[sh]|kW\.h))?")
_BASE: Final = frozenset({"s", "By", "bit", "Hz", "W", "J", "V", "A", "K", "m", "g", "N", "Pa", "W.h", "FLOP", "FLOPS"})
_PREFIXES: Final = ("", "n", "u", "m", "k", "M", "G", "T", "P", "Ki", "Mi", "Gi", "Ti", "Pi")
_UNPREFIXED: Final = frozenset(
    {"%", "min", "h", "d", "wk", "mo", "a", "Cel", "deg", "rad", "EUR", "USD", "[USD]", "[EUR]"}
)
_FREE: Final = re.compile(r"\{[^{}\s]{1,80}\}")


def is_known_unit(unit: str) -> bool:
    """Whether contracts and the metric registry may use a unit."""
    return unit in UNITS or bool(_COUNTED.fullmatch(unit))


def is_unit(unit: str) -> bool:
    """Whether a text is a unit of contracts, a UCUM unit with an optional prefix, or a ratio of such units."""
    return unit in UNITS or all(map(_is_part, unit.split("/")))


def _is_part(part: str) -> bool:
    if part in UNITS or part in _UNPREFIXED or _FREE.fullmatch(part):
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
    """One rule about the data, evaluated per row, per table or per partition.

    Attributes
    ----------
    id
        Stable name, unique within the contract. Results and reject reasons contain it.
    kind
        Name of the check kind. The modules of `ranklake.lake.contracts.checks.kinds` define the kinds.
    severity
        One of `SEVERITIES`. A failure with a severity of `ALARMS` fails the command.
    on_fail
        ``quarantine`` moves failing rows to ``rejects`` (row kinds only). ``hold`` keeps the partition out of rollups.
        ``record`` keeps the rows and only stores the result.
    columns
        Checked columns: one for most kinds, none for ``row_count``.
    by
        Columns that identify a series, for kinds that check series.
    min, max, values, pattern, tolerance
        Parameters of the kind. Bounds for timestamps and dates are ISO 8601 text.
    doc
        Why the rule holds, where that is not obvious.
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
        """Whether failing rows are moved to ``rejects``."""
        return self.on_fail == "quarantine"


@dataclass(frozen=True, slots=True)
class Column:
    """One column of a table.

    Attributes
    ----------
    id
        Permanent number, unique in the table and never used again. A new name under an old id is a rename.
    unit
        An SI unit as UCUM code; ``ratio`` (part of a whole); ``1`` (another dimensionless quantity); a counted thing
        such as ``{row}``; ``metric`` (the unit of the metric that the row names); ``none`` for a number that identifies
        or orders things. None if the column is not a number.
    class_
        ``operational``, ``pseudonymous``, ``personal`` or ``secret``.
    mask
        How users without clearance see the column: ``nullify``, ``hash`` (keyed), ``redact`` (text without identifying
        parts); None for operational columns.
    aka
        Names of this quantity in other vocabularies (OpenTelemetry, DCGM, schedulers). Their units may differ.
    since
        Contract version that added the column.
    deprecated, sunset
        ISO dates, or None.
    default
        Value in place of NULL: written if a row lacks the column, returned by reads if a data file lacks it (decision
        097).
    format
        ``json`` for JSON text, else None.
    status
        ``active``, or ``planned`` if nothing records the column yet and all rows have NULL.
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
        """Whether the column's type is numeric."""
        return self.type in NUMBERS


@dataclass(frozen=True, slots=True)
class Tombstone:
    """A removed column. Its id and name are never used again."""

    id: int
    name: str
    type: str
    retired_in: int
    reason: str


@dataclass(frozen=True, slots=True)
class Suppression:
    """A contract lint that is disabled for one item (a column, a check or the table), with the reason."""

    code: str
    item: str
    reason: str


@dataclass(frozen=True, slots=True)
class RollupInput:
    """A table that an operator's rollup reads.

    Attributes
    ----------
    reach
        Which dates of the input an output date depends on: ``day`` (the same date), ``days`` (also the dates before and
        after) or ``until`` (all dates up to it). ``run`` for a rollup of whole runs.
    classified
        Columns of other classes than operational that the query may read. It cannot read any others.
    """

    table: str
    reach: str
    classified: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class RollupFacts:
    """How an operator's derived table is computed.

    Attributes
    ----------
    scope
        ``partition``: computed for one date at a time. ``run``: for one run at a time.
    parameters
        Names and values of the query's ``$name`` parameters.
    sql
        Text of the query, from its file `rollups/<table>.sql`.
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
        Columns of the unique key, at least one.
    partition, sort
        Partition columns; order of rows within a file.
    retention
        Name of the retention class. `retention/policies/` defines its period.
    envelope
        Whether the table begins with the columns of `_envelope.yaml`, as all recorded tables do.
    path
        Path of the contract file.
    status
        ``active``, or ``planned`` for a table that nothing writes yet. A planned table may still change.
    series
        Columns that identify a series when rows are downsampled. Empty if the table cannot be downsampled.
    rollup
        How an operator's derived table is computed; None for all other tables.
    overlay
        The overlay that defines an operator's own table; None for a packaged table.
    decision
        The decision that the table's numbers serve, as a sentence; may be empty.
    called
        Name of the table in queries, if a migration renamed it. `table` remains the name of its folder, and its name in
        segments, plans and the audit log.
    extended
        The overlay that adds columns to a packaged table; None if no overlay does.
    added_version
        Version of the columns that the overlay adds.
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
        """Hash table and version only: contracts are cache keys, and hashing all columns for each segment is slow."""
        return hash((self.table, self.version))

    @property
    def name(self) -> str:
        """Name of the table in queries."""
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
        """`version` and `added_version` in one number, which `versions_of_stamp` splits again.

        It equals `version` while `added_version` is 1.
        """
        return self.version + (self.added_version - 1) * _STAMP

    @property
    def operators(self) -> Overlay | None:
        """The overlay that may contain migrations of the table or of the columns added to it; None if there is none."""
        return self.overlay or self.extended

    @property
    def added(self) -> "Contract":
        """A contract of only the columns that an overlay adds to a packaged table, with `added_version` as version."""
        retired = tuple(tombstone for tombstone in self.retired if tombstone.id >= OVERLAY_IDS)
        empty: dict[str, Any] = dict.fromkeys(("grain", "sort", "checks", "series"), ())
        return replace(
            self,
            version=self.added_version,
            added_version=1,
            columns=self.own_columns,
            retired=retired,
            called="",
            envelope=False,
            **empty,
        )

    @property
    def segment_columns(self) -> tuple[Column, ...]:
        """The columns of a segment: all except ``date``, which ingest derives from ``ts``."""
        return tuple(column for column in self.columns if column.name != "date")

    def __contains__(self, name: object) -> bool:
        return name in self._by_name

    def column(self, name: str) -> Column:
        """Return a column by name. Raises `UnknownColumnError` with the most similar name."""
        try:
            return self._by_name[name]
        except KeyError:
            raise UnknownColumnError(self.table, name, hint=did_you_mean(name, self._by_name)) from None

    def all_checks(self) -> Iterator[Check]:
        """Yield all checks: column checks in the order of the columns, then table checks."""
        for column in self.columns:
            yield from column.checks
        yield from self.checks


def versions_of_stamp(stamp: int) -> tuple[int, int]:
    """Return `Contract.version` and `Contract.added_version` of a `Contract.stamp`."""
    added, version = divmod(stamp, _STAMP)
    return version, added + 1


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric of the registry, stored as rows of a long table or as a column of a wide table.

    Attributes
    ----------
    kind
        ``gauge``, ``counter`` (decreases only on a reset), ``delta`` (to be summed) or ``ratio``.
    sampling
        When a value is recorded: each ``step``, at an ``interval``, on an ``event``, or once a ``run`` attempt.
    min, max
        Valid range, both bounds included. None is an open bound.
    stored_in
        ``table.column`` if the metric has its own column, else ``scalars.value``.
    status
        ``active``; ``planned`` (nothing records it yet); ``requested`` (somebody requested it); or ``deprecated``,
        ``retired`` or ``sunset`` (not to be recorded any more; `ranklake metric` sets these).
    when_retired
        What ingest does with values of a retired or sunset metric: ``flag``, ``quarantine`` or ``drop``.
    purpose, decision
        Why the metric is recorded, and the decision that it serves, as sentences; may be None.
    steward, producer
        Who is responsible for its definition, and which component records it. None: as in the table's contract.
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
        """The status, or ``deprecated`` for an active metric that has a replacement or a deprecation date."""
        return "deprecated" if self.status == "active" and (self.deprecated or self.replaced_by) else self.status
