"""Curves of runs, downsampled to parts of their steps, so that long runs give no more points than short ones.

`curves` returns those of a run's page, `plot_metrics` a metric of some runs over steps, tokens or time.
"""

import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import groupby
from types import MappingProxyType
from typing import Final

from ranklake.errors import RanklakeError, did_you_mean
from ranklake.insight.runs import statements
from ranklake.insight.runs.asking import Ask, QueriedFacts, Row
from ranklake.lake.query.literal import literal
from ranklake.lake.rollups.lookups import STEP_METRICS

AXES: Final[Mapping[str, tuple[str, str]]] = MappingProxyType(
    {"step": ("step", ""), "tokens": ("tokens_seen", "{token}"), "time": ("elapsed_s", "s")}
)
"""Columns of ``curve.sql`` and ``metric.sql`` that a curve can be drawn over, by the axis's name, with their units."""

OF_STEPS: Final[Mapping[str, tuple[str, str, str]]] = MappingProxyType(
    {
        "loss": ("curve", "loss", "1"),
        "lr": ("curve", "lr", "1"),
        "tokens": ("curve", "tokens", "{token}"),
        "samples": ("curve", "samples", "{sample}"),
        "grad_norm": ("curve", "grad_norm", "1"),
        "step_time_s": ("curve", "step_time_s", "s"),
        "tokens_per_s": ("curve", "tokens_per_s", "{token}/s"),
        "memory_bytes": ("curve", "memory_bytes", "By"),
        "data_time_s": ("curve", "data", "s"),
        "forward_time_s": ("curve", "forward", "s"),
        "backward_time_s": ("curve", "backward", "s"),
        "collective_time_s": ("curve", "collective", "s"),
        "optimizer_time_s": ("curve", "optimizer", "s"),
        "checkpoint_time_s": ("curve", "checkpoint", "s"),
        "evaluation_time_s": ("curve", "evaluation", "s"),
        "mfu": ("utilization", "mfu_ratio", "ratio"),
        "hfu": ("utilization", "hfu_ratio", "ratio"),
    }
)
"""Metrics that rollups have by step: the query's file, the column in it, the unit."""

STORED: Final[Mapping[str, str]] = MappingProxyType(
    {
        **{
            name: column
            for column in ("loss", "lr", "grad_norm")
            for name in (f"train/{column}", *STEP_METRICS[column])
        },
        **{f"train/{name}": name for name in ("tokens", "samples")},
        "train/step_time": "step_time_s",
        "data/wait": "data_time_s",
        **{
            f"phase/{name}": f"{name}_time_s"
            for name in ("forward", "backward", "collective", "optimizer", "checkpoint", "evaluation")
        },
        "device/memory_allocated": "memory_bytes",
    }
)
"""Metrics that have columns of ``steps``, by registered and by common names."""

_FLAGGED: Final = {"loss": "loss_non_finite_steps", "mean": "non_finite"}
"""Columns that count non-finite values, by the column of the finite ones."""

COMPARED: Final = ("loss", "step_time_s", "tokens_per_s", "grad_norm", "mfu")
"""Metrics that are drawn for runs side by side, if a run has them."""

PARTS: Final = 300
Point = tuple[float, float]


class NothingToPlotError(RanklakeError):
    """No run has values of the metric over the axis."""


@dataclass(frozen=True, slots=True)
class PlottedMetric:
    """A metric of a run.

    Attributes
    ----------
    unit
        Unit in UCUM; ``1`` for a plain number, empty for an unregistered metric.
    column
        The column of the answer that has its values.
    points
        Axis and value for each of at most `PARTS` parts of the steps; NaN if a part has no finite value.
    """

    run: str
    metric: str
    unit: str
    column: str
    answered: QueriedFacts
    points: tuple[Point, ...]

    def pieces(self, *, positive: bool = False) -> list[list[Point]]:
        """Return the points as pieces between gaps; on a logarithmic axis only positive values."""

        def drawn(point: Point) -> bool:
            return math.isfinite(point[1]) and (point[1] > 0 or not positive)

        return [list(piece) for is_drawn, piece in groupby(self.points, drawn) if is_drawn]


def plot_metrics(
    ask: Ask,
    runs: Sequence[str],
    metrics: Sequence[str],
    units: Mapping[str, str],
    axis: str = "step",
    smooth: int = 0,
    scalars: str = "scalars",
) -> list[PlottedMetric]:
    """Return each metric of each run, metric by metric.

    Parameters
    ----------
    runs
        Whole names.
    units
        Of registered metrics, by name.
    axis
        One of `AXES`.
    smooth
        Number of neighbours on either side with which each point is averaged. Gaps stay.
    scalars
        Replacement for the table ``scalars``, from `ranklake.lake.rollups.life.series`.

    Raises
    ------
    NothingToPlotError
        No run has the metric over that axis.
    """
    return [one for metric in metrics for one in _of_metric(ask, runs, metric, units, axis, smooth, scalars)]


def shared_metrics(ask: Ask, runs: Sequence[str], most: int, scalars: str = "scalars") -> list[str]:
    """Return metrics that at least two runs recorded by step: at most `most`, those with most values.

    `scalars` as for `plot_metrics`: a metric under an old and a new name counts as one.
    """
    counts_of: dict[str, list[int]] = {}
    for run in runs:
        for row in ask(statements.of_run("metric_names", run, scalars=scalars)).rows:
            if row["n"]:
                counts_of.setdefault(str(row["metric"]), []).append(row["n"])
    common = [metric for metric, counts in counts_of.items() if len(counts) > 1]
    return sorted(common, key=lambda metric: (-sum(counts_of[metric]), metric))[:most]


def compared_metrics(
    ask: Ask, runs: Sequence[str], units: Mapping[str, str], scalars: str = "scalars"
) -> list[list[PlottedMetric]]:
    """Return metrics for runs side by side: `COMPARED`, and all that at least two of the runs recorded."""
    drawn = []
    for metric in (*COMPARED, *shared_metrics(ask, runs, MOST_METRICS, scalars)):
        with suppress(NothingToPlotError):
            drawn.append(plot_metrics(ask, runs, [metric], units, scalars=scalars))
    return drawn


def _of_metric(
    ask: Ask, runs: Sequence[str], metric: str, units: Mapping[str, str], axis: str, smooth: int, scalars: str
) -> list[PlottedMetric]:
    name, column, unit = OF_STEPS.get(metric, ("metric", "mean", units.get(metric, "")))
    if name == "metric" and metric in STORED and not _is_recorded(ask, runs, metric, scalars):
        name, column, unit = OF_STEPS[STORED[metric]]
    every = []
    for run in runs:
        answer = ask(statements.of_run(name, run, metric, parts=PARTS, scalars=scalars))
        if name == "metric" and axis == "time" and not answer.rows and not answer.reason:
            answer = ask(statements.of_run("metric_time", run, metric, parts=PARTS, scalars=scalars))
        rows = [row for row in answer.rows if row[column] is not None or row.get(_FLAGGED.get(column, ""))]
        every.append(PlottedMetric(run, metric, unit, column, answer, _points(rows, column, axis, smooth)))
    if not any(one.points for one in every):
        raise _no_curve_reason(ask, every, metric, axis, scalars)
    return every


def _is_recorded(ask: Ask, runs: Sequence[str], metric: str, scalars: str) -> bool:
    names = (row for run in runs for row in ask(statements.of_run("metric_names", run, scalars=scalars)).rows)
    return any(row["metric"] == metric for row in names)


def _points(rows: Sequence[Row], column: str, axis: str, smooth: int) -> tuple[Point, ...]:
    over = AXES[axis][0]
    known = [
        (float(row[over]), math.nan if row[column] is None else float(row[column]))
        for row in rows
        if row.get(over) is not None
    ]
    values = [value if math.isfinite(value) else math.nan for _, value in known]
    if smooth:
        values = smooth_values(values, smooth)
    return tuple((x, value) for (x, _), value in zip(known, values, strict=True))


def smooth_values(values: Sequence[float], neighbours: int) -> list[float]:
    """Return means of each value and its finite neighbours on either side; NaN stays NaN."""
    means = []
    for place, value in enumerate(values):
        near = [one for one in values[max(place - neighbours, 0) : place + neighbours + 1] if math.isfinite(one)]
        means.append(math.fsum(near) / len(near) if math.isfinite(value) else math.nan)
    return means


def _no_curve_reason(
    ask: Ask, every: Sequence[PlottedMetric], metric: str, axis: str, scalars: str
) -> NothingToPlotError:
    """Return why there is nothing to plot."""
    if ask(f"SELECT run FROM run_summary WHERE run = {literal(metric)} LIMIT 1").rows:  # noqa: S608 - quoted
        return NothingToPlotError("it is a run, and no metric", where=metric, hint=f"write --with {metric} to add it")
    of = every[0].run if len(every) == 1 else "the runs"
    reason = next((curve.answered.reason for curve in every if curve.answered.reason), "")
    if reason:
        return NothingToPlotError(reason, where=metric, hint="ask whoever keeps the roles for the table")
    if any(
        curve.answered.rows and any(row[curve.column] is not None for row in curve.answered.rows) for curve in every
    ):
        return NothingToPlotError(f"{metric} of {of} has no {axis} to be drawn over", hint="draw it over --x step")
    for curve in every:
        for row in ask(statements.of_run("metric_names", curve.run, scalars=scalars)).rows:
            if row["metric"] == metric and not row["n"]:
                return NothingToPlotError(f"{metric} of {of} was recorded without steps", hint="draw it over --x time")
    known = {name for name, (file, column, _) in OF_STEPS.items() if _is_known(ask, every, file, column)}
    for curve in every:
        known |= {str(row["metric"]) for row in ask(statements.of_run("metric_names", curve.run, scalars=scalars)).rows}
    message = f"{of} {'has' if len(every) == 1 else 'have'} no values by step of {metric!r}"
    empty = "no step was recorded, or none is rolled up yet: run 'ranklake rollup'"
    return NothingToPlotError(message, hint=did_you_mean(metric, known) or empty)


def _is_known(ask: Ask, every: Sequence[PlottedMetric], file: str, column: str) -> bool:
    return any(
        row[column] is not None for one in every for row in ask(statements.of_run(file, one.run, parts=PARTS)).rows
    )


STEP_PARTS: Final = 300
HEAT_ROWS, HEAT_PARTS = 64, 96
MOST_METRICS: Final = 12
_METRIC_PARTS: Final = 100
MOST_RANK_STEPS: Final = 500_000_000
"""Most rows in ``steps`` that are read for a run's page: more than 4,096 ranks by 100,000 steps."""


@dataclass(frozen=True, slots=True)
class Curves:
    """A run by parts of its steps.

    Attributes
    ----------
    steps
        Loss, times, phases and pace; at most `STEP_PARTS` rows.
    losses
        Least and greatest loss of any rank, by the same parts.
    utilization
        MFU and HFU, by the same parts.
    heat
        Excess time of ranks; at most `HEAT_ROWS` groups of ranks by `HEAT_PARTS` parts.
    metrics
        Other metrics by step; at most `MOST_METRICS`.
    names
        All recorded metrics, with the number of their values.
    """

    steps: QueriedFacts
    losses: QueriedFacts
    utilization: QueriedFacts
    heat: QueriedFacts
    metrics: QueriedFacts
    names: QueriedFacts


def curves(ask: Ask, run: str, rank_steps: int, scalars: str = "scalars") -> Curves:
    """Return the curves of a run, given its number of rows in ``steps``.

    `scalars` replaces that table, as for `plot_metrics`.
    """
    too_many = rank_steps > MOST_RANK_STEPS
    reason = f"{rank_steps:,} rows are too many to sum up for a page" if too_many else ""
    losses = statements.of_run("band", run, parts=STEP_PARTS)
    heat = statements.of_run("heat", run, rows=HEAT_ROWS, parts=HEAT_PARTS)
    return Curves(
        steps=ask(statements.of_run("curve", run, parts=STEP_PARTS)),
        losses=QueriedFacts(losses, (), reason) if reason else ask(losses),
        utilization=ask(statements.of_run("utilization", run, parts=STEP_PARTS)),
        heat=QueriedFacts(heat, (), reason) if reason else ask(heat),
        metrics=ask(statements.of_run("metrics", run, parts=_METRIC_PARTS, most=MOST_METRICS, scalars=scalars)),
        names=ask(statements.of_run("metric_names", run, scalars=scalars)),
    )
