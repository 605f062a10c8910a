"""What tables will hold in months to come, under some policies: rows, bytes and, with a price, money.

What is there now is told by the Delta log, with rows told apart as plans do it. What comes is assumed to be the mean of
the last days; a table younger than that tells by its own days. Nothing is written.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from typing import TYPE_CHECKING, Any, Final

import pyarrow.compute as pc

from ranklake.lake.delta.commit import files
from ranklake.lake.delta.tables import latest
from ranklake.retention.parts import Parts, RunFacts, run_facts

if TYPE_CHECKING:
    from ranklake.lake.contracts.model import Contract
    from ranklake.lake.storage.store import Lake
    from ranklake.retention.rules.model import Policies

GROWTH_DAYS: Final = 30
"""Days before the first simulated one whose mean is what comes each day."""
MONTH_DAYS: Final = 30
GB: Final = 1e9

Amount = tuple[float, float]
"""Rows and bytes."""


@dataclass(frozen=True, slots=True)
class Month:
    """What a table holds at the end of a simulated month of 30 days; `cost` of that month, None without a price."""

    day: date
    rows: int
    bytes: int
    cost: float | None

    def plain(self) -> dict[str, Any]:
        """Return plain JSON values."""
        return {"date": self.day.isoformat(), "rows": self.rows, "bytes": self.bytes, "cost": self.cost}


@dataclass(frozen=True, slots=True)
class Forecast:
    """A table's months.

    Attributes
    ----------
    rows, bytes
        Now.
    rows_per_day
        What is assumed to come; None where the table is too young to tell, and nothing is assumed to come.
    months
        From the first to the last.
    """

    table: str
    rows: int
    bytes: int
    rows_per_day: float | None
    months: tuple[Month, ...]

    @property
    def cost(self) -> float | None:
        """Of all months; None without a price."""
        costs = [one.cost for one in self.months if one.cost is not None]
        return sum(costs) if costs else None

    def plain(self) -> dict[str, Any]:
        """Return plain JSON values."""
        return {
            "table": self.table,
            "rows": self.rows,
            "bytes": self.bytes,
            "rows_per_day": self.rows_per_day,
            "cost": self.cost,
            "months": [one.plain() for one in self.months],
        }


def simulate(
    lake: "Lake",
    contracts: "Mapping[str, Contract]",
    policies: "Policies",
    today: date,
    months: int = 12,
    price_per_gb_month: float | None = None,
) -> list[Forecast]:
    """Return what each table of the lake would hold, if each plan were applied on the day that it is due.

    Parameters
    ----------
    price_per_gb_month
        Of 10^9 bytes stored for 30 days.
    """
    runs = run_facts(lake, policies.rules)
    return [
        found
        for contract in contracts.values()
        if (found := _forecast(lake, contract, policies, runs, today, months, price_per_gb_month)) is not None
    ]


def _forecast(
    lake: "Lake",
    contract: "Contract",
    policies: "Policies",
    runs: RunFacts,
    today: date,
    months: int,
    price: float | None,
) -> Forecast | None:
    handle = latest(lake, contract.table)
    if handle is None:
        return None
    live = files(handle)
    parts = Parts(lake, contract, policies.rules, (), runs)
    cells: dict[tuple[date, int | None], Amount] = defaultdict(lambda: (0.0, 0.0))
    for values, day, some, some_bytes in parts.shares(live):
        rows, size = cells[day, parts.of(values).period_days]
        cells[day, parts.of(values).period_days] = (rows + some, size + some_bytes)
    rate = _rate(cells, today)
    told = []
    for at in range(1, months + 1):
        end = today + timedelta(days=at * MONTH_DAYS)
        rows, size = _held(cells, rate or {}, today, end)
        told.append(Month(end, round(rows), round(size), None if price is None else size / GB * price))
    per_day = None if rate is None else sum(rows for rows, _ in rate.values())
    total = [int(pc.sum(live[name]).as_py() or 0) for name in ("num_records", "size_bytes")]
    return Forecast(contract.table, total[0], total[1], per_day, tuple(told))


def _rate(cells: Mapping[tuple[date, int | None], Amount], today: date) -> dict[int | None, Amount] | None:
    """Return rows and bytes that come a day, by period; None where no whole day tells."""
    days = [day for day, _ in cells if day < today]
    if not days:
        return None
    first = max(min(days), today - timedelta(days=GROWTH_DAYS))
    span = (today - first).days
    found: dict[int | None, Amount] = {}
    for (day, period), (rows, size) in cells.items():
        if first <= day < today:
            before = found.get(period, (0.0, 0.0))
            found[period] = (before[0] + rows / span, before[1] + size / span)
    return found


def _held(
    cells: Mapping[tuple[date, int | None], Amount], rate: Mapping[int | None, Amount], today: date, end: date
) -> Amount:
    """Return what is held at the end of a day: of what is there what is not yet due, of what came its last days."""
    stays = [amount for (day, period), amount in cells.items() if period is None or (end - day).days <= period]
    coming = (end - today).days
    grown = [
        (rows * span, size * span)
        for period, (rows, size) in rate.items()
        for span in (coming if period is None else min(coming, period + 1),)
    ]
    every: Sequence[Amount] = [*stays, *grown]
    return sum(rows for rows, _ in every), sum(size for _, size in every)


def over_budget(lake: "Lake", contracts: "Mapping[str, Contract]", policies: "Policies") -> list[str]:
    """Return the budgets that are passed now, in lines; from the Delta logs."""
    lines = []
    for rule in policies.rules:
        if rule.budget_bytes is None:
            continue
        handles = [latest(lake, one.table) for one in contracts.values() if rule.may_match(one)]
        held = sum(int(pc.sum(files(one)["size_bytes"]).as_py() or 0) for one in handles if one is not None)
        if held > rule.budget_bytes:
            lines.append(
                f"{rule.at}: {held:,} bytes are over the {rule.budget_bytes:,} of rule {rule.name} ({rule.owner})"
            )
    return lines
