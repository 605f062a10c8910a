"""The pages of the pipeline and of served models.

Pipeline: stages and what waits for them, rows by date, the last plans, failing checks. Serving: requests, latency and
errors by hour, drift.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from ranklake.insight.overview.pipeline import DAYS, NOTHING_CAME, PipelineState, ServingState
from ranklake.insight.runs.asking import QueriedFacts
from ranklake.printable import counted
from ranklake.views.html.charts import Chart, lines_by_time, values_of
from ranklake.views.html.cluster_pages import HourlyChart, charts_by_hour
from ranklake.views.html.figures import Column, Measure, answer_table, figures, source_of
from ranklake.views.html.oncall_pages import CHECKS
from ranklake.views.html.run_tables import STATES
from ranklake.views.html.site import Section, page_section
from ranklake.views.words import length_text, number_text, percent_text

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


_SERVING_MEASURES: Final = (
    Measure("models", "models", "{model}", "That answered a request.", number_text),
    Measure("requests", "requests", "{request}", "Recorded ones, each by its weight.", number_text),
    Measure("failed_ratio", "failed", "ratio", "Requests with another status than ok, of those that have one.",
            percent_text, "no request has a status"),
    Measure("latency_p95_max_s", "worst p95", "s", "Highest 95th percentile of latency of a model in an hour.",
            length_text, "no request has a latency"),
)  # fmt: skip
_MODELS: Final = (
    Column("model", "Name of the served model.", "model"),
    Column("version", "Its version.", "model_version"),
    Column.number("requests", "Recorded ones, each by its weight.", "requests", "{request}"),
    Column.ratio("failed", "Requests with another status than ok, of those that have one.", "failed_ratio"),
    Column.seconds("mean latency", "Over all requests.", "latency_mean_s"),
    Column.seconds("worst p95", "Highest of an hour.", "latency_p95_max_s"),
    Column.seconds("worst p99", "Highest of an hour.", "latency_p99_max_s"),
    Column.number("tokens in", "By weight.", "input_tokens", "{token}"),
    Column.number("tokens out", "By weight.", "output_tokens", "{token}"),
    Column.moment("last hour", "With a request.", "last_hour"),
)  # fmt: skip
_DRIFT: Final = (
    Column("distribution", "Model, what is distributed, and the statistic.", "distribution"),
    Column("status", "drifted: above the threshold; too_little_data: chance alone moves it that far.", "status"),
    Column.number("value", "How far the date is from the seven days before.", "value", "1"),
    Column.number("threshold", "From which on it has drifted.", "threshold", "1"),
    Column.number("rows", "Of the date.", "window_count", "{row}"),
    Column.number("rows before", "Of the seven days before.", "baseline_count", "{row}"),
    Column.moment("date", "That is compared.", "date"),
)  # fmt: skip
_HOURLY: Final = (
    HourlyChart("requests", "Requests by hour", "Recorded ones, each by its weight, and those that failed.",
                {"requests": "requests", "failed_requests": "failed"}, "requests", ",.3~s"),
    HourlyChart("latency", "Latency by hour", "Of all models; the 95th percentile is that of the slowest.",
                {"latency_mean_s": "mean", "latency_p95_max_s": "p95"}, "seconds", ",.3~r"),
)  # fmt: skip
_STATES: Final = {"drifted": "warning", "steady": "passed", "too_little_data": "unchecked"}


def serving_section(serving: ServingState) -> Section:
    """Return the serving page as a section of its own."""
    drifted = sum(row["status"] == "drifted" for row in serving.drift.rows)
    if serving.until is None:
        headline, state = "No served model was recorded", "unchecked"
    else:
        totals = serving.totals.first_row
        facts = [counted(totals["models"], "model"), f"{number_text(totals['requests'])} requests"]
        if totals["failed_ratio"] is not None:
            facts.append(f"{percent_text(totals['failed_ratio'])} failed")
        facts += [f"{counted(drifted, 'statistic')} drifted"] if drifted else []
        headline, state = f"Last {DAYS} days: {', '.join(facts)}", "warning" if drifted else "passed"
    return page_section("serving", "Serving", state, headline, serving, lambda: _serving_parts(serving))


def _serving_parts(serving: ServingState) -> Mapping[str, Any]:
    if serving.until is None:
        return {"lake": serving.lake, "hint": f"unknown: {serving.totals.reason}"}
    drift = answer_table(
        "drift", "Against the week before", serving.drift, ["distribution"], _DRIFT, "Nothing to compare with yet.",
        states=_STATES,
    )  # fmt: skip
    return {
        "lake": serving.lake,
        "hint": "to the hour from",
        "as_of": serving.until,
        "figures": list(figures("totals", serving.totals, _SERVING_MEASURES)),
        "charts": list(charts_by_hour(serving.hours, _HOURLY)),
        "tables": [
            answer_table("models", "Models", serving.models, ["model", "model_version"], _MODELS, "None."),
            drift,
        ],
    }
