"""Charts as Vega-Lite specifications: data, drawn by the shared chart library in the reader's browser.

Colours are names of the style sheet's variables, which the shell replaces, so that a chart follows the theme.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from typing import Any, Final

from ranklake.views.html.figures import Source

Spec = dict[str, Any]
_ROW_PX: Final = 16
PERCENT: Final = ".3~%"
"""Format of an axis of ratios: as many digits as neighbouring labels need to differ, and no more."""
SCHEMA: Final = "https://vega.github.io/schema/vega-lite/v6.json"
"""Names the language; nobody fetches it."""
DATES: Final[Spec] = {"tickCount": {"expr": "max(2, floor(width / 90))"}, "labelOverlap": True, "format": "%d %b %y"}
"""An axis of dates, whose labels do not lie on one another on a narrow screen."""


@dataclass(frozen=True, slots=True)
class Chart:
    """A chart with its title and what it shows in words, for who cannot see it; `source` gives its numbers."""

    name: str
    title: str
    description: str
    spec: Spec
    source: Source | None = None
    is_wide: bool = False


def stacked_by_date(values: Sequence[Mapping[str, Any]], states: Sequence[str], measure: str) -> Spec:
    """Return bars by date, stacked by state; `values` have ``date``, ``state`` and ``count``."""
    return {
        "$schema": SCHEMA,
        "width": "container",
        "height": 160,
        "data": {"values": list(values)},
        "mark": {"type": "bar", "binSpacing": 0},
        "encoding": {
            "x": {
                "field": "date", "type": "temporal", "timeUnit": "utcyearmonthdate", "title": "partition date (UTC)",
                "scale": {"type": "utc"}, "axis": DATES,
            },
            "y": {"field": "count", "type": "quantitative", "title": measure, "axis": {"tickMinStep": 1}},
            "color": _by_state(states),
            "tooltip": [
                {"field": "date", "type": "temporal", "timeUnit": "utcyearmonthdate", "title": "partition date (UTC)"},
                {"field": "state", "type": "nominal"},
                {"field": "count", "type": "quantitative", "title": measure, "format": ","},
            ],
        },
    }  # fmt: skip


def heat_map(
    values: Sequence[Mapping[str, Any]], states: Sequence[str], rows: Sequence[str], days: Sequence[date]
) -> Spec:
    """Return states by date and row, from the first to the last of `days`.

    `values` have ``date``, ``row``, ``state``, ``failed`` and ``checked``.
    """
    return {
        "$schema": SCHEMA,
        "width": "container",
        "height": _ROW_PX * len(rows),
        "data": {"values": list(values)},
        "mark": {"type": "rect"},
        "encoding": {
            "x": {
                "field": "date", "type": "temporal", "timeUnit": "utcyearmonthdate", "title": "partition date (UTC)",
                "scale": {"type": "utc", "domain": [str(days[0]), str(days[-1])]}, "axis": DATES,
            },
            "y": {"field": "row", "type": "nominal", "title": None, "sort": list(rows),
                  "axis": {"labelLimit": {"expr": "width < 500 ? 110 : 220"}}},
            "color": _by_state(states),
            "tooltip": [
                {"field": "date", "type": "temporal", "timeUnit": "utcyearmonthdate", "title": "partition date (UTC)"},
                {"field": "row", "type": "nominal", "title": "check"},
                {"field": "state", "type": "nominal"},
                {"field": "failed", "type": "quantitative", "title": "rows failed", "format": ","},
                {"field": "checked", "type": "quantitative", "title": "rows checked", "format": ","},
            ],
        },
    }  # fmt: skip


def _by_state(states: Sequence[str]) -> Spec:
    colours = [f"var(--{state})" for state in states]
    return {
        "field": "state", "type": "nominal", "sort": list(states), "title": None,
        "scale": {"domain": list(states), "range": colours},
        "legend": {
            "orient": "top", "columns": {"expr": "width < 500 ? 2 : 0"},
            "labelExpr": "datum.label === 'errored' ? 'not computed' : datum.label",
        },
    }  # fmt: skip
