"""A view of Explore as a picture for a paper: lines and bands on white, drawn without a browser."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from itertools import groupby
from typing import Any, Final

from ranklake.printable import printable
from ranklake.views.html.charts import SCHEMA, Spec
from ranklake.views.run_plot import COLOURS

Rows = Sequence[Mapping[str, Any]]
_WIDTH, _HEIGHT = 640, 240
_TITLES: Final = {"relative": "time since the first step (s)", "wall": "time (UTC)"}


def view_spec(
    lines: Sequence[tuple[str, str, Rows]],
    axis: str,
    *,
    is_log: bool = False,
    is_log_x: bool = False,
    smooth: int = 0,
) -> Spec:
    """Return a Vega-Lite specification: a chart a metric, a colour a line.

    Parameters
    ----------
    lines
        Metric, label and rows with ``x``, ``mean``, ``low`` and ``high``; those of a metric follow one another.
    smooth
        How many neighbours on either side each mean is the mean of.
    """
    charts = [
        _chart(
            metric,
            [(printable(label), rows) for _, label, rows in every],
            axis,
            is_log=is_log,
            is_log_x=is_log_x,
            smooth=smooth,
        )
        for metric, every in groupby(lines, lambda line: line[0])
    ]
    return {"$schema": SCHEMA, "background": "white", "config": {"view": {"stroke": "#d4d4d8"}}, "vconcat": charts}


def mean_of_neighbours(values: Sequence[float | None], neighbours: int) -> list[float | None]:
    """Return means of neighbours; what is unknown stays unknown, and counts for none of its neighbours."""
    means: list[float | None] = []
    for place, value in enumerate(values):
        near = [other for other in values[max(place - neighbours, 0) : place + neighbours + 1] if other is not None]
        means.append(None if value is None else sum(near) / len(near))
    return means


def _chart(
    metric: str, lines: Sequence[tuple[str, Rows]], axis: str, *, is_log: bool, is_log_x: bool, smooth: int
) -> Spec:
    def known(value: float | None) -> float | None:
        return None if is_log and not (value is not None and value > 0) else value

    ends = ("low", "high")
    values = [
        {"x": _place(row["x"], axis), "mean": known(mean), "line": label, **{end: known(row[end]) for end in ends}}
        for label, rows in lines
        for row, mean in zip(rows, mean_of_neighbours([row["mean"] for row in rows], smooth), strict=True)
    ]  # fmt: skip
    labels = [label for label, _ in lines]
    scale_type = {"type": "utc"} if axis == "wall" else {"type": "log"} if is_log_x else {}
    x: Spec = {"field": "x", "type": "temporal" if axis == "wall" else "quantitative", "title": _TITLES.get(axis, axis),
               "scale": {"zero": False, "nice": False} | scale_type}  # fmt: skip
    y: Spec = {"type": "quantitative", "title": None, "axis": {"format": ",.4~g"},
               "scale": {"type": "log", "nice": False} if is_log else {"zero": False}}  # fmt: skip
    colour: Spec = {"field": "line", "type": "nominal", "sort": labels, "title": None,
                    "scale": {"domain": labels, "range": list(COLOURS)},
                    "legend": {"orient": "bottom", "columns": 2, "labelLimit": _WIDTH // 2}}  # fmt: skip
    area, line = {"type": "area", "opacity": 0.2, "aria": False}, {"type": "line", "strokeWidth": 2, "aria": False}
    return {
        "width": _WIDTH, "height": _HEIGHT, "title": printable(metric)[:60], "data": {"values": values},
        "encoding": {"x": x, "color": colour},
        "layer": [
            {"mark": area, "encoding": {"y": {**y, "field": "low"}, "y2": {"field": "high"}}},
            {"mark": line, "encoding": {"y": {**y, "field": "mean"}}},
        ],
    }  # fmt: skip


def _place(x: float, axis: str) -> float | str:
    return datetime.fromtimestamp(x, UTC).isoformat() if axis == "wall" else x
