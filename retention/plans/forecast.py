"""What tables will hold in months to come, under some policies: rows, bytes and, with a price, money.

The Delta log has what is there now. What comes is assumed to be the mean of the last 30 days, or of the days that a
younger table has. Rows that become aggregates leave their table, and the table of aggregates gains as much for each
row as it did so far; before the first it gains nothing. Nothing is written.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pyarrow.compute as pc

from ranklake.lake.contracts.load import contract as packaged
from ranklake.lake.tables.live_files import files
from ranklake.lake.tables.read import read
from ranklake.lake.tables.tables import latest
from ranklake.retention.plans.downsample import downsampling_rule
from ranklake.retention.policies.model import Place, Rule, row_keys_of
from ranklake.retention.policies.parts import Parts, RunFacts, all_run_facts, run_facts
from ranklake.retention.proposals.retention_plans import DOWNSAMPLED

if TYPE_CHECKING:
    from ranklake.lake.contracts.model import Contract
    from ranklake.lake.store.lake import Lake
    from ranklake.lake.store.tables import Tables
    from ranklake.retention.policies.policies import Policies


GROWTH_DAYS: Final = 30
"""Days before the first simulated one whose mean is what comes each day."""
UNKNOWN: Final = None
"""Team of runs that say none, metric of rows that have none."""


@dataclass(slots=True)
class StoredBytes:
    """What one table, team or metric holds.

    Attributes
    ----------
    rows, bytes
        Now.
    by_day
        Bytes by date.
    """

    name: str | None
    rows: int = 0
    bytes: float = 0.0
    by_day: dict[date, float] = field(default_factory=lambda: defaultdict(float))

    def add(self, day: date, rows: int, size_bytes: float) -> None:
        """Take in rows of a date."""
        self.rows += rows
        self.bytes += size_bytes
        self.by_day[day] += size_bytes

    def bytes_per_day(self, today: date, days: int = GROWTH_DAYS) -> float | None:
        """Return the mean of the last whole days; None where the oldest rows are of today."""
        known = [day for day in self.by_day if day < today]
        if not known:
            return None
        first = max(min(known), today - timedelta(days=days))
        return sum(size for day, size in self.by_day.items() if first <= day < today) / (today - first).days

    def plain(self, today: date, noun: str) -> dict[str, Any]:
        """Return plain JSON values."""
        per_day = self.bytes_per_day(today)
        return {noun: self.name, "rows": self.rows, "bytes": round(self.bytes), "bytes_per_day": per_day}


def growth(
    lake: "Lake", contracts: "Mapping[str, Contract]"
) -> tuple[list[StoredBytes], list[StoredBytes], list[StoredBytes]]:
    """Return what tables, teams and metrics hold, the largest first."""
    teams = {run: facts.get("team", frozenset()) for run, facts in all_run_facts(lake.tables).items()}
    tables: dict[str | None, StoredBytes] = {}
    by_team: dict[str | None, StoredBytes] = {}
    by_metric: dict[str | None, StoredBytes] = {}
    for contract in contracts.values():
        for columns, values, day, rows, size_bytes in _cells(lake, contract):
            tables.setdefault(contract.table, StoredBytes(contract.table)).add(day, rows, size_bytes)
            known = dict(zip(columns, values, strict=True))
            if "run" in columns:
                team = ", ".join(sorted(teams.get(known["run"], ()))) or UNKNOWN
                by_team.setdefault(team, StoredBytes(team)).add(day, rows, size_bytes)
            if "metric" in columns:
                by_metric.setdefault(known["metric"], StoredBytes(known["metric"])).add(day, rows, size_bytes)
    first, second, third = (
        sorted(one.values(), key=lambda held: (-held.bytes, held.name or "")) for one in (tables, by_team, by_metric)
    )
    return first, second, third


def _cells(lake: "Lake", contract: "Contract") -> Iterator[tuple[tuple[str, ...], tuple[Any, ...], date, int, float]]:
    """Yield the columns that tell rows apart, their values, and date, rows and bytes of them."""
    handle = latest(lake.tables, contract.table)
    if handle is None:
        return
    live = files(handle)
    keys = row_keys_of(contract)
    where = {"run": ("*",), **({"metric": ("*",)} if "metric" in keys else {})} if "run" in keys else {}
    parts = Parts(lake, contract, [Rule("growth", where, "", "", "", Place(Path(), 1))], (), {})
    for values, day, rows, size_bytes in parts.shares(live):
        yield parts.columns, values, day, rows, size_bytes


MONTH_DAYS: Final = 30
GB: Final = 1e9

Amount = tuple[float, float]
"""Rows and bytes."""
Cells = dict[tuple[date, int | None], Amount]
"""Amounts by date and period."""


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
        costs = [month.cost for month in self.months if month.cost is not None]
        return sum(costs) if costs else None

    def plain(self) -> dict[str, Any]:
        """Return plain JSON values."""
        return {
            "table": self.table,
            "rows": self.rows,
            "bytes": self.bytes,
            "rows_per_day": self.rows_per_day,
            "cost": self.cost,
            "months": [month.plain() for month in self.months],
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
    price = price_per_gb_month
    runs = run_facts(lake.tables, policies.rules)
    tables = [
        projected
        for name in contracts
        if (projected := _table(lake, contracts[name], policies, runs, today)) is not None
    ]
    gains = kept_of_a_row(lake.tables) if any(one.folds is not None for one in tables) else {}
    forecasts = []
    for table in tables:
        by_month = []
        for at in range(1, months + 1):
            end = today + timedelta(days=at * MONTH_DAYS)
            amounts = [_held_at_end(table.cells, table.rate or {}, today, end)]
            if table.contract.table == DOWNSAMPLED:
                amounts += [
                    _aggregate_rows(other, gains.get(other.folds or ("", 0)), table, today, end) for other in tables
                ]
            rows, size = _sum(amounts)
            by_month.append(Month(end, round(rows), round(size), None if price is None else size / GB * price))
        per_day = None if table.rate is None else sum(rows for rows, _ in table.rate.values())
        forecasts.append(Forecast(table.contract.table, table.rows, table.bytes, per_day, tuple(by_month)))
    return forecasts


@dataclass(frozen=True, slots=True)
class _Table:
    """What a table holds, by date and by days after which it goes, and what comes a day, by these days.

    Attributes
    ----------
    folds, kept
        Table and interval (ns) of the rule that downsamples it, and the days after which its rows become aggregates;
        None where none does.
    """

    contract: "Contract"
    rows: int
    bytes: int
    cells: Cells
    rate: dict[int | None, Amount] | None
    folds: tuple[str, int] | None
    kept: int


def _table(lake: "Lake", contract: "Contract", policies: "Policies", runs: RunFacts, today: date) -> _Table | None:
    handle = latest(lake.tables, contract.table)
    if handle is None:
        return None
    live = files(handle)
    parts = Parts(lake, contract, policies.rules, (), runs)
    rule, days = downsampling_rule(contract, policies.rules)
    cells: Cells = defaultdict(lambda: (0.0, 0.0))
    for values, day, share_rows, some_bytes in parts.shares(live):
        period = parts.of(values).period_days
        period = days if rule is not None and (period is None or days < period) else period
        rows, size = cells[day, period]
        cells[day, period] = (rows + share_rows, size + some_bytes)
    held, size_bytes = (int(pc.sum(live[name]).as_py() or 0) for name in ("num_records", "size_bytes"))
    folds = None if rule is None else (contract.table, (rule.interval_s or 0) * 1_000_000_000)
    return _Table(contract, held, size_bytes, cells, _rate(cells, today), folds, days)


def kept_of_a_row(tables: "Tables") -> dict[tuple[str, int], Amount]:
    """Return rows and bytes of aggregates that a row left so far, by table and interval (ns)."""
    handle = latest(tables, DOWNSAMPLED)
    if handle is None:
        return {}
    live = files(handle)
    rows = read(tables, packaged(DOWNSAMPLED), ["table", "interval_ns", "rows"])
    size = float(pc.sum(live["size_bytes"]).as_py() or 0) / max(rows.num_rows, 1)
    sums = rows.group_by(["table", "interval_ns"]).aggregate([("rows", "sum"), ([], "count_all")]).to_pylist()
    return {
        (one["table"], one["interval_ns"]): (
            one["count_all"] / one["rows_sum"],
            size * one["count_all"] / one["rows_sum"],
        )
        for one in sums
        if one["rows_sum"]
    }


def _aggregate_rows(source: _Table, gain: Amount | None, into: _Table, today: date, end: date) -> Amount:
    """Return what a table's rows left in the table of aggregates by the end of a day, and is kept there."""
    if gain is None:
        return 0.0, 0.0
    longest = max((period for _, period in into.cells if period is not None), default=None)
    most = (end - date.min).days if longest is None else longest
    there = sum(
        rows
        for (day, period), (rows, _) in source.cells.items()
        if period == source.kept and source.kept < (end - day).days <= most
    )
    days = max(0, min((end - today).days - 1, most) - source.kept)
    coming = sum(rows for period, (rows, _) in (source.rate or {}).items() if period == source.kept) * days
    return (there + coming) * gain[0], (there + coming) * gain[1]


def _sum(amounts: Sequence[Amount]) -> Amount:
    return sum(rows for rows, _ in amounts), sum(size for _, size in amounts)


def _rate(cells: Mapping[tuple[date, int | None], Amount], today: date) -> dict[int | None, Amount] | None:
    """Return rows and bytes that come a day, by period; None where no whole day tells."""
    days = [day for day, _ in cells if day < today]
    if not days:
        return None
    first = max(min(days), today - timedelta(days=GROWTH_DAYS))
    span = (today - first).days
    rates: dict[int | None, Amount] = {}
    for (day, period), (rows, size) in cells.items():
        if first <= day < today:
            before = rates.get(period, (0.0, 0.0))
            rates[period] = (before[0] + rows / span, before[1] + size / span)
    return rates


def _held_at_end(
    cells: Mapping[tuple[date, int | None], Amount], rate: Mapping[int | None, Amount], today: date, end: date
) -> Amount:
    """Forecast what is stored at the end of a day: current rows not yet due, and the last days of new ones."""
    stays = [amount for (day, period), amount in cells.items() if period is None or (end - day).days <= period]
    coming = (end - today).days
    grown = [
        (rows * span, size * span)
        for period, (rows, size) in rate.items()
        for span in (coming if period is None else min(coming, period + 1),)
    ]
    return _sum([*stays, *grown])


def over_budget(tables: "Tables", contracts: "Mapping[str, Contract]", policies: "Policies") -> list[str]:
    """Return the budgets that are passed now, in lines; from the Delta logs."""
    lines = []
    for rule in policies.rules:
        if rule.budget_bytes is None:
            continue
        handles = [latest(tables, contract.table) for contract in contracts.values() if rule.may_match(contract)]
        held = sum(int(pc.sum(files(handle)["size_bytes"]).as_py() or 0) for handle in handles if handle is not None)
        if held > rule.budget_bytes:
            lines.append(
                f"{rule.at}: {held:,} bytes are over the {rule.budget_bytes:,} of rule {rule.name} ({rule.owner})"
            )
    return lines
