"""Series: all values of one metric in one unit, including values recorded under its former names."""

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from ranklake.errors import did_you_mean
from ranklake.lake.query.errors import QueryError
from ranklake.lake.query.literal import literal
from ranklake.lake.query.sql import query
from ranklake.lake.rollups.life.register import has_column, lives, of_column
from ranklake.lake.rollups.life.select import AT, COLUMNS, KEY, scale_sql, select, select_sql, union_all
from ranklake.lake.rollups.life.state import Life, Member, MetricLifeError, members

if TYPE_CHECKING:
    from ranklake.lake.query.roles import Role
    from ranklake.lake.store.lake import Lake

VIEW: Final = "series"
"""Name of the view."""

_ASKED: Final = re.compile(r"\b(?:from|join)\s+\"?series\b", re.IGNORECASE)
_QUOTED: Final = re.compile(r"'((?:[^']|'')*)'")
_CONDITIONS: Final = {"begin": "ts >= $begin", "end": "ts < $end", "run": "run = $run"}


@dataclass(frozen=True, slots=True)
class Series:
    """The series of a metric.

    Attributes
    ----------
    life
        The state of the metric.
    rows
        Columns `COLUMNS`, or `DISTRIBUTION_COLUMNS`, ordered by run, attempt, rank and time.
    """

    life: Life
    rows: pa.Table


def series(
    lake: "Lake",
    metric: str,
    begin: datetime | None = None,
    end: datetime | None = None,
    run: str | None = None,
    *,
    role: "Role | None" = None,
    of_distributions: bool = False,
) -> Series:
    """Return the values of a metric in its unit.

    For rows that were downsampled, the result has means of intervals, without a step; but not for roles.

    Parameters
    ----------
    begin, end
        First time, and first time after the last one; by default all.
    of_distributions
        Whether to return the metric's histograms: number of values, sum, mean, lowest and highest value of each.

    Raises `MetricLifeError`, and what `ranklake.lake.query.sql.query` raises.
    """
    every = lives_with(lake, metric, role=role, of_distributions=of_distributions)
    if metric not in every:
        metric = of_column(lake, metric)
    bounds = {name: value for name, value in (("begin", begin), ("end", end), ("run", run)) if value is not None}
    where = " AND ".join(_CONDITIONS[name] for name in bounds)
    rest = f"{f'WHERE {where} ' if where else ''}ORDER BY run, attempt, rank, ts, step"
    params = {name: pa.scalar(value) for name, value in bounds.items()}
    text = (
        select_distributions(every, metric) if of_distributions else select(lake, every, metric, intervals=role is None)
    )
    rows = query(lake, select_sql(["*"], text, rest), params, role=role)
    return Series(every[metric], rows)


def lives_with(
    lake: "Lake", metric: str, *, role: "Role | None" = None, of_distributions: bool = False
) -> dict[str, Life]:
    """Return the states of metrics, with that of the metric asked for, even if nobody registered it."""
    every = lives(lake)
    if metric in every:
        return every
    table = "distributions" if of_distributions else "scalars"
    rows = query(lake, f"SELECT metric FROM {table} WHERE metric = {literal(metric)} LIMIT 1", role=role)  # noqa: S608 - quoted
    return {**every, metric: Life(metric, "not registered", "")} if rows.num_rows else every


def views(lake: "Lake", asked: str, *, role: "Role | None" = None) -> dict[str, str]:
    """Return the view ``series`` where a query asks it: a SELECT of the metrics that its text names in quotes.

    These are registered, or were recorded and are seen by the role. Raises `MetricLifeError` where it names none.
    """
    if _ASKED.search(asked) is None:
        return {}
    every = lives(lake)
    quoted = {text.replace("''", "'") for text in _QUOTED.findall(asked)}
    every |= {name: Life(name, "not registered", "") for name in _recorded_names(lake, quoted - every.keys(), role)}
    named = sorted(quoted & every.keys())
    if not named:
        hint = "name metrics, as in: SELECT step, value FROM series WHERE metric = 'train/loss'"
        raise MetricLifeError("series of which metric?", where="SQL", hint=hint)
    parts = [
        select_sql(
            [f"{literal(name)} AS metric", f"{literal(every[name].unit)} AS unit", *COLUMNS], select(lake, every, name)
        )
        for name in named
    ]
    return {VIEW: union_all(parts)}


def _recorded_names(lake: "Lake", names: Collection[str], role: "Role | None") -> list[str]:
    """Return those of some names that are in ``scalars``, as a role sees it; none if it does not see the table."""
    if not names:
        return []
    wanted = ", ".join(literal(name) for name in sorted(names))
    try:
        rows = query(lake, f"SELECT DISTINCT metric FROM scalars WHERE metric IN ({wanted})", role=role)  # noqa: S608 - quoted
    except QueryError:
        return []
    return [str(name) for name in rows["metric"].to_pylist()]


DISTRIBUTION_COLUMNS: Final = (*KEY, "ts", "count", "sum", "mean", "min", "max", "source")


def select_distributions(every: Mapping[str, Life], metric: str) -> str:
    """Return the SELECT of a metric's histograms, with the columns `DISTRIBUTION_COLUMNS`.

    Raises `MetricLifeError` for an unknown metric.
    """
    if metric not in every:
        raise MetricLifeError("there is no such metric", where=metric, hint=did_you_mean(metric, every) or "look again")
    best = f"min(prio) OVER (PARTITION BY {', '.join(KEY)}, at) AS best"
    return select_sql(
        DISTRIBUTION_COLUMNS,
        select_sql(["*", best], union_all(list(map(_distribution, members(every, metric))))),
        "WHERE prio = best",
    )


def _distribution(member: Member) -> str:
    low, high = ("min", "max") if member.factor > 0 else ("max", "min")
    summed = total(member.factor, member.offset)
    values = {
        "sum": summed,
        "mean": f"({summed} / nullif(count, 0))",
        "min": scale_sql(low, member.factor, member.offset),
        "max": scale_sql(high, member.factor, member.offset),
    }
    columns = [f"{value} AS {name}" for name, value in values.items()]
    source = [f"{literal(member.life.metric)} AS source", f"{member.age} AS prio"]
    return select_sql(
        [*KEY, "ts", AT, "count", *columns, *source], "distributions", f"WHERE metric = {literal(member.life.metric)}"
    )


def total(factor: float, offset: float) -> str:
    """Return SQL of the sum of a histogram's values after each is multiplied by a factor and increased by an offset."""
    if (factor, offset) == (1.0, 0.0):
        return '"sum"'
    return f'("sum" * CAST({factor!r} AS DOUBLE) + "count" * CAST({offset!r} AS DOUBLE))'


_TABLE: Final = "scalars"
_VALUES: Final = ("value", "agg_mean", "agg_min", "agg_max")
_FLAGS: Final = ("value_flag", "agg_non_finite_count")
_COLUMNS: Final = (*KEY, "ts", "metric", *_VALUES, *_FLAGS)


def continuous(lake: "Lake", asked: Collection[str] = ()) -> str:
    """Return the relation that a query reads in place of ``scalars``, in which renamed metrics are joined.

    It is the table itself if no metric has a successor. Otherwise it is a SELECT with the columns run, attempt, rank,
    step, ts, metric, value, agg_mean, agg_min, agg_max, value_flag and agg_non_finite_count:

    - A metric and its successors are one metric, with the newest name and its unit. If two have a value for a step, the
      newer one is used.
    - A metric that was split is the sum of its parts. The parts are returned, too.

    Parameters
    ----------
    asked
        Names to return instead of the newest name, each with all values in its own unit.
    """
    states = lives(lake)
    newest = {members(states, life.metric)[0].life.metric for life in states.values() if life.links}
    groups = {name: members(states, name) for name in sorted(newest) if not has_column(lake.catalog, name)}
    if not groups:
        return _TABLE
    joined_names = [member.life.metric for group in groups.values() for member in group]
    returned = {
        name: members(states, name)
        for newest_name, group in groups.items()
        for name in sorted({member.life.metric for member in group} & {*asked}) or [newest_name]
    }
    others = select_sql(_COLUMNS, _TABLE, f"WHERE metric NOT IN ({', '.join(map(literal, joined_names))})")
    return f"(\n{union_all([others, *(_select(lake, states, name, group) for name, group in returned.items())])}\n)"


def _select(lake: "Lake", every: Mapping[str, Life], name: str, members: list[Member]) -> str:
    """Return the SELECT of a metric and its predecessors, with the columns of ``scalars``."""
    if any(len(member.life.links) > 1 for member in members):
        values = ["value", *(f"CAST(NULL AS DOUBLE) AS {column}" for column in _VALUES[1:])]
        values += ["CAST(NULL AS VARCHAR) AS value_flag", "CAST(NULL AS BIGINT) AS agg_non_finite_count"]
        return select_sql([*KEY, "ts", f"{literal(name)} AS metric", *values], select(lake, every, name))
    parts = []
    for member in members:
        low, high = ("agg_min", "agg_max") if member.factor > 0 else ("agg_max", "agg_min")
        sources = ("value", "agg_mean", low, high)
        values = [
            f"{scale_sql(source, member.factor, member.offset)} AS {column}"
            for source, column in zip(sources, _VALUES, strict=True)
        ]
        columns = [f"{literal(name)} AS metric", *values, *_FLAGS, f"{member.age} AS prio"]
        at = "CASE WHEN step IS NULL THEN ts END AS at"
        parts.append(select_sql([*KEY, "ts", at, *columns], _TABLE, f"WHERE metric = {literal(member.life.metric)}"))
    best = f"min(prio) OVER (PARTITION BY {', '.join(KEY)}, at) AS best"
    return select_sql(_COLUMNS, select_sql(["*", best], union_all(parts)), "WHERE prio = best")
