"""Media of runs by step, side by side, and histograms of their metrics over steps."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any, Final

from starlette.datastructures import QueryParams

from ranklake.insight.runs.find import RunConditions, find
from ranklake.insight.runs.histograms import QUANTILES, HistogramMap, histogram_map, histogram_metrics
from ranklake.insight.runs.media import Media, media, media_steps
from ranklake.insight.runs.report import RunQuestions
from ranklake.ui.explore import EXPLORE, EXPLORE_HOME
from ranklake.ui.view import UnfitViewError, View
from ranklake.views.html import run_pages
from ranklake.views.html.charts import Chart, HeatMap, curve
from ranklake.views.html.figures import source_of
from ranklake.views.html.run_media import Medium, drawable_media
from ranklake.views.html.shell import Page
from ranklake.views.words import number_text

MEDIA_HOME: Final = f"{EXPLORE}/media.html"
MOST_RUNS: Final = 4
"""Runs side by side."""
_MOST_BYTES: Final = 8_000_000
_MOST_MAPS: Final = 6
_MOST_DIGITS: Final = 18
_ALL: Final = ("*",)


@dataclass(frozen=True)
class StepMediaView:
    """Runs, patterns of names, and the step at or before which the latest media are shown; None for the last."""

    runs: tuple[str, ...]
    names: tuple[str, ...] = _ALL
    step: int | None = None

    @classmethod
    def of(cls, query: QueryParams) -> "StepMediaView":
        """Return the view of an address. Raises `UnfitViewError`."""
        view = View.of(QueryParams([(key, value) for key, value in query.multi_items() if key in {"run", "metric"}]))
        if len(view.runs) > MOST_RUNS:
            raise UnfitViewError(f"{len(view.runs)} runs are too many", where="run", hint=f"at most {MOST_RUNS}")
        step = query.get("step", "").strip()
        if step and not (step.isascii() and step.isdecimal() and len(step) <= _MOST_DIGITS):
            raise UnfitViewError(f"{step[:40]!r} is no step", where="step")
        return cls(view.runs, view.metrics if "metric" in query else _ALL, int(step) if step else None)


@dataclass(frozen=True)
class StepMediaPage:
    """The page of media and histograms, as the viewer's role sees them."""

    questions: RunQuestions
    view: StepMediaView

    @cached_property
    def runs(self) -> tuple[str, ...]:
        """The runs of the address, else the latest."""
        if self.view.runs:
            return self.view.runs
        return tuple(str(row["run"]) for row in find(self.questions.ask, RunConditions(), "newest", 1).rows)

    @cached_property
    def steps(self) -> Sequence[int]:
        """The steps at which any of the runs has media, rising."""
        ask, view = self.questions.ask, self.view
        return sorted({step for run in self.runs for step in media_steps(ask, run, view.names)})

    def page(self) -> Page:
        """Return the page."""
        return Page(
            MEDIA_HOME, "Media and histograms", "step_media.html", self._facts, "", (("Explore", EXPLORE_HOME),)
        )

    def _facts(self) -> Mapping[str, Any]:
        view, steps = self.view, self.steps
        step = steps[-1] if view.step is None and steps else view.step
        media_by_run = {run: self._media(run, step) for run in self.runs}
        by_name: dict[tuple[str, str], list[tuple[str, Medium | None]]] = {}
        for run, run_media in media_by_run.items():
            for medium in drawable_media(run_media):
                by_name.setdefault((medium.name, medium.kind), []).append((run, medium))
        maps = [
            (run, each)
            for run in self.runs
            for metric in histogram_metrics(self.questions.ask, run, view.names, _MOST_MAPS)
            if (each := histogram_map(self.questions.ask, run, metric)).steps
        ]
        return {
            "runs": self.runs,
            "hrefs": {run: run_pages.href(run) for run in self.runs},
            "patterns": " ".join(view.names),
            "steps": steps,
            "step": step,
            "place": max(sum(other <= step for other in steps) - 1, 0) if step is not None else 0,
            "shown": sorted(by_name.items()),
            "withheld": dict.fromkeys(run_media.withheld for run_media in media_by_run.values() if run_media.withheld),
            "heats": [_heat(run, each, place) for place, (run, each) in enumerate(maps)],
            "drawn": [_quantiles(run, each, place) for place, (run, each) in enumerate(maps)],
            "tables": [(run, each.metric, _rows(each)) for run, each in maps],
            "cut": [each.metric for _, each in maps if each.is_cut],
        }

    def _media(self, run: str, step: int | None) -> Media:
        view, is_for_role = self.view, self.questions.is_for_role
        return media(
            self.questions.ask,
            run,
            is_for_role=is_for_role,
            names=view.names,
            until=step,
            each=1,
            most_bytes=_MOST_BYTES,
        )


def _heat(run: str, each: HistogramMap, place: int) -> HeatMap:
    shares = each.shares()[::-1]  # the greatest values on top
    limits = each.limits
    labels = [f"{number_text(low)} to {number_text(high)}" for low, high in pairwise(limits)]
    labels[0], labels[-1] = f"below {number_text(limits[1])}", f"above {number_text(limits[-2])}"
    return HeatMap(
        name=f"histogram-{place}", title=f"{each.metric} of {run}",
        description="Share of a step's values, of all ranks, by range.",
        source=source_of(f"histogram-{place}", each.answer), rows=labels[::-1],
        columns=[f"{step.step:,}" for step in each.steps], values=[share for row in shares for share in row],
        row_title=f"Values from {number_text(limits[-1])}, on top, down to {number_text(limits[0])}",
        column_title="step", measure="share of values", unknown="no values",
        table=f"quantiles-{place}", table_title=f"{each.metric} by step", most=max(map(max, shares)),
    )  # fmt: skip


def _rows(each: HistogramMap) -> list[tuple[str, ...]]:
    """Return number, count, mean and quantiles of each step, as text."""
    return [
        (f"{step.step:,}", f"{step.count:,}", "unknown" if step.mean is None else number_text(step.mean),
         *(number_text(step.quantile(ratio)) for ratio in QUANTILES))
        for step in each.steps
    ]  # fmt: skip


def _quantiles(run: str, each: HistogramMap, place: int) -> Chart:
    names = ("low", "median", "high")
    rows = [
        {"step": step.step, **{name: step.quantile(ratio) for name, ratio in zip(names, QUANTILES, strict=True)}}
        for step in each.steps
    ]
    spec, title = curve(rows, "median", "median", ("low", "high")), f"{each.metric} of {run}: median, 5 % to 95 %"
    return Chart(f"quantiles-chart-{place}", title, "Of all ranks.", spec, is_wide=True)
