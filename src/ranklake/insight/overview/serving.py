"""What the serving page tells: requests to served models, how they were answered, and what has drifted."""

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Final

from ranklake.insight.runs.asking import QueriedFacts, asking, sql_text
from ranklake.lake.query.literal import literal

if TYPE_CHECKING:
    from ranklake.lake.query.roles import Role
    from ranklake.lake.store.lake import Lake

_HERE: Final = "ranklake.insight.overview"
DAYS: Final = 7
_MOST: Final = 100


@dataclass(frozen=True, slots=True)
class ServingState:
    """Served models over the last week with requests.

    Attributes
    ----------
    lake
        Last part of its location.
    until
        Start of the last hour with a request; None where no request was recorded.
    totals, models, hours, drift
        In one row; by model and version; by hour; statistics of the last date, what has drifted first.
    """

    lake: str
    until: datetime | None
    totals: QueriedFacts
    models: QueriedFacts
    hours: QueriedFacts
    drift: QueriedFacts


def serving_state(lake: "Lake", role: "Role | None" = None) -> ServingState:
    """Return the state of served models. Raises what queries raise.

    Raises also `ranklake.insight.runs.asking.UnseenError`, for a role that does not see what it is computed from.
    """
    ask = asking(lake, role)
    name = lake.uri.rstrip("/").rpartition("/")[2]
    until: datetime | None = ask(sql_text(_HERE, "serving_until")).seen().first_row["until"]
    if until is None:
        nothing = QueriedFacts("", (), "no request to a served model was recorded yet")
        return ServingState(name, None, nothing, nothing, nothing, nothing)
    dates = f"date BETWEEN DATE '{(until - timedelta(days=DAYS)).date()}' AND DATE '{until.date()}'"
    window = f"hour > {literal(until - timedelta(days=DAYS))} AND hour <= {literal(until)} AND {dates}"
    names = ("serving_totals", "serving_models", "serving_hours", "serving_drift")
    answers = (ask(sql_text(_HERE, item).format(window=window, dates=dates, most=_MOST)).seen() for item in names)
    return ServingState(name, until, *answers)
