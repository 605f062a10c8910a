"""Curves of runs as a picture: PNG or SVG, drawn by the pages' chart library without a browser."""

import importlib
from collections.abc import Sequence
from itertools import groupby
from typing import Any, Final

from ranklake.insight.runs.curves import PlottedMetric
from ranklake.printable import printable
from ranklake.views.html.charts import SCHEMA, Spec, library_name
from ranklake.views.run_plot import axis_title, metric_title

SUFFIXES: Final = (".png", ".svg")
_SCALE: Final = 2.0
COLOURS: Final = ("#0b6bcb", "#c2410c", "#15803d", "#7e22ce", "#a16207", "#be123c", "#0e7490", "#475569")
_WIDTH, _HEIGHT = 640, 260
_MOST_TITLE: Final = 60
_FEW: Final = 60


def plot_spec(curves: Sequence[PlottedMetric], axis: str, *, is_log: bool = False) -> Spec:
    """Return curves as a Vega-Lite specification: a chart a metric, a colour a run."""
    charts = [_chart(list(every), axis, is_log=is_log) for _, every in groupby(curves, lambda curve: curve.metric)]
    return {"$schema": SCHEMA, "background": "white", "config": {"view": {"stroke": "#d4d4d8"}}, "vconcat": charts}


def picture(spec: Spec, suffix: str) -> bytes:
    """Return the bytes of a file. Raises `ranklake.views.html.charts.NoChartLibraryError`."""
    library_name()  # or it says how to install it
    library: Any = importlib.import_module("vl_convert")
    if suffix == ".svg":
        return str(library.vegalite_to_svg(spec)).encode()
    return bytes(library.vegalite_to_png(spec, scale=_SCALE))


def _chart(every: Sequence[PlottedMetric], axis: str, *, is_log: bool) -> Spec:
    pieces = [one.pieces(positive=is_log) for one in every]
    title, size = axis_title(axis, max((x for of_run in pieces for piece in of_run for x, _ in piece), default=0.0))
    runs = [printable(one.run) for one in every]
    values = [
        {"x": x / size, "y": y, "run": run, "piece": place}
        for run, of_run in zip(runs, pieces, strict=True)
        for place, piece in enumerate(of_run)
        for x, y in piece
    ]
    is_single = len(every) == 1
    return {
        "width": _WIDTH,
        "height": _HEIGHT,
        "title": f"{metric_title(every[0])}{f' of {runs[0]}' if is_single else ''}"[:_MOST_TITLE],
        "data": {"values": values},
        "mark": {"type": "line", "strokeWidth": 2, "aria": False, "point": len(values) < _FEW and {"aria": False}},
        "encoding": {
            "x": {"field": "x", "type": "quantitative", "title": title,
                  "scale": {"zero": False, "nice": False}, "axis": {"format": "~s" if axis == "tokens" else ",.6~g"}},
            "y": {"field": "y", "type": "quantitative", "title": None,  # a name there is read as an expression
                  "scale": {"type": "log", "nice": False} if is_log else {"zero": False}, "axis": {"format": ",.4~g"}},
            "detail": {"field": "piece", "type": "nominal"},
            "color": {"field": "run", "type": "nominal", "sort": runs, "title": None,
                      "scale": {"domain": runs, "range": list(COLOURS)},
                      "legend": None if is_single else {"orient": "bottom", "columns": 2, "labelLimit": _WIDTH // 2}},
        },
    }  # fmt: skip
