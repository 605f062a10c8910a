"""The interface of migration steps: how a step changes columns, keys, sort order and rows, and how it is undone.

A step is an entry of a migration's file, such as ``{rename: samples, to: examples}``. Its first key is its kind.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import date
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa

from ranklake.errors import RanklakeError, did_you_mean

if TYPE_CHECKING:
    from ranklake.lake.contracts.model import Column


class MigrationError(RanklakeError):
    """A migration is invalid or cannot be applied: its file, its number, or one of its steps."""


@dataclass(frozen=True, slots=True)
class Shape:
    """The properties of a column that a step can change."""

    id: int
    name: str
    type: str
    unit: str | None


@dataclass(frozen=True, slots=True)
class ColumnSuccessor:
    """The column that replaces another one after a step.

    Attributes
    ----------
    name
        Name after the step.
    factor, offset
        The new value is the old value times `factor` plus `offset`.
    unit
        The new unit; empty if it does not change.
    """

    name: str
    factor: float = 1.0
    offset: float = 0.0
    unit: str = ""


class MetricSuccessor(NamedTuple):
    """The metric that replaces another one: its name, empty if it is not a single metric, and an explanation."""

    name: str
    explanation: str


Shapes = dict[str, Shape]
"""Columns of a table by name."""

Names = tuple[str, ...]


def shape_of(column: "Column") -> Shape:
    """Return the shape of a column of a contract."""
    return Shape(column.id, column.name, column.type, column.unit)


@dataclass(frozen=True, slots=True)
class Step(ABC):
    """One step. The default methods change nothing."""

    @property
    def keeps_files(self) -> bool:
        """Whether applying the step rewrites no data file."""
        return False

    @property
    def keeps_files_back(self) -> bool:
        """Whether undoing the step rewrites no data file."""
        return False

    @property
    def lost(self) -> Names:
        """Columns whose values are lost."""
        return ()

    @property
    @abstractmethod
    def text(self) -> str:
        """The step for people, as a clause."""

    @property
    @abstractmethod
    def touched(self) -> frozenset[str]:
        """Columns, by their names before the step, whose name or values change."""

    @property
    def until(self) -> date | None:
        """Last day on which queries may use a former name; None for no limit."""
        return None

    def successor(self, name: str) -> ColumnSuccessor | None:
        """Return the column that replaces a column after the step; None if none does."""
        try:
            (after,) = self.names((name,))
        except MigrationError:
            return None
        return ColumnSuccessor(after)

    def former_expression(self, name: str) -> tuple[str, Names]:
        """Return an SQL expression for a removed column, and the columns that it uses; empty if there is none."""
        del name
        return "", ()

    @property
    def breaks_readers(self) -> bool:
        """Whether queries that use a touched column fail, or return values with another meaning."""
        return True

    def shapes(self, before: Shapes, after: Mapping[str, Shape]) -> Shapes:
        """Return the columns after the step. `after` are the columns of the new contract. Raises `MigrationError`."""
        del after
        return before

    def names(self, before: Names) -> Names:
        """Return column names, such as those of a key, after the step. Raises `MigrationError` if one is removed."""
        if removed := [name for name in before if name in self.lost]:
            hint = "keep the columns of the key"
            raise MigrationError(f"{self.text}: {removed[0]!r} is part of the key", hint=hint)
        return before

    def names_before(self, after: Names) -> Names:
        """Return the names of columns before the step, without columns that the step adds."""
        return after

    def unknown_before(self, after: Names) -> Names:
        """Return the columns before the step whose values cannot be restored, given such columns after the step."""
        return (*self.names_before(after), *self.lost)

    def grain(self, before: Names) -> Names:
        """Return the unique key after the step. Raises `MigrationError`."""
        return self.names(before)

    def sort_before(self, after: Names) -> Names:
        """Return the sort columns before the step, given those after it."""
        return self.names_before(after)

    def rows(self, rows: pa.Table) -> pa.Table:
        """Apply the step to rows, which may lack columns without values. Raises an Arrow error."""
        return rows

    def undone(self, rows: pa.Table) -> pa.Table:
        """Undo the step on rows, as far as values can be restored. Raises an Arrow error."""
        return rows


@dataclass(frozen=True, slots=True)
class ColumnStep(Step):
    """A step that changes one column.

    Attributes
    ----------
    column
        Name of the column before the step.
    """

    column: str

    @property
    def touched(self) -> frozenset[str]:
        """The column."""
        return frozenset({self.column})

    def column_shape(self, before: Shapes) -> Shape:
        """Return the column's shape before the step. Raises `MigrationError` if the column does not exist."""
        return require_column(self, self.column, before)


def require_column(step: Step, name: str, before: Mapping[str, Shape]) -> Shape:
    """Return the shape of a column that a step needs. Raises `MigrationError` if the column does not exist."""
    if name not in before:
        hint = did_you_mean(name, before)
        raise MigrationError(f"{step.text}: no column {name!r}", hint=hint or "name one that is there")
    return before[name]


def replace_column(before: Shapes, old: str, shape: Shape) -> Shapes:
    """Return columns with the column `old` replaced by `shape`, at the same place."""
    shapes = (shape if name == old else kept for name, kept in before.items())
    return {replaced.name: replaced for replaced in shapes}


def rename_column(rows: pa.Table, old: str, new: str) -> pa.Table:
    """Return rows with a column renamed, if the rows have it."""
    if old == new or old not in rows.column_names:
        return rows
    return rows.rename_columns([new if name == old else name for name in rows.column_names])


def change_column(rows: pa.Table, name: str, change: Callable[[pa.ChunkedArray], Any]) -> pa.Table:
    """Return rows with a column replaced by a function of it, if the rows have it."""
    if name not in rows.column_names:
        return rows
    place = rows.column_names.index(name)
    return rows.set_column(place, name, change(rows.column(place)))


def drop_columns(rows: pa.Table, *names: str) -> pa.Table:
    """Return rows without some columns. Columns that the rows lack are ignored."""
    return rows.drop_columns([name for name in dict.fromkeys(names) if name in rows.column_names])


def replace_name(names: Names, old: str, new: str) -> Names:
    """Return names with `old` replaced by `new`."""
    return tuple(new if name == old else name for name in names)
