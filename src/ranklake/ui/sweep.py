"""The Sweep page: parallel coordinates of settings, their rank correlation with a result, and a scatter plot."""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

from ranklake.insight.runs.run_columns import RunColumns, as_number, run_columns, value_text
from ranklake.insight.runs.sweeps import Importance, importances
from ranklake.ui.explore import EXPLORE, EXPLORE_HOME, Explorer
from ranklake.views.html import run_pages
from ranklake.views.html.charts import Chart, Spec, chart_spec, quantity
from ranklake.views.html.shell import Page

SWEEP_HOME: Final = f"{EXPLORE}/sweep.html"
_MOST_AXES: Final = 8
_MOST_SETTINGS: Final = 200
_WIDE: Final = 100
"""From how many times the least value on a scale is logarithmic."""
_SCALE: Spec = {"range": ["var(--part-1)", "var(--part-2)"]}
_Rows = Sequence[Mapping[str, Any]]


@dataclass(frozen=True)
class Sweep:
    """A view's runs, as the viewer's role sees them, and the result that settings are compared with."""

    explorer: Explorer

    @cached_property
    def runs(self) -> tuple[str, ...]:
        """The runs in the address, else all runs that its search finds."""
        view = self.explorer.view
        return view.runs or tuple(str(row["run"]) for row in self.explorer.offered.rows)

    @cached_property
    def columns(self) -> RunColumns:
        """Settings, labels and results of the runs."""
        return run_columns(self.explorer.questions.ask, self.runs)

    @cached_property
    def result(self) -> str:
        """The full name of the result's column; the name in the address if no run has such a column."""
        return self.columns.find(self.explorer.view.result) or self.explorer.view.result

    @cached_property
    def importances(self) -> list[Importance]:
        """The settings in which the runs differ, the strongest correlation with the result first."""
        return importances(self.columns, self.runs, self.result)[:_MOST_SETTINGS]

    def charts(self) -> list[Chart]:
        """Return the charts that have values."""
        view, columns = self.explorer.view, self.columns
        with_result = [run for run in self.runs if as_number(columns.value(run, self.result)) is not None]
        names = [row.name for row in self.importances][: _MOST_AXES - 1]
        charts = []
        if names and with_result:
            title = f"Settings and {self.result}"
            about = "A line is a run, coloured by its result; each axis goes from its least to its greatest value."
            spec = _parallel(_cells(columns, with_result, (*names, self.result)), (*names, self.result))
            charts.append(Chart("parallel", title, about, spec, is_wide=True))
        x_column = columns.find(view.x_column) or (names[0] if names else "")
        y_column = columns.find(view.y_column) or self.result
        if x_column:
            points = [
                {"run": run, "x": x if (number := as_number(x)) is None else number, "y": y}
                for run in self.runs
                if (x := columns.value(run, x_column)) is not None
                and (y := as_number(columns.value(run, y_column))) is not None
            ]
            if points:
                spec = _scatter(points, x_column, y_column)
                charts.append(Chart("scatter", f"{y_column} by {x_column}", "A point is a run.", spec, is_wide=True))
        return charts

    def page(self) -> Page:
        """Return the page."""
        return Page(SWEEP_HOME, "Sweep", "sweep.html", self._facts, "", (("Explore", EXPLORE_HOME),))

    def _facts(self) -> Mapping[str, Any]:
        view, columns = self.explorer.view, self.columns
        return {
            "view": view,
            "runs": self.runs,
            "result": self.result,
            "results": [name for name in columns.names if any(_is_number(columns, run, name) for run in self.runs)],
            "names": columns.names,
            "rows": self.importances,
            "drawn": self.charts(),
            "reasons": columns.reasons,
            "explore": view.query(runs=view.runs),
            "hrefs": [(run, run_pages.href(run)) for run in self.runs],
        }


def _is_number(columns: RunColumns, run: str, name: str) -> bool:
    return as_number(columns.value(run, name)) is not None


def _cells(columns: RunColumns, runs: Sequence[str], names: Sequence[str]) -> list[dict[str, Any]]:
    """Return a row for each run and column: its value scaled from the least (0) to the greatest (1), and as text."""
    result = names[-1]
    cells = []
    for name in names:
        values = {run: value for run in runs if (value := columns.value(run, name)) is not None}
        numbers = {run: as_number(value) for run, value in values.items()}
        if any(number is None for number in numbers.values()):  # words are sorted, and equally far apart
            words = sorted({value_text(value) for value in values.values()})
            numbers = {run: float(words.index(value_text(value))) for run, value in values.items()}
        positions = {run: number for run, number in numbers.items() if number is not None}
        if _is_wide(positions.values()):
            positions = {run: math.log(number) for run, number in positions.items()}
        least, greatest = min(positions.values(), default=0.0), max(positions.values(), default=0.0)
        for run, number in positions.items():
            cells.append({
                "run": run, "axis": name, "text": value_text(values[run]),
                "place": 0.5 if greatest == least else (number - least) / (greatest - least),
                "result": as_number(columns.value(run, result)),
                "end": value_text(values[run]) if number in {least, greatest} else "",
            })  # fmt: skip
    return cells


def _parallel(cells: _Rows, names: Sequence[str]) -> Spec:
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


def _is_wide(values: Collection[float]) -> bool:
    """Whether positive values span so many orders of magnitude that a logarithmic scale is needed."""
    return min(values, default=0.0) > 0 and max(values) >= _WIDE * min(values)


def _scatter(points: _Rows, x_title: str, y_title: str) -> Spec:
    """Return a scatter plot of `points`, which have ``run``, ``x``, a number or text, and ``y``."""
    are_numbers = all(isinstance(point["x"], float) for point in points)
    values = points if are_numbers else [{**point, "x": str(point["x"])} for point in points]
    is_log = are_numbers and _is_wide([point["x"] for point in points])
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
