"""Slowdowns of a run: a verdict, bars of parts, workers by stage; the same as tables; and timeline commands.

`s` is a slowdown: step time over ideal step time.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from ranklake.insight.diagnosis.critical_path import Pace
from ranklake.insight.diagnosis.what_if import Slowdowns
from ranklake.insight.runs.slowdown import MANY, Cause
from ranklake.views.html.charts import PERCENT, Chart, HeatMap, Spec, chart_spec, short_number
from ranklake.views.html.figures import Column, FactTable, Source
from ranklake.views.words import percent_text

_MOST: Final = 12
_MOST_ROWS: Final = 50
_LEAST_SHOWN: Final = 1.001
"""Slowdowns up to this one are not drawn."""
_MOST_COLUMNS: Final = 128
"""Most columns of a map: a column needs a pixel."""
_LEAST: Final = 0.1
"""Least maximum of the colour scale."""
RANKS_TITLE: Final = f"What if: by rank, the worst {_MOST_ROWS}"
_ROW_PX: Final = 26


def verdict(cause: Cause) -> str:
    """Return, in a sentence, how much slower a run was than necessary, and why."""
    if cause.simulation is None:
        return ""
    slower = percent_text(cause.simulation.s - 1)
    if not cause.part:
        return f"Stragglers cost {slower}: nothing to mend"
    many = len(cause.simulation.worst_ranks) if cause.part.startswith("rank") else 1
    subject = "it alone is" if many == 1 else f"the slowest {many:,} ranks alone are"
    share = "" if cause.share is None else f"; {_share(cause.share)} of that goes if {subject} ideal"
    return f"Steps take {slower} longer than ideal, through {cause.part}{share}"


def _share(share: float) -> str:
    return "all" if share >= 1 else percent_text(share)


def slowdown_charts(cause: Cause) -> Iterator[Chart]:
    """Yield charts of the simulation, if there is one."""
    slow = cause.simulation
    if slow is None:
        return
    source = _source(slow)
    stages, dp_ranks = len(slow.by_stage), len(slow.by_dp_rank)
    parts = [(f"stage {stage}", s) for stage, s in slow.by_stage.items()] if stages > 1 else []
    if dp_ranks == len(slow.by_worker):
        parts += [(f"rank {one.rank}", one.s) for one in slow.by_worker] if dp_ranks > 1 else []
    else:
        parts += [(f"dp rank {one}", s) for one, s in slow.by_dp_rank.items()] if dp_ranks > 1 else []
    parts += list(slow.by_kind.items())
    parts = sorted(parts, key=lambda part: -part[1])[:_MOST]
    parts = [one for one in parts if one[1] > _LEAST_SHOWN] or parts[:1]
    words = "Step time if this part alone kept its own durations and all else were ideal, less the ideal step time."
    yield Chart("slowed-parts", "Which parts slow it", words, _bars(parts, stands_out=cause.part != MANY), source)


def slowdown_map(cause: Cause) -> HeatMap | None:
    """Return a map of ranks by stage and data-parallel rank; None if bars show each rank."""
    slow = cause.simulation
    if slow is None or (len(slow.by_stage) == 1 and len(slow.by_dp_rank) <= _MOST):
        return None
    stages, dp_ranks = sorted(slow.by_stage), sorted(slow.by_dp_rank)
    excess_by_place = {(one.stage, one.dp_rank): one.s - 1 for one in slow.by_worker}
    size = -(-len(dp_ranks) // _MOST_COLUMNS)
    groups = [dp_ranks[place : place + size] for place in range(0, len(dp_ranks), size)]
    values = [
        max((excess_by_place[stage, rank] for rank in group if (stage, rank) in excess_by_place), default=None)
        for stage in stages
        for group in groups
    ]
    words = "Slowdown by each rank alone: the smaller of those of its stage and of its data-parallel rank."
    words += f" Each column is {size:,} ranks and shows the slowest." if size > 1 else ""
    return HeatMap(
        name="workers",
        title="Which ranks slow it",
        description=words,
        source=_source(slow),
        rows=[f"stage {stage}" for stage in stages],
        columns=[f"{group[0]:,}" if size == 1 else f"{group[0]:,} to {group[-1]:,}" for group in groups],
        values=values,
        row_title="Stage 0 is on top",
        column_title="data-parallel rank",
        measure="slower than ideal",
        unknown="no such rank",
        table="what-if-ranks",
        table_title=RANKS_TITLE,
        ramp="hot",
        most=max(_LEAST, *(value for value in values if value is not None)),
    )


def slowdown_tables(cause: Cause) -> Iterator[FactTable]:
    """Yield tables of the simulation, worst first: kinds of operations, stages, ranks, and steps to inspect."""
    slow = cause.simulation
    if slow is None:
        return
    path = slow.critical_path
    paces = {one.step: one for one in path.paces}
    kinds = [{"part": name, "s": s, "path": path.by_kind.get(name)} for name, s in slow.by_kind.items()]
    stages = [{"part": stage, "s": s, "path": path.by_stage.get(stage)} for stage, s in slow.by_stage.items()]
    ranks = [
        {"rank": one.rank, "stage": one.stage, "dp_rank": one.dp_rank, "s": one.s, "path": path.by_rank.get(one.rank)}
        for one in slow.by_worker[:_MOST_ROWS]
    ]
    steps = [
        {"step": step, "s": s, **_pace_cells(paces.get(step)), "command": f"ranklake trace {slow.run} --step {step}"}
        for step, s in sorted(slow.per_step.items(), key=lambda step: -step[1])[:_MOST]
    ]
    whole = f"ranklake what-if {slow.run} --timeline FILE"
    for name, caption, rows, columns in (
        ("what-if-kinds", "What if: by kind of operation", kinds, (_KIND, _SLOWER, _ON_PATH)),
        ("what-if-stages", "What if: by stage", stages if len(stages) > 1 else [], (_STAGE, _SLOWER, _ON_PATH)),
        ("what-if-ranks", RANKS_TITLE, ranks if len(slow.by_worker) > 1 else [], _RANKS),
        ("what-if-steps", f"Slowest steps, and their timelines; of all: {whole}", steps, _STEPS),
    ):
        if rows:
            yield FactTable(caption, _source(slow), columns, [columns[0].name], name, rows)


def _pace_cells(pace: Pace | None) -> Mapping[str, Any]:
    """Return the rank and the kind with the most of a step's critical path; None for a step without one."""
    return {"rank": None, "kind": None} if pace is None else {"rank": pace.rank, "kind": pace.kind}


def _source(slow: Slowdowns) -> Source:
    note = f"No SQL: 'ranklake what-if {slow.run} --json' simulates the steps from their spans."
    return Source("what-if", "", " ".join([note, *(f"{one}." for one in slow.notes)]))


def _excess(s: float) -> str:
    return percent_text(s - 1)


_SLOWER: Final = Column(
    "slower than ideal", "Step time if this part alone kept its own durations, over the ideal step time, less 1.", "s",
    "ratio", is_number=True, text=_excess,
)  # fmt: skip
_ON_PATH: Final = Column.ratio(
    "of the critical path",
    "Share of the critical path of each step: the chain of operations that determined its duration. Each operation is "
    "the last one that the next one waited for.",
    "path",
)
_KIND: Final = Column("kind", "Operations of a step that do the same.", "part")
_STAGE: Final = Column("stage", "Of the pipeline, from 0.", "part")
_RANKS: Final = (
    Column("rank", "Global rank.", "rank"),
    Column.number("stage", "Of the pipeline, from 0.", "stage"),
    Column.number("dp rank", "Data-parallel rank.", "dp_rank"),
    _SLOWER,
    _ON_PATH,
)
_STEPS: Final = (
    Column("step", "Number of the step.", "step"),
    Column("slower than ideal", "Its time over its ideal one, less 1.", "s", "ratio", is_number=True, text=_excess),
    Column.number("pace set by rank", "Rank that most of the step's critical path is on.", "rank"),
    Column("in", "Kind of operation that takes most of the step's critical path.", "kind"),
    Column("timeline", "Writes the spans of all ranks for https://ui.perfetto.dev.", "command"),
)


def _bars(parts: list[tuple[str, float]], *, stands_out: bool) -> Spec:
    most = max(s for _, s in parts)
    values = [{"part": name, "excess": short_number(s - 1), "hot": stands_out and s == most} for name, s in parts]
    excess = {"field": "excess", "type": "quantitative", "title": "slower than ideal"}
    return chart_spec(
        values,
        _ROW_PX * len(values),
        mark={"type": "bar"},
        encoding={
            "y": {"field": "part", "type": "nominal", "sort": [name for name, _ in parts], "title": None,
                  "axis": {"labelLimit": 220}},
            "x": {**excess, "axis": {"format": PERCENT, "tickCount": {"expr": "max(2, floor(width / 90))"}}},
            "color": {"condition": {"test": "datum.hot", "value": "var(--hot)"}, "value": "var(--part-2)"},
            "tooltip": [{"field": "part", "type": "nominal", "title": "part"}, {**excess, "format": ".2%"}],
        },
    )  # fmt: skip
