"""A wider type for a column."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import pyarrow as pa

from ranklake.lake.contracts.arrow import ARROW_TYPES
from ranklake.lake.contracts.diff import WIDER
from ranklake.lake.migrations.steps.step import ColumnStep, MigrationError, Shape, Shapes, moved, replaced


@dataclass(frozen=True, slots=True)
class Retype(ColumnStep):
    """A wider type for the same values. Undone it stays wide: whoever writes the narrower contract casts."""

    to: str

    def shapes(self, before: Shapes, after: Mapping[str, Shape]) -> Shapes:
        """Widen it; what would lose values is refused."""
        del after
        found = self.there(before)
        if self.to not in WIDER.get(found.type, set()):
            wider = ", ".join(sorted(WIDER.get(found.type, set()))) or "no other type"
            mend = f"{found.type} widens to {wider}; else add a column and drop this one"
            raise MigrationError(f"{self.text}: not every {found.type} is a {self.to}", mend=mend)
        return moved(before, self.column, replace(found, type=self.to))

    def rows(self, rows: pa.Table) -> pa.Table:
        """Cast it."""
        return replaced(rows, self.column, lambda values: values.cast(ARROW_TYPES[self.to]))

    @property
    def breaks_readers(self) -> bool:
        """A reader of the narrow type reads the wide one."""
        return False

    @property
    def text(self) -> str:
        """The step for people."""
        return f"retype {self.column} to {self.to}"
