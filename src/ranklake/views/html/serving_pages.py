"""The serving page: requests to served models, latency and errors by hour, and what has drifted."""

from collections.abc import Mapping
from typing import Any, Final

from ranklake.insight.overview.serving import DAYS, ServingState
from ranklake.printable import counted
from ranklake.views.html.cluster_pages import HourlyChart, charts_by_hour
from ranklake.views.html.figures import Column, Measure, answer_table, figures
from ranklake.views.html.site import Section, page_section
from ranklake.views.words import length_text, number_text, percent_text

_MEASURES: Final = (
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


def section(serving: ServingState) -> Section:
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
    return page_section("serving", "Serving", state, headline, serving, lambda: _parts(serving))


def _parts(serving: ServingState) -> Mapping[str, Any]:
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
        "figures": list(figures("totals", serving.totals, _MEASURES)),
        "charts": list(charts_by_hour(serving.hours, _HOURLY)),
        "tables": [
            answer_table("models", "Models", serving.models, ["model", "model_version"], _MODELS, "None."),
            drift,
        ],
    }
