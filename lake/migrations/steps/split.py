"""Columns made of others by SQL expressions: one split into several, several merged into one."""

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date

import pyarrow as pa

from ranklake.lake.contracts.arrow import ARROW_TYPES
from ranklake.lake.migrations.steps.expressions import Expressions, computed, types_of
from ranklake.lake.migrations.steps.replaced import Replaced, Values
from ranklake.lake.migrations.steps.retype import NARROW
from ranklake.lake.migrations.steps.step import MigrationError, Names, Shape, Shapes


@dataclass(frozen=True, slots=True)
class Computed(Replaced):
    """Columns that become others by expressions."""

    @property
    @abstractmethod
    def into_by(self) -> Expressions:
        """Columns that come."""

    @property
    @abstractmethod
    def comes_back(self) -> Expressions:
        """The columns that went, of those that came; nothing where they are lost."""

    @property
    def came(self) -> Names:
        """Columns that come."""
        return tuple(name for name, _ in self.into_by)

    @property
    def is_reversible(self) -> bool:
        """Whether expressions say how the columns that went come back."""
        return bool(self.comes_back)

    def made(self, rows: pa.Table) -> Values:
        """Compute the new columns."""
        return _values(rows, self.sources, self.into_by)

    def made_back(self, rows: pa.Table) -> Values:
        """Compute the old columns of the new."""
        return _values(rows, self.came, self.comes_back)

    def refuse_types(self, before: Shapes, after: Mapping[str, Shape]) -> None:
        """Raise `MigrationError` where values are computed that the column would round without a word.

        What comes back would be held against what was computed, and not against what was stored.
        """
        if not self.comes_back:
            return
        if {name for name, _ in self.comes_back} != set(self.sources):
            raise MigrationError(f"{self.text}: back is not of {', '.join(self.sources)}", hint="name each once")
        types = types_of({name: ARROW_TYPES[before[name].type] for name in self.sources}, self.into_by)
        for name, found in zip(self.came, types, strict=True):
            meant = ARROW_TYPES[after[name].type]
            if meant in NARROW and found != meant:
                hint = f"cast it there: CAST(… AS {'REAL' if meant == pa.float32() else 'DATE'})"
                raise MigrationError(f"{self.text}: {name} is {meant}, and its expression gives {found}", hint=hint)

    def comes_of(self, name: str) -> tuple[str, Names]:
        """Return how it is computed back."""
        return dict(self.comes_back).get(name, ""), self.came


def _values(rows: pa.Table, gone: Names, come: Expressions) -> Values:
    return dict(zip((name for name, _ in come), computed(rows, gone, come), strict=True)) if come else {}


@dataclass(frozen=True, slots=True)
class Split(Computed):
    """One column becomes several.

    Attributes
    ----------
    column
        That goes.
    into
        What comes of it.
    back
        Expression for the column, of what came of it; without one its values are lost.
    until
        Last day on which queries may use its name.
    """

    column: str
    into: Expressions
    back: str = ""
    until: date | None = None

    @property
    def sources(self) -> Names:
        """The column."""
        return (self.column,)

    @property
    def into_by(self) -> Expressions:
        """What comes of it."""
        return self.into

    @property
    def comes_back(self) -> Expressions:
        """The column, of what came of it."""
        return ((self.column, self.back),) if self.back else ()

    @property
    def text(self) -> str:
        """The step for people."""
        return f"split {self.column} into {', '.join(name for name, _ in self.into)}"


@dataclass(frozen=True, slots=True)
class Merge(Computed):
    """Several columns become one.

    Attributes
    ----------
    columns
        That go.
    into, by
        The column that comes, and what it is.
    back
        Expressions for each of the columns, of the one that came; without them their values are lost.
    until
        Last day on which queries may use their names.
    """

    columns: Names
    into: str
    by: str
    back: Expressions = ()
    until: date | None = None

    @property
    def sources(self) -> Names:
        """The columns."""
        return self.columns

    @property
    def into_by(self) -> Expressions:
        """The column that comes."""
        return ((self.into, self.by),)

    @property
    def comes_back(self) -> Expressions:
        """Each of the columns, of the one that came."""
        return self.back

    @property
    def text(self) -> str:
        """The step for people."""
        return f"merge {', '.join(self.columns)} into {self.into}"
