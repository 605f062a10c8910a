"""The page Explore: a view's charts, and their points as JSON, CSV, SQL, Markdown and PNG."""

import csv
import io
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from itertools import groupby
from typing import Any, Final, NamedTuple

from ranklake.insight.runs.asking import QueriedFacts
from ranklake.insight.runs.explore import AXES, BANDS, Group, metric_names, range_of
from ranklake.insight.runs.find import RunConditions, find
from ranklake.insight.runs.report import RunQuestions
from ranklake.insight.runs.run_columns import RunColumns, run_columns, value_text
from ranklake.printable import printable
from ranklake.ui.run_table import RunTable, csv_cell, markdown_table, markdown_text, run_table
from ranklake.ui.view import MOST_COMPARED, MOST_GROUPED, MOST_METRICS, MOST_RUNS, UnfitViewError, View
from ranklake.views.html import run_pages
from ranklake.views.html.charts import SCHEMA, Spec
from ranklake.views.html.shell import Page, data_block
from ranklake.views.run_plot import COLOURS, picture

EXPLORE: Final = "explore"
EXPLORE_HOME: Final = f"{EXPLORE}/index.html"
FIRST_RUNS: Final = 3
"""Number of latest runs that are drawn by default. A view by group draws all runs of the search."""
_PICTURE_PARTS: Final = 400
_WIDTH, _HEIGHT = 640, 240
_Rows = Sequence[Mapping[str, Any]]
_TITLES: Final = {"relative": "time since the first step (s)", "wall": "time (UTC)"}


class Line(NamedTuple):
    """A line of a chart: its metric, its label, its runs and points."""

    metric: str
    label: str
    runs: tuple[str, ...]
    answer: QueriedFacts


@dataclass(frozen=True)
class Explorer:
    """A view of a lake's runs, as the viewer's role sees them."""

    questions: RunQuestions
    view: View

    @cached_property
    def offered(self) -> QueriedFacts:
        """The runs that the search finds, newest first; archived ones only in searches for them."""
        return find(self.questions.ask, _conditions(self.view.search), "newest", MOST_GROUPED)

    @cached_property
    def runs(self) -> tuple[str, ...]:
        """The runs that are drawn."""
        most = MOST_GROUPED if self.view.group else FIRST_RUNS
        return self.view.runs or tuple(str(row["run"]) for row in self.offered.rows[:most])

    @cached_property
    def columns(self) -> RunColumns:
        """Columns of the runs and of the baseline."""
        return run_columns(self.questions.ask, tuple(dict.fromkeys((*self.runs, *filter(None, [self.view.baseline])))))

    @cached_property
    def groups(self) -> Mapping[str, tuple[str, ...]]:
        """The runs of each line by its label. Raises `UnfitViewError` if there are too many lines."""
        if not self.view.group:
            return {run: (run,) for run in self.runs}
        name = self.columns.find(self.view.group)
        of_value: dict[str, list[str]] = {}
        for run in self.runs:
            value = None if name is None else self.columns.value(run, name)
            of_value.setdefault("unknown" if value is None else value_text(value), []).append(run)
        if len(of_value) > MOST_RUNS:
            text = f"{self.view.group} has {len(of_value)} values, too many to draw"
            raise UnfitViewError(text, where="group", hint=f"at most {MOST_RUNS}: choose fewer runs")
        return {
            f"{self.view.group} = {value} ({len(runs)} run{'s' * (len(runs) > 1)})": tuple(runs)
            for value, runs in sorted(of_value.items(), key=lambda group: _natural(group[0]))
        }

    @cached_property
    def metrics(self) -> list[str]:
        """The metrics that are drawn."""
        if not self.runs:
            return []
        return metric_names(self.questions.ask, self.runs, self.view.metrics, MOST_METRICS, self.questions.scalars)

    @cached_property
    def table(self) -> RunTable:
        """The table of runs, and their differences from the baseline's settings."""
        return run_table(self.columns, self.runs, self.view.columns, self.view.baseline)

    def lines(self, parts: int | None = None) -> Iterator[Line]:
        """Yield the lines of the charts."""
        view, questions = self.view, self.questions
        limits = view.begin, view.end, parts or view.parts
        for metric in self.metrics:
            for label, runs in self.groups.items():
                of = Group(runs, view.band) if view.group else label
                answer = range_of(
                    questions.ask, of, metric, view.axis, *limits, questions.scalars, is_log=view.is_log_x
                )
                yield Line(metric, label, runs, answer)

    def points(self) -> bytes:
        """Return the points as JSON: columns of each line, rounded to a chart's resolution."""
        is_grouped = bool(self.view.group)
        lines = [
            {
                "metric": line.metric,
                "run": line.label,
                "reason": line.answer.reason,
                "whole": not is_grouped and all(row["n"] == 1 for row in line.answer.rows),
                "points": [
                    [row["x"], *map(_round_point, (row["mean"], row["low"], row["high"])), *[row["n"]] * is_grouped]
                    for row in line.answer.rows
                ],
            }
            for line in self.lines()
        ]
        return str(data_block({"lines": lines})).encode()

    def csv(self) -> bytes:
        """Return the points as CSV, unrounded."""
        out = io.StringIO()
        writer = csv.writer(out)
        count = "runs" if self.view.group else "values"
        writer.writerow(["metric", "group" if self.view.group else "run", self.view.axis, "mean", "low", "high", count])
        for line in self.lines():
            for row in line.answer.rows:
                values = (row[name] for name in ("x", "mean", "low", "high", "n"))
                writer.writerow([csv_cell(line.metric), csv_cell(line.label), *values])
        return out.getvalue().encode()

    def sql(self) -> bytes:
        """Return the SQL of all lines, each to run with `ranklake sql`."""
        names = [f"-- {printable(f'{line.metric} of {line.label}')}\n{line.answer.sql}" for line in self.lines()]
        return "\n".join(names).encode()

    def png(self) -> bytes:
        """Return the charts as a picture on white, for a paper."""
        lines = [(line.metric, line.label, line.answer.rows) for line in self.lines(_PICTURE_PARTS)]
        view = self.view
        spec = _view_spec(lines, view.axis, is_log=view.is_log, is_log_x=view.is_log_x, smooth=view.smooth)
        return picture(spec, ".png")

    def markdown(self) -> bytes:
        """Return the view as Markdown: a link to its picture, the table of runs, and last values of lines."""
        view = self.view
        ends = [
            [
                line.metric,
                line.label,
                *(value_text(line.answer.rows[-1][name]) for name in ("x", "mean", "low", "high")),
            ]
            for line in self.lines()
            if line.answer.rows
        ]
        title = f"{', '.join(map(markdown_text, self.metrics))} over {AXES[view.axis][1]}"
        band = f" Mean over runs; band: {BANDS[view.band][0]}." if view.group else ""
        parts = [
            f"![{title}](view.png)",
            f"{title}.{band}",
            markdown_table(["metric", "group" if view.group else "run", view.axis, "mean", "low", "high"], ends),
            *self.table.markdown(),
        ]
        return ("\n\n".join(parts) + "\n").encode()

    def page(self) -> Page:
        """Return the page."""
        return Page(EXPLORE_HOME, "Explore", "explore.html", self._facts, "")

    def _facts(self) -> Mapping[str, Any]:
        view, drawn = self.view, self.runs
        status = {str(row["run"]): str(row["status"]) for row in self.offered.rows}
        listed = dict.fromkeys((*drawn, *status))
        named = view.query(runs=drawn)
        return {
            "view": view,
            "listed": [(run, status.get(run, ""), run in view.runs, run_pages.href(run)) for run in listed],
            "latest": 0 if view.runs else len(drawn),
            "more": len(self.offered.rows) == MOST_GROUPED,
            "metrics": self.metrics,
            "patterns": " ".join(view.metrics),
            "axes": [(name, title) for name, (_, title) in AXES.items()],
            "bands": [(name, title) for name, (title, *_) in BANDS.items()],
            "charts": [
                (place, metric, view.query(runs=drawn, metrics=(_literal(metric),)))
                for place, metric in enumerate(self.metrics)
            ],
            "query": named,
            "swept": view.query(runs=() if view.search else view.runs),
            "title": AXES[view.axis][1],
            "lines": len(self.groups),  # or the page reports too many lines
            "most_compared": MOST_COMPARED,
            "known": self.columns.names,
            "table": self.table,
            "hrefs": {run: run_pages.href(run) for run in self.table.runs},
        }


def _conditions(search: str) -> RunConditions:
    """Parse a search: the beginning of a name, or a key of `View.search` and a value."""
    key, equals, value = (part.strip() for part in search.partition("="))
    if not equals:
        return RunConditions(run=search, hides_archived=True)
    kind, _, name = key.partition(".")
    figures = {figure: value if key == figure else "" for figure in ("job", "status", "team", "user")}
    settings, labels = ({name: value} if name and kind == wanted else {} for wanted in ("config", "label"))
    is_tag = key not in figures and not settings and not labels
    tags = {name if name and kind == "tag" else key: value} if is_tag else {}
    return RunConditions(
        job=figures["job"],
        status=figures["status"],
        team=figures["team"],
        user=figures["user"],
        settings=settings,
        labels=labels,
        tags=tags,
        hides_archived=True,
    )


def _natural(text: str) -> tuple[bool, float, str]:
    """Return a sort key of values: numbers by value, then texts."""
    try:
        return False, float(text), text
    except ValueError:
        return True, 0.0, text


def _literal(name: str) -> str:
    """Return a pattern that matches only a name."""
    return "".join("?" if letter.isspace() else f"[{letter}]" if letter in "*?[" else letter for letter in name)


def _round_point(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.7g}")


FORMS: Final[Mapping[str, tuple[str, Callable[[Explorer], bytes]]]] = {
    "points.json": ("application/json", Explorer.points),
    "points.csv": ("text/csv; charset=utf-8", Explorer.csv),
    "points.sql": ("text/plain; charset=utf-8", Explorer.sql),
    "view.md": ("text/markdown; charset=utf-8", Explorer.markdown),
    "view.png": ("image/png", Explorer.png),
    "runs.csv": ("text/csv; charset=utf-8", lambda explorer: explorer.table.csv()),
}
"""Formats of a view: media type, and function."""


def rendered(explorer: Explorer, form: str) -> bytes:
    """Return a view in a format of `FORMS`."""
    return FORMS[form][1](explorer)


def _view_spec(
    lines: Sequence[tuple[str, str, _Rows]],
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


def _mean_of_neighbours(values: Sequence[float | None], neighbours: int) -> list[float | None]:
    """Return means of neighbours; what is unknown stays unknown, and counts for none of its neighbours."""
    means: list[float | None] = []
    for place, value in enumerate(values):
        near = [other for other in values[max(place - neighbours, 0) : place + neighbours + 1] if other is not None]
        means.append(None if value is None else sum(near) / len(near))
    return means


def _chart(
    metric: str, lines: Sequence[tuple[str, _Rows]], axis: str, *, is_log: bool, is_log_x: bool, smooth: int
) -> Spec:
    def known(value: float | None) -> float | None:
        return None if is_log and not (value is not None and value > 0) else value

    ends = ("low", "high")
    values = [
        {"x": _place(row["x"], axis), "mean": known(mean), "line": label, **{end: known(row[end]) for end in ends}}
        for label, rows in lines
        for row, mean in zip(rows, _mean_of_neighbours([row["mean"] for row in rows], smooth), strict=True)
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
