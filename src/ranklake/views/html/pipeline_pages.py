"""The pages of the pipeline and of served models.

Pipeline: stages and what waits for them, rows by date, the last plans, failing checks. Serving: requests, latency and
errors by hour, drift.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from ranklake.insight.overview.pipeline import DAYS, NO_SEGMENTS, PipelineState, ServingState
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
    Column("stage", "In the order of the pipeline; upkeep and retention have their own schedules.", "stage"),
    Column("state", "overdue: input has waited too long; waiting: input came since the last run.", "state"),
    Column.moment("last run", "When it last wrote; a run without work writes nothing.",
                  "last_ts"),
    Column.number("waiting", "Ingests since then with rows for this stage.", "waiting_ingests", "{ingest}"),
    Column.moment("waiting since", "When the first of these ingests was committed.", "waiting_since"),
    Column.seconds("behind", "From then to the last write of any stage.", "behind_s"),
)  # fmt: skip
_COSTS: Final = (
    Column("stage", "Stage that ran.", "stage"),
    Column("last", "How its last run ended; findings need a person's attention.", "last_outcome"),
    Column.number("runs", "Runs in the last seven days.", "runs", "{run}"),
    Column.number("failed", "Runs that ended with an error.", "failed", "{run}"),
    Column.number("with findings", "Runs that succeeded and have findings.", "with_findings", "{run}"),
    Column.seconds("median", "Median duration of a run.", "p50_s"),
    Column.seconds("90 % within", "Likewise.", "p90_s"),
    Column.seconds("in all", "Total duration of the runs.", "duration_s"),
    Column.seconds("CPU", "CPU time, workers included; unknown where they are on a cluster elsewhere.", "cpu_s"),
    Column.number("store requests", "To S3-compatible stores, without those of delta-rs; unknown for other stores.",
                  "requests", "{request}"),
    Column.number("of them failed", "Requests without an answer, or with an error of the store.", "failed_requests",
                  "{request}"),
)  # fmt: skip
_LAGS: Final = (
    Column.number("segments", "Segments ingested in the last hour.", "segments", "{segment}"),
    Column.number("rows", "Rows of these segments.", "rows", "{row}"),
    Column.seconds("median", "Median time from a segment's last row to its commit.", "p50_s"),
    Column.seconds("90 % within", "Likewise.", "p90_s"),
    Column.seconds("99 % within", "Likewise.", "p99_s"),
)  # fmt: skip
_PLANS: Final = (
    Column("plan", "Its number.", "plan"),
    Column("kind", "What it did.", "kind"),
    Column.moment("committed", "When its last commit was made.", "committed_ts"),
    Column.seconds("took", "From writing the plan to its last commit.", "took_s"),
    Column.number("segments", "Segments that it ingested.", "segments", "{segment}"),
    Column.number("rows recorded", "Rows of these segments.", "rows_recorded", "{row}"),
    Column.number("rows stored", "Rows that it added to tables; negative if it removed rows.", "rows_stored", "{row}"),
    Column.number("set aside", "Rows that it wrote to the table rejects.", "rows_rejected", "{row}"),
    Column.number("seen before", "Duplicate rows: the tables had them already.", "rows_duplicate", "{row}"),
)  # fmt: skip


_NOT_RECORDED: Final = "no ingest recorded it"
_MEASURES: Final = (
    Measure("lag_s", "lag", "s", "From the newest row's time to the commit of the last rows.",
            length_text, "no row of the last month was ingested"),
    Measure("plans", "ingests", "{plan}", "Plans that ingested segments.", unknown=_NOT_RECORDED),
    Measure("rows_stored", "rows stored", "{row}", "Rows that all ingests stored.", unknown=_NOT_RECORDED),
    Measure("rows_rejected", "rows set aside", "{row}", "Rows that ingests wrote to the table rejects.",
            unknown=_NOT_RECORDED, state="warning"),
    Measure("rows_duplicate", "rows seen before", "{row}", "Duplicate rows, which are stored once.",
            unknown=_NOT_RECORDED),
)  # fmt: skip


def section(pipeline: PipelineState) -> Section:
    """Return the pipeline page as a section of its own."""
    overdue = [row["stage"] for row in pipeline.stages.rows if row["state"] == "overdue"]
    failing = len(pipeline.checks.rows)
    if pipeline.until is None:
        headline, state = "No stage of the pipeline has run yet", "unchecked"
    else:
        facts = [f"{' and '.join(overdue)} overdue" if overdue else "Nothing is overdue"]
        facts += [f"{counted(failing, 'check')} failing"] if failing else []
        headline, state = ", ".join(facts), "failing" if overdue or failing else "passed"
    return page_section("pipeline", "Pipeline", state, headline, pipeline, lambda: _parts(pipeline))


def _parts(pipeline: PipelineState) -> Mapping[str, Any]:
    key = ["table", "check_id", "severity", "status"]
    no_checks = "No computed check fails."
    return {
        "lake": pipeline.lake,
        "hint": "as of the last write of a stage," if pipeline.until else "run 'ranklake pipeline'",
        "as_of": pipeline.until,
        "figures": list(figures("lag", pipeline.lag, _MEASURES)) if pipeline.until else [],
        "lead": [answer_table("stages", "Stages", pipeline.stages, ["stage"], _STAGES, states=_STAGE_STATES)],
        "charts": list(_charts(pipeline.days)),
        "tables": [
            answer_table("checks", "Checks that fail", pipeline.checks, key, CHECKS, no_checks, states=STATES),
            answer_table(
                "costs", "Cost of stages", pipeline.costs, ["stage"], _COSTS, "No run of a stage is recorded."
            ),
            answer_table(
                "lag-by-table",
                "Time from recorded to queryable, by table",
                pipeline.lag_by_table,
                ["table"],
                (Column("table", "Table; imported rows are not counted.", "table"), *_LAGS),
                NO_SEGMENTS,
            ),
            answer_table(
                "lag-by-run",
                "Time from recorded to queryable, by run, slowest first",
                pipeline.lag_by_run,
                ["run"],
                (Column("run", "Run that recorded the rows.", "run"), *_LAGS),
                NO_SEGMENTS,
            ),
            answer_table("plans", "The last plans", pipeline.plans, ["plan"], _PLANS, "No plan was carried out."),
        ],
    }


def _charts(days: QueriedFacts) -> Iterator[Chart]:
    source = source_of("days", days)
    for name, title, words, parts, unit in (
        ("rows", "Rows by date", "Rows that ingests stored and set aside, by the date of the ingest.",
         {"rows_stored": "stored", "rows_rejected": "set aside"}, "rows"),
        ("longest", "Longest ingest by date", "From the plan to its last commit.", {"longest_s": "longest"}, "seconds"),
    ):  # fmt: skip
        labels = {column: label for column, label in parts.items() if any(row[column] is not None for row in days.rows)}
        if labels:
            pairs = zip(values_of(days.rows, list(labels)), days.rows, strict=True)
            values = [{**value, "date": row["date"].isoformat()} for value, row in pairs]
            yield Chart(name, title, words, lines_by_time(values, labels, unit, ",.3~r"), source)


_SERVING_MEASURES: Final = (
    Measure("models", "models", "{model}", "Models that answered a request.", number_text),
    Measure("requests", "requests", "{request}", "Recorded requests, weighted by their sampling weight.", number_text),
    Measure("failed_ratio", "failed", "ratio", "Share of requests with a status other than ok, of those with one.",
            percent_text, "no request has a status"),
    Measure("latency_p95_max_s", "worst p95", "s", "Highest hourly 95th percentile of a model's latency.",
            length_text, "no request has a latency"),
)  # fmt: skip
_MODELS: Final = (
    Column("model", "Name of the served model.", "model"),
    Column("version", "Its version.", "model_version"),
    Column.number("requests", "Recorded requests, weighted by their sampling weight.", "requests", "{request}"),
    Column.ratio("failed", "Share of requests with a status other than ok, of those with one.", "failed_ratio"),
    Column.seconds("mean latency", "Mean latency of all requests.", "latency_mean_s"),
    Column.seconds("worst p95", "Highest hourly 95th percentile.", "latency_p95_max_s"),
    Column.seconds("worst p99", "Highest hourly 99th percentile.", "latency_p99_max_s"),
    Column.number("tokens in", "Input tokens, weighted like requests.", "input_tokens", "{token}"),
    Column.number("tokens out", "Output tokens, weighted like requests.", "output_tokens", "{token}"),
    Column.moment("last hour", "Last hour with a request.", "last_hour"),
)  # fmt: skip
_DRIFT: Final = (
    Column("distribution", "Model, column and statistic.", "distribution"),
    Column("status", "drifted: above the threshold; too_little_data: could be chance.", "status"),
    Column.number("value", "Distance of the date's distribution from that of the seven days before.", "value", "1"),
    Column.number("threshold", "Value above which it has drifted.", "threshold", "1"),
    Column.number("rows", "Rows of the date.", "window_count", "{row}"),
    Column.number("rows before", "Rows of the seven days before.", "baseline_count", "{row}"),
    Column.moment("date", "Date that is compared.", "date"),
)  # fmt: skip
_HOURLY: Final = (
    HourlyChart("requests", "Requests by hour", "Requests, weighted by their sampling weight, and failed requests.",
                {"requests": "requests", "failed_requests": "failed"}, "requests", ",.3~s"),
    HourlyChart("latency", "Latency by hour", "Mean over all models; 95th percentile of the slowest model.",
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
        "hint": "up to the hour that begins at",
        "as_of": serving.until,
        "figures": list(figures("totals", serving.totals, _SERVING_MEASURES)),
        "charts": list(charts_by_hour(serving.hours, _HOURLY)),
        "tables": [
            answer_table("models", "Models", serving.models, ["model", "model_version"], _MODELS, "None."),
            drift,
        ],
    }
