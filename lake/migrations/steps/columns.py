"""Steps that add, rename, retype, drop or convert a column, or rename the table."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import date
from functools import partial
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from ranklake.lake.contracts.arrow import ARROW_TYPES
from ranklake.lake.contracts.freeze import WIDER
from ranklake.lake.contracts.model import FLOATS, Contract
from ranklake.lake.migrations.steps.step import (
    ColumnStep,
    ColumnSuccessor,
    MigrationError,
    Names,
    Shape,
    Shapes,
    Step,
    change_column,
    drop_columns,
    rename_column,
    replace_column,
    replace_name,
)


@dataclass(frozen=True, slots=True)
class Add(ColumnStep):
    """Adds a column. In stored rows it is NULL or has its default; `fill` rewrites the files with the default."""

    fill: bool = False

    @property
    def keeps_files(self) -> bool:
        """Whether applying the step rewrites no data file."""
        return not self.fill

    def shapes(self, before: Shapes, after: Mapping[str, Shape]) -> Shapes:
        """Add the column as in the new contract."""
        if self.column in before or self.column not in after:
            reason = "is there already" if self.column in before else "is not in the next contract"
            raise MigrationError(f"{self.text}: {self.column!r} {reason}", hint="correct the step")
        return {**before, self.column: after[self.column]}

    def names_before(self, after: Names) -> Names:
        """Return the names without the new column."""
        return tuple(name for name in after if name != self.column)

    def undone(self, rows: pa.Table) -> pa.Table:
        """Drop the column."""
        return drop_columns(rows, self.column)

    @property
    def text(self) -> str:
        """The step for people."""
        return f"add {self.column}" + (", and write its default into stored rows" if self.fill else "")

    @property
    def touched(self) -> frozenset[str]:
        """No existing column."""
        return frozenset()


@dataclass(frozen=True, slots=True)
class Rename(ColumnStep):
    """Renames a column. Queries may use the former name until a day."""

    to: str
    until: date | None = None

    def shapes(self, before: Shapes, after: Mapping[str, Shape]) -> Shapes:
        """Rename the column, at the same place."""
        del after
        shape = self.column_shape(before)
        if self.to in before:
            raise MigrationError(f"{self.text}: {self.to!r} is taken", hint="rename that one first, to a third name")
        return replace_column(before, self.column, replace(shape, name=self.to))

    def names(self, before: Names) -> Names:
        """Rename it there, too."""
        return replace_name(before, self.column, self.to)

    def names_before(self, after: Names) -> Names:
        """Give it its earlier name."""
        return replace_name(after, self.to, self.column)

    def rows(self, rows: pa.Table) -> pa.Table:
        """Rename it."""
        return rename_column(rows, self.column, self.to)

    def undone(self, rows: pa.Table) -> pa.Table:
        """Rename it back."""
        return rename_column(rows, self.to, self.column)

    @property
    def text(self) -> str:
        """The step for people."""
        return f"rename {self.column} to {self.to}"


NARROW: Final = (pa.float32(), pa.date32())
"""Types to which Arrow casts without an error if precision is lost."""


@dataclass(frozen=True, slots=True)
class Retype(ColumnStep):
    """Changes a column to a wider type. Undoing the step keeps the wide type; `narrow_rows` casts it back."""

    to: str

    def shapes(self, before: Shapes, after: Mapping[str, Shape]) -> Shapes:
        """Widen the type. Raises `MigrationError` for a type that would lose values."""
        del after
        shape = self.column_shape(before)
        if self.to not in WIDER.get(shape.type, set()):
            wider = ", ".join(sorted(WIDER.get(shape.type, set()))) or "no other type"
            hint = f"{shape.type} widens to {wider}; else add a column and drop this one"
            raise MigrationError(f"{self.text}: not every {shape.type} is a {self.to}", hint=hint)
        return replace_column(before, self.column, replace(shape, type=self.to))

    def rows(self, rows: pa.Table) -> pa.Table:
        """Cast the column."""
        return change_column(rows, self.column, lambda values: values.cast(ARROW_TYPES[self.to]))

    @property
    def breaks_readers(self) -> bool:
        """False, as queries work with the wider type."""
        return False

    @property
    def text(self) -> str:
        """The step for people."""
        return f"retype {self.column} to {self.to}"


def narrow_rows(rows: pa.Table, target: Contract) -> pa.Table:
    """Cast rows to the types of an earlier contract, which may be narrower.

    Raises `pyarrow.ArrowInvalid` for values outside the narrow type's range. Rounding to float32 is accepted.
    """
    for column in target.columns:
        type_ = ARROW_TYPES[column.type]
        if column.name in rows.column_names and type_ in NARROW:
            rows = change_column(rows, column.name, partial(narrow_to, to=type_, name=column.name))
    return rows


def narrow_to(values: pa.ChunkedArray, to: pa.DataType, name: str) -> pa.ChunkedArray:
    """Cast values to a type of `NARROW`. Raises `pyarrow.ArrowInvalid` as `narrow_rows` does."""
    narrowed = values.cast(to)
    if values.type == to:
        return narrowed
    if to == pa.float32():
        lost = pc.and_(pc.is_finite(values), pc.invert(pc.is_finite(narrowed)))
    else:
        lost = pc.not_equal(narrowed.cast(values.type), values)
    if count := pc.sum(lost).as_py():
        raise pa.ArrowInvalid(f"{count} of {len(values)} values of {name} are no {to}")
    return narrowed


@dataclass(frozen=True, slots=True)
class Drop(ColumnStep):
    """Drops a column with its values."""

    @property
    def lost(self) -> Names:
        """The column."""
        return (self.column,)

    def shapes(self, before: Shapes, after: Mapping[str, Shape]) -> Shapes:
        """Remove the column."""
        del after
        self.column_shape(before)
        return {name: shape for name, shape in before.items() if name != self.column}

    def rows(self, rows: pa.Table) -> pa.Table:
        """Drop the column."""
        return drop_columns(rows, self.column)

    @property
    def text(self) -> str:
        """The step for people."""
        return f"drop {self.column}"


@dataclass(frozen=True, slots=True)
class Convert(ColumnStep):
    """Converts a column to another unit: new value = old value times `factor` plus `offset`, with the name `to`.

    Queries may use the former name, with values in the former unit, until a day.
    """

    to: str
    unit: str
    factor: float
    offset: float = 0
    until: date | None = None

    def shapes(self, before: Shapes, after: Mapping[str, Shape]) -> Shapes:
        """Change the column's name and unit. Raises `MigrationError` if whole numbers would get fractions."""
        del after
        shape = self.column_shape(before)
        if self.to != self.column and self.to in before:
            raise MigrationError(f"{self.text}: {self.to!r} is taken", hint="rename that one first, to a third name")
        if self.until is not None and self.to == self.column:
            hint = "give the column another name, or take until away"
            raise MigrationError(f"{self.text}: one name cannot answer in two units", hint=hint)
        if shape.type not in {*FLOATS, "int32", "int64"}:
            hint = "add a column in the new unit instead"
            raise MigrationError(f"{self.text}: a {shape.type} cannot be converted", hint=hint)
        if self.factor == 0:
            raise MigrationError(f"{self.text}: a factor of 0 loses every value", hint="correct the factor")
        if shape.type not in FLOATS and not (_is_whole(self.factor) and _is_whole(self.offset)):
            hint = "retype it to float64 first"
            raise MigrationError(f"{self.text}: {shape.type} would lose fractions", hint=hint)
        return replace_column(before, self.column, replace(shape, name=self.to, unit=self.unit))

    def names(self, before: Names) -> Names:
        """Rename it there, too."""
        return replace_name(before, self.column, self.to)

    def successor(self, name: str) -> ColumnSuccessor | None:
        """Return the new column with factor and offset."""
        return (
            ColumnSuccessor(self.to, self.factor, self.offset, self.unit)
            if name == self.column
            else ColumnSuccessor(name)
        )

    def names_before(self, after: Names) -> Names:
        """Give it its earlier name."""
        return replace_name(after, self.to, self.column)

    def rows(self, rows: pa.Table) -> pa.Table:
        """Convert the values. Raises an Arrow error for numbers that exceed their type."""
        return rename_column(change_column(rows, self.column, self.convert_values), self.column, self.to)

    def convert_values(self, values: pa.ChunkedArray) -> pa.ChunkedArray:
        """Return values in the new unit, with the same type."""
        if pa.types.is_integer(values.type):
            grown = pc.multiply_checked(values.cast(pa.int64()), int(self.factor))
            return pc.add_checked(grown, int(self.offset)).cast(values.type)
        wide = pc.add(pc.multiply(values.cast(pa.float64()), self.factor), self.offset)
        return narrow_to(wide, values.type, self.column)

    def undone(self, rows: pa.Table) -> pa.Table:
        """Convert the values back. Raises an Arrow error for whole numbers that would get fractions."""
        return rename_column(change_column(rows, self.to, self._back), self.to, self.column)

    def _back(self, values: pa.ChunkedArray) -> pa.ChunkedArray:
        if pa.types.is_integer(values.type):
            shrunk = pc.subtract_checked(values.cast(pa.int64()), int(self.offset))
            values_before = pc.divide_checked(shrunk, int(self.factor))
            if uneven := pc.sum(pc.not_equal(pc.multiply(values_before, int(self.factor)), shrunk)).as_py():
                message = f"{uneven} of {len(values)} values of {self.to} are no whole number of {self.column}"
                raise pa.ArrowInvalid(message)
            return values_before.cast(values.type)
        wide = pc.subtract(values.cast(pa.float64()), self.offset)
        return narrow_to(pc.divide(wide, self.factor), values.type, self.to)

    @property
    def text(self) -> str:
        """The step for people."""
        by = f" times {self.factor:g}" + (f" + {self.offset:g}" if self.offset else "")
        return f"convert {self.column} to {self.to} in {self.unit} (old value{by})"


def _is_whole(number: float) -> bool:
    return float(number).is_integer()


@dataclass(frozen=True, slots=True)
class RenameTable(Step):
    """Renames the table in queries. They may use the former name until a day.

    Attributes
    ----------
    earlier, to
        Name of the table in queries before and after the step.
    until
        Last day on which queries may use the former name.
    """

    earlier: str
    to: str
    until: date | None = None

    @property
    def keeps_files(self) -> bool:
        """True, as no row changes."""
        return True

    @property
    def keeps_files_back(self) -> bool:
        """True, as no row changes."""
        return True

    @property
    def touched(self) -> frozenset[str]:
        """No column."""
        return frozenset()

    @property
    def breaks_readers(self) -> bool:
        """False, as queries keep finding the columns."""
        return False

    def unknown_before(self, after: Names) -> Names:
        """Return the same columns."""
        return after

    @property
    def text(self) -> str:
        """The step for people."""
        return f"call table {self.earlier} {self.to}"
