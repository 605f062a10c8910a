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
        Columns, under their names at this step, whose dates rows lie on after the step, and before it.
    """

    by: str
    was: str

    @property
    def dated(self) -> Names:
        """Both columns."""
        return (self.was, self.by)

    def shapes(self, before: Shapes, after: Mapping[str, Shape]) -> Shapes:
        """Look whether both columns are there, and have dates."""
        del after
        for name in self.dated:
            if (found := there(self, name, before)).type not in {"timestamp", "date"}:
                raise MigrationError(f"{self.text}: {name} is {found.type}", hint="name a column that has dates")
        return before

    def grain(self, before: Names) -> Names:
        """Leave the key."""
        return before

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


def by_date(rows: pa.Table, name: str, day: date) -> dict[date, pa.Table]:
    """Return rows by the UTC date of a column; those that have none are of `day`."""
    if name not in rows.column_names:
        return {day: rows}
    days = rows[name].cast(pa.timestamp("us", tz="UTC")).cast(pa.date32()).fill_null(day)
    every = sorted(days.unique().to_pylist())
    return {on: rows.filter(pc.equal(days, pa.scalar(on, pa.date32()))) for on in every}
