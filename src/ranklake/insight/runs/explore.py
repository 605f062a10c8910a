"""Metrics of runs over a range of an axis, as finely as a chart can show: what a view of any runs asks."""

from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from types import MappingProxyType
from typing import Final, NamedTuple

from ranklake.insight.runs import statements
from ranklake.insight.runs.asking import Ask, QueriedFacts
from ranklake.insight.runs.statements import of_run

AXES: Final[Mapping[str, tuple[str, str]]] = MappingProxyType(
    {
        "step": ("CAST(points.step AS DOUBLE)", "step"),
        "relative": ("coalesce(elapsed_s, point_s - begin_s)", "time since the first step (s)"),
        "wall": ("coalesce(wall_s, point_s)", "time (UTC)"),
        "tokens": ("tokens_seen", "tokens"),
        "samples": ("samples_seen", "samples"),
    }
)
"""What a view may be over, by name: the expression of ``explore.sql``, and its title."""


class _Column(NamedTuple):
    """Columns of a table with a row a step: of the value, and of its extremes over ranks."""

    mean: str
    low: str = ""
    high: str = ""
    table: str = "step_rollup"


_PHASES: Final = ("data", "forward", "backward", "collective", "optimizer", "checkpoint", "evaluation")
COLUMNS: Final[Mapping[str, _Column]] = MappingProxyType(
    {
        "loss": _Column("mean_loss"),
        "lr": _Column("lr"),
        "grad_norm": _Column("max_grad_norm"),
        "step_time_s": _Column("mean_step_time_s", "min_step_time_s", "max_step_time_s"),
        "tokens_per_s": _Column("CAST(tokens AS DOUBLE) * ranks / nullif(sum_step_time_ns, 0) * 1e9"),
        **{f"{name}_time_s": _Column(f"mean_{name}_time_s", "", f"max_{name}_time_s") for name in _PHASES},
        "memory_bytes": _Column("max_memory_allocated_bytes"),
        "mfu": _Column("mfu_ratio", table="step_mfu"),
        "tokens": _Column("tokens"),
        "samples": _Column("samples"),
    }
)
"""Metrics that tables have by step, by name."""

MOST_PARTS: Final = 2_000
_OF_SCALARS: Final = (
    "SELECT step, CAST(CAST(ts AS BIGINT) AS DOUBLE) / 1e6 AS point_s, coalesce(agg_mean, value) AS mean,\n"
    "    coalesce(agg_min, value) AS low, coalesce(agg_max, value) AS high\n"
    "  FROM {scalars}\n  WHERE run = $run AND metric = $metric"
)


def metric_names(ask: Ask, runs: Sequence[str], patterns: Sequence[str], most: int, scalars: str) -> list[str]:
    """Return metrics of some runs whose names match one of some patterns, those of the first pattern first.

    A pattern is a name, with ``*`` for any characters and ``?`` for one.
    """
    text = f"SELECT DISTINCT metric FROM {scalars} WHERE {statements.run_condition(tuple(runs))} ORDER BY metric"  # noqa: S608 - quoted
    recorded = [str(row["metric"]) for row in ask(text).rows]
    known = dict.fromkeys((*COLUMNS, *recorded))
    matches = (name for pattern in patterns for name in known if fnmatchcase(name, pattern))
    return list(dict.fromkeys(matches))[:most]


def range_sql(
    run: str,
    metric: str,
    axis: str,
    begin: float | None,
    end: float | None,
    parts: int,
    scalars: str = "scalars",
) -> str:
    """Return the SQL of a metric of a run over a range of an axis of `AXES`, by at most so many parts of it."""
    limits = [f"x >= CAST({begin!r} AS DOUBLE)"] if begin is not None else []
    limits += [f"x <= CAST({end!r} AS DOUBLE)"] if end is not None else []
    points = _of_column(COLUMNS[metric]) if metric in COLUMNS else _OF_SCALARS.format(scalars=scalars)
    return of_run(
        "explore",
        run,
        metric,
        parts=max(1, min(parts, MOST_PARTS)),
        points=points,
        x=AXES[axis][0],
        range=" AND ".join(["x IS NOT NULL", *limits]),
    )


def _of_column(column: _Column) -> str:
    low, high = column.low or column.mean, column.high or column.mean
    extremes = f"CAST({low} AS DOUBLE) AS low, CAST({high} AS DOUBLE) AS high"
    seen = "CAST(CAST(ts AS BIGINT) AS DOUBLE) / 1e6 AS point_s"
    mean = f"CAST({column.mean} AS DOUBLE) AS mean"
    return f"SELECT step, {seen}, {mean}, {extremes}\n  FROM {column.table}\n  WHERE run = $run"  # noqa: S608 - ours


def range_of(
    ask: Ask,
    run: str,
    metric: str,
    axis: str,
    begin: float | None,
    end: float | None,
    parts: int,
    scalars: str = "scalars",
) -> QueriedFacts:
    """Return a metric of a run over a range: rows with ``x``, ``mean``, ``low``, ``high`` and ``n``, in order."""
    return ask(range_sql(run, metric, axis, begin, end, parts, scalars))
