"""Charts of a run's page."""

from collections.abc import Iterator, Mapping, Sequence
from math import isfinite
from typing import Final

from ranklake.insight.runs.asking import QueriedFacts, Row
from ranklake.insight.runs.curves import Curves
from ranklake.insight.runs.facts import PHASES
from ranklake.insight.runs.report import RunState
from ranklake.views.html.charts import PERCENT, Chart, HeatMap, bars, curve, short_number, stack_chart, values_of
from ranklake.views.html.figures import source_of
from ranklake.views.html.run_tables import HEALTH_TITLE
from ranklake.views.run_causes import part_text, starts
from ranklake.views.words import length_text, percent_text

KINDS: Final = ("productive", "init", "checkpoint", "evaluation", "restart", "lost_work", "stall", "unattributed")
"""Kinds of wall time, as columns of ``goodput.sql``."""

AXES: Final = ("step", "tokens_seen", "elapsed_s")
"""Axes that the reader can choose; the page's script switches."""

_MANY: Final = 10_000
_LEAST_EXCESS: Final = 0.1
"""Least maximum of the colour scale."""


def charts(run: RunState) -> Iterator[Chart]:
    """Yield the charts of a run that have data."""
    steps, utilization = run.curves.steps, run.curves.utilization
    source = source_of("curve", steps)
    yield from _loss(run)
    timed = [row for row in steps.rows if row["step_time_s"] is not None]
    values = values_of(timed, [*AXES, "step_time_s", "step_time_min_s", "step_time_max_s"])
    if values:
        words = "Seconds: mean over ranks; the band is from the fastest to the slowest rank."
        spec = curve(values, "step_time_s", "step time (s)", ("step_time_min_s", "step_time_max_s"))
        yield Chart("time", "Step time", words, spec, source)
    values = values_of([row for row in steps.rows if row["tokens_per_s"] is not None], [*AXES, "tokens_per_s"])
    if values:
        words = "Tokens a second of all ranks, over the steps' own time."
        yield Chart("pace", "Throughput", words, curve(values, "tokens_per_s", "tokens/s", form=",.3~s"), source)
    for column, title in (("lr", "Learning rate"), ("grad_norm", "Gradient norm")):
        values = values_of([row for row in steps.rows if row[column] is not None], [*AXES, column])
        if values and column in values[0]:
            words = "The greatest of any rank."
            yield Chart(column.replace("_", "-"), title, words, curve(values, column, title.lower()), source)
    values = values_of(utilization.rows, [*AXES, "mfu_ratio", "hfu_ratio"])
    if values:
        row = run.facts.summary.first_row
        peak = f"{row.get('peak_dtype')} peak: {row.get('peak_source')}"
        words = f"Model FLOPs ({row.get('flops_convention')}) over a {peak}."
        spec = curve(values, "mfu_ratio", "MFU", form=PERCENT)
        yield Chart("mfu", "MFU", words, spec, source_of("utilization", utilization))
    phases = [phase for phase in PHASES if any(row[phase] is not None for row in steps.rows)]
    if phases:
        values = [{name: row[name] or 0.0 for name in row} for row in values_of(steps.rows, ["step", *phases])]
        words = "Seconds of a mean step by phase, of the ranks that have the phase; phases may overlap."
        yield Chart("phases", "Where a step's time goes", words, stack_chart(values, phases, "s"), source)
    yield from _goodput(run.facts.goodput)
    yield from _starts(run.facts.starts)


def _loss(run: RunState) -> Iterator[Chart]:
    losses = run.curves.losses
    band = {row["part"]: row for row in losses.rows}
    none = {"loss_min": None, "loss_max": None}
    rows = [{**none, **row, **band.get(row["part"], none), "step": row["step"]} for row in run.curves.steps.rows]
    first = min((row["non_finite_step"] for row in rows if row["non_finite_step"] is not None), default=None)
    flagged = "loss_non_finite_steps"
    kept = [row for row in rows if row["loss"] is not None or row[flagged]]
    names = [*AXES, "loss", "loss_min", "loss_max", *([flagged] if first is not None else [])]
    values = values_of(kept, names)
    if values:
        spec = curve(values, "loss", "loss", ("loss_min", "loss_max"), flagged=flagged)
        words = "Mean over ranks; the band is from the least to the greatest of any rank."
        if first is not None:
            words += f" NaN or infinite first in step {first:,}: an upright line wherever it was."
        note = f"No band: {losses.reason}." if losses.reason else f"The band: {' '.join(losses.sql.split())}"
        yield Chart("loss", "Loss", words, spec, source_of("curve", run.curves.steps, note))


def _goodput(answer: QueriedFacts) -> Iterator[Chart]:
    goodput = answer.first_row
    if not goodput.get("wall_ns"):
        return
    wall_ns = goodput["wall_ns"]
    parts = [
        {
            "part": kind.replace("_", " "),
            "label": f"{kind.replace('_', ' ')} {percent_text(ns / wall_ns)}, {length_text(ns / 1e9)}",
            "amount": short_number(ns / 1e9),
            "share": short_number(ns / wall_ns),
        }
        for kind in KINDS
        if (ns := goodput[f"{kind}_ns"])
    ]
    words = "Share of the wall time of all attempts by kind; goodput is the productive share."
    yield Chart("goodput", "Where the wall time went", words, bars(parts, "of wall time"), source_of("goodput", answer))


def _starts(answer: QueriedFacts) -> Iterator[Chart]:
    for start in starts(answer):
        parts = [
            {
                "part": row["part"],
                "label": part_text(row),
                "amount": short_number(row["duration_ns"] / 1e9),
                "share": short_number(row["duration_ns"] / start.whole_ns),
            }
            for row in start.parts
        ]
        title = f"What {start.kind} was made of"
        words = f"Parts of {start.kind} on rank 0, {length_text(start.whole_ns / 1e9)} in all, the longest first."
        yield Chart(f"{start.kind}-parts", title, words, bars(parts, f"of {start.kind}"), source_of("starts", answer))


def rank_heat(run: RunState) -> HeatMap | None:
    """Return the map of ranks by step; None if unknown."""
    heat = run.curves.heat
    if not heat.rows:
        return None
    parts = sorted({row["part"]: row["step"] for row in reversed(heat.rows)}.items())
    columns = {part: place for place, (part, _) in enumerate(parts)}
    groups: dict[int, list[Row]] = {}
    for row in heat.rows:
        groups.setdefault(row["row"], []).append(row)
    values: list[float | None] = [None] * (len(groups) * len(columns))
    for place, rows in enumerate(groups.values()):
        for row in rows:
            values[place * len(columns) + columns[row["part"]]] = row["excess_ratio"]
    words = (
        "Self time (step time less collectives) over the median of all ranks; striped where a rank recorded nothing."
    )
    if any(row["rank"] != row["last_rank"] for row in heat.rows):
        words += " Each row is a group of ranks and shows its slowest."
    return HeatMap(
        name="ranks",
        title="Ranks by step: who holds the others up",
        description=words,
        source=source_of("heat", heat),
        rows=[_ranks(rows) for rows in groups.values()],
        columns=[f"{step:,}" for _, step in parts],
        values=values,
        row_title="Rank 0 is on top",
        column_title="from step",
        measure="longer than usual",
        unknown="nothing recorded",
        table="health",
        table_title=HEALTH_TITLE,
        ramp="hot",
        most=max(_LEAST_EXCESS, *(value for value in values if value is not None and isfinite(value)), 0.0),
    )


def _ranks(rows: Sequence[Row]) -> str:
    first, last = min(row["rank"] for row in rows), max(row["last_rank"] for row in rows)
    return f"rank {first:,}" if first == last else f"ranks {first:,} to {last:,}"


def metrics(answer: QueriedFacts, units: Mapping[str, str]) -> Iterator[Chart]:
    """Yield a chart per metric; `units` are by name."""
    by_metric: dict[str, list[Row]] = {}
    for row in answer.rows:
        by_metric.setdefault(str(row["metric"]), []).append(row)
    for place, (metric, rows) in enumerate(by_metric.items()):
        flagged = ["non_finite"] if any(row["non_finite"] for row in rows) else []
        values = values_of(rows, [*AXES, "mean", "low", "high", *flagged])
        unit = units.get(metric, "").strip("{}")
        is_plain = unit in {"", "1"}
        words = "A number without a unit." if is_plain else f"Unit: {unit}."
        if "mean" not in values[0]:  # no value is finite
            continue
        form = ",.3~s" if max(abs(value["mean"] or 0) for value in values) >= _MANY else ",.4~g"
        spec = curve(values, "mean", "value" if is_plain else unit, ("low", "high"), form, "non_finite")
        yield Chart(f"metric-{place}", metric, words, {**spec, "height": 120}, source_of("metrics", answer))


_DRAWN_APART: Final = {"train/loss", "train/lr", "train/grad_norm"}
"""Metrics with their own charts, which metrics.sql leaves out."""


def not_drawn(curves: Curves) -> list[str]:
    """Return the metrics of a run without a chart on its page."""
    drawn = {str(row["metric"]) for row in curves.metrics.rows if row["mean"] is not None}
    names = (str(row["metric"]) for row in curves.names.rows)
    return [name for name in names if name not in drawn | _DRAWN_APART and not name.startswith("ranklake/")]
