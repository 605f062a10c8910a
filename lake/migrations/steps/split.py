"""Columns made of others by SQL expressions: one split into several, several merged into one."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date

import pyarrow as pa

from ranklake.lake.contracts.arrow import ARROW_TYPES
from ranklake.lake.migrations.steps.expressions import Expressions, computed, types_of
from ranklake.lake.migrations.steps.retype import NARROW
from ranklake.lake.migrations.steps.step import MigrationError, Names, Shape, Shapes, Step, there, without


@dataclass(frozen=True, slots=True)
class Computed(Step):
    """Columns that become others.

    Where it says how they come back, each row is held to it, and a migration that would lose a value stops. Where it
    does not, their values are lost, and somebody has to approve that.
    """

    @property
    def sources(self) -> Names:
        """Columns that go."""
        raise NotImplementedError

    @property
    def made(self) -> Expressions:
        """Columns that come."""
        raise NotImplementedError

    @property
    def comes_back(self) -> Expressions:
        """The columns that went, of those that came; nothing where they are lost."""
        raise NotImplementedError

    @property
    def lost(self) -> Names:
        """All that went, where nothing says how it comes back."""
        return () if self.comes_back else self.sources

    @property
    def touched(self) -> frozenset[str]:
        """The columns that go."""
        return frozenset(self.sources)

    def shapes(self, before: Shapes, after: Mapping[str, Shape]) -> Shapes:
        """Take the sources away, and add what comes as the next contract has it."""
        for name in self.sources:
            there(self, name, before)
        left = {name: shape for name, shape in before.items() if name not in self.sources}
        for name, _ in self.made:
            if name in left or name not in after:
                why = "is taken" if name in left else "is not in the next contract"
                raise MigrationError(f"{self.text}: {name!r} {why}", mend="correct the step")
            left[name] = after[name]
        if self.until is not None and not self.comes_back:
            mend = "say back, or take until away"
            raise MigrationError(f"{self.text}: a former name cannot answer, as nothing says its values", mend=mend)
        if self.comes_back and {name for name, _ in self.comes_back} != set(self.sources):
            raise MigrationError(f"{self.text}: back is not of {', '.join(self.sources)}", mend="name each once")
        if self.comes_back:
            self._refuse_rounding(before, after)
        return left

    def _refuse_rounding(self, before: Shapes, after: Mapping[str, Shape]) -> None:
        """Raise `MigrationError` where values are computed that the column would round without a word.

        What comes back would be held against what was computed, and not against what was stored.
        """
        types = types_of({name: ARROW_TYPES[before[name].type] for name in self.sources}, self.made)
        for (name, _), found in zip(self.made, types, strict=True):
            meant = ARROW_TYPES[after[name].type]
            if meant in NARROW and found != meant:
                mend = f"cast it there: CAST(… AS {'REAL' if meant == pa.float32() else 'DATE'})"
                raise MigrationError(f"{self.text}: {name} is {meant}, and its expression gives {found}", mend=mend)

    def comes_of(self, name: str) -> tuple[str, Names]:
        """Return how it is computed back."""
        return dict(self.comes_back).get(name, ""), self._came

    def names(self, before: Names) -> Names:
        """Refuse to take a column of the key away."""
        if gone := [name for name in before if name in self.sources]:
            mend = "add a step before it: {rekey: [column, …]}"
            raise MigrationError(f"{self.text}: {gone[0]!r} is part of the key", mend=mend)
        return before

    def names_before(self, after: Names) -> Names:
        """Leave away what was not there."""
        new = {name for name, _ in self.made} - set(self.sources)
        return tuple(name for name in after if name not in new)

    def unknown_before(self, after: Names) -> Names:
        """Add the sources where one of what they are computed back from is unknown."""
        known = self.comes_back and set(self._came).isdisjoint(after)
        return (*self.names_before(after), *(() if known else self.sources))

    def rows(self, rows: pa.Table) -> pa.Table:
        """Compute the new columns, and hold what comes back of them against what went."""
        found = self._with(rows, self.sources, self.made)
        if self.comes_back:
            back = self._with(found, self._came, self.comes_back)
            for name in self.sources:
                self._same(name, rows, back)
        return found

    def undone(self, rows: pa.Table) -> pa.Table:
        """Compute the old columns of the new, as far as it is said how."""
        return self._with(rows, self._came, self.comes_back)

    @property
    def _came(self) -> Names:
        return tuple(name for name, _ in self.made)

    def _with(self, rows: pa.Table, gone: Names, come: Expressions) -> pa.Table:
        values = computed(rows, gone, come) if come else []
        rows = without(rows, *gone)
        for (name, _), column in zip(come, values, strict=True):
            if not pa.types.is_null(column.type):
                rows = rows.append_column(name, column)
        return rows

    def _same(self, name: str, before: pa.Table, after: pa.Table) -> None:
        told, found = (rows[name] if name in rows.column_names else None for rows in (before, after))
        if told is None or found is None:
            other = found if told is None else told
            lost = 0 if other is None else len(other) - other.null_count
        else:
            plain = told.cast(told.type.value_type) if pa.types.is_dictionary(told.type) else told
            found = found.cast(plain.type)
            lost = 0 if found.equals(plain) else _differences(plain, found)
        if lost:
            raise pa.ArrowInvalid(f"{lost} of {before.num_rows} values of {name} would not come back as they were")


def _differences(one: pa.ChunkedArray, other: pa.ChunkedArray) -> int:
    return sum(a != b for a, b in zip(one.to_pylist(), other.to_pylist(), strict=True))


@dataclass(frozen=True, slots=True)
class Split(Computed):
    """One column becomes several.

    Attributes
    ----------
    column
        That goes.
    into
        What comes of it.
    back
        Expression for the column, of what came of it; without one its values are lost.
    until
        Last day on which queries may use its name.
    """

    column: str
    into: Expressions
    back: str = ""
    until: date | None = None

    @property
    def sources(self) -> Names:
        """The column."""
        return (self.column,)

    @property
    def made(self) -> Expressions:
        """What comes of it."""
        return self.into

    @property
    def comes_back(self) -> Expressions:
        """The column, of what came of it."""
        return ((self.column, self.back),) if self.back else ()

    @property
    def text(self) -> str:
        """The step for people."""
        return f"split {self.column} into {', '.join(name for name, _ in self.into)}"


@dataclass(frozen=True, slots=True)
class Merge(Computed):
    """Several columns become one.

    Attributes
    ----------
    columns
        That go.
    into, by
        The column that comes, and what it is.
    back
        Expressions for each of the columns, of the one that came; without them their values are lost.
    until
        Last day on which queries may use their names.
    """

    columns: Names
    into: str
    by: str
    back: Expressions = ()
    until: date | None = None

    @property
    def sources(self) -> Names:
        """The columns."""
        return self.columns

    @property
    def made(self) -> Expressions:
        """The column that comes."""
        return ((self.into, self.by),)

    @property
    def comes_back(self) -> Expressions:
        """Each of the columns, of the one that came."""
        return self.back

    @property
    def text(self) -> str:
        """The step for people."""
        return f"merge {', '.join(self.columns)} into {self.into}"
