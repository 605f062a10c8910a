"""The pages of alerts (firing, resolved, deliveries) and of objectives (attainment, budgets, losses)."""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from ranklake.insight.overview.alerts import AlertsState
from ranklake.insight.slo.report import Losses, SloState
from ranklake.printable import counted
from ranklake.views.html.charts import PERCENT, Chart, lines_by_time
from ranklake.views.html.figures import Column, FactTable, Measure, answer_table, figures, source_of
from ranklake.views.html.run_tables import SEVERITIES
from ranklake.views.html.site import Section, page_section
from ranklake.views.words import number_text

_MEASURES: Final = (
    Measure("firing", "firing", "{alert}", "Alerts that are not over.", number_text, state="failing"),
    Measure("critical", "critical", "{alert}", "Of them.", number_text, state="failing"),
    Measure("not_sent", "nobody told", "{alert}", "Of them: no receiver took a message, and nothing mutes them.",
            number_text, state="failing"),
    Measure("muted", "muted", "{alert}", "Of them: silenced, kept back by another, or in quiet hours.", number_text,
            state="warning"),
    Measure("alerts", "in all", "{alert}", "Alerts that ever fired.", number_text),
)  # fmt: skip
HREF: Final = "alerts/index.html"
_FIRST: Final = (
    Column("alert", "Its id; what fires again is another.", "alert_id"),
    Column("severity", "How bad it is.", "severity"),
    Column("rule", "Rule of the file of alerts.", "rule"),
    Column("message", "As it was sent.", "message"),
    Column("subject", "What it is about.", "subject"),
    Column("run", "Run that it is about.", "run"),
)
_LAST: Final = (
    Column("told", "Receivers that took a message.", "receivers"),
    Column.number("messages", "That they took.", "messages", "{message}"),
    Column.number("not taken", "Messages that a receiver did not take.", "failures", "{message}"),
    Column("muted", "Why nobody is told now.", "muted"),
)
FIRING: Final = (*_FIRST, Column.moment("since", "When it fired.", "fired_ts"), *_LAST)
_HISTORY: Final = (
    *_FIRST,
    Column("state", "firing, or resolved: it is over.", "state"),
    Column.moment("fired", "When it began to fire.", "fired_ts"),
    Column.moment("resolved", "When it was over.", "resolved_ts"),
    Column.seconds("lasted", "Between the two.", "lasted_s"),
    *_LAST,
)
_RECEIVERS: Final = (
    Column("receiver", "As the file of alerts names it.", "receiver"),
    Column.number("alerts", "That it was told of.", "alerts", "{alert}"),
    Column.moment("last", "The last round in which such an alert changed.", "last_ts"),
)


def section(state: AlertsState) -> Section:
    """Return the page of alerts as a section of its own."""
    totals = state.totals.first_row
    if state.at is None:
        return page_section("alerts", "Alerts", "unchecked", "None ever fired", state, lambda: {"lake": state.lake})
    facts = [f"{totals[name]:,} {words}" for name, words in (("critical", "critical"), ("not_sent", "told nobody"))
             if totals[name]]  # fmt: skip
    headline = ", ".join([f"{counted(totals['firing'], 'alert')} firing", *facts])
    worst = "failing" if totals["critical"] or totals["not_sent"] else "warning" if totals["firing"] else "passed"
    return page_section("alerts", "Alerts", worst, headline, state, lambda: _parts(state))


def _parts(state: AlertsState) -> Mapping[str, Any]:
    return {
        "lake": state.lake,
        "hint": "as of the last change of an alert,",
        "as_of": state.at,
        "figures": list(figures("totals", state.totals, _MEASURES)),
        "tables": [
            answer_table("firing", "Firing, worst first", state.firing, ["alert_id"], FIRING, "None.",
                         "ranklake alerts list tells the same.", states=SEVERITIES),
            answer_table("history", "The last 31 days, latest first", state.history, ["alert_id"], _HISTORY, "None.",
                         states=SEVERITIES),
            answer_table("receivers", "Who was told", state.receivers, ["receiver"], _RECEIVERS, "Nobody."),
        ],
    }  # fmt: skip


_SLO_MEASURES: Final = (
    Measure("objectives", "objectives", "{objective}", "That were evaluated.", number_text),
    Measure("alerts", "burn too fast", "{objective}", "A burn-rate alert fires.", number_text, state="failing"),
    Measure("missed", "missed", "{objective}", "The whole error budget is used.", number_text, state="failing"),
    Measure("at_risk", "at risk", "{objective}", "Three quarters of the error budget are used.", number_text,
            state="warning"),
)  # fmt: skip
_LATEST: Final = (
    Column("objective", "Name of the objective.", "slo"),
    Column("status", "missed: the budget is used up; at_risk: three quarters of it; no_data: no events.", "status"),
    Column("subject", "What it is about; empty for all together.", "subject"),
    Column("alert", "page or ticket: the worst burn-rate alert that fires.", "alert"),
    Column.ratio("promised", "Share of good events that was promised.", "objective_ratio"),
    Column.ratio("attained", "Share of good events.", "attained_ratio"),
    Column.ratio("budget used", "Bad events over those that the objective allows.", "budget_used_ratio"),
    Column.number("burn rate", "How much faster than allowed the budget was used in three days.", "burn_rate", "1"),
    Column.number("good", "Good events in the window.", "good_count", "{event}"),
    Column.number("of", "Events in the window.", "total_count", "{event}"),
    Column.number("days", "Length of the window.", "window_days", "d"),
    Column("owner", "Who answers for it.", "owner"),
    Column("reason", "Why nothing is known.", "reason"),
)  # fmt: skip
_LOSSES: Final = (
    Column.moment("day", "UTC date of the events.", "day"),
    Column("subject", "What the events are about; empty for all together.", "subject"),
    Column.number("bad", "Bad events of the day.", "bad_count", "{event}"),
    Column.number("of", "Events of the day.", "total_count", "{event}"),
    Column.ratio("of the budget", "Share of the whole error budget that they used.", "budget_ratio"),
)
_STATES: Final = {"missed": "failing", "at_risk": "warning", "met": "passed", "no_data": "unchecked"}


def slo_section(state: SloState) -> Section:
    """Return the page of objectives as a section of its own."""
    if state.at is None:
        return page_section("slo", "Objectives", "unchecked", "None was evaluated", state, lambda: _slo_parts(state))
    totals = state.totals.first_row
    labels = {"alerts": "burn too fast", "missed": "missed", "at_risk": "at risk"}
    facts = [f"{totals[name]} {label}" for name, label in labels.items() if totals[name]]
    headline = f"{counted(totals['objectives'], 'objective')}: {', '.join(facts) or 'all met, or without events'}"
    worst = "failing" if totals["alerts"] or totals["missed"] else "warning" if totals["at_risk"] else "passed"
    return page_section("slo", "Objectives", worst, headline, state, lambda: _slo_parts(state))


def _slo_parts(state: SloState) -> Mapping[str, Any]:
    if state.at is None:
        return {"lake": state.lake, "hint": f"unknown: {state.totals.reason}"}
    return {
        "lake": state.lake,
        "hint": "as evaluated at",
        "as_of": state.at,
        "figures": list(figures("totals", state.totals, _SLO_MEASURES)),
        "charts": list(_budgets(state)),
        "tables": [
            answer_table("latest", "Objectives, worst first", state.latest, ["slo", "subject"], _LATEST, "None.",
                         "ranklake slo tells the same of this moment.", states=_STATES),
            *(_table(place, losses) for place, losses in enumerate(state.losses)),
        ],
    }  # fmt: skip


def _budgets(state: SloState) -> Iterator[Chart]:
    """Yield charts of the remaining budgets by date; a single date gives no line."""
    names = list(dict.fromkeys(row["slo"] for row in state.history.rows))
    dates = sorted({row["date"] for row in state.history.rows})
    left = {(row["date"], row["slo"]): row["budget_left_ratio"] for row in state.history.rows}
    values = [{"date": day} | {name: left.get((day, name)) for name in names} for day in dates]
    if len(dates) > 1:
        words = "Of the worst subject of each objective at the day's last evaluation; below 0 it is missed."
        spec = lines_by_time(values, {name: name for name in names}, "budget left", PERCENT)
        yield Chart("budgets", "Error budget that is left, by date", words, spec, source_of("budgets", state.history))


def _table(place: int, losses: Losses) -> FactTable:
    caption = f"What used up the budget of {losses.slo}"
    return answer_table(f"losses-{place}", caption, losses.days, ["day", "subject"], _LOSSES, "Nothing.",
                        losses.description)  # fmt: skip
