"""A new column."""

from collections.abc import Mapping
from dataclasses import dataclass

import pyarrow as pa

from ranklake.lake.migrations.steps.step import ColumnStep, MigrationError, Names, Shape, Shapes, without


@dataclass(frozen=True, slots=True)
class Add(ColumnStep):
    """A new column: NULL, or its default, in all stored rows; `fill` writes the default into them."""

    fill: bool = False

    @property
    def keeps_files(self) -> bool:
        """Whether stored files need not be written anew."""
        return not self.fill

    def shapes(self, before: Shapes, after: Mapping[str, Shape]) -> Shapes:
        """Add the column as the next contract has it."""
        if self.column in before or self.column not in after:
            why = "is there already" if self.column in before else "is not in the next contract"
            raise MigrationError(f"{self.text}: {self.column!r} {why}", hint="correct the step")
        return {**before, self.column: after[self.column]}

    def names_before(self, after: Names) -> Names:
        """Return names without it."""
        return tuple(name for name in after if name != self.column)

    def undone(self, rows: pa.Table) -> pa.Table:
        """Drop it again."""
        return without(rows, self.column)

    @property
    def text(self) -> str:
        """The step for people."""
        return f"add {self.column}" + (", and write its default into stored rows" if self.fill else "")

    @property
    def touched(self) -> frozenset[str]:
        """Nothing that was there."""
        return frozenset()
