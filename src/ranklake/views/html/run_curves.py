"""Charts of a run's page: which of its curves they draw, and what each shows."""

from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import Final

from ranklake.lake.runs.asking import Answered, Row
from ranklake.lake.runs.facts import PHASES
from ranklake.lake.runs.report import RunState
from ranklake.views.html.charts import Chart
from ranklake.views.html.figures import sourced
from ranklake.views.html.step_charts import bar, curve, rank_heat_map, short, stacked, values_of

KINDS: Final = ("productive", "init", "checkpoint", "evaluation", "restart", "lost_work", "stall", "unattributed")
"""Kinds of wall time, as columns of ``goodput.sql``."""

AXES: Final = ("step", "tokens_seen", "elapsed_s")
"""What the reader may draw curves over; the shell's script switches."""

_MANY: Final = 10_000


def charts(found: RunState) -> Iterator[Chart]:
    """Yield the charts of a run that something is known for."""
    steps, utilization = found.curves.steps, found.curves.utilization
    source = sourced("curve", steps)
    yield from _loss(found)
    values = values_of(steps.rows, [*AXES, "step_time_s", "step_time_min_s", "step_time_max_s"])
    if values:
        words = "Seconds: mean over ranks; the band is from the fastest to the slowest rank."
        spec = curve(values, "step_time_s", "step time (s)", ("step_time_min_s", "step_time_max_s"))
        yield Chart("time", "Step time", words, spec, source)
    values = values_of([row for row in steps.rows if row["tokens_per_s"] is not None], [*AXES, "tokens_per_s"])
    if values:
        words = "Tokens a second of all ranks, over the steps' own time."
        yield Chart("pace", "Throughput", words, curve(values, "tokens_per_s", "tokens/s", form=",.3~s"), source)
    values = values_of(utilization.rows, [*AXES, "mfu_ratio", "hfu_ratio"])
    if values:
        row = found.facts.summary.one
        peak = f"{row.get('peak_dtype')} peak: {row.get('peak_source')}"
        words = f"Model FLOPs ({row.get('flops_convention')}) over a {peak}."
        spec = curve(values, "mfu_ratio", "MFU", form=".1%")
        yield Chart("mfu", "MFU", words, spec, sourced("utilization", utilization))
    phases = [phase for phase in PHASES if any(row[phase] is not None for row in steps.rows)]
    if phases:
        values = [{name: row[name] or 0.0 for name in row} for row in values_of(steps.rows, ["step", *phases])]
        words = "Seconds of a mean step by phase, of the ranks that have the phase; phases may overlap."
        yield Chart("phases", "Where a step's time goes", words, stacked(values, phases, "s"), source)
    yield from _goodput(found.facts.goodput)
    yield from _heat(found.curves.heat)


def _loss(found: RunState) -> Iterator[Chart]:
    losses = found.curves.losses
    band = {row["part"]: row for row in losses.rows}
    none = {"loss_min": None, "loss_max": None}
    rows = [{**none, **row, **band.get(row["part"], none), "step": row["step"]} for row in found.curves.steps.rows]
    values = values_of([row for row in rows if row["loss"] is not None], [*AXES, "loss", "loss_min", "loss_max"])
    if values and "loss" in values[0]:
        spec = curve(values, "loss", "loss", ("loss_min", "loss_max"))
        words = "Mean over ranks; the band is from the least to the greatest of any rank."
        note = f"No band: {losses.reason}." if losses.reason else f"The band: {' '.join(losses.sql.split())}"
        yield Chart("loss", "Loss", words, spec, sourced("curve", found.curves.steps, note))


def _goodput(found: Answered) -> Iterator[Chart]:
    goodput = found.one
    if not goodput.get("wall_ns"):
        return
    kinds = [kind for kind in KINDS if goodput[f"{kind}_ns"]]
    parts = [
        {
            "part": kind.replace("_", " "),
            "place": place,
            "amount": short(goodput[f"{kind}_ns"] / 1e9),
            "share": short(goodput[f"{kind}_ns"] / goodput["wall_ns"]),
        }
        for place, kind in enumerate(kinds)
    ]
    words = "Seconds of all attempts by kind; goodput is the productive share."
    spec = bar(parts, [str(one["part"]) for one in parts], "s")
    yield Chart("goodput", "Where the wall time went", words, spec, sourced("goodput", found))


def _heat(heat: Answered) -> Iterator[Chart]:
    if not heat.rows:
        return
    steps = sorted({row["part"]: row["step"] for row in reversed(heat.rows)}.items())
    begins = dict(steps)
    ends = {part: after for (part, _), (_, after) in pairwise(steps)}
    last = steps[-1][1] + max((after - before for (_, before), (_, after) in pairwise(steps)), default=1)
    values = [
        {
            "x": begins[row["part"]],
            "x2": ends.get(row["part"], last),
            "y": row["rank"] - 0.5,
            "y2": row["last_rank"] + 0.5,
            "ranks": _ranks(row),
            "excess": short(row["excess_ratio"]),
            "self": short(row["self_time_s"]),
        }
        for row in heat.rows
    ]
    words = "Self time (step time less collectives) over the median of all ranks; blank where a rank recorded nothing."
    if any(row["rank"] != row["last_rank"] for row in heat.rows):
        words += " Each row is a group of ranks and shows its slowest."
    spec = rank_heat_map(values, len({row["row"] for row in heat.rows}))
    title = "Ranks by step: who holds the others up"
    yield Chart("heat", title, words, spec, sourced("heat", heat), is_wide=True)


def _ranks(row: Row) -> str:
    first, last = row["rank"], row["last_rank"]
    return f"{first}" if first == last else f"{first} to {last}"


def metrics(found: Answered, units: Mapping[str, str]) -> Iterator[Chart]:
    """Yield a chart a metric; `units` are theirs by name."""
    by_metric: dict[str, list[Row]] = {}
    for row in found.rows:
        by_metric.setdefault(str(row["metric"]), []).append(row)
    for place, (metric, rows) in enumerate(by_metric.items()):
        values = values_of(rows, [*AXES, "mean", "low", "high"])
        unit = units.get(metric, "").strip("{}")
        is_plain = unit in {"", "1"}
        words = "A number without a unit." if is_plain else f"Unit: {unit}."
        if "mean" not in values[0]:  # no value is finite
            continue
        form = ",.3~s" if max(abs(value["mean"] or 0) for value in values) >= _MANY else ",.4~g"
        spec = curve(values, "mean", "value" if is_plain else unit, ("low", "high"), form)
        yield Chart(f"metric-{place}", metric, words, {**spec, "height": 120}, sourced("metrics", found))
