"""The table ``slo``: what was attained of each objective, evaluation by evaluation."""

from collections.abc import Iterable, Sequence
from dataclasses import asdict
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

from ranklake.insight.runs.asking import asking
from ranklake.insight.slo.document import ServiceLevelObjective
from ranklake.insight.slo.evaluation import BURN_ALERTS, BurnAlert, SloStatus, evaluate
from ranklake.lake.plans.plan import append_own

if TYPE_CHECKING:
    from ranklake.lake.query.roles import Role
    from ranklake.lake.store.lake import Lake
    from ranklake.lake.store.tables import Tables

TABLE: Final = "slo"
ORDER: Final = {"missed": 0, "at_risk": 1, "met": 2, "no_data": 3}
"""Statuses, worst first; what cannot be measured comes last."""


def evaluate_all(
    lake: "Lake",
    slos: Iterable[ServiceLevelObjective],
    now: datetime,
    role: "Role | None" = None,
    alerts: Sequence[BurnAlert] = BURN_ALERTS,
) -> list[SloStatus]:
    """Return what was attained of objectives up to a moment, as a role sees it: alerts first, then the worst."""
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
