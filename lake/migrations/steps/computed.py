"""Steps that compute columns by SQL expressions: split one column into several, or merge several into one."""

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


Expressions = tuple[tuple[str, str], ...]
"""Pairs of a column's name and its expression in DataFusion's SQL."""

_PLAIN: Final = re.compile(r"\s*(Projection|TableScan|SubqueryAlias)\b")
_VALUE: Final = re.compile("'[^']*'")
"""A value that an error may quote. It may be classified."""

_VOLATILE: Final = re.compile(
    r"\b(?:(?:random|uuid|now|today|version)\s*\(|current_(?:date|time|timestamp)\b)", re.IGNORECASE
)


def evaluate(rows: pa.Table, names: tuple[str, ...], expressions: Expressions) -> list[pa.ChunkedArray]:
    """Return the values of expressions over some columns of rows. A column that the rows lack is NULL.

    Raises `pyarrow.ArrowInvalid` if an expression fails on a value, and `MigrationError` if it is invalid or uses more
    than its row.
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
    """Return the types of expressions over some columns. Raises `MigrationError` for an invalid expression."""
    return list(_plan(pa.schema(list(columns.items())).empty_table(), expressions).schema().types)


def _plan(rows: pa.Table, expressions: Expressions) -> "DataFrame":
    from ranklake.lake.query.engine import engine  # slow to import, and needed by few migrations

    ctx = engine(1)
    batches = rows.to_batches() or [pa.RecordBatch.from_pylist([], schema=rows.schema)]
    ctx.register_record_batches("rows", [batches])
    chosen = ", ".join(f'({text}) AS "{place}"' for place, (_, text) in enumerate(expressions))
    try:
        frame = ctx.sql(f"SELECT {chosen} FROM rows")  # noqa: S608 - a released migration's own text
        plan = frame.logical_plan().display_indent()
    except Exception as error:  # noqa: BLE001 - DataFusion raises nothing narrower
        raise MigrationError(f"no expression: {_one_line(error)}", hint="correct it") from None
    if not all(map(_PLAIN.match, plan.splitlines())) or any(_VOLATILE.search(text) for _, text in expressions):
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
    """A step that replaces columns by computed ones.

    If the step has reverse expressions, each row is checked against them, and the migration fails if a value would be
    lost. Without them the old values are lost, and the migration needs an approval.
    """

    @property
    @abstractmethod
    def sources(self) -> Names:
        """The removed columns."""

    @property
    @abstractmethod
    def into_by(self) -> Expressions:
        """The new columns with their expressions."""

    @property
    @abstractmethod
    def comes_back(self) -> Expressions:
        """The removed columns with their reverse expressions; empty if the values are lost."""

    @property
    def came(self) -> Names:
        """The new columns."""
        return tuple(name for name, _ in self.into_by)

    @property
    def is_reversible(self) -> bool:
        """Whether the step has reverse expressions."""
        return bool(self.comes_back)

    def refuse_types(self, before: Shapes, after: Mapping[str, Shape]) -> None:
        """Raise `MigrationError` if storing a computed value would round it silently.

        The check of reverse expressions uses computed values, and would not notice the rounding.
        """
        if not self.comes_back:
            return
        if {name for name, _ in self.comes_back} != set(self.sources):
            raise MigrationError(f"{self.text}: back is not of {', '.join(self.sources)}", hint="name each once")
        types = types_of({name: ARROW_TYPES[before[name].type] for name in self.sources}, self.into_by)
        for name, computed_type in zip(self.came, types, strict=True):
            stored_type = ARROW_TYPES[after[name].type]
            if stored_type in NARROW and computed_type != stored_type:
                hint = f"cast it there: CAST(… AS {'REAL' if stored_type == pa.float32() else 'DATE'})"
                raise MigrationError(
                    f"{self.text}: {name} is {stored_type}, and its expression gives {computed_type}", hint=hint
                )

    def former_expression(self, name: str) -> tuple[str, Names]:
        """Return the reverse expression of a column, and the new columns."""
        return dict(self.comes_back).get(name, ""), self.came

    @property
    def lost(self) -> Names:
        """The removed columns, if the step is not reversible."""
        return () if self.is_reversible else self.sources

    @property
    def touched(self) -> frozenset[str]:
        """The removed columns."""
        return frozenset(self.sources)

    def shapes(self, before: Shapes, after: Mapping[str, Shape]) -> Shapes:
        """Remove the sources, and add the new columns as in the new contract."""
        for name in self.sources:
            require_column(self, name, before)
        shapes = {name: shape for name, shape in before.items() if name not in self.sources}
        for name in self.came:
            if name in shapes or name not in after:
                reason = "is taken" if name in shapes else "is not in the next contract"
                raise MigrationError(f"{self.text}: {name!r} {reason}", hint="correct the step")
            shapes[name] = after[name]
        if self.until is not None and not self.is_reversible:
            hint = "say back, or take until away"
            raise MigrationError(f"{self.text}: a former name cannot answer, as nothing says its values", hint=hint)
        self.refuse_types(before, after)
        return shapes

    def names(self, before: Names) -> Names:
        """Raise `MigrationError` if a column of the key is removed."""
        if removed := [name for name in before if name in self.sources]:
            hint = "keep the columns of the key"
            raise MigrationError(f"{self.text}: {removed[0]!r} is part of the key", hint=hint)
        return before

    def names_before(self, after: Names) -> Names:
        """Return the names without the new columns."""
        new = set(self.came) - set(self.sources)
        return tuple(name for name in after if name not in new)

    def unknown_before(self, after: Names) -> Names:
        """Add the sources, unless they can be computed from the new columns."""
        is_restorable = self.is_reversible and set(self.came).isdisjoint(after)
        return (*self.names_before(after), *(() if is_restorable else self.sources))

    def rows(self, rows: pa.Table) -> pa.Table:
        """Compute the new columns, and check that the reverse expressions return the old values."""
        result = _compute_columns(rows, self.sources, self.into_by)
        if self.is_reversible:
            back = _compute_columns(result, self.came, self.comes_back)
            for name in self.sources:
                _require_equal(name, rows, back)
        return result

    def undone(self, rows: pa.Table) -> pa.Table:
        """Compute the old columns from the new ones, if the step is reversible."""
        return _compute_columns(rows, self.came, self.comes_back)


def _compute_columns(rows: pa.Table, removed: Names, expressions: Expressions) -> pa.Table:
    """Replace some columns by computed ones. A column of type null is left out."""
    columns = evaluate(rows, removed, expressions) if expressions else []
    rows = drop_columns(rows, *removed)
    for (name, _), column in zip(expressions, columns, strict=True):
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


@dataclass(frozen=True, slots=True)
class Split(Computed):
    """Splits one column into several.

    Attributes
    ----------
    column
        The removed column.
    into
        The new columns with their expressions.
    back
        Expression for the old column over the new ones; empty if its values are lost.
    until
        Last day on which queries may use the former name.
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
        """The new columns with their expressions."""
        return self.into

    @property
    def comes_back(self) -> Expressions:
        """The removed column with its reverse expression."""
        return ((self.column, self.back),) if self.back else ()

    @property
    def text(self) -> str:
        """The step for people."""
        return f"split {self.column} into {', '.join(name for name, _ in self.into)}"


@dataclass(frozen=True, slots=True)
class Merge(Computed):
    """Merges several columns into one.

    Attributes
    ----------
    columns
        The removed columns.
    into, by
        The new column, and its expression.
    back
        The removed columns with expressions over the new one; empty if their values are lost.
    until
        Last day on which queries may use the former names.
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
        """The new column with its expression."""
        return ((self.into, self.by),)

    @property
    def comes_back(self) -> Expressions:
        """The removed columns with their reverse expressions."""
        return self.back

    @property
    def text(self) -> str:
        """The step for people."""
        return f"merge {', '.join(self.columns)} into {self.into}"
