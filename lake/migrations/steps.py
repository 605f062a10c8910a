"""Steps of a migration: what each does to the columns of a table, to its rows, and back.

A step is a line of a migration's file, such as ``{rename: samples, to: examples}``; its first key says its kind.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Final

import pyarrow as pa
import pyarrow.compute as pc

from ranklake.errors import RanklakeError, did_you_mean
from ranklake.lake.contracts.arrow import ARROW_TYPES
from ranklake.lake.contracts.diff import WIDER
from ranklake.lake.contracts.model import FLOATS, Column


class MigrationError(RanklakeError):
    """A migration that cannot be: its file, its place among the others, or what it would do."""


@dataclass(frozen=True, slots=True)
class Shape:
    """What a step can change of a column."""

    id: int
    name: str
    type: str
    unit: str | None


Shapes = dict[str, Shape]
"""Columns of a table by name."""


def shape_of(column: Column) -> Shape:
    """Return the shape of a column of a contract."""
    return Shape(column.id, column.name, column.type, column.unit)


@dataclass(frozen=True, slots=True)
class Step(ABC):
    """One step.

    Attributes
    ----------
    column
        The column that it is about, under its name before the step.
    """

    column: str
    keeps_rows_as_they_are: ClassVar[bool] = False
    """Whether stored files need not be written anew."""
    drops: ClassVar[bool] = False
    """Whether values go for good."""

    @abstractmethod
    def shapes(self, before: Shapes, after: Mapping[str, Shape]) -> Shapes:
        """Return the columns after the step; `after` are those that the migration leads to. Raises `MigrationError`."""

    def rows(self, rows: pa.Table) -> pa.Table:
        """Return rows after the step; a column that is not there is NULL and stays away. Raises an Arrow error."""
        return rows

    @abstractmethod
    def undone(self, rows: pa.Table) -> pa.Table:
        """Return rows as they were before the step, as far as they can be. Raises an Arrow error."""

    @property
    @abstractmethod
    def text(self) -> str:
        """The step for people, in a clause."""

    @property
    def touched(self) -> frozenset[str]:
        """Names, before the step, of columns whose name or values it changes."""
        return frozenset({self.column})

    def _there(self, before: Shapes) -> Shape:
        if self.column not in before:
            mend = did_you_mean(self.column, before)
            raise MigrationError(f"{self.text}: no column {self.column!r}", mend=mend or "name one that is there")
        return before[self.column]


@dataclass(frozen=True, slots=True)
class Add(Step):
    """A new column: NULL, or its default, in all stored rows; `fill` writes the default into them."""

    fill: bool = False

    @property
    def keeps_rows_as_they_are(self) -> bool:  # type: ignore[override]
        """Whether stored files need not be written anew."""
        return not self.fill

    def shapes(self, before: Shapes, after: Mapping[str, Shape]) -> Shapes:
        """Add the column as the next contract has it."""
        if self.column in before or self.column not in after:
            why = "is there already" if self.column in before else "is not in the next contract"
            raise MigrationError(f"{self.text}: {self.column!r} {why}", mend="correct the step")
        return {**before, self.column: after[self.column]}

    def undone(self, rows: pa.Table) -> pa.Table:
        """Drop it again."""
        return rows.drop_columns([self.column]) if self.column in rows.column_names else rows

    @property
    def text(self) -> str:
        """The step for people."""
        return f"add {self.column}" + (", and write its default into stored rows" if self.fill else "")

    @property
    def touched(self) -> frozenset[str]:
        """Nothing that was there."""
        return frozenset()


@dataclass(frozen=True, slots=True)
class Rename(Step):
    """Another name for the same values."""

    to: str

    def shapes(self, before: Shapes, after: Mapping[str, Shape]) -> Shapes:
        """Put the column under its new name, at the same place."""
        del after
        self._there(before)
        if self.to in before:
            raise MigrationError(f"{self.text}: {self.to!r} is taken", mend="rename that one first, to a third name")
        moved = {self.to if name == self.column else name: shape for name, shape in before.items()}
        found = before[self.column]
        return {**moved, self.to: Shape(found.id, self.to, found.type, found.unit)}

    def rows(self, rows: pa.Table) -> pa.Table:
        """Rename it."""
        return _renamed(rows, self.column, self.to)

    def undone(self, rows: pa.Table) -> pa.Table:
        """Rename it back."""
        return _renamed(rows, self.to, self.column)

    @property
    def text(self) -> str:
        """The step for people."""
        return f"rename {self.column} to {self.to}"


@dataclass(frozen=True, slots=True)
class Drop(Step):
    """A column that goes, with its values."""

    drops: ClassVar[bool] = True

    def shapes(self, before: Shapes, after: Mapping[str, Shape]) -> Shapes:
        """Take the column away."""
        del after
        self._there(before)
        return {name: shape for name, shape in before.items() if name != self.column}

    def rows(self, rows: pa.Table) -> pa.Table:
        """Take it out."""
        return rows.drop_columns([self.column]) if self.column in rows.column_names else rows

    def undone(self, rows: pa.Table) -> pa.Table:
        """Leave it away: rows that came since never had it."""
        return rows

    @property
    def text(self) -> str:
        """The step for people."""
        return f"drop {self.column}"


@dataclass(frozen=True, slots=True)
class Retype(Step):
    """A wider type for the same values."""

    to: str

    def shapes(self, before: Shapes, after: Mapping[str, Shape]) -> Shapes:
        """Widen it; what would lose values is refused."""
        del after
        found = self._there(before)
        if self.to not in WIDER.get(found.type, set()):
            wider = ", ".join(sorted(WIDER.get(found.type, set()))) or "no other type"
            mend = f"{found.type} widens to {wider}; else add a column and drop this one"
            raise MigrationError(f"{self.text}: not every {found.type} is a {self.to}", mend=mend)
        return {**before, self.column: Shape(found.id, found.name, self.to, found.unit)}

    def rows(self, rows: pa.Table) -> pa.Table:
        """Cast it."""
        return _with(rows, self.column, lambda values: values.cast(ARROW_TYPES[self.to]))

    def undone(self, rows: pa.Table) -> pa.Table:
        """Leave it wide: whoever writes the narrower contract casts, and refuses what does not fit."""
        return rows

    @property
    def text(self) -> str:
        """The step for people."""
        return f"retype {self.column} to {self.to}"


@dataclass(frozen=True, slots=True)
class Convert(Step):
    """Another unit: new value = old value times `factor` + `offset`, under the name `to`."""

    to: str
    unit: str
    factor: float
    offset: float = 0

    def shapes(self, before: Shapes, after: Mapping[str, Shape]) -> Shapes:
        """Give the column its new name and unit; whole numbers stay whole."""
        del after
        found = self._there(before)
        if self.to != self.column and self.to in before:
            raise MigrationError(f"{self.text}: {self.to!r} is taken", mend="rename that one first, to a third name")
        if self.factor == 0:
            raise MigrationError(f"{self.text}: a factor of 0 loses every value", mend="correct the factor")
        if found.type not in FLOATS and not (_is_whole(self.factor) and _is_whole(self.offset)):
            mend = "retype it to float64 first"
            raise MigrationError(f"{self.text}: {found.type} would lose fractions", mend=mend)
        moved = {self.to if name == self.column else name: shape for name, shape in before.items()}
        return {**moved, self.to: Shape(found.id, self.to, found.type, self.unit)}

    def rows(self, rows: pa.Table) -> pa.Table:
        """Convert the values; whole numbers that grow out of their type raise."""
        return _renamed(_with(rows, self.column, self.converted), self.column, self.to)

    def converted(self, values: pa.ChunkedArray) -> pa.ChunkedArray:
        """Return values in the new unit, of the type that they have."""
        if pa.types.is_integer(values.type):
            grown = pc.multiply_checked(values.cast(pa.int64()), int(self.factor))
            return pc.add_checked(grown, int(self.offset)).cast(values.type)
        wide = values.cast(pa.float64())
        return pc.add(pc.multiply(wide, self.factor), self.offset).cast(values.type)

    def undone(self, rows: pa.Table) -> pa.Table:
        """Convert the values back."""

        def back(values: pa.ChunkedArray) -> pa.ChunkedArray:
            if pa.types.is_integer(values.type):
                shrunk = pc.divide_checked(
                    pc.subtract_checked(values.cast(pa.int64()), int(self.offset)), int(self.factor)
                )
                return shrunk.cast(values.type)
            wide = pc.subtract(values.cast(pa.float64()), self.offset)
            return pc.divide(wide, self.factor).cast(values.type)

        return _renamed(_with(rows, self.to, back), self.to, self.column)

    @property
    def text(self) -> str:
        """The step for people."""
        by = f" times {self.factor:g}" + (f" + {self.offset:g}" if self.offset else "")
        return f"convert {self.column} to {self.to} in {self.unit} (old value{by})"


KINDS: Final[Mapping[str, tuple[type[Step], frozenset[str], frozenset[str]]]] = {
    "add": (Add, frozenset(), frozenset({"fill"})),
    "rename": (Rename, frozenset({"to"}), frozenset()),
    "drop": (Drop, frozenset(), frozenset()),
    "retype": (Retype, frozenset({"to"}), frozenset()),
    "convert": (Convert, frozenset({"to", "unit", "factor"}), frozenset({"offset"})),
}
"""By first key: the kind of step, the keys that it needs, and those that it may have."""

_TYPES: Final[Mapping[str, tuple[type, ...]]] = {
    "to": (str,),
    "unit": (str,),
    "fill": (bool,),
    "factor": (int, float),
    "offset": (int, float),
}


def step_of(facts: Any, where: str) -> Step:  # noqa: ANN401 - whatever YAML gives
    """Return the step that a line of a migration's file says. Raises `MigrationError`."""
    first = str(next(iter(facts), "")) if isinstance(facts, dict) else ""
    if first not in KINDS:
        mend = did_you_mean(first, KINDS) or f"begin it with one of {', '.join(KINDS)}"
        raise MigrationError(f"{first!r} is no kind of step", where=where, mend=mend)
    kind, needed, allowed = KINDS[first]
    rest = {key: value for key, value in facts.items() if key != first}
    if lacking := needed - rest.keys():
        raise MigrationError(f"{first} lacks {', '.join(sorted(lacking))}", where=where, mend="add it")
    if strange := sorted(rest.keys() - needed - allowed):
        mend = did_you_mean(strange[0], needed | allowed) or "remove it"
        raise MigrationError(f"{first} has no key {strange[0]!r}", where=where, mend=mend)
    for key, value in {first: facts[first], **rest}.items():
        types = _TYPES.get(key, (str,))
        if not isinstance(value, types) or (isinstance(value, bool) and bool not in types):
            raise MigrationError(f"{key} of {first} is no {types[0].__name__}", where=where, mend="correct it")
    return kind(facts[first], **rest)


def _is_whole(number: float) -> bool:
    return float(number).is_integer()


def _renamed(rows: pa.Table, old: str, new: str) -> pa.Table:
    if old == new or old not in rows.column_names:
        return rows
    return rows.rename_columns([new if name == old else name for name in rows.column_names])


def _with(rows: pa.Table, name: str, change: Any) -> pa.Table:  # noqa: ANN401 - a function of a column
    if name not in rows.column_names:
        return rows
    place = rows.column_names.index(name)
    return rows.set_column(place, name, change(rows.column(place)))
