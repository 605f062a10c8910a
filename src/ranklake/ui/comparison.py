"""The page Compare: runs of a view side by side, as by `ranklake compare --page`."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from ranklake.insight.runs.compare import compare
from ranklake.insight.runs.curves import compared_metrics
from ranklake.insight.runs.repeats import repeat_groups
from ranklake.ui.explore import EXPLORE, EXPLORE_HOME, Explorer
from ranklake.ui.view import MOST_COMPARED, UnfitViewError
from ranklake.views.html import run_pages
from ranklake.views.html.compare_pages import facts_of
from ranklake.views.html.shell import Page

COMPARE_HOME: Final = f"{EXPLORE}/compare.html"


@dataclass(frozen=True)
class ComparisonPage:
    """A view's runs side by side, as the viewer's role sees them; the baseline is the first."""

    explorer: Explorer

    def page(self) -> Page:
        """Return the page. Raises `UnfitViewError` for fewer than two runs or more than `MOST_COMPARED`."""
        view = self.explorer.view
        runs = tuple(dict.fromkeys((*filter(None, [view.baseline]), *self.explorer.runs)))
        if not 1 < len(runs) <= MOST_COMPARED:
            text = f"{len(runs)} runs cannot be compared"
            raise UnfitViewError(text, where="run", hint=f"choose two to {MOST_COMPARED} in Explore")
        trail = (("Explore", f"{EXPLORE_HOME}?{view.query(runs=runs)}"),)
        return Page(COMPARE_HOME, "Compare", "compare.html", lambda: self._facts(runs), "", trail)

    def _facts(self, runs: tuple[str, ...]) -> Mapping[str, Any]:
        questions = self.explorer.questions
        comparison = compare(questions.ask, runs, questions.ended)
        curves = compared_metrics(questions.ask, runs, questions.units, questions.scalars)
        links = {str(row["run"]): run_pages.href(str(row["run"])) for row in comparison.summaries.rows if row}
        return facts_of(comparison, curves, repeat_groups(questions.ask, comparison), links)
