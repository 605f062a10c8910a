"""What every step of a migration is: how it changes columns, their order in files and the key, and rows; and back.

A step is a line of a migration's file, such as ``{rename: samples, to: examples}``; its first key says its kind.
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
    """A migration that cannot be: its file, its place among the others, or what it would do."""


@dataclass(frozen=True, slots=True)
class Shape:
    """What a step can change of a column."""

    id: int
    name: str
    type: str
    unit: str | None


@dataclass(frozen=True, slots=True)
class ColumnSuccessor:
    """What a step makes of a column that stays.

    Attributes
    ----------
    name
        Its name after the step.
    factor, offset
        Its value then is the earlier one times `factor` + `offset`.
    unit
        Of its values, where it is another; empty otherwise.
    """

    name: str
    factor: float = 1.0
    offset: float = 0.0
    unit: str = ""


class MetricSuccessor(NamedTuple):
    """What took the place of a metric: its name, empty where there is not one, and what a person has to know."""

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
    """One step. What it does not override, it leaves as it is."""

    @property
    def keeps_files(self) -> bool:
        """Whether stored files need not be rewritten."""
        return False

    @property
    def keeps_files_back(self) -> bool:
        """Whether undoing it needs no file rewritten."""
        return False

    @property
    def lost(self) -> Names:
        """Columns whose values go for good."""
        return ()

    @property
    @abstractmethod
    def text(self) -> str:
        """The step for people, in a clause."""

    @property
    @abstractmethod
    def touched(self) -> frozenset[str]:
        """Names, before the step, of columns whose name or values it changes."""

    @property
    def until(self) -> date | None:
        """Last day on which queries may use a name that it takes away; None where nobody said one."""
        return None

    def successor(self, name: str) -> ColumnSuccessor | None:
        """Return what becomes of a column; None where it is gone afterwards."""
        try:
            (after,) = self.names((name,))
        except MigrationError:
            return None
        return ColumnSuccessor(after)

    def former_expression(self, name: str) -> tuple[str, Names]:
        """Return what a column that is gone afterwards was, in SQL, and the columns in that; nothing if none knows."""
        del name
        return "", ()

    @property
    def breaks_readers(self) -> bool:
        """Whether who names a touched column finds it no more, or with values that mean something else."""
        return True

    def shapes(self, before: Shapes, after: Mapping[str, Shape]) -> Shapes:
        """Return the columns after the step; `after` are those that the migration leads to. Raises `MigrationError`."""
        del after
        return before

    def names(self, before: Names) -> Names:
        """Return names of columns, such as a key's, after the step. Raises `MigrationError` where it takes one away."""
        if gone := [name for name in before if name in self.lost]:
            hint = "keep the columns of the key"
            raise MigrationError(f"{self.text}: {gone[0]!r} is part of the key", hint=hint)
        return before

    def names_before(self, after: Names) -> Names:
        """Return names of columns before the step, as far as they were there."""
        return after

    def unknown_before(self, after: Names) -> Names:
        """Return columns before the step whose values nobody knows any more, by those after it of which that is so."""
        return (*self.names_before(after), *self.lost)

    def grain(self, before: Names) -> Names:
        """Return the key after the step. Raises `MigrationError`."""
        return self.names(before)

    def sort_before(self, after: Names) -> Names:
        """Return the columns that files were sorted by before the step, of those after it."""
        return self.names_before(after)

    def rows(self, rows: pa.Table) -> pa.Table:
        """Return rows after the step; a column that is not there is NULL and stays away. Raises an Arrow error."""
        return rows

    def undone(self, rows: pa.Table) -> pa.Table:
        """Return rows as they were before the step, as far as they can be. Raises an Arrow error."""
        return rows


@dataclass(frozen=True, slots=True)
class ColumnStep(Step):
    """A step about one column.

    Attributes
    ----------
    column
        Its name before the step.
    """

    column: str

    @property
    def touched(self) -> frozenset[str]:
        """The column."""
        return frozenset({self.column})

    def column_shape(self, before: Shapes) -> Shape:
        """Return the column's shape. Raises `MigrationError` where it is not there."""
        return require_column(self, self.column, before)


def require_column(step: Step, name: str, before: Mapping[str, Shape]) -> Shape:
    """Return the shape of a column that a step needs. Raises `MigrationError` where it is not there."""
    if name not in before:
        hint = did_you_mean(name, before)
        raise MigrationError(f"{step.text}: no column {name!r}", hint=hint or "name one that is there")
    return before[name]


def replace_column(before: Shapes, old: str, shape: Shape) -> Shapes:
    """Return columns with another in the place of one."""
    return {shape.name if name == old else name: shape if name == old else one for name, one in before.items()}


def rename_column(rows: pa.Table, old: str, new: str) -> pa.Table:
    """Return rows with a column under another name, if it is there."""
    if old == new or old not in rows.column_names:
        return rows
    return rows.rename_columns([new if name == old else name for name in rows.column_names])


def change_column(rows: pa.Table, name: str, change: Callable[[pa.ChunkedArray], Any]) -> pa.Table:
    """Return rows with a function of a column in its place, if it is there."""
    if name not in rows.column_names:
        return rows
    place = rows.column_names.index(name)
    return rows.set_column(place, name, change(rows.column(place)))


def drop_columns(rows: pa.Table, *names: str) -> pa.Table:
    """Return rows without some columns, which may not be there at all."""
    return rows.drop_columns([name for name in dict.fromkeys(names) if name in rows.column_names])


def replace_name(names: Names, old: str, new: str) -> Names:
    """Return names with one in place of another."""
    return tuple(new if name == old else name for name in names)
