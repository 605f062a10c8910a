"""The history of a run: one row per step, one column per metric, over all ranks or of one rank.

    step_rollup, step_mfu | steps of a rank ──┐
                                              ├── joined by step ──▶ a table, or pages of it
    scalars, some metrics at a time ──────────┘

Only the requested metrics and rank are read: files are sorted by run, metric and rank.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from types import MappingProxyType
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from ranklake.errors import RanklakeError, did_you_mean
from ranklake.insight.arguments import ArgumentError, whole_number
from ranklake.insight.runs.asking import Reader
from ranklake.insight.runs.curves import STORED
from ranklake.insight.runs.explore import COLUMNS
from ranklake.lake.query.literal import literal

TIMESTAMP: Final = pa.timestamp("us", tz="UTC")
PAGE_ROWS: Final = 10_000
STEPS: Final = "steps=(first, end): whole numbers, end after first, or None"
_AT_ONCE: Final = 50
"""Most metrics per query: each row is compared with each of them."""
_NOT_FINITE: Final = (("nan", "NaN"), ("+inf", "Infinity"), ("-inf", "-Infinity"))


def _with_flag(value: str, flag: str, form: str = "{flag} = '{name}'") -> str:
    """Return an SQL expression that restores NaN and infinities from a value's flag."""
    cases = " ".join(
        f"WHEN {form.format(flag=flag, name=name)} THEN CAST('{number}' AS DOUBLE)" for name, number in _NOT_FINITE
    )
    return f"coalesce(CAST({value} AS DOUBLE), CASE {cases} END)"


def _rank_value(column: str) -> str:
    return _with_flag(column, "non_finite", f"concat(',', {{flag}}, ',') LIKE '%,{column}:{{name}},%'")


OF_RUN: Final[Mapping[str, tuple[str, str]]] = MappingProxyType(
    {
        **{name: (column.table, f"CAST({column.mean} AS DOUBLE)") for name, column in COLUMNS.items()},
        "loss": ("step_rollup", _with_flag("mean_loss", "loss_flag")),
        "hfu": ("step_mfu", "hfu_ratio"),
    }
)
"""Table and expression of metrics that are stored by step, over all ranks."""
_OF_RANK: Final[Mapping[str, tuple[str, str]]] = MappingProxyType(
    {
        **{name: ("steps", f"CAST({name} AS DOUBLE)") for name in COLUMNS if name.endswith("_time_s")},
        **{name: ("steps", _rank_value(name)) for name in ("loss", "lr", "grad_norm")},
        **{name: ("steps", f"CAST({name} AS DOUBLE)") for name in ("tokens", "samples")},
        "tokens_per_s": ("steps", "CAST(tokens AS DOUBLE) / nullif(step_time_s, 0)"),
        "memory_bytes": ("steps", "CAST(memory_allocated_bytes AS DOUBLE)"),
    }
)
"""The same of one rank."""


class NoSuchMetricError(RanklakeError):
    """A run has no metric of a name."""


@dataclass(frozen=True, slots=True)
class History:
    """Metrics of a run by step.

    Attributes
    ----------
    reader
        Reads the lake.
    run, rank
        Run and rank; None for all ranks: their mean, the maximum of ``grad_norm``, ``lr`` and ``memory_bytes``, and the
        sum of ``tokens`` and ``samples``.
    names
        The metrics, in order.
    columns
        Metrics in tables with one row per step, with their column names.
    logged
        Metrics in ``scalars``, which fill steps without a value in the tables.
    scalars
        What is read in the place of that table.
    begin, end
        First step, and the step before which it ends; None for no limit. If there is a limit, values without a step are
        left out.
    """

    reader: Reader
    run: str
    rank: int | None
    names: tuple[str, ...]
    columns: Mapping[str, str]
    logged: tuple[str, ...]
    scalars: str = "scalars"
    begin: int | None = None
    end: int | None = None

    def table(self) -> pa.Table:
        """Return ``step``, ``ts`` and a float64 column per metric, in order of steps; values without a step last.

        The last attempt is used for repeated steps. NULL means not recorded, NaN was recorded as NaN.
        """
        parts = [self._page(self.begin, self.end)]
        if self._is_whole:
            parts.append(self._rows_without_steps("TRUE"))
        return pa.concat_tables(parts)

    def pages(self, rows: int = PAGE_ROWS) -> Iterator[pa.Table]:
        """Yield the same in tables of at most `page_rows` rows, each read on demand."""
        rows = whole_number("page_rows", rows, least=1, right="a whole number of rows, 1 or more")
        begin = self.begin
        while (last := self._last_step(begin, rows)) is not None:
            yield self._page(begin, last + 1)
            begin = last + 1
        after = "TRUE"
        while self._is_whole:
            page = self._rows_without_steps(after, rows)
            if page.num_rows:
                yield page
            if page.num_rows < rows:
                return
            after = f"ts > {literal(page['ts'][-1].as_py())}"

    @property
    def _is_whole(self) -> bool:
        """Whether values without a step are included."""
        return bool(self.logged) and self.begin is None and self.end is None

    @property
    def _tables(self) -> dict[str, list[str]]:
        """Metrics by their table with one row per step."""
        tables: dict[str, list[str]] = {}
        for metric, column in self.columns.items():
            tables.setdefault(_stored_metrics(self.rank)[column][0], []).append(metric)
        return tables

    def _where(self, begin: int | None, end: int | None) -> str:
        limits = [f"run = {literal(self.run)}"]
        limits += [f"rank = {self.rank}"] if self.rank is not None else []
        limits += [f"step >= {begin}"] if begin is not None else []
        limits += [f"step < {end}"] if end is not None else []
        return " AND ".join(limits)

    def _last_step(self, begin: int | None, rows: int) -> int | None:
        """Return the last of a number of steps from a step on; None if there are none."""
        if not self.names:
            return None
        where = self._where(begin, self.end)
        every = [f"SELECT step FROM {table} WHERE {where}" for table in self._tables]  # noqa: S608 - quoted
        if self.logged:
            where += f" AND step IS NOT NULL AND {_metric_condition(self.logged)}"
            every.append(f"SELECT step FROM {self.scalars} WHERE {where}")  # noqa: S608 - likewise
        sql = f"SELECT DISTINCT step FROM ({' UNION ALL '.join(every)}) AS every ORDER BY step LIMIT {rows}"  # noqa: S608 - likewise
        steps = self.reader.read(sql).rows["step"]
        return None if len(steps) == 0 else int(steps[-1].as_py())

    def _page(self, begin: int | None, end: int | None) -> pa.Table:
        where = self._where(begin, end)
        parts = [self._table_columns(table, metrics, where) for table, metrics in self._tables.items()]
        return self._join_parts([*parts, *self._scalar_columns(f"{where} AND step IS NOT NULL", "step")], "step")

    def _rows_without_steps(self, after: str, rows: int | None = None) -> pa.Table:
        where = f"{self._where(None, None)} AND step IS NULL AND {after}"
        if rows is not None:
            among = f"{where} AND {_metric_condition(self.logged)}"
            sql = f"SELECT DISTINCT ts FROM {self.scalars} WHERE {among} ORDER BY ts LIMIT {rows}"  # noqa: S608 - quoted
            moments = self.reader.read(sql).rows["ts"]
            where += f" AND ts <= {literal(moments[-1].as_py())}" if len(moments) else " AND FALSE"
        return self._join_parts(self._scalar_columns(where, "ts"), "ts")

    def _table_columns(self, table: str, metrics: Sequence[str], where: str) -> pa.Table:
        stored = _stored_metrics(self.rank)
        values = ", ".join(f"{stored[self.columns[name]][1]} AS c{place}" for place, name in enumerate(metrics))
        names = ", ".join(f"c{place}" for place in range(len(metrics)))
        sql = (
            f"SELECT step, ts, {names} FROM (SELECT step, ts, {values}, "  # noqa: S608 - quoted
            f"row_number() OVER (PARTITION BY step ORDER BY attempt DESC, ts DESC) AS place FROM {table} WHERE {where})"
            " AS every WHERE place = 1"
        )
        return self.reader.read(sql).rows.rename_columns(["step", "ts", *metrics])

    def _scalar_columns(self, where: str, key: str) -> Iterator[pa.Table]:
        """Yield logged values by step, or by time, for some metrics at a time."""
        value = _with_flag("coalesce(agg_mean, value)", "value_flag")
        for first in range(0, len(self.logged), _AT_ONCE):
            metrics = self.logged[first : first + _AT_ONCE]
            last = ", ".join(
                f"last_value(value ORDER BY attempt) FILTER (WHERE metric = {literal(name)}) AS c{place}"
                for place, name in enumerate(metrics)
            )
            sql = (
                f"SELECT {key}, max(at) AS at, {last} FROM (SELECT metric, {key}, attempt, max(ts) AS at, "  # noqa: S608 - quoted
                f"avg({value}) AS value FROM {self.scalars} WHERE {where} AND {_metric_condition(metrics)} "
                f"GROUP BY metric, {key}, attempt) AS every GROUP BY {key}"
            )
            rows = self.reader.read(sql).rows.rename_columns([key, "ts" if key == "step" else "at", *metrics])
            yield rows if key == "step" else rows.drop_columns("at")

    def _join_parts(self, parts: Iterable[pa.Table], key: str) -> pa.Table:
        """Join parts by the key; a metric in several parts has the first value that is not NULL."""
        every = list(parts)
        schema = pa.schema([("step", pa.int64()), ("ts", TIMESTAMP), *((name, pa.float64()) for name in self.names)])
        if not any(part.num_rows for part in every):
            return schema.empty_table()
        keys = pa.table({key: pa.concat_arrays([part[key].combine_chunks() for part in every]).unique()}).sort_by(key)
        columns = {key: keys[key]}
        for part in every:
            place = pc.index_in(keys[key], value_set=part[key].combine_chunks())
            for name in part.column_names:
                if name != key:
                    values = part[name].take(place)
                    columns[name] = pc.coalesce(columns[name], values) if name in columns else values
        empty = pa.nulls(keys.num_rows)
        return pa.table({name: columns.get(name, empty) for name in schema.names}).cast(schema)


def _stored_metrics(rank: int | None) -> Mapping[str, tuple[str, str]]:
    return OF_RUN if rank is None else _OF_RANK


def column_of(metric: str, rank: int | None = None) -> str:
    """Return the name of a metric in tables with one row per step: ``loss`` for ``train/loss``; else ``""``."""
    stored = _stored_metrics(rank)
    column = metric if metric in stored else STORED.get(metric, "")
    return column if column in stored else ""


def _metric_condition(metrics: Sequence[str]) -> str:
    return f"metric IN ({', '.join(map(literal, metrics))})"


def history(
    reader: Reader,
    run: str,
    metrics: Sequence[str] | None = None,
    *,
    rank: int | None = None,
    begin: int | None = None,
    end: int | None = None,
    scalars: str = "scalars",
) -> History:
    """Return the history of a run, by its whole name.

    Parameters
    ----------
    metrics
        Names, or patterns with ``*`` and ``?``; None for all that have a value.
    rank, begin, end, scalars
        As of `History`.

    Raises
    ------
    ArgumentError
        A rank or step is not a whole number, or steps are reversed.
    NoSuchMetricError
        The run, or the rank, has no metric of a name.
    UnseenError
        The role does not see the data.
    """
    if rank is not None:
        rank = whole_number("rank", rank, least=0, right="a whole number such as 0, or leave it out")
    begin, end = (None if step is None else whole_number("steps", step, right=STEPS) for step in (begin, end))
    if begin is not None and end is not None and begin > end:
        raise ArgumentError(f"({begin}, {end}) ends before it begins", where="steps", hint=f"pass {STEPS}")
    stored, where = _stored_metrics(rank), f"run = {literal(run)}" + (f" AND rank = {rank}" if rank is not None else "")
    sql = f"SELECT DISTINCT metric FROM {scalars} WHERE {where} ORDER BY metric"  # noqa: S608 - quoted
    recorded = dict.fromkeys(str(row["metric"]) for row in reader.ask(sql).rows)
    names: dict[str, None] = {}
    if metrics is None:
        names = dict.fromkeys([*_with_values(reader, stored, where), *recorded])
    for pattern in metrics or ():
        known = column_of(pattern, rank) or pattern in recorded
        matches = [pattern] if known else [name for name in (*stored, *recorded) if fnmatchcase(name, pattern)]
        if not matches:
            is_of_all = rank is not None and pattern in OF_RUN
            hint = "it is of all ranks: leave rank out" if is_of_all else did_you_mean(pattern, (*stored, *recorded))
            raise NoSuchMetricError(f"the run has no metric {pattern!r}", where=run, hint=hint)
        names |= dict.fromkeys(matches)
    columns = {name: column for name in names if (column := column_of(name, rank))}
    logged = tuple(name for name in names if name in recorded)
    return History(reader, run, rank, tuple(names), columns, logged, scalars, begin, end)


def _with_values(reader: Reader, stored: Mapping[str, tuple[str, str]], where: str) -> list[str]:
    """Return the metrics with a value in tables with one row per step; hidden ones are left out."""
    present = []
    for table in dict.fromkeys(table for table, _ in stored.values()):
        every = [(name, expression) for name, (of, expression) in stored.items() if of == table]
        counts = ", ".join(f"count({expression}) AS c{place}" for place, (_, expression) in enumerate(every))
        row = reader.ask(f"SELECT {counts} FROM {table} WHERE {where}").first_row  # noqa: S608 - quoted
        present += [name for place, (name, _) in enumerate(every) if row.get(f"c{place}")]
    return present
