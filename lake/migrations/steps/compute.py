"""Columns made of others by a function of a Python file, from a record batch to a record batch."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa

from ranklake.lake.contracts.arrow import ARROW_TYPES
from ranklake.lake.migrations.steps.code import Code
from ranklake.lake.migrations.steps.replaced import Replaced, Values
from ranklake.lake.migrations.steps.step import MigrationError, Names, Shape, Shapes

Typed = tuple[tuple[str, str], ...]
"""Names of columns, and their types as contracts say them."""

BATCH_ROWS: Final = 65_536
"""Most rows that a function gets at a time."""
_TRIED: Final = 512
"""Rows of each file, half of them at most, that it gets once more by themselves and in the other order."""


@dataclass(frozen=True, slots=True)
class Compute(Replaced):
    """Columns become others by functions.

    Attributes
    ----------
    columns, into
        That go, and that come.
    by, back
        Names of the functions; without `back` the values of what goes are lost.
    code
        The file that has them.
    """

    columns: Typed
    into: Typed
    by: str
    back: str = ""
    code: Code | None = None

    @property
    def sources(self) -> Names:
        """Columns that go."""
        return tuple(name for name, _ in self.columns)

    @property
    def came(self) -> Names:
        """Columns that come."""
        return tuple(name for name, _ in self.into)

    @property
    def is_reversible(self) -> bool:
        """Whether a function gives back what went."""
        return bool(self.back)

    @property
    def text(self) -> str:
        """The step for people."""
        return f"compute {', '.join(self.came)} of {', '.join(self.sources)} by {self.by}, in Python"

    def refuse_types(self, before: Shapes, after: Mapping[str, Shape]) -> None:
        """Raise `MigrationError` where it says other types than the contracts do."""
        for shapes, some in ((before, self.columns), (after, self.into)):
            for name, said in some:
                if said != shapes[name].type:
                    what = f"{self.text}: {name} is {shapes[name].type}, and the step says {said}"
                    raise MigrationError(what, hint="correct the step")

    def made(self, rows: pa.Table) -> Values:
        """Return what `by` makes."""
        return self._run(self.by, rows, self.columns, self.into)

    def made_back(self, rows: pa.Table) -> Values:
        """Return what `back` makes."""
        return self._run(self.back, rows, self.into, self.columns) if self.back else {}

    def _run(self, name: str, rows: pa.Table, take: Typed, give: Typed) -> Values:
        if self.code is None:
            raise MigrationError(f"{self.text}: such a step stands in a Python file alone", hint="name it NNNN_name.py")
        function = self.code.function(name)
        schema = pa.schema([(one, ARROW_TYPES[type_]) for one, type_ in give])
        taken = pa.table({one: _column(rows, one, ARROW_TYPES[type_]) for one, type_ in take})
        batches = [_called(function, name, batch, schema) for batch in taken.to_batches(max_chunksize=BATCH_ROWS)]
        if batches:
            some = min(_TRIED, (batches[0].num_rows + 1) // 2)
            again = _called(function, name, _turned(taken.slice(0, some).combine_chunks().to_batches()[0]), schema)
            if not _turned(again).equals(batches[0].slice(0, some)):
                raise pa.ArrowInvalid(f"{name} looks at more than its row, or gives another value each time")
        found = pa.Table.from_batches(batches, schema)
        return dict(zip(found.column_names, found.columns, strict=True))


def _called(function: Callable[..., Any], name: str, batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    try:
        found = function(batch)
    except Exception as error:  # noqa: BLE001 - of an operator's own function; its text may quote a classified value
        raise pa.ArrowInvalid(f"{name} fails with {type(error).__name__}") from None
    if not isinstance(found, pa.RecordBatch) or found.num_rows != batch.num_rows:
        raise pa.ArrowInvalid(f"{name} gives no record batch of as many rows")
    if found.schema.remove_metadata() != schema:
        said = ", ".join(f"{one.name}: {one.type}" for one in found.schema)
        meant = ", ".join(f"{one.name}: {one.type}" for one in schema)
        raise pa.ArrowInvalid(f"{name} gives {said}, and the step says {meant}")
    return found


def _turned(batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch.take(pa.array(range(batch.num_rows - 1, -1, -1), pa.int64()))


def _column(rows: pa.Table, name: str, type_: pa.DataType) -> pa.ChunkedArray:
    if name not in rows.column_names:
        return pa.chunked_array([pa.nulls(rows.num_rows, type_)])
    values = rows[name]
    return values.cast(values.type.value_type) if pa.types.is_dictionary(values.type) else values
