"""A column that goes."""

from collections.abc import Mapping
from dataclasses import dataclass

import pyarrow as pa

from ranklake.lake.migrations.steps.step import ColumnStep, Names, Shape, Shapes, without


@dataclass(frozen=True, slots=True)
class Drop(ColumnStep):
    """No such column any more; its values go."""

    @property
    def lost(self) -> Names:
        """The column."""
        return (self.column,)

    def shapes(self, before: Shapes, after: Mapping[str, Shape]) -> Shapes:
        """Take the column away."""
        del after
        self.there(before)
        return {name: shape for name, shape in before.items() if name != self.column}

    def rows(self, rows: pa.Table) -> pa.Table:
        """Take it out."""
        return without(rows, self.column)

    @property
    def text(self) -> str:
        """The step for people."""
        return f"drop {self.column}"
