"""The page of alerts: what fires, whom that was told, and what ended."""

from collections.abc import Mapping
from typing import Any, Final

from ranklake.insight.alerts.report import AlertsState
from ranklake.printable import counted
from ranklake.views.html.figures import Column, Measure, answer_table, figures
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
