"""The declaration of a rollup: its inputs, its scope, its parameters, and the body that computes its rows."""

import hashlib
import json
import re
from collections.abc import Callable, Mapping, Sequence
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
"""Table with the runs that a run rollup computes: columns run, and date (the output date of the run)."""
SETTLED: Final = "settled_attempts"
"""Attempts of which a rollup that is cut computes new groups only: columns run, attempt; see `Rollup.settled_by`."""

EARLIER: Final = "earlier_hours"
"""Stored rows of a date before the time that is computed; see `Rollup.earlier`."""


def replace_table(ctx: "SessionContext", name: str, rows: pa.Table) -> None:
    """Register rows in memory under a name, in place of a table with this name."""
    if ctx.table_exist(name):
        ctx.deregister_table(name)
    ctx.register_record_batches(name, [rows.to_batches() or [pa.RecordBatch.from_pylist([], schema=rows.schema)]])


_HEAD: Final = re.compile(r"^-- (into|view) (\w+):", re.MULTILINE)


class Body(Protocol):
    """Computes the rows of a derived table from registered tables. It does not open or write tables."""

    @property
    def source(self) -> str:
        """Text of all that determines the rows, except inputs, parameters and lookups. Lineage keeps its digest."""

    def rows(self, ctx: "SessionContext", values: Mapping[str, Any]) -> pa.Table:
        """Return the rows. `values` are the parameters and, as Arrow scalars, the dates that are computed."""


class Query(NamedTuple):
    """One query of an SQL file; `kind` is ``into`` (a table in memory), ``view`` or ``result``.

    The kind ``python`` stands for a table that Python computes. Its text is for column lineage and is never run.
    """

    kind: str
    name: str
    text: str


_EXACT: Final = re.compile(r"\bexact_sum\((?P<of>[^()]+)\)")
"""``exact_sum(x)``: a sum of integers that is NULL if it does not fit into 64 bits. DataFusion's sum would wrap around.

A sum of floats shows whether the integer sum has overflowed, since its error is far smaller than the range. `x` must be
a column, a product or a quotient, whose factors are then multiplied as floats, too.
"""


def _exact_sum(match: re.Match[str]) -> str:
    of = match["of"]
    return f"CASE WHEN abs(sum(1e0 * {of})) < 9.2e18 THEN sum({of}) END"


@dataclass(frozen=True)
class SqlBody:
    """A body that is an SQL file in this folder.

    Attributes
    ----------
    name
        Name of the file, without ``.sql``.
    """

    name: str

    @cached_property
    def sql(self) -> str:
        """Text of the SQL file with each ``exact_sum(x)`` expanded: see `_EXACT`."""
        return _EXACT.sub(_exact_sum, files(__package__).joinpath(f"{self.name}.sql").read_text(encoding="utf-8"))

    @property
    def source(self) -> str:
        """The SQL."""
        return self.sql

    @property
    def queries(self) -> list[Query]:
        """The file's queries, in order.

        All except the last begin with ``-- into NAME: …`` or ``-- view NAME: …``. Later queries use this name. A table
        (``into``) is computed once and kept in memory; a view is computed each time it is read.
        """
        result = []
        for text in self.sql.split(";\n\n"):
            heads = _HEAD.findall(text)
            kind, name = heads[-1] if heads else ("result", "")
            result.append(Query(kind, name, text))
        return result

    def rows(self, ctx: "SessionContext", values: Mapping[str, Any]) -> pa.Table:
        """Run the queries."""
        return self.run(ctx, self.queries, values)

    def run(self, ctx: "SessionContext", queries: Sequence[Query], values: Mapping[str, Any]) -> pa.Table:
        """Run some of the queries; the last one's rows are the result."""
        *before, last = queries
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
        Name of the table.
    reach
        The dates of the table on which an output date depends:

        - ``day``: the same date
        - ``eve``: the date and the day before
        - ``days``: the date, the day before and the day after
        - ``hours``: the date, the last hour of the day before and the first hour of the day after, by ``ts``
        - ``week``: the week of the date, from Monday to Sunday
        - ``week_before``: the date and the seven days before
        - ``until``: the date and all days before
        - ``over``: dates with a row whose time includes the output date, by the statistics in the Delta log
        - ``run``: all dates of the runs that began on the output date
    begin, end
        For ``over``: columns with the begin and end of a row's time. If the first column is NULL or more than
        `MAX_DAYS` from the row's date, the next one is used; the last resort is the date.
    facts
        For ``until``, of a rollup with `Rollup.lookback_s`: the columns that it reads for the attempt in a row. Where
        only these tables changed, the periods from the first stored row of an attempt with other facts on are computed.
    """

    table: str
    reach: Reach
    begin: tuple[str, ...] = ()
    end: tuple[str, ...] = ()
    facts: tuple[str, ...] = ()

    def days(self, day: date) -> tuple[date, ...] | None:
        """Return the dates of the table on which an output date depends; None for a reach without fixed dates."""
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
    """The declaration of one derived table.

    Attributes
    ----------
    name
        Name of the rollup, of its table, and of its SQL file unless it has another body.
    scope
        ``partition``: an output date is computed from input dates. ``run``: an output date has the runs that began on
        it, and each run is computed as a whole.
    inputs
        Tables that it reads.
    leads
        Number of leading inputs: the first inputs, whose dates determine the output dates of a partition rollup.
    parameters
        Values of the SQL's ``$name`` placeholders or for the function, besides ``$date``, ``$begin`` and ``$since``.
    lookups
        Functions that return the lookups (small constant tables) of the SQL, by name.
    secrets
        Lookups that may have a key. They are not sent to other processes.
    cut
        Integer column of the first input, part of the SQL's group key, by which large dates are computed in pieces,
        from ``$first`` to ``$last`` each; of a rollup that is one query, since pieces share a session. Its groups are
        of one attempt each, and what a group's row says is in the rows of that group alone: where inputs only grow, the
        groups of new rows are computed, and the others stay (`ranklake.lake.rollups.growth`).
    settled_by
        With ``cut``: column of the result. Of an attempt that has a value there in some stored row, only groups with
        new rows are computed: the query sees no other rows of it, and finds the attempt in the table `SETTLED`. An
        attempt without such a row is computed as a whole.
    lookback_s
        For a rollup with rows per hour or minute (see `period`): seconds before a period that matter for it. What the
        rows of a period say is in the rows with a ``ts`` in the period and in these seconds before it, and in the
        inputs of reach ``until``. Where inputs only grow, the periods from the earliest new row on are computed,
        beginning with ``$since``, and earlier ones stay (`ranklake.lake.rollups.growth`). Elsewhere ``$since`` is
        ``$begin``. The body reads rows from ``$since`` minus these seconds on.
    earlier
        With `lookback_s`: columns of the stored rows of the date's periods before ``$since``, for the table `EARLIER`.
        It is empty if ``$since`` is ``$begin``.
    in_a_row
        Whether the body can compute several consecutive dates at once, from ``$date`` to ``$last`` (``$days`` dates).
    body
        Computes the rows; None for the SQL file with the rollup's name.
    times
        Columns of a run rollup's rows with the begin and end of the data that enter the row.
    kept
        Columns that keep their first value when a row is computed again, such as the time of the first computation.
    own
        Contract of an operator's table; None for a packaged table.
    row_cpu_s
        Rough CPU seconds for each row of the leading inputs. Workers are started if the sum is large.
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
    lookback_s: float | None = None
    earlier: tuple[str, ...] = ()
    in_a_row: bool = False
    body: Body | None = None
    times: tuple[str, str] = ("ts", "end_ts")
    kept: tuple[str, ...] = ()
    own: Contract | None = None
    row_cpu_s: float = 0.5e-6

    @property
    def contract(self) -> Contract:
        """Contract of the table."""
        return self.own or contract(self.name)

    @cached_property
    def transform(self) -> Body:
        """The body; by default the SQL file with the rollup's name."""
        return SqlBody(self.name) if self.body is None else self.body

    @property
    def bounds(self) -> tuple[str, ...]:
        """Columns whose statistics in the Delta log show which files may have rows of a group or of a period."""
        if self.cut:
            return ("run", self.cut)
        return () if self.lookback_s is None else ("ts", self.period)

    @property
    def period(self) -> Literal["hour", "minute"]:
        """Column with the begin of a row's period, for a rollup with `lookback_s`."""
        return "minute" if "minute" in self.contract.names else "hour"

    @cached_property
    def sha256(self) -> str:
        """Digest of everything that determines the output except the inputs: body, parameters, lookups."""
        lookups = {name: make().to_pylist() for name, make in self.lookups.items()}
        facts = [self.transform.source, sorted(self.parameters.items()), lookups]
        return hashlib.sha256(json.dumps(facts, default=str).encode()).hexdigest()

    @property
    def holds_secret(self) -> bool:
        """Whether a lookup currently has a key."""
        columns = [column for name in self.secrets for column in self.lookups[name]().columns]
        return any(column.null_count < len(column) for column in columns)

    def with_lookups(self) -> "Rollup":
        """Return the rollup with the current contents of its lookups, to send to another process."""
        return replace(self, lookups={name: partial(_as_text, make()) for name, make in self.lookups.items()})

    @property
    def tables(self) -> tuple[str, ...]:
        """Names of the inputs."""
        return tuple(item.table for item in self.inputs)


def _as_text(lookup: pa.Table) -> pa.Table:
    return lookup
