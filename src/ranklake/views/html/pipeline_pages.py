"""The pipeline page: its stages and what waits for them, rows by date, the last plans, and checks that fail."""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from ranklake.insight.overview.ingestion import NOTHING_CAME
from ranklake.insight.overview.pipeline import PipelineState
from ranklake.insight.runs.asking import QueriedFacts
from ranklake.printable import counted
from ranklake.views.html.charts import Chart, lines_by_time, values_of
from ranklake.views.html.figures import Column, Measure, answer_table, figures, source_of
from ranklake.views.html.oncall_pages import CHECKS
from ranklake.views.html.run_tables import STATES
from ranklake.views.html.site import Section, page_section
from ranklake.views.words import length_text

_STAGE_STATES: Final = {"overdue": "failing", "waiting": "warning", "never ran": "unchecked", "up to date": "passed"}
_STAGES: Final = (
    Column("stage", "In the order of the pipeline; upkeep and retention have times of their own.", "stage"),
    Column("state", "overdue: something waits for too long; waiting: something came since.", "state"),
    Column.moment("last run", "When it last wrote something; a run that finds nothing to do writes nothing.",
                  "last_ts"),
    Column.number("waiting", "Ingests that stored rows for it since.", "waiting_ingests", "{ingest}"),
    Column.moment("waiting since", "The first of them.", "waiting_since"),
    Column.seconds("behind", "Up to the last thing that any stage did.", "behind_s"),
)  # fmt: skip
_COSTS: Final = (
    Column("stage", "What ran.", "stage"),
    Column("last", "How its last run ended; findings are what somebody has to look at.", "last_outcome"),
    Column.number("runs", "In the last seven days.", "runs", "{run}"),
    Column.number("failed", "Ended by an error.", "failed", "{run}"),
    Column.number("with findings", "Did their work, and found something.", "with_findings", "{run}"),
    Column.seconds("median", "Of how long they took.", "p50_s"),
    Column.seconds("90 % within", "Likewise.", "p90_s"),
    Column.seconds("in all", "Time that they took.", "duration_s"),
    Column.seconds("CPU", "CPU time, workers included; unknown where they are on a cluster elsewhere.", "cpu_s"),
    Column.number("store requests", "To stores of S3's protocol, without those of delta-rs; unknown of others.",
                  "requests", "{request}"),
    Column.number("of them failed", "No answer, or one that the store could not serve.", "failed_requests",
                  "{request}"),
)  # fmt: skip
_LAGS: Final = (
    Column.number("segments", "Of the last hour.", "segments", "{segment}"),
    Column.number("rows", "In them.", "rows", "{row}"),
    Column.seconds("median", "From the last row of a segment to its commit.", "p50_s"),
    Column.seconds("90 % within", "Likewise.", "p90_s"),
    Column.seconds("99 % within", "Likewise.", "p99_s"),
)  # fmt: skip
_PLANS: Final = (
    Column("plan", "Its number.", "plan"),
    Column("kind", "What it did.", "kind"),
    Column.moment("committed", "When its last effect was.", "committed_ts"),
    Column.seconds("took", "From when it was written to that.", "took_s"),
    Column.number("segments", "That it ingested.", "segments", "{segment}"),
    Column.number("rows recorded", "In those segments.", "rows_recorded", "{row}"),
    Column.number("rows stored", "That it added to tables; negative for removed ones.", "rows_stored", "{row}"),
    Column.number("set aside", "Rows that it put into rejects.", "rows_rejected", "{row}"),
    Column.number("seen before", "Rows that the tables had already.", "rows_duplicate", "{row}"),
)  # fmt: skip


_NOT_RECORDED: Final = "no ingest recorded it"
_MEASURES: Final = (
    Measure("lag_s", "lag", "s", "From the newest row's own time to the commit that brought the last rows in.",
            length_text, "no row of the last month came in"),
    Measure("plans", "ingests", "{plan}", "Plans that brought segments in.", unknown=_NOT_RECORDED),
    Measure("rows_stored", "rows stored", "{row}", "By all ingests.", unknown=_NOT_RECORDED),
    Measure("rows_rejected", "rows set aside", "{row}", "Put into the table rejects by ingests.",
            unknown=_NOT_RECORDED, state="warning"),
    Measure("rows_duplicate", "rows seen before", "{row}", "That came again, and were stored once.",
            unknown=_NOT_RECORDED),
)  # fmt: skip


def section(pipeline: PipelineState) -> Section:
    """Return the pipeline page as a section of its own."""
    overdue = [row["stage"] for row in pipeline.stages.rows if row["state"] == "overdue"]
    failing = len(pipeline.checks.rows)
    if pipeline.until is None:
        headline, state = "Nothing to tell yet: no stage did anything", "unchecked"
    else:
        facts = [f"{' and '.join(overdue)} overdue" if overdue else "Nothing is overdue"]
        facts += [f"{counted(failing, 'check')} failing"] if failing else []
        headline, state = ", ".join(facts), "failing" if overdue or failing else "passed"
    return page_section("pipeline", "Pipeline", state, headline, pipeline, lambda: _parts(pipeline))


def _parts(pipeline: PipelineState) -> Mapping[str, Any]:
    key = ["table", "check_id", "severity", "status"]
    none = "None, of those that were checked."
    return {
        "lake": pipeline.lake,
        "hint": "as of the last thing that a stage did," if pipeline.until else "run 'ranklake pipeline'",
        "as_of": pipeline.until,
        "figures": list(figures("lag", pipeline.lag, _MEASURES)) if pipeline.until else [],
        "lead": [answer_table("stages", "Stages", pipeline.stages, ["stage"], _STAGES, states=_STAGE_STATES)],
        "charts": list(_charts(pipeline.days)),
        "tables": [
            answer_table("checks", "Checks that fail", pipeline.checks, key, CHECKS, none, states=STATES),
            answer_table("costs", "Cost of stages", pipeline.costs, ["stage"], _COSTS, "No run of a stage is kept."),
            answer_table(
                "lag-by-table",
                "From recorded to queryable, by table",
                pipeline.lag_by_table,
                ["table"],
                (Column("table", "Imported rows are left out.", "table"), *_LAGS),
                NOTHING_CAME,
            ),
            answer_table(
                "lag-by-run",
                "The same by run, latest first",
                pipeline.lag_by_run,
                ["run"],
                (Column("run", "That recorded them.", "run"), *_LAGS),
                NOTHING_CAME,
            ),
            answer_table("plans", "The last plans", pipeline.plans, ["plan"], _PLANS, "None was carried out."),
        ],
    }


def _charts(days: QueriedFacts) -> Iterator[Chart]:
    source = source_of("days", days)
    for name, title, words, parts, unit in (
        ("rows", "Rows by date", "Rows that ingests stored and set aside, by the date of the ingest.",
         {"rows_stored": "stored", "rows_rejected": "set aside"}, "rows"),
        ("longest", "Longest ingest by date", "From the plan to its last commit.", {"longest_s": "longest"}, "seconds"),
    ):  # fmt: skip
        known = {column: words for column, words in parts.items() if any(row[column] is not None for row in days.rows)}
        if known:
            shown = zip(values_of(days.rows, list(known)), days.rows, strict=True)
            values = [{**value, "date": row["date"].isoformat()} for value, row in shown]
            yield Chart(name, title, words, lines_by_time(values, known, unit, ",.3~r"), source)
