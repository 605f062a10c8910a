"""Rows that lie on the dates of another column."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date

import pyarrow as pa
import pyarrow.compute as pc

from ranklake.lake.migrations.steps.step import MigrationError, Names, Shape, Shapes, Step, there


@dataclass(frozen=True, slots=True)
class Repartition(Step):
    """Each row on the UTC date of another column; where that is NULL, on the date where it is.

    Attributes
    ----------
    by, was
        Columns whose dates rows lie on after the step, and before it.
    """

    by: str
    was: str

    @property
    def moves_rows(self) -> bool:
        """It does."""
        return True

    def shapes(self, before: Shapes, after: Mapping[str, Shape]) -> Shapes:
        """Look whether both columns are there, and have dates."""
        for name, shapes in ((self.was, before), (self.by, after)):
            if (found := there(self, name, shapes)).type not in {"timestamp", "date"}:
                raise MigrationError(f"{self.text}: {name} is {found.type}", mend="name a column that has dates")
        return before

    def grain(self, before: Names) -> Names:
        """Leave the key."""
        return before

    def by_day(self, rows: pa.Table, day: date, *, backwards: bool) -> dict[date, pa.Table]:
        """Return the rows by date."""
        name = self.was if backwards else self.by
        if name not in rows.column_names:
            return {day: rows}
        days = rows[name].cast(pa.timestamp("us", tz="UTC")).cast(pa.date32()).fill_null(day)
        every = sorted(days.unique().to_pylist())
        return {on: rows.filter(pc.equal(days, pa.scalar(on, pa.date32()))) for on in every}

    @property
    def touched(self) -> frozenset[str]:
        """The date."""
        return frozenset({"date"})

    @property
    def breaks_readers(self) -> bool:
        """Who names the date finds one."""
        return False

    @property
    def text(self) -> str:
        """The step for people."""
        return f"put each row on the date of {self.by} in place of {self.was}"
