"""Row conditions of users' suites: which rows an expectation is about, as Great Expectations would filter them.

Great Expectations filters a pandas frame, in which NaN is NULL, and NULL equals nothing and differs from everything.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc

if TYPE_CHECKING:
    from collections.abc import Iterator

_COMPARED: Final[Mapping[str, Callable[[Any, Any], Any]]] = {
    "==": pc.equal,
    "!=": pc.not_equal,
    "<": pc.less,
    "<=": pc.less_equal,
    ">": pc.greater,
    ">=": pc.greater_equal,
}
ORDERS: Final = ("<", "<=", ">", ">=")
EQUALITIES: Final = ("==", "!=")
SETS: Final = ("IN", "NOT_IN")
NULLS: Final = ("NULL", "NOT NULL")
JOINED: Final[Mapping[str, Callable[[Any, Any], Any]]] = {"and": pc.and_, "or": pc.or_}


@dataclass(frozen=True, slots=True)
class Condition:
    """A condition on single rows: `column` compared with `values`, or several `parts` joined.

    Attributes
    ----------
    operator
        One of `ORDERS`, `EQUALITIES`, `SETS`, `NULLS` or `JOINED`.
    values
        One, or those of a set: numbers of columns of numbers, text of columns of text.
    """

    operator: str
    column: str = ""
    values: tuple[Any, ...] = ()
    parts: "tuple[Condition, ...]" = ()

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that it reads, each once."""
        return tuple(dict.fromkeys(self._columns()))

    def _columns(self) -> "Iterator[str]":
        if self.column:
            yield self.column
        for part in self.parts:
            yield from part.columns

    def __str__(self) -> str:
        """Return it in words, with its values."""
        if self.parts:
            return f"({f' {self.operator} '.join(map(str, self.parts))})"
        if self.operator in NULLS:
            return f"{self.column} is {self.operator}"
        if self.operator in SETS:
            return f"{self.column} {self.operator.lower().replace('_', ' ')} {list(self.values)}"
        return f"{self.column} {self.operator} {self.values[0]!r}"

    def plain(self) -> dict[str, Any]:
        """Return it as Great Expectations writes it in JSON."""
        if self.parts:
            return {"type": self.operator, "conditions": [part.plain() for part in self.parts]}
        about = {"column": {"name": self.column}}
        if self.operator in NULLS:
            return {"type": "nullity", **about, "is_null": self.operator == "NULL"}
        value = list(self.values) if self.operator in SETS else self.values[0]
        return {"type": "comparison", **about, "operator": self.operator, "parameter": value}

    def mask(self, rows: pa.Table) -> Any:  # noqa: ANN401 - an array or a chunked one of truth values
        """Return a mask of the rows that it holds for, without NULL."""
        if self.parts:
            return reduce(JOINED[self.operator], (part.mask(rows) for part in self.parts))
        column = rows[self.column]
        if self.operator in NULLS:
            missing = pc.is_null(column, nan_is_null=pa.types.is_floating(column.type))
            return missing if self.operator == "NULL" else pc.invert(missing)
        if pa.types.is_dictionary(column.type):
            column = column.cast(column.type.value_type)
        if self.operator not in SETS:
            return _compared(self.operator, column, self.values[0])
        among = reduce(pc.or_, (_compared("==", column, one) for one in self.values))
        return among if self.operator == "IN" else pc.invert(among)


def _compared(how: str, column: pa.ChunkedArray, value: object) -> Any:  # noqa: ANN401 - as above
    if isinstance(value, float) or pa.types.is_floating(column.type):  # as pandas does, which has 64-bit ones here
        column, value = column.cast(pa.float64(), safe=False), float(value)  # type: ignore[arg-type]
    return pc.fill_null(_COMPARED[how](column, pa.scalar(value)), fill_value=how == "!=")


def narrowed(rows: pa.Table, where: Condition | None) -> pa.Table:
    """Return the rows that a condition holds for, all where there is none; text keeps no words of other rows."""
    if where is None or not rows.num_rows:
        return rows
    some = rows.filter(where.mask(rows))
    if some.num_rows == rows.num_rows:
        return rows
    for index, field in enumerate(some.schema):
        if pa.types.is_dictionary(field.type):
            words = some.column(index).cast(field.type.value_type).dictionary_encode().unify_dictionaries()
            some = some.set_column(index, field.name, words.cast(field.type))
    return some
