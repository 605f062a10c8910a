"""Columns made of others by SQL expressions: one split into several, several merged into one."""

import re
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from ranklake.lake.contracts.arrow import ARROW_TYPES
from ranklake.lake.migrations.steps.columns import NARROW
from ranklake.lake.migrations.steps.step import MigrationError, Names, Shape, Shapes, Step, drop_columns, require_column

if TYPE_CHECKING:
    from ranklake.lake.query.engine import DataFrame

Values = Mapping[str, pa.ChunkedArray]
"""Columns by name."""

Expressions = tuple[tuple[str, str], ...]
"""Name of a column, and the expression that it is; DataFusion's SQL."""

_PLAIN: Final = re.compile(r"\s*(Projection|TableScan|SubqueryAlias)\b")
_VALUE: Final = re.compile("'[^']*'")
"""What an error may quote of a row; it may be classified."""

_FICKLE: Final = re.compile(
    r"\b(?:(?:random|uuid|now|today|version)\s*\(|current_(?:date|time|timestamp)\b)", re.IGNORECASE
)


def evaluate(rows: pa.Table, names: tuple[str, ...], expressions: Expressions) -> list[pa.ChunkedArray]:
    """Return the values of expressions over some columns of rows; one that the rows lack is NULL.

    Raises `pyarrow.ArrowInvalid` where an expression fails on a value, and `MigrationError` where it is none of a row.
    """
    if not rows.num_rows:
        return [pa.chunked_array([pa.nulls(0)]) for _ in expressions]
    frame = _plan(pa.table({name: _column(rows, name) for name in names}), expressions)
    try:
        batches = frame.collect()
    except Exception as error:  # noqa: BLE001 - DataFusion raises nothing narrower
        raise pa.ArrowInvalid(_VALUE.sub("'…'", _one_line(error))) from None
    result = pa.Table.from_batches(batches)
    if result.num_rows != rows.num_rows:
        raise pa.ArrowInvalid("an expression gives another number of rows")
    return [values.cast(pa.string()) if pa.types.is_string_view(values.type) else values for values in result.columns]


def types_of(columns: Mapping[str, pa.DataType], expressions: Expressions) -> list[pa.DataType]:
    """Return the types of expressions over some columns. Raises `MigrationError` where one is none of a row."""
    return list(_plan(pa.schema(list(columns.items())).empty_table(), expressions).schema().types)


def _plan(rows: pa.Table, expressions: Expressions) -> "DataFrame":
    from ranklake.lake.query.engine import engine  # heavy, and few migrations compute anything

    ctx = engine(1)
    batches = rows.to_batches() or [pa.RecordBatch.from_pylist([], schema=rows.schema)]
    ctx.register_record_batches("rows", [batches])
    chosen = ", ".join(f'({text}) AS "{place}"' for place, (_, text) in enumerate(expressions))
    try:
        frame = ctx.sql(f"SELECT {chosen} FROM rows")  # noqa: S608 - a released migration's own text
        plan = frame.logical_plan().display_indent()
    except Exception as error:  # noqa: BLE001 - DataFusion raises nothing narrower
        raise MigrationError(f"no expression: {_one_line(error)}", hint="correct it") from None
    if not all(map(_PLAIN.match, plan.splitlines())) or any(_FICKLE.search(text) for _, text in expressions):
        message = "an expression looks at more than its row"
        raise MigrationError(message, hint="leave away aggregates, windows, subqueries, and what differs each time")
    return frame


def _column(rows: pa.Table, name: str) -> pa.ChunkedArray:
    if name not in rows.column_names:
        return pa.chunked_array([pa.nulls(rows.num_rows)])
    values = rows[name]
    return values.cast(values.type.value_type) if pa.types.is_dictionary(values.type) else values


def _one_line(error: Exception) -> str:
    return str(error).strip().splitlines()[-1]


@dataclass(frozen=True, slots=True)
class Computed(Step):
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
    def into_by(self) -> Expressions:
        """Columns that come."""

    @property
    @abstractmethod
    def comes_back(self) -> Expressions:
        """The columns that went, of those that came; nothing where they are lost."""

    @property
    def came(self) -> Names:
        """Columns that come."""
        return tuple(name for name, _ in self.into_by)

    @property
    def is_reversible(self) -> bool:
        """Whether expressions say how the columns that went come back."""
        return bool(self.comes_back)

    def made(self, rows: pa.Table) -> Values:
        """Compute the new columns."""
        return _values(rows, self.sources, self.into_by)

    def made_back(self, rows: pa.Table) -> Values:
        """Compute the old columns of the new."""
        return _values(rows, self.came, self.comes_back)

    def refuse_types(self, before: Shapes, after: Mapping[str, Shape]) -> None:
        """Raise `MigrationError` where values are computed that the column would round without a word.

        What comes back would be held against what was computed, and not against what was stored.
        """
        if not self.comes_back:
            return
        if {name for name, _ in self.comes_back} != set(self.sources):
            raise MigrationError(f"{self.text}: back is not of {', '.join(self.sources)}", hint="name each once")
        types = types_of({name: ARROW_TYPES[before[name].type] for name in self.sources}, self.into_by)
        for name, computed_type in zip(self.came, types, strict=True):
            meant = ARROW_TYPES[after[name].type]
            if meant in NARROW and computed_type != meant:
                hint = f"cast it there: CAST(… AS {'REAL' if meant == pa.float32() else 'DATE'})"
                raise MigrationError(
                    f"{self.text}: {name} is {meant}, and its expression gives {computed_type}", hint=hint
                )

    def former_expression(self, name: str) -> tuple[str, Names]:
        """Return how it is computed back."""
        return dict(self.comes_back).get(name, ""), self.came

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
            require_column(self, name, before)
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
        result = _replace_columns(rows, self.sources, self.made(rows))
        if self.is_reversible:
            back = _replace_columns(result, self.came, self.made_back(result))
            for name in self.sources:
                _require_equal(name, rows, back)
        return result

    def undone(self, rows: pa.Table) -> pa.Table:
        """Compute the old columns from the new, where the step says how."""
        return _replace_columns(rows, self.came, self.made_back(rows))


def _replace_columns(rows: pa.Table, gone: Names, come: Values) -> pa.Table:
    rows = drop_columns(rows, *gone)
    for name, column in come.items():
        if not pa.types.is_null(column.type):
            rows = rows.append_column(name, column)
    return rows


def _require_equal(name: str, before: pa.Table, after: pa.Table) -> None:
    expected, actual = (rows[name] if name in rows.column_names else None for rows in (before, after))
    if expected is None or actual is None:
        other = actual if expected is None else expected
        lost = 0 if other is None else len(other) - other.null_count
    else:
        plain = expected.cast(expected.type.value_type) if pa.types.is_dictionary(expected.type) else expected
        actual = actual.cast(plain.type)
        lost = 0 if actual.equals(plain) else _differences(plain, actual)
    if lost:
        raise pa.ArrowInvalid(f"{lost} of {before.num_rows} values of {name} would not come back as they were")


def _differences(left: pa.ChunkedArray, other: pa.ChunkedArray) -> int:
    return sum(a != b for a, b in zip(left.to_pylist(), other.to_pylist(), strict=True))


def _values(rows: pa.Table, gone: Names, come: Expressions) -> Values:
    return dict(zip((name for name, _ in come), evaluate(rows, gone, come), strict=True)) if come else {}


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
    def into_by(self) -> Expressions:
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
    def into_by(self) -> Expressions:
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
