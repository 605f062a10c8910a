"""What the governance page tells of growth: what tables hold and will hold, and which budgets that passes."""

from datetime import date
from typing import TYPE_CHECKING

from ranklake.insight.runs.asking import Row
from ranklake.insight.runs.need import Need
from ranklake.retention.cost.alerts import Outlook, alerts
from ranklake.retention.cost.growth import growth
from ranklake.retention.simulate import simulate

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ranklake.lake.contracts.model import Contract
    from ranklake.lake.store.store import Lake
    from ranklake.retention.rules.policies import Policies

MONTHS = 12


def costs(
    lake: "Lake", contracts: "Mapping[str, Contract]", policies: "Policies", today: date
) -> tuple[tuple[Row, ...], list[Need]]:
    """Return what each table holds, adds a day, and holds in a year, the largest first; and alerts with their mend."""
    tables, _, _ = growth(lake, contracts)
    forecasts = simulate(lake, contracts, policies, today, MONTHS)
    ends = {one.table: one.months[-1].bytes for one in forecasts}
    rows = tuple(
        {
            "table": one.name,
            "rows": one.rows,
            "bytes": round(one.bytes),
            "bytes_per_day": one.bytes_per_day(today),
            "forecast_bytes": ends[one.name or ""],
        }
        for one in tables
        if one.name in ends
    )
    found = alerts(Outlook(lake, contracts, policies, today, MONTHS, None), tables, forecasts)
    return rows, [
        Need(
            "warning",
            f"{'Growth' if one.kind == 'growth' else 'The budget'} of rule {one.rule.name}"
            f" {'will be' if one.day else 'is'} passed",
            f"{one.what}; {one.rule.owner} answers for it",
            f"{one.hint.text}, which saves {one.hint.saves_bytes:,} bytes" if one.hint else one.why_not,
        )
        for one in found
    ]
