"""Mapping: a YAML file that maps foreign columns to columns of a contract (docs/import.md).

`mapping_reader` checks a mapping when it is read. `Mapping.check_columns` compares it with a file to import. Both
report the line of the mapping that is wrong.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Final

from ranklake.capture.importers.units import Conversion
from ranklake.errors import RanklakeError, did_you_mean
from ranklake.lake.contracts.model import Column, Contract
from ranklake.operator_files import KeyPath, OperatorFile

EPOCHS: Final = {"epoch_s": 10**9, "epoch_ms": 10**6, "epoch_us": 10**3, "epoch_ns": 1}


class MappingError(RanklakeError):
    """A mapping that cannot be used; `where` is ``file:line``."""


@dataclass(frozen=True, slots=True)
class Rule:
    """The source of one column's values.

    Attributes
    ----------
    target
        The contract's column; None for ``time``.
    at
        Position of the rule in the mapping, for messages.
    column, value, file, row, json
        Exactly one is set: a foreign column, a constant, a part of the file's name (``name`` or ``stem``), the row's
        number, or foreign columns to put into a JSON object.
    conversion
        Conversion to the contract's unit, from unit, scale and offset of the mapping.
    unit
        The foreign unit; by default the contract's, or None if it has no unit that can be converted.
    own_units
        If `unit` is None: the unit of the first value that has one, by foreign column.
    values
        Contract values by foreign value. Other values become `default`, or are refused if there is none.
    missing
        Texts that are read as NULL.
    format, zone, origin_ns
        For times: a name of `EPOCHS`, ``iso`` or a format of strptime; the time zone of times without one; the start
        of relative times, ns since 1970.
    decimal
        Decimal separator: a dot or a comma.
    """

    target: Column | None
    at: KeyPath
    column: str | None = None
    value: Any = None
    file: str | None = None
    row: bool = False
    json: tuple[str, ...] = ()
    conversion: Conversion = field(default_factory=Conversion)
    unit: str | None = None
    own_units: dict[str, str] = field(default_factory=dict, compare=False, repr=False)
    values: dict[str, Any] | None = None
    default: Any = None
    has_default: bool = False
    missing: frozenset[str] = frozenset({""})
    format: str = "iso"
    zone: str = "UTC"
    origin_ns: int | None = None
    decimal: str = "."

    @property
    def is_count(self) -> bool:
        """Whether values are counts, which have no fractions."""
        unit = self.target.unit if self.target is not None else "ns"
        return unit in {None, "none", "1"} or str(unit).startswith("{")

    @property
    def columns(self) -> tuple[str, ...]:
        """Foreign columns that the rule reads."""
        return (self.column,) if self.column is not None else self.json


@dataclass(frozen=True, slots=True)
class Filter:
    """Selects rows to import: the value is in a set, is not in a set, or lies between two exclusive bounds."""

    column: str
    at: KeyPath
    in_: frozenset[str] | None = None
    not_in: frozenset[str] | None = None
    above: float | None = None
    below: float | None = None
    decimal: str = "."


@dataclass(frozen=True, slots=True)
class Melt:
    """Unpivots columns: each foreign row becomes one row for each column that is not in `stay`.

    Attributes
    ----------
    stay
        Foreign columns to repeat in each of these rows.
    name, value
        New columns for the name and the value of an unpivoted column.
    """

    stay: tuple[str, ...]
    name: str
    value: str
    at: KeyPath


@dataclass(frozen=True)
class Mapping:
    """A checked mapping.

    Attributes
    ----------
    sha256
        Digest of the YAML text.
    run
        Name of the run of all files; None if each file is a run.
    run_rule, attempt
        Rules for run and attempt of each row; None: `run` and attempt 0.
    """

    name: str
    sha256: str
    contract: Contract
    run: str | None
    time: Rule
    rank: Rule | None
    rules: tuple[Rule, ...]
    filters: tuple[Filter, ...]
    separator: str | None
    melt: Melt | None
    document: OperatorFile = field(repr=False)
    run_rule: Rule | None = None
    attempt: Rule | None = None

    @property
    def own_run(self) -> bool:
        """Whether each file is a run, unless `run_rule` takes runs from rows."""
        return self.run is None

    @property
    def owner_rules(self) -> tuple[Rule, ...]:
        """Rules for run, attempt and rank of a row."""
        return tuple(rule for rule in (self.run_rule, self.attempt, self.rank) if rule is not None)

    @property
    def by_name(self) -> bool:
        """Whether rows depend on the file's name as well as its content."""
        return any(rule.file is not None for rule in self.rules)

    @property
    def foreign_columns(self) -> dict[str, KeyPath]:
        """Foreign columns that the mapping reads, with the position of each in the mapping."""
        rules = [self.time, *self.owner_rules, *self.rules]
        positions = {item.column: item.at for item in self.filters}
        positions |= {name: rule.at for rule in rules for name in rule.columns}
        if self.melt is not None:
            new_columns = (self.melt.name, self.melt.value)
            positions = {name: at for name, at in positions.items() if name not in new_columns}
            positions |= dict.fromkeys(self.melt.stay, self.melt.at)
        return positions

    def strip_names(self, header: list[str]) -> tuple[list[str], list[str]]:
        """Strip blanks from names of columns, unless the mapping has the blanks, too.

        Returns all new names, and those of columns whose names had blanks.
        """
        mapped = {name.strip(): name for name in self.foreign_columns}
        names = [name if name in self.foreign_columns else mapped.get(name.strip(), name.strip()) for name in header]
        return names, [new for new, name in zip(names, header, strict=True) if name != name.strip()]

    def check_columns(self, header: Iterable[str], file: str) -> None:
        """Raise `MappingError` if a file lacks a column that the mapping reads."""
        names = list(header)
        for name, at in self.foreign_columns.items():
            if name not in names:
                self.document.fail(at, f"no column {name!r} in {file}", did_you_mean(name, names))
