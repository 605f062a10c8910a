"""The body of a rollup: an SQL file, or a Python function over Arrow tables."""

import inspect
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from importlib.resources import files
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

import pyarrow as pa

from ranklake.lake.query.sql import plain
from ranklake.lake.rollups.session import AFFECTED, replace_table

if TYPE_CHECKING:
    from ranklake.lake.query.engine import SessionContext
    from ranklake.lake.rollups.reach import Input

_HEAD: Final = re.compile(r"^-- (into|view) (\w+):", re.MULTILINE)


class Body(Protocol):
    """Computes the rows of a derived table from tables that are registered already; opens and writes none."""

    @property
    def source(self) -> str:
        """All that determines the rows besides inputs, parameters and lookups: text whose digest lineage keeps."""

    def rows(self, ctx: "SessionContext", inputs: "tuple[Input, ...]", values: Mapping[str, Any]) -> pa.Table:
        """Return the rows. `values` are the parameters and, as Arrow scalars, the dates that are computed."""


class Query(NamedTuple):
    """One query of a rollup's file: ``into`` a table in memory, a ``view``, or the ``result``."""

    kind: str
    name: str
    text: str


_EXACT: Final = re.compile(r"\bexact_sum\((?P<of>[^()]+)\)")
"""A sum of whole numbers that is NULL where 64 bits do not hold it; DataFusion's own wraps round and says nothing.

One of floats beside it tells, since it is wrong by far less than half a range. Products are made as floats there, too,
so `x` is a column, a product or a quotient.
"""


def _exact_sum(found: re.Match[str]) -> str:
    of = found["of"]
    return f"CASE WHEN abs(sum(1e0 * {of})) < 9.2e18 THEN sum({of}) END"


@dataclass(frozen=True)
class SqlBody:
    """A file of queries beside this module.

    Attributes
    ----------
    name
        Of the file, without its ending.
    """

    name: str

    @cached_property
    def source(self) -> str:
        """Text of the SQL file, ``exact_sum(x)`` spelt out: see `_EXACT`."""
        return _EXACT.sub(_exact_sum, files(__package__).joinpath(f"{self.name}.sql").read_text(encoding="utf-8"))

    @property
    def queries(self) -> list[Query]:
        """The file's queries, in order.

        All but the last are headed ``-- into NAME: …`` or ``-- view NAME: …``, the name that later ones read them by:
        what is put into a table is computed once, a view each time it is read, without being held in memory.
        """
        found = []
        for text in self.source.split(";\n\n"):
            heads = _HEAD.findall(text)
            kind, name = heads[-1] if heads else ("result", "")
            found.append(Query(kind, name, text))
        return found

    def rows(self, ctx: "SessionContext", inputs: "tuple[Input, ...]", values: Mapping[str, Any]) -> pa.Table:
        """Run the queries."""
        del inputs  # the SQL names them
        *before, last = self.queries
        for query in before:
            frame = ctx.sql(query.text, param_values=dict(values))
            if query.kind == "view":
                ctx.register_view(query.name, frame)
            else:
                replace_table(ctx, query.name, frame.to_arrow_table())
        found = ctx.sql(last.text, param_values=dict(values)).to_arrow_table()
        for query in before:
            ctx.deregister_table(query.name)
        return found


@dataclass(frozen=True)
class PythonBody:
    """A function of Arrow tables, for what SQL cannot say.

    Attributes
    ----------
    function
        Given the inputs' rows by table name, text plain, and the parameters, returns the rows. It must be pure, and its
        result must not depend on the order of the rows: incremental is full only then.
    columns
        Columns that it reads of each table; lookups among them.
    """

    function: Callable[[Mapping[str, pa.Table], Mapping[str, Any]], pa.Table]
    columns: Mapping[str, tuple[str, ...]]

    @cached_property
    def source(self) -> str:
        """Text of the function's module, helpers and constants included."""
        module = inspect.getsource(sys.modules[self.function.__module__])
        return f"{self.function.__qualname__}\n{sorted(self.columns.items())}\n{module}"

    def rows(self, ctx: "SessionContext", inputs: "tuple[Input, ...]", values: Mapping[str, Any]) -> pa.Table:
        """Read the columns of the inputs that the computed dates or runs depend on, and call the function."""
        of = {item.table: item for item in inputs}
        read = {}
        for table, columns in self.columns.items():
            names = ", ".join(f"{table}.{name}" for name in columns)
            where, given = _reached(of.get(table), values)
            frame = ctx.sql(f"SELECT {names} FROM {table}{where}", param_values=given)  # noqa: S608 - our own names
            read[table] = plain(frame.to_arrow_table())
        return self.function(read, values)


def _reached(item: "Input | None", values: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """Return the clause that keeps the rows of an input that the output depends on, and its parameters."""
    if item is None or item.reach == "over":
        return "", {}
    if item.reach == "run":
        return f" INNER JOIN {AFFECTED} ON {AFFECTED}.run = {item.table}.run", {}
    first, last = values["date"].as_py(), values.get("last", values["date"]).as_py()
    days = [*(item.days(first) or ()), *(item.days(last) or ())]
    if not days:
        return f" WHERE {item.table}.date <= $reached_last", {"reached_last": pa.scalar(last, pa.date32())}
    ends = {"reached_first": pa.scalar(min(days), pa.date32()), "reached_last": pa.scalar(max(days), pa.date32())}
    return f" WHERE {item.table}.date BETWEEN $reached_first AND $reached_last", ends
