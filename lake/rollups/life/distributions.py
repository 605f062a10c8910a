"""The SELECT of a metric's distributions: how many values a histogram has, their sum, mean, least and greatest.

Of what took the place of what, one for one, as of values. A distribution of a sum does not follow from those of its
parts, so a metric that was split has only what was recorded under its own names. Buckets stay where they are: their
bounds are powers of two of the unit that they were recorded in.
"""

from collections.abc import Mapping
from typing import Final

from ranklake.errors import did_you_mean
from ranklake.lake.query.literal import literal
from ranklake.lake.rollups.life.members import Member, members
from ranklake.lake.rollups.life.select import AT, KEY, scaled, selected, together
from ranklake.lake.rollups.life.state import Life, MetricLifeError

COLUMNS: Final = (*KEY, "ts", "count", "sum", "mean", "min", "max", "source")


def select_distributions(every: Mapping[str, Life], metric: str) -> str:
    """Return the SELECT, with the columns `COLUMNS`. Raises `MetricLifeError` for what is no metric."""
    if metric not in every:
        raise MetricLifeError("there is no such metric", where=metric, hint=did_you_mean(metric, every) or "look again")
    best = f"min(prio) OVER (PARTITION BY {', '.join(KEY)}, at) AS best"
    return selected(
        COLUMNS, selected(["*", best], together(list(map(_rows, members(every, metric))))), "WHERE prio = best"
    )


def _rows(one: Member) -> str:
    low, high = ("min", "max") if one.factor > 0 else ("max", "min")
    summed = total(one.factor, one.offset)
    values = {
        "sum": summed,
        "mean": f"({summed} / nullif(count, 0))",
        "min": scaled(low, one.factor, one.offset),
        "max": scaled(high, one.factor, one.offset),
    }
    said = [f"{value} AS {name}" for name, value in values.items()]
    source = [f"{literal(one.life.metric)} AS source", f"{one.age} AS prio"]
    return selected(
        [*KEY, "ts", AT, "count", *said, *source], "distributions", f"WHERE metric = {literal(one.life.metric)}"
    )


def total(factor: float, offset: float) -> str:
    """Return the sum of a distribution's values, each times a factor, plus an offset."""
    if (factor, offset) == (1.0, 0.0):
        return '"sum"'
    return f'("sum" * CAST({factor!r} AS DOUBLE) + "count" * CAST({offset!r} AS DOUBLE))'
