"""A wider type for a column."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from ranklake.lake.contracts.arrow import ARROW_TYPES
from ranklake.lake.contracts.diff import WIDER
from ranklake.lake.contracts.model import Contract
from ranklake.lake.migrations.steps.step import ColumnStep, MigrationError, Shape, Shapes, moved, replaced

NARROW: Final = (pa.float32(), pa.date32())
"""Types that Arrow casts to without a word about what is lost."""


@dataclass(frozen=True, slots=True)
class Retype(ColumnStep):
    """A wider type for the same values. Undone it stays wide until `narrowed` gives it the type of before."""

    to: str

    def shapes(self, before: Shapes, after: Mapping[str, Shape]) -> Shapes:
        """Widen it; what would lose values is refused."""
        del after
        found = self.there(before)
        if self.to not in WIDER.get(found.type, set()):
            wider = ", ".join(sorted(WIDER.get(found.type, set()))) or "no other type"
            hint = f"{found.type} widens to {wider}; else add a column and drop this one"
            raise MigrationError(f"{self.text}: not every {found.type} is a {self.to}", hint=hint)
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


def narrowed(rows: pa.Table, target: Contract) -> pa.Table:
    """Return rows under the types of an earlier contract, which may be narrower.

    Raises `pyarrow.ArrowInvalid` for numbers and moments that the narrow type has not; rounding is what float32 means.
    """
    for column in target.columns:
        meant = ARROW_TYPES[column.type]
        if column.name in rows.column_names and meant in NARROW:
            rows = replaced(rows, column.name, partial(narrow_to, to=meant, name=column.name))
    return rows


def narrow_to(values: pa.ChunkedArray, to: pa.DataType, name: str) -> pa.ChunkedArray:
    """Return values of a column under one of `NARROW`. Raises `pyarrow.ArrowInvalid`, as `narrowed` does."""
    found = values.cast(to)
    if values.type == to:
        return found
    if to == pa.float32():
        lost = pc.and_(pc.is_finite(values), pc.invert(pc.is_finite(found)))
    else:
        lost = pc.not_equal(found.cast(values.type), values)
    if count := pc.sum(lost).as_py():
        raise pa.ArrowInvalid(f"{count} of {len(values)} values of {name} are no {to}")
    return found
