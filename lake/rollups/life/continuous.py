"""The rows of ``scalars`` with one name and unit for each metric, whatever it was called meanwhile."""

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Final

from ranklake.lake.query.literal import literal
from ranklake.lake.rollups.life.members import Member, members
from ranklake.lake.rollups.life.names import has_column
from ranklake.lake.rollups.life.register import lives
from ranklake.lake.rollups.life.select import KEY, scaled, select, selected, together
from ranklake.lake.rollups.life.state import Life

if TYPE_CHECKING:
    from ranklake.lake.store.store import Lake

_TABLE: Final = "scalars"
_VALUES: Final = ("value", "agg_mean", "agg_min", "agg_max")
_FLAGS: Final = ("value_flag", "agg_non_finite_count")
_COLUMNS: Final = (*KEY, "ts", "metric", *_VALUES, *_FLAGS)


def continuous(lake: "Lake", asked: Collection[str] = ()) -> str:
    """Return what a query reads in the place of ``scalars``: that table where no metric took another's place.

    Else a SELECT with the columns run, attempt, rank, step, ts, metric, value, agg_mean, agg_min, agg_max and the flags
    of what was not finite. Names
    that took one another's place are one metric, under the newest name and in its unit; of what two have of a step the
    newer counts. A metric that was split goes on as the sum of its parts, which stand there, too. Names that are asked
    for stay names, each with all the values in its unit.
    """
    every = lives(lake)
    newest = {members(every, one.metric)[0].life.metric for one in every.values() if one.links}
    groups = {name: members(every, name) for name in sorted(newest) if not has_column(lake, name)}
    if not groups:
        return _TABLE
    old = [one.life.metric for some in groups.values() for one in some]
    shown = {
        name: members(every, name)
        for newer, some in groups.items()
        for name in sorted({one.life.metric for one in some} & {*asked}) or [newer]
    }
    plain = selected(_COLUMNS, _TABLE, f"WHERE metric NOT IN ({', '.join(map(literal, old))})")
    return f"(\n{together([plain, *(_one(lake, every, name, some) for name, some in shown.items())])}\n)"


def _one(lake: "Lake", every: Mapping[str, Life], name: str, some: list[Member]) -> str:
    """Return the SELECT of one metric."""
    if any(len(one.life.links) > 1 for one in some):
        values = ["value", *(f"CAST(NULL AS DOUBLE) AS {column}" for column in _VALUES[1:])]
        values += ["CAST(NULL AS VARCHAR) AS value_flag", "CAST(NULL AS BIGINT) AS agg_non_finite_count"]
        return selected([*KEY, "ts", f"{literal(name)} AS metric", *values], select(lake, every, name))
    parts = []
    for one in some:
        low, high = ("agg_min", "agg_max") if one.factor > 0 else ("agg_max", "agg_min")
        sources = ("value", "agg_mean", low, high)
        values = [
            f"{scaled(source, one.factor, one.offset)} AS {column}"
            for source, column in zip(sources, _VALUES, strict=True)
        ]
        told = [f"{literal(name)} AS metric", *values, *_FLAGS, f"{one.age} AS prio"]
        at = "CASE WHEN step IS NULL THEN ts END AS at"
        parts.append(selected([*KEY, "ts", at, *told], _TABLE, f"WHERE metric = {literal(one.life.metric)}"))
    best = f"min(prio) OVER (PARTITION BY {', '.join(KEY)}, at) AS best"
    return selected(_COLUMNS, selected(["*", best], together(parts)), "WHERE prio = best")
