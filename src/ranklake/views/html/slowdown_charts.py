"""What slowed a run: a verdict, bars of parts, workers by stage; and the same in tables, with the way to a timeline."""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from ranklake.lake.diagnosis.critical_path import Pace
from ranklake.lake.diagnosis.facts import Slowdowns
from ranklake.lake.runs.slowed import Cause
from ranklake.views.html.charts import SCHEMA, Chart, Spec
from ranklake.views.html.figures import Column, FactTable, Source
from ranklake.views.html.step_charts import short
from ranklake.views.words import percent_text

_MOST: Final = 12
_MOST_ROWS: Final = 50
_SEEN: Final = 1.001
_ROW_PX: Final = 26


def verdict(cause: Cause) -> str:
    """Return in a sentence how much slower a run was than it had to be, and through what."""
    if cause.found is None:
        return ""
    slower = percent_text(cause.found.s - 1)
    if not cause.what:
        return f"Stragglers cost {slower}: nothing to mend"
    share = "" if cause.share is None else f"; {_share(cause.share)} of the loss goes if it alone is ideal"
    return f"Slowed {slower} by {cause.what}{share}"


def _share(share: float) -> str:
    return "all" if share >= 1 else percent_text(share)


def slowdown_charts(cause: Cause) -> Iterator[Chart]:
    """Yield charts of what was simulated; none where nothing was."""
    found = cause.found
    if found is None:
        return
    source = _source(found)
    stages, dp_ranks = len(found.by_stage), len(found.by_dp_rank)
    if stages > 1 or dp_ranks > 1:
        words = "Slowdown that each rank makes alone: the lower of its stage's and its data-parallel rank's."
        yield Chart("slowed-workers", "Which ranks slow it", words, _workers(found), source)
    parts = [(f"stage {stage}", s) for stage, s in found.by_stage.items()] if stages > 1 else []
    parts += [(f"dp rank {rank}", s) for rank, s in found.by_dp_rank.items()] if dp_ranks > 1 else []
    parts += list(found.by_kind.items())
    parts = sorted(parts, key=lambda one: -one[1])[:_MOST]
    parts = [one for one in parts if one[1] > _SEEN] or parts[:1]
    words = "Step time if this part alone kept its own durations and all else were ideal, less the ideal step time."
    yield Chart("slowed-parts", "Which parts slow it", words, _bars(parts), source)


def slowdown_tables(cause: Cause) -> Iterator[FactTable]:
    """Yield tables of what was simulated, worst first: kinds of operations, stages, ranks, and steps to look at."""
    found = cause.found
    if found is None:
        return
    path = found.critical_path
    paces = {one.step: one for one in path.paces}
    kinds = [{"part": name, "s": s, "path": path.by_kind.get(name)} for name, s in found.by_kind.items()]
    stages = [{"part": stage, "s": s, "path": path.by_stage.get(stage)} for stage, s in found.by_stage.items()]
    ranks = [
        {"rank": one.rank, "stage": one.stage, "dp_rank": one.dp_rank, "s": one.s, "path": path.by_rank.get(one.rank)}
        for one in found.by_worker[:_MOST_ROWS]
    ]
    steps = [
        {"step": step, "s": s, **_paced(paces.get(step)), "command": f"ranklake trace {found.run} --step {step}"}
        for step, s in sorted(found.per_step.items(), key=lambda one: -one[1])[:_MOST]
    ]
    whole = f"ranklake what-if {found.run} --timeline FILE"
    for name, caption, rows, columns in (
        ("what-if-kinds", "What if: by kind of operation", kinds, (_KIND, _SLOWER, _ON_PATH)),
        ("what-if-stages", "What if: by stage", stages if len(stages) > 1 else [], (_STAGE, _SLOWER, _ON_PATH)),
        (
            "what-if-ranks",
            f"What if: by rank, the worst {_MOST_ROWS}",
            ranks if len(found.by_worker) > 1 else [],
            _RANKS,
        ),
        ("what-if-steps", f"Slowest steps, and their timelines; of all: {whole}", steps, _STEPS),
    ):
        if rows:
            yield FactTable(caption, _source(found), columns, [columns[0].name], name, rows, {}, {}, "")


def _paced(pace: Pace | None) -> Mapping[str, Any]:
    """Return what set the pace in a step; nothing of one that took no time."""
    return {"rank": None, "kind": None} if pace is None else {"rank": pace.rank, "kind": pace.kind}


def _source(found: Slowdowns) -> Source:
    note = f"No SQL: 'ranklake what-if {found.run} --json' simulates the steps from their spans."
    return Source("what-if", "", " ".join([note, *(f"{one}." for one in found.notes)]))


def _excess(s: float) -> str:
    return percent_text(s - 1)


_SLOWER: Final = Column(
    "slower than ideal", "Step time if this part alone kept its own durations, over the ideal step time, less 1.", "s",
    "ratio", is_number=True, text=_excess,
)  # fmt: skip
_ON_PATH: Final = Column(
    "of the critical path", "Share of the time on the chain of operations, each the last that the next one waited for, "
    "that made each step as long as it was.", "path", "ratio", is_number=True, text=percent_text,
)  # fmt: skip
_KIND: Final = Column("kind", "Operations of a step that do the same.", "part")
_STAGE: Final = Column("stage", "Of the pipeline, from 0.", "part")
_RANKS: Final = (
    Column("rank", "Global rank.", "rank"),
    Column("stage", "Of the pipeline, from 0.", "stage", is_number=True),
    Column("dp rank", "Data-parallel rank.", "dp_rank", is_number=True),
    _SLOWER,
    _ON_PATH,
)
_STEPS: Final = (
    Column("step", "Number of the step.", "step"),
    Column("slower than ideal", "Its time over its ideal one, less 1.", "s", "ratio", is_number=True, text=_excess),
    Column("pace set by rank", "That most of the step's critical path is on.", "rank", is_number=True),
    Column("in", "Kind of operation that most of the step's critical path is of.", "kind"),
    Column("timeline", "Writes the spans of all ranks for https://ui.perfetto.dev.", "command"),
)


def _bars(parts: list[tuple[str, float]]) -> Spec:
    values = [{"part": name, "excess": short(s - 1)} for name, s in parts]
    most = max(s for _, s in parts) - 1
    return {
        "$schema": SCHEMA,
        "width": "container",
        "height": _ROW_PX * len(values),
        "data": {"values": values},
        "mark": {"type": "bar"},
        "encoding": {
            "y": {"field": "part", "type": "nominal", "sort": [name for name, _ in parts], "title": None,
                  "axis": {"labelLimit": 220}},
            "x": {"field": "excess", "type": "quantitative", "title": "slower than ideal", "axis": {"format": ".0%"}},
            "color": {"condition": {"test": f"datum.excess >= {short(most)}", "value": "var(--hot)"},
                      "value": "var(--part-2)"},
            "tooltip": [
                {"field": "part", "type": "nominal", "title": "part"},
                {"field": "excess", "type": "quantitative", "title": "slower than ideal", "format": ".2%"},
            ],
        },
    }  # fmt: skip


def _workers(found: Slowdowns) -> Spec:
    values: list[Mapping[str, Any]] = [
        {"dp": one.dp_rank, "stage": one.stage, "rank": one.rank, "excess": short(max(one.s - 1, 0.0))}
        for one in found.by_worker
    ]
    most = max((one.s - 1 for one in found.by_worker), default=0.0)
    return {
        "$schema": SCHEMA,
        "width": "container",
        "height": max(80, _ROW_PX * len(found.by_stage)),
        "data": {"values": values},
        "mark": {"type": "rect", "stroke": "var(--edge)"},
        "encoding": {
            "x": {"field": "dp", "type": "ordinal", "title": "data-parallel rank", "axis": {"labelAngle": 0,
                  "labelOverlap": True}},
            "y": {"field": "stage", "type": "ordinal", "title": "stage"},
            "color": {
                "field": "excess", "type": "quantitative", "title": "slower than ideal", "legend": {"format": ".0%"},
                "scale": {"domain": [0, max(most, 0.1)], "range": ["var(--cold)", "var(--hot)"], "clamp": True,
                          "interpolate": "lab"},
            },
            "tooltip": [
                {"field": "rank", "type": "ordinal", "title": "rank"},
                {"field": "stage", "type": "ordinal", "title": "stage"},
                {"field": "dp", "type": "ordinal", "title": "data-parallel rank"},
                {"field": "excess", "type": "quantitative", "title": "slower than ideal", "format": ".2%"},
            ],
        },
    }  # fmt: skip
