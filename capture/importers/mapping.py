"""Mapping: a YAML file that defines which foreign columns become which columns of a contract (docs/import.md).

All that can be wrong with a mapping by itself is found when it is read; what depends on the file to import, such as a
column that it lacks, when that is opened. Both are reported with the mapping's line.
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
    """Where one column's values come from.

    Attributes
    ----------
    target
        The contract's column; None for ``time``.
    column, value, file, row, json
        One of them: a foreign column, a constant, a part of the file's name (``name`` or ``stem``), the number of the
        row, or foreign columns that become a JSON object.
    conversion
        From the foreign unit, scale and offset to the contract's unit.
    unit
        The foreign unit, or else the contract's; None where neither is one.
    own_units
        Under `column`: the unit that its values bear, where `unit` is None.
    values
        Foreign words and what they become; a word that is not there is refused, unless `default` says what it becomes.
    missing
        Texts that stand for NULL.
    format, zone, origin_ns
        Of times: a name of `EPOCHS`, ``iso`` or a pattern of strptime; the zone of times without one; what relative
        times count from, ns since 1970.
    decimal
        What stands between a number's whole part and the rest: a dot or a comma.
    at
        Where in the mapping, for messages.
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
        """Whether values count things, of which there are no fractions."""
        unit = self.target.unit if self.target is not None else "ns"
        return unit in {None, "none", "1"} or str(unit).startswith("{")

    @property
    def columns(self) -> tuple[str, ...]:
        """Foreign columns that it reads."""
        return (self.column,) if self.column is not None else self.json


@dataclass(frozen=True, slots=True)
class Filter:
    """Rows to import: those whose value is in a set, not in one, or within bounds (which do not belong to them)."""

    column: str
    at: KeyPath
    in_: frozenset[str] | None = None
    not_in: frozenset[str] | None = None
    above: float | None = None
    below: float | None = None
    decimal: str = "."


@dataclass(frozen=True, slots=True)
class Melt:
    """Columns side by side that become rows: of each foreign row one a column, except for those that stay.

    Attributes
    ----------
    stay
        Foreign columns that each of the rows keeps.
    name, value
        Foreign columns that the others' names and values are in from then on.
    """

    stay: tuple[str, ...]
    name: str
    value: str
    at: KeyPath


@dataclass(frozen=True)
class Mapping:
    """A mapping.

    Attributes
    ----------
    sha256
        Of its text.
    run
        Name of the one run that all files go into; None where each file is a run.
    run_rule, attempt
        Where a row's run and attempt stand, in place of one run for all and attempt 0; None where they do not.
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
        """Whether each file is a run of its own, as far as its rows do not say whose they are."""
        return self.run is None

    @property
    def owner_rules(self) -> tuple[Rule, ...]:
        """Rules of columns that say whose a row is: its run, attempt and rank."""
        return tuple(rule for rule in (self.run_rule, self.attempt, self.rank) if rule is not None)

    @property
    def by_name(self) -> bool:
        """Whether rows depend on the file's name, beside its content."""
        return any(rule.file is not None for rule in self.rules)

    @property
    def foreign_columns(self) -> dict[str, KeyPath]:
        """Foreign columns that are read, and where the mapping names them."""
        rules = [self.time, *self.owner_rules, *self.rules]
        named = {item.column: item.at for item in self.filters}
        named |= {name: rule.at for rule in rules for name in rule.columns}
        if self.melt is not None:
            made = (self.melt.name, self.melt.value)
            named = {name: at for name, at in named.items() if name not in made}
            named |= dict.fromkeys(self.melt.stay, self.melt.at)
        return named

    def strip_names(self, header: list[str]) -> tuple[list[str], list[str]]:
        """Return names of columns without blanks around them, or as the mapping has them; and which had blanks."""
        own = {name.strip(): name for name in self.foreign_columns}
        names = [name if name in self.foreign_columns else own.get(name.strip(), name.strip()) for name in header]
        return names, [new for new, name in zip(names, header, strict=True) if name != name.strip()]

    def check_columns(self, header: Iterable[str], file: str) -> None:
        """Raise `MappingError` for a foreign column that a file lacks."""
        names = list(header)
        for name, at in self.foreign_columns.items():
            if name not in names:
                self.document.fail(at, f"no column {name!r} in {file}", did_you_mean(name, names))
