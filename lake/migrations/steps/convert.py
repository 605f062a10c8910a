"""Another unit for a column."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import date

import pyarrow as pa
import pyarrow.compute as pc

from ranklake.lake.contracts.model import FLOATS
from ranklake.lake.migrations.steps.retype import narrow_to
from ranklake.lake.migrations.steps.step import (
    ColumnStep,
    Lead,
    MigrationError,
    Names,
    Shape,
    Shapes,
    moved,
    renamed,
    replaced,
    swapped,
)


@dataclass(frozen=True, slots=True)
class Convert(ColumnStep):
    """Another unit: new value = old value times `factor` + `offset`, under the name `to`.

    Queries may use the earlier name, in the earlier unit, until a day.
    """

    to: str
    unit: str
    factor: float
    offset: float = 0
    until: date | None = None

    def shapes(self, before: Shapes, after: Mapping[str, Shape]) -> Shapes:
        """Give the column its new name and unit; whole numbers stay whole."""
        del after
        found = self.there(before)
        if self.to != self.column and self.to in before:
            raise MigrationError(f"{self.text}: {self.to!r} is taken", hint="rename that one first, to a third name")
        if self.until is not None and self.to == self.column:
            hint = "give the column another name, or take until away"
            raise MigrationError(f"{self.text}: one name cannot answer in two units", hint=hint)
        if found.type not in {*FLOATS, "int32", "int64"}:
            hint = "add a column in the new unit instead"
            raise MigrationError(f"{self.text}: a {found.type} cannot be converted", hint=hint)
        if self.factor == 0:
            raise MigrationError(f"{self.text}: a factor of 0 loses every value", hint="correct the factor")
        if found.type not in FLOATS and not (_is_whole(self.factor) and _is_whole(self.offset)):
            hint = "retype it to float64 first"
            raise MigrationError(f"{self.text}: {found.type} would lose fractions", hint=hint)
        return moved(before, self.column, replace(found, name=self.to, unit=self.unit))

    def names(self, before: Names) -> Names:
        """Rename it there, too."""
        return swapped(before, self.column, self.to)

    def lead(self, name: str) -> Lead | None:
        """Return how its values are converted."""
        return Lead(self.to, self.factor, self.offset, self.unit) if name == self.column else Lead(name)

    def names_before(self, after: Names) -> Names:
        """Give it its earlier name."""
        return swapped(after, self.to, self.column)

    def rows(self, rows: pa.Table) -> pa.Table:
        """Convert the values; numbers that grow out of their type raise."""
        return renamed(replaced(rows, self.column, self.converted), self.column, self.to)

    def converted(self, values: pa.ChunkedArray) -> pa.ChunkedArray:
        """Return values in the new unit, of the type that they have."""
        if pa.types.is_integer(values.type):
            grown = pc.multiply_checked(values.cast(pa.int64()), int(self.factor))
            return pc.add_checked(grown, int(self.offset)).cast(values.type)
        wide = pc.add(pc.multiply(values.cast(pa.float64()), self.factor), self.offset)
        return narrow_to(wide, values.type, self.column)

    def undone(self, rows: pa.Table) -> pa.Table:
        """Convert the values back; whole numbers that would not be whole then raise."""
        return renamed(replaced(rows, self.to, self._back), self.to, self.column)

    def _back(self, values: pa.ChunkedArray) -> pa.ChunkedArray:
        if pa.types.is_integer(values.type):
            shrunk = pc.subtract_checked(values.cast(pa.int64()), int(self.offset))
            found = pc.divide_checked(shrunk, int(self.factor))
            if uneven := pc.sum(pc.not_equal(pc.multiply(found, int(self.factor)), shrunk)).as_py():
                what = f"{uneven} of {len(values)} values of {self.to} are no whole number of {self.column}"
                raise pa.ArrowInvalid(what)
            return found.cast(values.type)
        wide = pc.subtract(values.cast(pa.float64()), self.offset)
        return narrow_to(pc.divide(wide, self.factor), values.type, self.to)

    @property
    def text(self) -> str:
        """The step for people."""
        by = f" times {self.factor:g}" + (f" + {self.offset:g}" if self.offset else "")
        return f"convert {self.column} to {self.to} in {self.unit} (old value{by})"


def _is_whole(number: float) -> bool:
    return float(number).is_integer()
