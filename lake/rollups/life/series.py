"""Series: one metric from its first value to its last, in one unit, whatever it was called meanwhile."""

import re
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from ranklake.lake.query.literal import literal
from ranklake.lake.query.sql import query
from ranklake.lake.rollups.life.distributions import select_distributions
from ranklake.lake.rollups.life.register import lives
from ranklake.lake.rollups.life.select import COLUMNS, select, selected, together
from ranklake.lake.rollups.life.state import Life, MetricLifeError

if TYPE_CHECKING:
    from ranklake.lake.query.roles import Role
    from ranklake.lake.store.store import Lake

VIEW: Final = "series"
"""Name of the view."""

_ASKED: Final = re.compile(r"\b(?:from|join)\s+\"?series\b", re.IGNORECASE)
_CONDITIONS: Final = {"begin": "ts >= $begin", "end": "ts < $end", "run": "run = $run"}


@dataclass(frozen=True, slots=True)
class Series:
    """A series.

    Attributes
    ----------
    life
        The metric that was asked for, and where it stands.
    rows
        Columns `COLUMNS`, or those of `ranklake.lake.rollups.life.distributions`, by run, attempt, rank and time.
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
    """Return the values of a metric in its unit, from a moment on and before another.

    Parameters
    ----------
    of_distributions
        Whether its histograms are asked for: how many values each has, their sum, mean, least and greatest.

    Where rows were downsampled, means of intervals stand for them, without a step; roles are not shown these.

    Raises `MetricLifeError`, and what `ranklake.lake.query.sql.query` does.
    """
    every = lives_with(lake, metric, role=role, of_distributions=of_distributions)
    told = {name: value for name, value in (("begin", begin), ("end", end), ("run", run)) if value is not None}
    where = " AND ".join(_CONDITIONS[name] for name in told)
    rest = f"{f'WHERE {where} ' if where else ''}ORDER BY run, attempt, rank, ts, step"
    params = {name: pa.scalar(value) for name, value in told.items()}
    text = (
        select_distributions(every, metric) if of_distributions else select(lake, every, metric, intervals=role is None)
    )
    rows = query(lake, selected(["*"], text, rest), params, role=role)
    return Series(every[metric], rows)


def lives_with(
    lake: "Lake", metric: str, *, role: "Role | None" = None, of_distributions: bool = False
) -> dict[str, Life]:
    """Return where metrics stand; one that was recorded and that nobody registered among them, if it is asked for."""
    every = lives(lake)
    if metric in every:
        return every
    table = "distributions" if of_distributions else "scalars"
    found = query(lake, f"SELECT metric FROM {table} WHERE metric = {literal(metric)} LIMIT 1", role=role)  # noqa: S608 - quoted
    return {**every, metric: Life(metric, "not registered", "")} if found.num_rows else every


def views(lake: "Lake", asked: str) -> dict[str, str]:
    """Return the view ``series`` where a query asks it: a SELECT of the metrics that its text names in quotes.

    Raises `MetricLifeError` where it names none.
    """
    if _ASKED.search(asked) is None:
        return {}
    every = lives(lake)
    named = [name for name in sorted(every) if literal(name) in asked]
    if not named:
        hint = "name metrics, as in: SELECT step, value FROM series WHERE metric = 'train/loss'"
        raise MetricLifeError("series of which metric?", where="SQL", hint=hint)
    parts = [
        selected(
            [f"{literal(name)} AS metric", f"{literal(every[name].unit)} AS unit", *COLUMNS], select(lake, every, name)
        )
        for name in named
    ]
    return {VIEW: together(parts)}
