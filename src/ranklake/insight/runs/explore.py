"""Metrics of runs over a range of an axis, downsampled to the resolution of a chart."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from types import MappingProxyType
from typing import Final, NamedTuple

from ranklake.insight.runs import statements
from ranklake.insight.runs.asking import Ask, QueriedFacts
from ranklake.insight.runs.statements import of_run, of_runs

AXES: Final[Mapping[str, tuple[str, str]]] = MappingProxyType(
    {
        "step": ("CAST(points.step AS DOUBLE)", "step"),
        "relative": ("coalesce(elapsed_s, point_s - begin_s)", "time since the first step (s)"),
        "wall": ("coalesce(wall_s, point_s)", "time (UTC)"),
        "tokens": ("tokens_seen", "tokens"),
        "samples": ("samples_seen", "samples"),
    }
)
"""Axes by name: the expression in ``explore.sql``, and the title."""


class _Column(NamedTuple):
    """Columns of a table with one row per step: the value, and its extremes over ranks."""

    mean: str
    low: str = ""
    high: str = ""
    table: str = "step_rollup"


class Group(NamedTuple):
    """Runs that are drawn as one line: their mean, and a band of `BANDS`."""

    runs: tuple[str, ...]
    band: str


class _Sample(NamedTuple):
    """A column of samples of a run's devices or hosts; over time only."""

    table: str
    column: str
    where: str = ""


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
"""Metrics with columns in tables by step, by name."""

SAMPLES: Final[Mapping[str, _Sample]] = MappingProxyType(
    {
        "gpu/utilization_ratio": _Sample("gpu_samples", "gpu_utilization_ratio"),
        "gpu/memory_used_bytes": _Sample("gpu_samples", "memory_used_bytes"),
        "gpu/power_watts": _Sample("gpu_samples", "power_watts"),
        "gpu/temperature_celsius": _Sample("gpu_samples", "temperature_celsius"),
        "gpu/sm_clock_hz": _Sample("gpu_samples", "sm_clock_hz"),
        "gpu/sm_active_ratio": _Sample("gpu_samples", "sm_active_ratio"),
        "host/cpu_utilization_ratio": _Sample("host_samples", "cpu_utilization_ratio", " AND subject = 'host'"),
        "host/memory_used_bytes": _Sample("host_samples", "memory_used_bytes", " AND subject = 'host'"),
    }
)
"""Metrics of the devices and hosts of a run, by name."""
TIMES: Final = ("relative", "wall")
"""Axes that samples can be drawn over."""

BANDS: Final[Mapping[str, tuple[str, str, str]]] = MappingProxyType(
    {
        "range": ("least to greatest", "min(low)", "max(high)"),
        "quartiles": ("quartiles", "{quantile:.25}", "{quantile:.75}"),
        "p5-p95": ("5 % to 95 %", "{quantile:.05}", "{quantile:.95}"),
        "deviation": ("standard deviation", "avg(mean) - stddev(mean)", "avg(mean) + stddev(mean)"),
    }
)
"""Bands around the mean of a group of runs, by name: the title, and the expressions of ``explore_group.sql``."""
_QUANTILE: Final = re.compile(r"\{quantile:(\.\d+)\}")

MOST_PARTS: Final = 2_000
_OF_SCALARS: Final = (
    "SELECT run, step, CAST(CAST(ts AS BIGINT) AS DOUBLE) / 1e6 AS point_s, coalesce(agg_mean, value) AS mean,\n"
    "    coalesce(agg_min, value) AS low, coalesce(agg_max, value) AS high\n"
    "  FROM {scalars}\n  WHERE run IN ($runs) AND metric = $metric"
)


def metric_names(ask: Ask, runs: Sequence[str], patterns: Sequence[str], most: int, scalars: str) -> list[str]:
    """Return the metrics of some runs that match patterns, those of the first pattern first.

    A pattern is a name, with ``*`` for any characters and ``?`` for one. Such a pattern names columns only if they have
    values, and samples after all that was recorded.
    """
    text = f"SELECT DISTINCT metric FROM {scalars} WHERE {statements.run_condition(tuple(runs))} ORDER BY metric"  # noqa: S608 - quoted
    recorded = [str(row["metric"]) for row in ask(text).rows]
    known = dict.fromkeys((*COLUMNS, *recorded, *SAMPLES))
    empty = _empty_columns(ask, runs) if any(_WILDCARDS.intersection(pattern) for pattern in patterns) else frozenset()
    matches = (
        name for pattern in patterns for name in known
        if fnmatchcase(name, pattern) and (name == pattern or name not in empty or name in recorded)
    )  # fmt: skip
    return list(dict.fromkeys(matches))[:most]


_WILDCARDS: Final = frozenset("*?[")


def _empty_columns(ask: Ask, runs: Sequence[str]) -> frozenset[str]:
    """Return the metrics of `COLUMNS` without a value in some runs; none if a role may not see them."""
    empty: set[str] = set()
    for table in dict.fromkeys(column.table for column in COLUMNS.values()):
        names = [name for name, column in COLUMNS.items() if column.table == table]
        counts = ", ".join(f"count({COLUMNS[name].mean}) AS {name}" for name in names)
        text = f"SELECT {counts} FROM {table} WHERE {statements.run_condition(tuple(runs))}"  # noqa: S608 - quoted
        empty.update(name for row in ask(text).rows for name in names if not row[name])
    return frozenset(empty)


def range_sql(
    of: str | Group,
    metric: str,
    axis: str,
    begin: float | None,
    end: float | None,
    parts: int,
    scalars: str = "scalars",
    *,
    is_log: bool = False,
) -> str:
    """Return the SQL of a metric over a range of an axis of `AXES`, in at most `parts` parts.

    For a group of runs, each part has the mean over runs. Parts are equally wide on the axis; a logarithmic one
    (`is_log`) begins above 0.
    """
    limits = [f"x >= CAST({begin!r} AS DOUBLE)"] if begin is not None else []
    limits += [f"x <= CAST({end!r} AS DOUBLE)"] if end is not None else []
    own: dict[str, int | str] = {"parts": max(1, min(parts, MOST_PARTS)), "points": _points_sql(metric, scalars)}
    limits = ["x > 0" if is_log else "x IS NOT NULL", *limits]
    own |= {"x": AXES[axis][0], "at": "ln(x)" if is_log else "x", "range": " AND ".join(limits)}
    if isinstance(of, str):
        return of_run("explore", of, metric, **own)
    low, high = (_QUANTILE.sub(_quantile_sql, text) for text in BANDS[of.band][1:])
    return of_runs("explore_group", of.runs, metric, **own, low=low, high=high)


def _quantile_sql(match: re.Match[str]) -> str:
    """Return the SQL of a quantile of ranked values, interpolated between the two nearest."""
    return f"sum(mean * greatest(0.0, 1 - abs(place - {match[1]} * (runs - 1))))"


def _points_sql(metric: str, scalars: str) -> str:
    if metric in COLUMNS:
        return _of_column(COLUMNS[metric])
    if metric in SAMPLES:
        return _of_sample(SAMPLES[metric])
    return _OF_SCALARS.format(scalars=scalars)


_POINT_S: Final = "CAST(CAST(ts AS BIGINT) AS DOUBLE) / 1e6 AS point_s"


def _of_column(column: _Column) -> str:
    low, high = column.low or column.mean, column.high or column.mean
    extremes = f"CAST({low} AS DOUBLE) AS low, CAST({high} AS DOUBLE) AS high"
    mean = f"CAST({column.mean} AS DOUBLE) AS mean"
    return f"SELECT run, step, {_POINT_S}, {mean}, {extremes}\n  FROM {column.table}\n  WHERE run IN ($runs)"  # noqa: S608 - ours


def _of_sample(sample: _Sample) -> str:
    value = f"CAST({sample.column} AS DOUBLE)"
    return (
        f"SELECT coalesce(holder_run, run) AS run, CAST(NULL AS BIGINT) AS step, {_POINT_S}, {value} AS mean, "  # noqa: S608 - ours
        f"{value} AS low, {value} AS high\n  FROM {sample.table}\n"
        f"  WHERE (holder_run IN ($runs) OR holder_run IS NULL AND run IN ($runs)){sample.where}"
    )


def range_of(  # noqa: PLR0913 - one parameter a part of a view
    ask: Ask,
    of: str | Group,
    metric: str,
    axis: str,
    begin: float | None,
    end: float | None,
    parts: int,
    scalars: str = "scalars",
    *,
    is_log: bool = False,
) -> QueriedFacts:
    """Return a metric of a run, or of a group, over a range: rows with ``x``, ``mean``, ``low``, ``high`` and ``n``.

    ``n`` counts values, or, for a group, runs with a value.
    """
    answer = ask(range_sql(of, metric, axis, begin, end, parts, scalars, is_log=is_log))
    if metric in SAMPLES and axis not in TIMES and not answer.reason:
        return replace(answer, reason="Samples of devices and hosts have no steps: draw them over time.")
    return answer
