"""Facts of the table ``alerts``: firing and resolved alerts, and their receivers."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from ranklake.insight.runs.asking import QueriedFacts, asking, sql_text

if TYPE_CHECKING:
    from datetime import datetime

    from ranklake.insight.runs.asking import Ask
    from ranklake.lake.store.lake import Lake

_HERE: Final = "ranklake.insight.overview"


@dataclass(frozen=True, slots=True)
class AlertsState:
    """Alerts of a lake.

    Attributes
    ----------
    lake
        Last part of its location.
    at
        Time of the last change of an alert; None if none ever fired.
    totals, firing, history, receivers
        Totals in one row; firing alerts; alerts of the last 31 days; deliveries by receiver.
    """

    lake: str
    at: "datetime | None"
    totals: QueriedFacts
    firing: QueriedFacts
    history: QueriedFacts
    receivers: QueriedFacts


def firing(ask: "Ask") -> QueriedFacts:
    """Return the alerts that fire, the worst first."""
    return ask(sql_text(_HERE, "alerts_firing"))


def history(ask: "Ask") -> QueriedFacts:
    """Return the alerts of the last 31 days, the latest first."""
    return ask(sql_text(_HERE, "alerts_history"))


def alert_counts(ask: "Ask") -> QueriedFacts:
    """Return, by severity, the number of firing alerts, and of delivered and lost messages."""
    return ask(sql_text(_HERE, "alerts_counts"))


def alerts_state(lake: "Lake") -> AlertsState:
    """Return the facts of the page of alerts. Raises what queries raise."""
    ask = asking(lake)
    totals = ask(sql_text(_HERE, "alerts_totals"))
    name = lake.uri.rstrip("/").rpartition("/")[2]
    at: datetime | None = totals.first_row["at"]
    return AlertsState(name, at, totals, firing(ask), history(ask), ask(sql_text(_HERE, "alerts_receivers")))
