"""Charts of a cluster: nodes by utilization, and lines by hour."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from ranklake.views.html.charts import SCHEMA, Spec

Values = Sequence[Mapping[str, Any]]
_HEIGHT: Final = 200
_COLOURS: Final = (1, 5)
_HOUR: Final = {"field": "hour", "type": "temporal", "title": "hour (UTC)", "scale": {"type": "utc"},
                "axis": {"format": "%b %d, %H:%M", "labelOverlap": True, "labelSeparation": 8,
                 "tickCount": {"expr": "max(2, floor(width / 110))"}}}  # fmt: skip


def bins(values: Values) -> Spec:
    """Return how many nodes by tenth of utilization; ``tenth`` (from 0 to 0.9) and ``nodes``."""
    return {
        "$schema": SCHEMA,
        "width": "container",
        "height": _HEIGHT,
        "data": {"values": [{**one, "to": one["tenth"] + 0.1} for one in values]},
        "mark": {"type": "bar", "color": "var(--series)"},
        "encoding": {
            "x": {"field": "tenth", "type": "quantitative", "title": "utilization",
                  "bin": {"binned": True, "step": 0.1},
                  "scale": {"domain": [0, 1]}, "axis": {"format": ".0%"}},
            "x2": {"field": "to"},
            "y": {"field": "nodes", "type": "quantitative", "title": "nodes", "axis": {"tickMinStep": 1}},
            "tooltip": [
                {"field": "tenth", "type": "quantitative", "title": "utilization from", "format": ".0%"},
                {"field": "nodes", "type": "quantitative", "title": "nodes", "format": ","},
            ],
        },
    }  # fmt: skip


def lines_by_hour(values: Values, parts: Mapping[str, str], title: str, form: str) -> Spec:
    """Return a line a part by hour; `values` have ``hour`` and a column a part, `parts` are their titles by column."""
    long = [
        {"hour": row["hour"], "part": words, "amount": row[name]} for name, words in parts.items() for row in values
    ]
    titles = list(parts.values())
    return {
        "$schema": SCHEMA,
        "width": "container",
        "height": _HEIGHT,
        "data": {"values": long},
        "mark": {"type": "line", "strokeWidth": 2, "point": True, "invalid": "break-paths-show-domains"},
        "encoding": {
            "x": _HOUR,
            "y": {"field": "amount", "type": "quantitative", "title": title, "axis": {"format": form}},
            "color": {
                "field": "part", "type": "nominal", "sort": titles, "title": None, "legend": {"orient": "top"},
                "scale": {"domain": titles, "range": [f"var(--part-{place})" for place in _COLOURS[: len(titles)]]},
            },
            "tooltip": [
                {"field": "hour", "type": "temporal", "title": "hour (UTC)", "format": "%Y-%m-%d %H:%M"},
                {"field": "part", "type": "nominal", "title": "measure"},
                {"field": "amount", "type": "quantitative", "title": title, "format": form},
            ],
        },
    }  # fmt: skip
