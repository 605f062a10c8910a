"""Objectives over time: the table ``slo``, and the page's facts: attainment, budgets, losses."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

from ranklake.errors import RanklakeError
from ranklake.insight.runs.asking import QueriedFacts, asking, sql_text
from ranklake.insight.slo.document import ServiceLevelObjective
from ranklake.insight.slo.evaluation import BURN_ALERTS, BurnAlert, SloStatus, evaluate, losses_sql
from ranklake.lake.plans.plan import append_own

if TYPE_CHECKING:
    from ranklake.insight.runs.asking import Ask
    from ranklake.lake.query.roles import Role
    from ranklake.lake.store.lake import Lake
    from ranklake.lake.store.tables import Tables

_HERE: Final = "ranklake.insight.slo"
_MOST_OBJECTIVES: Final = 8
"""Most objectives with losses on a page: those with an alert first, then those with the least budget left."""


@dataclass(frozen=True, slots=True)
class Losses:
    """Losses of an objective's budget.

    Attributes
    ----------
    slo, title, description
        Its name and description.
    days
        A row per day and subject with bad events (`ranklake.insight.slo.evaluation.losses_sql`), worst first.
    """

    slo: str
    title: str
    description: str
    days: QueriedFacts


@dataclass(frozen=True, slots=True)
class SloState:
    """Attainment of the objectives at the last evaluation.

    Attributes
    ----------
    lake
        Last part of its location.
    at
        Time of the last evaluation; None before the first.
    totals, latest, history
        Totals in one row; rows by objective and subject; by objective and evaluation.
    losses
        Losses of the most used budgets.
    """

    lake: str
    at: "datetime | None"
    totals: QueriedFacts
    latest: QueriedFacts
    history: QueriedFacts
    losses: tuple[Losses, ...]


def slo_state(lake: "Lake", slos: Mapping[str, "ServiceLevelObjective"]) -> SloState:
    """Return the last evaluation in the table ``slo``, and the losses of budgets. Raises as queries do."""
    ask = asking(lake)
    name = lake.uri.rstrip("/").rpartition("/")[2]
    totals, latest, history = (ask(sql_text(_HERE, each)) for each in ("totals", "latest", "history"))
    at: datetime | None = totals.first_row["at"]
    if at is None:
        empty = QueriedFacts("", (), "no objective was evaluated yet: the pipeline does it, and so does 'ranklake slo'")
        return SloState(name, None, empty, empty, empty, ())
    used = list(dict.fromkeys(row["slo"] for row in latest.rows if row["alert"] or (row["budget_used_ratio"] or 0) > 0))
    names = {each: slo for slo in slos.values() for each in slo.objectives}
    chosen = [each for each in used if each in names][:_MOST_OBJECTIVES]
    losses = tuple(losses_of(ask, names[each], each, at) for each in chosen)
    return SloState(name, at, totals, latest, history, losses)


def losses_of(ask: "Ask", slo: "ServiceLevelObjective", name: str, now: "datetime") -> Losses:
    """Return the losses of one objective's budget in the window up to `now`.

    An indicator that cannot be computed gives no rows, and the reason.
    """
    sql = losses_sql(slo, slo.objectives[name], now)
    try:
        days = ask(sql).seen()
    except RanklakeError as error:
        days = QueriedFacts(sql, (), f"the indicator cannot be computed: {error.what}")
    return Losses(name, slo.metadata.displayName or name, slo.spec.description, days)


def as_markdown(losses: Losses) -> str:
    """Return a retrospective of an objective as Markdown: a heading, and a table of its worst days."""
    lines = [f"## {losses.title}", "", losses.description, ""] if losses.description else [f"## {losses.title}", ""]
    if losses.days.reason:
        return "\n".join([*lines, losses.days.reason, ""])
    if not losses.days.rows:
        return "\n".join([*lines, "Nothing of the error budget was used.", ""])
    lines += ["| day | subject | bad events | of | share of the error budget |", "|---|---|---:|---:|---:|"]
    return "\n".join([*lines, *map(_line, losses.days.rows), ""])


def _line(row: Mapping[str, Any]) -> str:
    subject = (row["subject"] or "all").replace("\\", "\\\\").replace("|", "\\|")
    numbers = f"{row['bad_count']:,.6g} | {row['total_count']:,.6g} | {row['budget_ratio']:.1%}"
    return f"| {row['day']} | {subject} | {numbers} |"


TABLE: Final = "slo"
ORDER: Final = {"missed": 0, "at_risk": 1, "met": 2, "no_data": 3}
"""Statuses, worst first; `no_data` comes last."""


def evaluate_all(
    lake: "Lake",
    slos: Iterable[ServiceLevelObjective],
    now: datetime,
    role: "Role | None" = None,
    alerts: Sequence[BurnAlert] = BURN_ALERTS,
) -> list[SloStatus]:
    """Return the attainment of objectives up to a time, as a role sees it: alerts first, then the worst."""
    ask = asking(lake, role)
    statuses = [status for slo in slos for status in evaluate(ask, slo, now, alerts)]
    places = {"page": 0, "ticket": 1, "": 2}
    return sorted(statuses, key=lambda status: (places[status.alert], ORDER[status.status], status.slo, status.subject))


def record(tables: "Tables", statuses: Iterable[SloStatus]) -> int:
    """Append statuses to the table ``slo``; return how many rows were written."""
    rows = [_row(status) for status in statuses]
    return append_own(tables, TABLE, lambda _: rows)


def _row(status: SloStatus) -> dict[str, Any]:
    texts = {name: value or None for name, value in asdict(status).items() if name in {"alert", "owner", "reason"}}
    return {**asdict(status), **texts, "window_s": float(status.window_s), "date": status.window_end_ts.date()}
