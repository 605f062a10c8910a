"""The pipeline page: its stages and what waits for them, rows by date, the last plans, and checks that fail."""

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any, Final

from ranklake.insight.overview.pipeline import PipelineState
from ranklake.insight.runs.asking import Answered
from ranklake.views.html.charts import Chart
from ranklake.views.html.date_charts import lines_by_date
from ranklake.views.html.figures import Column, FactTable, Figure, sourced, time_text
from ranklake.views.html.oncall_pages import CHECKS
from ranklake.views.html.run_tables import STATES
from ranklake.views.html.shell import Entry, Page, digest_of
from ranklake.views.html.site import Section
from ranklake.views.html.step_charts import values_of
from ranklake.views.words import counted
from ranklake.views.words import time_text as length_text

SECTION: Final = "pipeline"
HOME: Final = f"{SECTION}/index.html"
_STAGE_STATES: Final = {"overdue": "failing", "waiting": "warning", "never ran": "unchecked", "up to date": "passed"}
_STAGES: Final = (
    Column("stage", "In the order of the pipeline; upkeep and retention have times of their own.", "stage"),
    Column("state", "overdue: something waits for too long; waiting: something came since.", "state"),
    Column("last run", "When it last wrote something; a run that finds nothing to do writes nothing.", "last_ts",
           text=time_text),
    Column("waiting", "Ingests that stored rows for it since.", "waiting_ingests", "{ingest}", is_number=True),
    Column("waiting since", "The first of them.", "waiting_since", text=time_text),
    Column("behind", "Up to the last thing that any stage did.", "behind_s", "s", is_number=True, text=length_text),
)  # fmt: skip
_PLANS: Final = (
    Column("plan", "Its number.", "plan"),
    Column("kind", "What it did.", "kind"),
    Column("committed", "When its last effect was.", "committed_ts", text=time_text),
    Column("took", "From when it was written to that.", "took_s", "s", is_number=True, text=length_text),
    Column("segments", "That it ingested.", "segments", "{segment}", is_number=True),
    Column("rows recorded", "In those segments.", "rows_recorded", "{row}", is_number=True),
    Column("rows stored", "That it added to tables; negative for removed ones.", "rows_stored", "{row}",
           is_number=True),
    Column("set aside", "Rows that it put into rejects.", "rows_rejected", "{row}", is_number=True),
    Column("seen before", "Rows that the tables had already.", "rows_duplicate", "{row}", is_number=True),
)  # fmt: skip


def section(found: PipelineState) -> Section:
    """Return the pipeline page as a section of its own."""
    overdue = [row["stage"] for row in found.stages.rows if row["state"] == "overdue"]
    failing = len(found.checks.rows)
    if found.until is None:
        headline, state = "Nothing to tell yet: no stage did anything", "unchecked"
    else:
        told = [f"{' and '.join(overdue)} overdue" if overdue else "Nothing is overdue"]
        told += [f"{counted(failing, 'check')} failing"] if failing else []
        headline, state = ", ".join(told), "failing" if overdue or failing else "passed"
    digest = digest_of(found)
    page = Page(HOME, "Pipeline", "pipeline.html", partial(_facts, found, headline, state), digest)
    return Section(SECTION, "Pipeline", state, headline, HOME, (page,), (Entry("Pipeline", "page", state, HOME),))


def _facts(found: PipelineState, headline: str, state: str) -> Mapping[str, Any]:
    return {
        "lake": found.lake,
        "headline": headline,
        "state": state,
        "until": found.until,
        "figures": list(_figures(found.lag)) if found.until else [],
        "charts": list(_charts(found.days)),
        "tables": [*_tables(found)],
    }


def _figures(lag: Answered) -> Iterator[Figure]:
    source, row = sourced("lag", lag), lag.one
    late = row["lag_s"]
    why = "no row of the last month came in" if late is None else ""
    said = "From the newest row's own time to the commit that brought the last rows in."
    yield Figure("lag", late, "s", said, source, "lag_s", "", why, "" if late is None else length_text(late))
    for name, label, unit, definition in (
        ("plans", "ingests", "{plan}", "Plans that brought segments in."),
        ("rows_stored", "rows stored", "{row}", "By all ingests."),
        ("rows_rejected", "rows set aside", "{row}", "Put into the table rejects by ingests."),
        ("rows_duplicate", "rows seen before", "{row}", "That came again, and were stored once."),
    ):
        value = row[name]
        mark = "warning" if name == "rows_rejected" and value else ""
        yield Figure(
            label, value, unit, definition, source, name, mark, "no ingest told of it" if value is None else ""
        )


def _charts(days: Answered) -> Iterator[Chart]:
    source = sourced("days", days)
    for name, title, words, parts, unit in (
        ("rows", "Rows by date", "Rows that ingests stored and set aside, by the date of the ingest.",
         {"rows_stored": "stored", "rows_rejected": "set aside"}, "rows"),
        ("longest", "Longest ingest by date", "From the plan to its last commit.", {"longest_s": "longest"}, "seconds"),
    ):  # fmt: skip
        known = {one: said for one, said in parts.items() if any(row[one] is not None for row in days.rows)}
        if known:
            values = [
                {**one, "date": row["date"].isoformat()}
                for one, row in zip(values_of(days.rows, list(known)), days.rows, strict=True)
            ]
            yield Chart(name, title, words, lines_by_date(values, known, unit, ",.3~r"), source)


def _tables(found: PipelineState) -> Iterator[FactTable]:
    yield FactTable("Stages", sourced("stages", found.stages), _STAGES, ["stage"], "stages", found.stages.rows,
                    states=_STAGE_STATES)  # fmt: skip
    yield FactTable("Checks that fail", sourced("checks", found.checks), CHECKS,
                    ["table", "check_id", "severity", "status"], "checks", found.checks.rows, states=STATES,
                    empty="None, of those that were checked.")  # fmt: skip
    yield FactTable("The last plans", sourced("plans", found.plans), _PLANS, ["plan"], "plans", found.plans.rows,
                    empty="None was carried out.")  # fmt: skip
