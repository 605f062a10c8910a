"""Charts of a run by step: curves with bands, stacked phases, ranks by step as a heat map, and a bar of parts."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Final

from ranklake.views.html.charts import SCHEMA, Spec

Values = Sequence[Mapping[str, Any]]
_HEIGHT: Final = 190
_FEW: Final = 40
_STEP: Final = {"field": "step", "type": "quantitative", "title": "step", "axis": {"tickMinStep": 1, "format": ",d"},
                "scale": {"zero": False, "nice": False}}  # fmt: skip
_PARTS: Final = 8
_LINES: Final = (1, 5, 3, 4, 6, 7, 2, 8)
"""Colours of lines, of which two neighbours must not be of one hue."""


def short(value: object) -> object:
    """Return a number with as many digits as a chart can show, so that a page is small; None for NaN and infinities."""
    if not isinstance(value, float):
        return value
    return float(f"{value:.6g}") if math.isfinite(value) else None


def values_of(rows: Values, names: Sequence[str]) -> list[dict[str, Any]]:
    """Return some columns of rows as a chart has them, without what is unknown in all."""
    known = [name for name in names if any(short(row[name]) is not None for row in rows)]
    return [{name: short(row[name]) for name in known} for row in rows]


def curve(
    values: Values,
    measure: str,
    title: str,
    band: tuple[str, str] | None = None,
    form: str = ",.4~g",
    flagged: str = "",
) -> Spec:
    """Return a line of a measure by step, with a band between two others where the values have them.

    An upright line stands wherever the values have a count in `flagged`: how many of a part are NaN or infinite.
    """
    axis = {
        "field": measure,
        "type": "quantitative",
        "title": title,
        "scale": {"zero": False},
        "axis": {"format": form},
    }
    told = [(measure, title), *([(band[0], "least"), (band[1], "greatest")] if band else [])]
    tooltip = [
        {"field": "step", "type": "quantitative", "title": "from step", "format": ",d"},
        *({"field": name, "type": "quantitative", "title": words, "format": form} for name, words in told),
    ]
    layers: list[Spec] = []
    if band and values and all(name in values[0] for name in band):
        low, high = ({**axis, "field": name} for name in band)
        layers.append({
            "mark": {"type": "area", "color": "var(--band)", "opacity": 0.6, "interpolate": "linear"},
            "encoding": {"y": low, "y2": {"field": high["field"]}},
        })  # fmt: skip
    mark = {"type": "line", "color": "var(--series)", "strokeWidth": 2, "point": _points(values)}
    layers.append({"mark": mark, "encoding": {"y": axis}})
    hover = {"type": "point", "opacity": 0, "size": 120, "filled": True}
    layers.append({"mark": hover, "encoding": {"y": axis, "tooltip": tooltip}})
    if any(value.get(flagged) for value in values):
        layers.append({
            "transform": [{"filter": f"datum.{flagged} > 0"}],
            "mark": {"type": "rule", "color": "var(--failing)", "strokeWidth": 2, "opacity": 0.5},
            "encoding": {"tooltip": [
                {"field": "step", "type": "quantitative", "title": "from step", "format": ",d"},
                {"field": flagged, "type": "quantitative", "title": "values that are not finite", "format": ",d"},
            ]},
        })  # fmt: skip
    return {**_frame(values), **_over_axes(measure, *(band or ())), "encoding": {"x": _STEP}, "layer": layers}


def compared(values: Values, measure: str, title: str, runs: Sequence[str]) -> Spec:
    """Return a line a run of a measure by step; `values` have ``run``."""
    fewest = min(Counter(value["run"] for value in values).values(), default=0)
    return {
        **_frame(values),
        **_over_axes(measure, by="run"),
        "encoding": {
            "x": _STEP,
            "y": {"field": measure, "type": "quantitative", "title": title, "scale": {"zero": False},
                  "axis": {"format": ",.4~g"}},
            "color": {**_colours(runs, _LINES), "field": "run"},
        },
        "layer": [
            {"mark": {"type": "line", "strokeWidth": 2, "point": fewest < _FEW}},
            {"mark": {"type": "point", "opacity": 0, "size": 120, "filled": True},
             "encoding": {"tooltip": [
                 {"field": "run", "type": "nominal"},
                 {"field": "step", "type": "quantitative", "title": "from step", "format": ",d"},
                 {"field": measure, "type": "quantitative", "title": title, "format": ",.4~g"},
             ]}},
        ],
    }  # fmt: skip


def _over_axes(measure: str, *bands: str, by: str = "") -> Spec:
    """Return what the shell's script needs to draw a curve over another axis, smoothed, or on another scale."""
    return {"usermeta": {"measure": measure, "bands": list(bands), "by": [by] if by else []}}


def stacked(values: Values, parts: Sequence[str], title: str) -> Spec:
    """Return parts by step, one above the other; `values` have a column a part."""
    fold = [{"fold": list(parts), "as": ["part", "amount"]}]
    return {
        **_frame(values),
        "transform": fold,
        "mark": {"type": "area", "point": _points(values)},
        "encoding": {
            "x": _STEP,
            "y": {"field": "amount", "type": "quantitative", "stack": "zero", "title": title,
                  "axis": {"format": ",.3~g"}},
            "color": _colours(parts),
            "tooltip": [
                {"field": "step", "type": "quantitative", "title": "from step", "format": ",d"},
                {"field": "part", "type": "nominal", "title": "phase"},
                {"field": "amount", "type": "quantitative", "title": title, "format": ",.4~g"},
            ],
        },
    }  # fmt: skip


def bars(values: Values, title: str) -> Spec:
    """Return a bar a part, one below the other; `values` have ``part``, ``told`` (its label), ``amount``, ``share``."""
    return {
        "$schema": SCHEMA,
        "width": "container",
        "height": _HEIGHT,
        "data": {"values": list(values)},
        "mark": {"type": "bar", "color": "var(--part-1)", "height": {"band": 0.6}},
        "encoding": {
            "y": {"field": "told", "type": "nominal", "sort": [value["told"] for value in values], "title": None,
                  "axis": {"labelLimit": 220, "labelPadding": 8, "domain": False, "ticks": False}},
            "x": {"field": "share", "type": "quantitative", "title": title, "scale": {"domain": [0, 1]},
                  "axis": {"format": ".0%"}},
            "tooltip": [
                {"field": "part", "type": "nominal", "title": "kind"},
                {"field": "amount", "type": "quantitative", "title": "seconds", "format": ",.4~g"},
                {"field": "share", "type": "quantitative", "title": title, "format": ".1%"},
            ],
        },
    }  # fmt: skip


def _frame(values: Values) -> Spec:
    return {"$schema": SCHEMA, "width": "container", "height": _HEIGHT, "data": {"values": list(values)}}


def _points(values: Values) -> bool:
    """Say whether points are drawn: a line of one value would not be seen."""
    return len(values) < _FEW


def _colours(parts: Sequence[str], order: Sequence[int] = range(1, _PARTS + 1)) -> Spec:
    colours = [f"var(--part-{order[place % _PARTS]})" for place in range(len(parts))]
    return {
        "field": "part", "type": "nominal", "sort": list(parts), "title": None,
        "legend": {"orient": "top", "columns": 3},
        "scale": {"domain": list(parts), "range": colours},
    }  # fmt: skip
