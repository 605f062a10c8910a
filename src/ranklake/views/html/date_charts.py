"""Charts by date: lines of several measures."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from ranklake.views.html.charts import DATES, SCHEMA, Spec

_HEIGHT: Final = 200
_COLOURS: Final = (1, 3, 5, 6, 4)


def lines_by_date(values: Sequence[Mapping[str, Any]], parts: Mapping[str, str], title: str, form: str) -> Spec:
    """Return a line a part by date; `values` have ``date`` and a column a part, `parts` are their titles by column.

    Where nothing is known of a part its line is broken.
    """
    long = [
        {"date": row["date"], "part": words, "amount": row[name]}
        for name, words in parts.items()
        for row in values
    ]  # fmt: skip
    titles = list(parts.values())
    return {
        "$schema": SCHEMA,
        "width": "container",
        "height": _HEIGHT,
        "data": {"values": long},
        "mark": {"type": "line", "point": True, "strokeWidth": 2, "invalid": "break-paths-show-domains"},
        "encoding": {
            "x": {"field": "date", "type": "temporal", "timeUnit": "utcyearmonthdate", "title": "date (UTC)",
                  "scale": {"type": "utc"}, "axis": DATES},
            "y": {"field": "amount", "type": "quantitative", "title": title, "axis": {"format": form}},
            "color": {
                "field": "part", "type": "nominal", "sort": titles, "title": None,
                "legend": {"orient": "top", "columns": 3},
                "scale": {"domain": titles, "range": [f"var(--part-{place})" for place in _COLOURS[: len(titles)]]},
            },
            "tooltip": [
                {"field": "date", "type": "temporal", "timeUnit": "utcyearmonthdate", "title": "date (UTC)"},
                {"field": "part", "type": "nominal", "title": "measure"},
                {"field": "amount", "type": "quantitative", "title": title, "format": form},
            ],
        },
    }  # fmt: skip
