"""Charts of a sweep: parallel coordinates, and a scatter plot."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from ranklake.views.html.charts import Spec, chart_spec, quantity

Rows = Sequence[Mapping[str, Any]]
_WIDE = 100
_SCALE: Spec = {"range": ["var(--part-1)", "var(--part-2)"]}


def parallel(cells: Rows, names: Sequence[str]) -> Spec:
    """Return parallel coordinates: one line per run, one axis per column.

    `cells` have ``run``, ``axis``, ``place`` from 0 to 1, ``text``, ``result``, and ``end``: the text at either end.
    """
    labels: Spec = {"grid": True, "labelAngle": 0, "labelLimit": {"expr": f"max(40, width / {len(names)})"}}
    x: Spec = {"field": "axis", "type": "nominal", "sort": list(names), "title": None, "axis": labels,
               "scale": {"type": "point", "padding": 0.3}}  # fmt: skip
    y: Spec = {"field": "place", "type": "quantitative", "axis": None, "scale": {"domain": [-0.08, 1.08]}}
    colour: Spec = {"field": "result", "type": "quantitative", "scale": _SCALE, "title": names[-1],
                    "legend": {"orient": "top", "gradientLength": 160, "format": ",.4~g"}}  # fmt: skip
    tooltip = [{"field": "run", "type": "nominal"},
               {"field": "axis", "type": "nominal", "title": "setting"},
               {"field": "text", "type": "nominal", "title": "value"},
               quantity("result", "result", ",.4~g")]  # fmt: skip
    beside = "datum.place < 0.25 ? -0.05 : datum.place > 0.75 ? 1.05 : datum.place"
    ends: Spec = {
        "transform": [{"filter": "datum.end !== ''"},
                      {"aggregate": [], "groupby": ["axis", "place", "end"]},
                      {"calculate": beside, "as": "at"}],
        "mark": {"type": "text", "color": "var(--soft)", "fontSize": 10, "limit": 90},
        "encoding": {"y": {**y, "field": "at"}, "text": {"field": "end", "type": "nominal"}},
    }  # fmt: skip
    return chart_spec(
        cells,
        320,
        encoding={"x": x},
        layer=[
            {"mark": {"type": "line", "opacity": 0.6, "strokeWidth": 1.5},
             "encoding": {"y": y, "color": colour, "detail": {"field": "run", "type": "nominal"}}},
            {"mark": {"type": "point", "filled": True, "size": 30, "opacity": 0.8},
             "encoding": {"y": y, "color": colour, "tooltip": tooltip}},
            ends,
        ],
    )  # fmt: skip


def is_wide(values: Collection[float]) -> bool:
    """Whether positive values span so many orders of magnitude that a logarithmic scale is needed."""
    return min(values, default=0.0) > 0 and max(values) >= _WIDE * min(values)


def scatter(points: Rows, x_title: str, y_title: str) -> Spec:
    """Return a scatter plot of `points`, which have ``run``, ``x``, a number or text, and ``y``."""
    are_numbers = all(isinstance(point["x"], float) for point in points)
    values = points if are_numbers else [{**point, "x": str(point["x"])} for point in points]
    is_log = are_numbers and is_wide([point["x"] for point in points])
    scale: Spec = {"type": "log"} if is_log else {"zero": False}
    kind = "quantitative" if are_numbers else "nominal"
    x: Spec = {"field": "x", "type": kind, "title": x_title} | ({"scale": scale} if are_numbers else {})
    y: Spec = {"field": "y", "type": "quantitative", "title": y_title}
    y |= {"scale": {"zero": False}, "axis": {"format": ",.4~g"}}
    return chart_spec(
        values,
        260,
        mark={"type": "point", "filled": True, "size": 60, "opacity": 0.8, "color": "var(--series)"},
        encoding={
            "x": x,
            "y": y,
            "tooltip": [{"field": "run", "type": "nominal"}, {"field": "x", "type": kind, "title": "across"},
                        quantity("y", "up", ",.4~g")],
        },
    )  # fmt: skip
