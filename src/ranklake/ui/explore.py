"""Explore: a view of metrics of some runs, whose address says all of it, and the points that its charts ask for."""

import csv
import io
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Final
from urllib.parse import urlencode

from starlette.datastructures import QueryParams

from ranklake.errors import RanklakeError, did_you_mean
from ranklake.insight.runs.asking import QueriedFacts
from ranklake.insight.runs.explore import AXES, MOST_PARTS, metric_names, range_of
from ranklake.insight.runs.find import RunConditions, find
from ranklake.insight.runs.report import RunQuestions
from ranklake.printable import printable
from ranklake.views.html import run_pages
from ranklake.views.html.shell import Page, data_block

EXPLORE: Final = "explore"
EXPLORE_HOME: Final = f"{EXPLORE}/index.html"
MOST_RUNS: Final = 20
MOST_METRICS: Final = 12
MOST_LISTED: Final = 50
"""Runs that a search shows at once."""
FIRST_RUNS: Final = 3
"""Runs that are drawn where an address names none: the latest."""
_PARTS: Final = 800
_MOST_TEXT: Final = 2_000
_FIRST_METRICS: Final = "loss step_time_s"


class UnfitViewError(RanklakeError):
    """An address that says no view."""


@dataclass(frozen=True)
class View:
    """What is looked at.

    Attributes
    ----------
    search
        Which runs are offered: the beginning of a name, or ``key=value`` of a tag.
    runs
        Which are drawn.
    metrics
        Their names or patterns of them.
    axis
        One of `AXES`.
    begin, end
        The range of the axis; None for where it begins and ends.
    smooth, is_log
        How it is drawn: neighbours on either side of which each point is the mean; a logarithmic scale.
    parts
        How finely.
    """

    search: str = ""
    runs: tuple[str, ...] = ()
    metrics: tuple[str, ...] = tuple(_FIRST_METRICS.split())
    axis: str = "step"
    begin: float | None = None
    end: float | None = None
    smooth: int = 0
    is_log: bool = False
    parts: int = _PARTS

    @classmethod
    def of(cls, asked: QueryParams) -> "View":
        """Return the view of an address. Raises `UnfitViewError`."""
        axis = asked.get("x", "step")
        if axis not in AXES:
            raise UnfitViewError(f"no axis {axis!r}", where="x", hint=did_you_mean(axis, AXES))
        runs = tuple(dict.fromkeys(asked.getlist("run")))
        metrics = tuple(word for text in asked.getlist("metric") for word in text.split())
        if len(runs) > MOST_RUNS:
            raise UnfitViewError(f"{len(runs)} runs are too many to draw", where="run", hint=f"at most {MOST_RUNS}")
        if any(len(text) > _MOST_TEXT for text in (*runs, *metrics, asked.get("find", ""))):
            raise UnfitViewError("a name is too long", where="run, metric or find")
        return cls(
            search=asked.get("find", "").strip(),
            runs=runs,
            metrics=metrics[:MOST_METRICS] or cls.metrics,
            axis=axis,
            begin=_number(asked, "from"),
            end=_number(asked, "to"),
            smooth=_count(asked, "smooth", 0, 0, 50),
            is_log=bool(asked.get("log")),
            parts=_count(asked, "parts", _PARTS, 1, MOST_PARTS),
        )

    def query(self, **changed: Any) -> str:  # noqa: ANN401 - values of fields
        """Return the same as the query of an address, with some fields changed."""
        view = replace(self, **changed)
        asked: list[tuple[str, object]] = [("find", view.search)] if view.search else []
        asked += [("run", run) for run in view.runs]
        asked += [("metric", " ".join(view.metrics)), ("x", view.axis)]
        asked += [(name, limit) for name, limit in (("from", view.begin), ("to", view.end)) if limit is not None]
        asked += [("smooth", view.smooth)] if view.smooth else []
        asked += [("log", "on")] if view.is_log else []
        return urlencode(asked)


def _number(asked: QueryParams, name: str) -> float | None:
    text = asked.get(name, "").strip()
    if not text:
        return None
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise UnfitViewError(f"{text[:40]!r} is no number", where=name)
    return number


def _count(asked: QueryParams, name: str, default: int, least: int, most: int) -> int:
    """Return a count of an address, cut off above. Raises `UnfitViewError`."""
    number = _number(asked, name)
    if number is None:
        return default
    if number < least or number != int(number):
        raise UnfitViewError(f"{asked[name][:40]!r} is no whole number from {least}", where=name)
    return min(int(number), most)


@dataclass(frozen=True)
class Explorer:
    """A view of a lake's runs, as who looks sees them."""

    questions: RunQuestions
    view: View

    @cached_property
    def offered(self) -> QueriedFacts:
        """The runs that the search finds, newest first."""
        key, equals, value = self.view.search.partition("=")
        wanted = RunConditions(tags={key.strip(): value.strip()}) if equals else RunConditions(run=self.view.search)
        return find(self.questions.ask, wanted, "newest", MOST_LISTED)

    @cached_property
    def runs(self) -> tuple[str, ...]:
        """The runs that are drawn."""
        return self.view.runs or tuple(str(row["run"]) for row in self.offered.rows[:FIRST_RUNS])

    @cached_property
    def metrics(self) -> list[str]:
        """The metrics that are drawn."""
        if not self.runs:
            return []
        return metric_names(self.questions.ask, self.runs, self.view.metrics, MOST_METRICS, self.questions.scalars)

    def lines(self) -> Iterator[tuple[str, str, QueriedFacts]]:
        """Yield metric, run and points of each line."""
        view, questions = self.view, self.questions
        for metric in self.metrics:
            for run in self.runs:
                limits = view.begin, view.end, view.parts
                yield metric, run, range_of(questions.ask, run, metric, view.axis, *limits, questions.scalars)

    def points(self) -> bytes:
        """Return the points as JSON: of each line its columns, rounded as far as a chart can show."""
        lines = [
            {
                "metric": metric,
                "run": run,
                "reason": answer.reason,
                "whole": all(row["n"] == 1 for row in answer.rows),
                "points": [
                    [row["x"], *map(_round_point, (row["mean"], row["low"], row["high"]))] for row in answer.rows
                ],
            }
            for metric, run, answer in self.lines()
        ]
        return str(data_block({"lines": lines})).encode()

    def csv(self) -> bytes:
        """Return the points as CSV, as they are."""
        out = io.StringIO()
        writer = csv.writer(out)
        writer.writerow(["metric", "run", self.view.axis, "mean", "low", "high", "values"])
        for metric, run, answer in self.lines():
            for row in answer.rows:
                values = (row[name] for name in ("x", "mean", "low", "high", "n"))
                writer.writerow([_cell(metric), _cell(run), *values])
        return out.getvalue().encode()

    def sql(self) -> bytes:
        """Return the SQL of all lines, each to run with `ranklake sql`."""
        names = [f"-- {printable(f'{metric} of {run}')}\n{answer.sql}" for metric, run, answer in self.lines()]
        return "\n".join(names).encode()

    def page(self) -> Page:
        """Return the page."""
        return Page(EXPLORE_HOME, "Explore", "explore.html", self._facts, "")

    def _facts(self) -> Mapping[str, Any]:
        view, drawn = self.view, self.runs
        status = {str(row["run"]): str(row["status"]) for row in self.offered.rows}
        listed = dict.fromkeys((*drawn, *status))
        return {
            "view": view,
            "listed": [(run, status.get(run, ""), run in drawn, run_pages.href(run)) for run in listed],
            "more": len(self.offered.rows) == MOST_LISTED,
            "metrics": self.metrics,
            "patterns": " ".join(view.metrics),
            "axes": [(name, title) for name, (_, title) in AXES.items()],
            "charts": [
                (place, metric, view.query(runs=drawn, metrics=(_literal(metric),)))
                for place, metric in enumerate(self.metrics)
            ],
            "query": view.query(runs=drawn),
            "title": AXES[view.axis][1],
        }


def _literal(name: str) -> str:
    """Return a pattern that matches a name alone."""
    return "".join("?" if letter.isspace() else f"[{letter}]" if letter in "*?[" else letter for letter in name)


def _cell(text: str) -> str:
    """Return a text that no table program takes for a formula."""
    return f"'{text}" if text[:1] in "=+-@\t\r" else text


def _round_point(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.7g}")


FORMS: Final[Mapping[str, tuple[str, Callable[[Explorer], bytes]]]] = {
    "points.json": ("application/json", Explorer.points),
    "points.csv": ("text/csv; charset=utf-8", Explorer.csv),
    "points.sql": ("text/plain; charset=utf-8", Explorer.sql),
}
"""What a view can be had as: its media type, and what gives it."""


def rendered(explorer: Explorer, form: str) -> bytes:
    """Return a view in one of `FORMS`."""
    return FORMS[form][1](explorer)
