"""Another name for a column."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import date

import pyarrow as pa

from ranklake.lake.migrations.steps.step import (
    ColumnStep,
    MigrationError,
    Names,
    Shape,
    Shapes,
    moved,
    renamed,
    swapped,
)


@dataclass(frozen=True, slots=True)
class Rename(ColumnStep):
    """Another name for the same values; queries may use the earlier one until a day."""

    to: str
    until: date | None = None

    def shapes(self, before: Shapes, after: Mapping[str, Shape]) -> Shapes:
        """Put the column under its new name, at the same place."""
        del after
        found = self.there(before)
        if self.to in before:
            raise MigrationError(f"{self.text}: {self.to!r} is taken", hint="rename that one first, to a third name")
        return moved(before, self.column, replace(found, name=self.to))

    def names(self, before: Names) -> Names:
        """Rename it there, too."""
        return swapped(before, self.column, self.to)

    def names_before(self, after: Names) -> Names:
        """Give it its earlier name."""
        return swapped(after, self.to, self.column)

    def rows(self, rows: pa.Table) -> pa.Table:
        """Rename it."""
        return renamed(rows, self.column, self.to)

    def undone(self, rows: pa.Table) -> pa.Table:
        """Rename it back."""
        return renamed(rows, self.to, self.column)

    @property
    def text(self) -> str:
        """The step for people."""
        return f"rename {self.column} to {self.to}"
