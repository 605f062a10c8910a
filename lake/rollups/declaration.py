"""The declaration of a rollup: its inputs, its grain, and when it is due."""

import hashlib
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import date, timedelta
from functools import cached_property, partial
from importlib.resources import files
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, Protocol

import pyarrow as pa

from ranklake.lake.contracts.load import contract
from ranklake.lake.contracts.model import Contract

if TYPE_CHECKING:
    from ranklake.lake.query.engine import SessionContext

AFFECTED: Final = "affected_runs"
"""Runs that a run rollup computes: columns run and date, the output date of each."""
SETTLED: Final = "settled_attempts"
"""Attempts of which a rollup that is cut computes new groups only: columns run, attempt; see `Rollup.settled_by`."""


def replace_table(ctx: "SessionContext", name: str, rows: pa.Table) -> None:
    """Register rows in memory under a name, in place of what stood there."""
    if ctx.table_exist(name):
        ctx.deregister_table(name)
    ctx.register_record_batches(name, [rows.to_batches() or [pa.RecordBatch.from_pylist([], schema=rows.schema)]])


_HEAD: Final = re.compile(r"^-- (into|view) (\w+):", re.MULTILINE)


class Body(Protocol):
    """Computes the rows of a derived table from tables that are registered already; opens and writes none."""

    @property
    def source(self) -> str:
        """All that determines the rows besides inputs, parameters and lookups: text whose digest lineage keeps."""

    def rows(self, ctx: "SessionContext", values: Mapping[str, Any]) -> pa.Table:
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


def _exact_sum(match: re.Match[str]) -> str:
    of = match["of"]
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
        result = []
        for text in self.source.split(";\n\n"):
            heads = _HEAD.findall(text)
            kind, name = heads[-1] if heads else ("result", "")
            result.append(Query(kind, name, text))
        return result

    def rows(self, ctx: "SessionContext", values: Mapping[str, Any]) -> pa.Table:
        """Run the queries."""
        *before, last = self.queries
        for query in before:
            frame = ctx.sql(query.text, param_values=dict(values))
            if query.kind == "view":
                ctx.register_view(query.name, frame)
            else:
                replace_table(ctx, query.name, frame.to_arrow_table())
        result = ctx.sql(last.text, param_values=dict(values)).to_arrow_table()
        for query in before:
            ctx.deregister_table(query.name)
        return result


Reach = Literal["day", "eve", "hours", "days", "week", "week_before", "until", "over", "run"]


@dataclass(frozen=True, slots=True)
class Input:
    """A table that a rollup reads.

    Attributes
    ----------
    table
        Its name.
    reach
        Which dates of it an output date depends on: that ``day``; ``eve``, with the day before; ``days``, with
        the day before and the day after; ``hours``, with no more of these two than an hour, by ``ts``; ``week``, from
        Monday to Sunday; ``week_before``, with the seven days before; ``until``, that day and all before; ``over``,
        those of which a row's time goes over it, as the statistics in the Delta log have it; ``run``, whatever dates
        the runs have that began on the output date.
    begin, end
        With ``over``: columns that a row's time begins and ends with; where the first is NULL or more than `MAX_DAYS`
        from the row's date, the next one, at last the date.
    """

    table: str
    reach: Reach
    begin: tuple[str, ...] = ()
    end: tuple[str, ...] = ()

    def days(self, day: date) -> tuple[date, ...] | None:
        """Return the dates of the table that an output date depends on; None where they are not bounded."""
        week = tuple(range(-day.weekday(), 7 - day.weekday()))
        around = {
            "day": (0,),
            "eve": (-1, 0),
            "hours": (-1, 0, 1),
            "days": (-1, 0, 1),
            "week": week,
            "week_before": tuple(range(-7, 1)),
        }.get(self.reach)
        return None if around is None else tuple(day + timedelta(days=offset) for offset in around)


Scope = Literal["partition", "run"]


@dataclass(frozen=True)
class Rollup:
    """One derived table.

    Attributes
    ----------
    name
        Of the rollup and its table, and of its SQL file unless it has another body.
    scope
        ``partition``: an output date is computed from input dates. ``run``: an output date holds the runs that began
        on it, each computed as a whole.
    inputs
        What it reads.
    leads
        How many of the inputs, from the first, say which dates of a partition rollup there are.
    parameters
        Values for the SQL's ``$names``, or for the function, besides ``$date`` and ``$begin`` of partition rollups.
    lookups
        Small constant tables that the SQL names, by name.
    secrets
        Which of the lookups may hold a key: then no other process gets them.
    cut
        Integer column of the first input, part of the SQL's group key, by which large dates are computed in pieces,
        from ``$first`` to ``$last`` each; of a rollup that is one query, since pieces share a session. Its groups are
        of one attempt each, and what a group's row says is in the rows of that group alone: where inputs only grow, the
        groups of new rows are computed, and the others stay (`ranklake.lake.rollups.growth`).
    settled_by
        With ``cut``: column of the result. Of an attempt that has a value there in some stored row, only groups with
        new rows are computed: the query sees no other rows of it, and finds the attempt in the table `SETTLED`. An
        attempt without such a row is computed as a whole.
    in_a_row
        Whether the body computes any number of dates at once, ``$days`` of them from ``$date`` to ``$last``.
    body
        How the rows are computed; None for the SQL file of the rollup's name.
    times
        Columns of a run rollup's rows that say from when to when a run's data go into them.
    kept
        Columns in which a row that is computed again keeps what it had at first, such as when that was.
    own
        Contract of an operator's table; None for a packaged one.
    """

    name: str
    scope: Scope
    inputs: tuple[Input, ...]
    parameters: Mapping[str, float] = field(default_factory=dict)
    lookups: Mapping[str, Callable[[], pa.Table]] = field(default_factory=dict)
    secrets: tuple[str, ...] = ()
    leads: int = 1
    cut: str = ""
    settled_by: str = ""
    in_a_row: bool = False
    body: Body | None = None
    times: tuple[str, str] = ("ts", "end_ts")
    kept: tuple[str, ...] = ()
    own: Contract | None = None

    @property
    def contract(self) -> Contract:
        """The contract of its table."""
        return self.own or contract(self.name)

    @cached_property
    def transform(self) -> Body:
        """The body; where none is given, the SQL file of the rollup's name."""
        return SqlBody(self.name) if self.body is None else self.body

    @property
    def bounds(self) -> tuple[str, ...]:
        """Columns whose bounds in the Delta log tell which files have rows of a group."""
        return ("run", self.cut) if self.cut else ()

    @cached_property
    def sha256(self) -> str:
        """Digest of all that determines the output besides the inputs: body, parameters, lookups."""
        lookups = {name: make().to_pylist() for name, make in self.lookups.items()}
        facts = [self.transform.source, sorted(self.parameters.items()), lookups]
        return hashlib.sha256(json.dumps(facts, default=str).encode()).hexdigest()

    @property
    def holds_secret(self) -> bool:
        """Whether a lookup holds a key now."""
        columns = [column for name in self.secrets for column in self.lookups[name]().columns]
        return any(column.null_count < len(column) for column in columns)

    def with_lookups(self) -> "Rollup":
        """Return the rollup with its lookups as they are here, for another process."""
        return replace(self, lookups={name: partial(_as_text, make()) for name, make in self.lookups.items()})

    @property
    def tables(self) -> tuple[str, ...]:
        """Names of the inputs."""
        return tuple(item.table for item in self.inputs)


def _as_text(lookup: pa.Table) -> pa.Table:
    return lookup
