"""Columns that go, and others that are made of them."""

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass

import pyarrow as pa

from ranklake.lake.migrations.steps.step import MigrationError, Names, Shape, Shapes, Step, there, without

Values = Mapping[str, pa.ChunkedArray]
"""Columns by name."""


@dataclass(frozen=True, slots=True)
class Replaced(Step):
    """Columns that become others.

    Where it says how they come back, each row is held to it, and a migration that would lose a value stops. Where it
    does not, their values are lost, and somebody has to approve that.
    """

    @property
    @abstractmethod
    def sources(self) -> Names:
        """Columns that go."""

    @property
    @abstractmethod
    def came(self) -> Names:
        """Columns that come."""

    @property
    @abstractmethod
    def is_reversible(self) -> bool:
        """Whether it says how the columns that went come back."""

    @abstractmethod
    def made(self, rows: pa.Table) -> Values:
        """Return the columns that come. Raises an Arrow error."""

    @abstractmethod
    def made_back(self, rows: pa.Table) -> Values:
        """Return the columns that went; nothing where they are lost. Raises an Arrow error."""

    @abstractmethod
    def refuse_types(self, before: Shapes, after: Mapping[str, Shape]) -> None:
        """Raise `MigrationError` where values are made that the columns would round without a word."""

    @property
    def lost(self) -> Names:
        """All that went, where nothing says how it comes back."""
        return () if self.is_reversible else self.sources

    @property
    def touched(self) -> frozenset[str]:
        """The columns that go."""
        return frozenset(self.sources)

    def shapes(self, before: Shapes, after: Mapping[str, Shape]) -> Shapes:
        """Take the sources away, and add what comes as the next contract has it."""
        for name in self.sources:
            there(self, name, before)
        left = {name: shape for name, shape in before.items() if name not in self.sources}
        for name in self.came:
            if name in left or name not in after:
                why = "is taken" if name in left else "is not in the next contract"
                raise MigrationError(f"{self.text}: {name!r} {why}", hint="correct the step")
            left[name] = after[name]
        if self.until is not None and not self.is_reversible:
            hint = "say back, or take until away"
            raise MigrationError(f"{self.text}: a former name cannot answer, as nothing says its values", hint=hint)
        self.refuse_types(before, after)
        return left

    def names(self, before: Names) -> Names:
        """Refuse to take a column of the key away."""
        if gone := [name for name in before if name in self.sources]:
            hint = "keep the columns of the key"
            raise MigrationError(f"{self.text}: {gone[0]!r} is part of the key", hint=hint)
        return before

    def names_before(self, after: Names) -> Names:
        """Leave away what was not there."""
        new = set(self.came) - set(self.sources)
        return tuple(name for name in after if name not in new)

    def unknown_before(self, after: Names) -> Names:
        """Add the sources where one of what they are made back from is unknown."""
        known = self.is_reversible and set(self.came).isdisjoint(after)
        return (*self.names_before(after), *(() if known else self.sources))

    def rows(self, rows: pa.Table) -> pa.Table:
        """Make the new columns, and hold what comes back of them against what went."""
        found = _with(rows, self.sources, self.made(rows))
        if self.is_reversible:
            back = _with(found, self.came, self.made_back(found))
            for name in self.sources:
                _same(name, rows, back)
        return found

    def undone(self, rows: pa.Table) -> pa.Table:
        """Make the old columns of the new, as far as it is said how."""
        return _with(rows, self.came, self.made_back(rows))


def _with(rows: pa.Table, gone: Names, come: Values) -> pa.Table:
    rows = without(rows, *gone)
    for name, column in come.items():
        if not pa.types.is_null(column.type):
            rows = rows.append_column(name, column)
    return rows


def _same(name: str, before: pa.Table, after: pa.Table) -> None:
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
