"""What slowed a run, as charts: a verdict, bars of parts, and workers by stage."""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from ranklake.lake.diagnosis.facts import Slowdowns
from ranklake.lake.runs.slowed import Cause
from ranklake.views.html.charts import SCHEMA, Chart, Spec
from ranklake.views.html.figures import Source
from ranklake.views.html.step_charts import short
from ranklake.views.words import percent_text

_MOST: Final = 12
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
    note = f"No SQL: 'ranklake what-if {found.run} --json' simulates the steps from their spans."
    source = Source("what-if", "", " ".join([note, *(f"{one}." for one in found.notes)]))
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
