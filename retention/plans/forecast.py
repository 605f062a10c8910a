"""Forecasts the size of tables in the next months under given policies: rows, bytes and, with a price, cost.

Current sizes come from the Delta log. Growth is the mean of the last 30 days, or of all days of a younger table. A
downsampled row leaves its table and adds the mean size of its aggregates so far to the table of aggregates; without
aggregates so far it adds nothing. Nothing is written.
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
"""Number of past days whose mean is the daily growth."""
UNKNOWN: Final = None
"""Team of runs without a team, and metric of rows without a metric."""


@dataclass(slots=True)
class StoredBytes:
    """Stored rows and bytes of one table, team or metric.

    Attributes
    ----------
    rows, bytes
        Current totals.
    by_day
        Bytes by date.
    """

    name: str | None
    rows: int = 0
    bytes: float = 0.0
    by_day: dict[date, float] = field(default_factory=lambda: defaultdict(float))

    def add(self, day: date, rows: int, size_bytes: float) -> None:
        """Add rows of a date."""
        self.rows += rows
        self.bytes += size_bytes
        self.by_day[day] += size_bytes

    def bytes_per_day(self, today: date, days: int = GROWTH_DAYS) -> float | None:
        """Return the mean growth over the last complete days; None if there are no rows from before today."""
        past_days = [day for day in self.by_day if day < today]
        if not past_days:
            return None
        first = max(min(past_days), today - timedelta(days=days))
        return sum(size for day, size in self.by_day.items() if first <= day < today) / (today - first).days

    def plain(self, today: date, noun: str) -> dict[str, Any]:
        """Return plain JSON values."""
        per_day = self.bytes_per_day(today)
        return {noun: self.name, "rows": self.rows, "bytes": round(self.bytes), "bytes_per_day": per_day}


def growth(
    lake: "Lake", contracts: "Mapping[str, Contract]"
) -> tuple[list[StoredBytes], list[StoredBytes], list[StoredBytes]]:
    """Return the sizes of tables, teams and metrics, each list with the largest first."""
    teams = {run: facts.get("team", frozenset()) for run, facts in all_run_facts(lake.tables).items()}
    tables: dict[str | None, StoredBytes] = {}
    by_team: dict[str | None, StoredBytes] = {}
    by_metric: dict[str | None, StoredBytes] = {}
    for contract in contracts.values():
        for columns, values, day, rows, size_bytes in _cells(lake, contract):
            tables.setdefault(contract.table, StoredBytes(contract.table)).add(day, rows, size_bytes)
            row = dict(zip(columns, values, strict=True))
            if "run" in columns:
                team = ", ".join(sorted(teams.get(row["run"], ()))) or UNKNOWN
                by_team.setdefault(team, StoredBytes(team)).add(day, rows, size_bytes)
            if "metric" in columns:
                by_metric.setdefault(row["metric"], StoredBytes(row["metric"])).add(day, rows, size_bytes)
    return _largest_first(tables), _largest_first(by_team), _largest_first(by_metric)


def _largest_first(sizes: Mapping[str | None, StoredBytes]) -> list[StoredBytes]:
    return sorted(sizes.values(), key=lambda stored: (-stored.bytes, stored.name or ""))


def _cells(lake: "Lake", contract: "Contract") -> Iterator[tuple[tuple[str, ...], tuple[Any, ...], date, int, float]]:
    """Yield groups of rows: the names of run and metric columns, their values, and date, rows and bytes."""
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
"""Amounts by date, and by the period in days after which they leave the table; None for never."""


@dataclass(frozen=True, slots=True)
class Month:
    """Size of a table at the end of a simulated month of 30 days. `cost` is for that month; None without a price."""

    day: date
    rows: int
    bytes: int
    cost: float | None

    def plain(self) -> dict[str, Any]:
        """Return plain JSON values."""
        return {"date": self.day.isoformat(), "rows": self.rows, "bytes": self.bytes, "cost": self.cost}


@dataclass(frozen=True, slots=True)
class Forecast:
    """The simulated months of a table.

    Attributes
    ----------
    rows, bytes
        Current size.
    rows_per_day
        Assumed growth; None if the table has no complete day, so that no growth is assumed.
    months
        The months in order.
    """

    table: str
    rows: int
    bytes: int
    rows_per_day: float | None
    months: tuple[Month, ...]

    @property
    def cost(self) -> float | None:
        """Cost of all months; None without a price."""
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
    """Return a forecast for each table of the lake, as if each plan were applied on the day when it is due.

    Parameters
    ----------
    price_per_gb_month
        Price of 10^9 bytes stored for 30 days; None for forecasts without cost.
    """
    price = price_per_gb_month
    runs = run_facts(lake.tables, policies.rules)
    tables = [
        table for contract in contracts.values() if (table := _table(lake, contract, policies, runs, today)) is not None
    ]
    gains = aggregates_per_row(lake.tables) if any(table.source is not None for table in tables) else {}
    forecasts = []
    for table in tables:
        by_month = []
        for month in range(1, months + 1):
            end = today + timedelta(days=month * MONTH_DAYS)
            amounts = [_amount_at_end(table.cells, table.rate or {}, today, end)]
            if table.contract.table == DOWNSAMPLED:
                amounts += [
                    _aggregate_amount(other, gains.get(other.source or ("", 0)), table, today, end) for other in tables
                ]
            rows, size = _sum(amounts)
            by_month.append(Month(end, round(rows), round(size), None if price is None else size / GB * price))
        per_day = None if table.rate is None else sum(rows for rows, _ in table.rate.values())
        forecasts.append(Forecast(table.contract.table, table.rows, table.bytes, per_day, tuple(by_month)))
    return forecasts


@dataclass(frozen=True, slots=True)
class _Table:
    """Current size and growth of a table.

    Attributes
    ----------
    cells
        Current rows and bytes.
    rate
        Rows and bytes per day, by period; None if the table has no complete day.
    source
        For a downsampled table, its name and the interval (ns) of its aggregates; None for other tables.
    downsample_days
        Days after which its rows are downsampled.
    """

    contract: "Contract"
    rows: int
    bytes: int
    cells: Cells
    rate: dict[int | None, Amount] | None
    source: tuple[str, int] | None
    downsample_days: int


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
    total_rows, total_bytes = (int(pc.sum(live[name]).as_py() or 0) for name in ("num_records", "size_bytes"))
    source = None if rule is None else (contract.table, (rule.interval_s or 0) * 1_000_000_000)
    return _Table(contract, total_rows, total_bytes, cells, _rate(cells, today), source, days)


def aggregates_per_row(tables: "Tables") -> dict[tuple[str, int], Amount]:
    """Return the mean rows and bytes of aggregates per downsampled row so far, by table and interval (ns)."""
    handle = latest(tables, DOWNSAMPLED)
    if handle is None:
        return {}
    live = files(handle)
    rows = read(tables, packaged(DOWNSAMPLED), ["table", "interval_ns", "rows"])
    size = float(pc.sum(live["size_bytes"]).as_py() or 0) / max(rows.num_rows, 1)
    sums = rows.group_by(["table", "interval_ns"]).aggregate([("rows", "sum"), ([], "count_all")]).to_pylist()
    return {
        (row["table"], row["interval_ns"]): (
            row["count_all"] / row["rows_sum"],
            size * row["count_all"] / row["rows_sum"],
        )
        for row in sums
        if row["rows_sum"]
    }


def _aggregate_amount(source: _Table, gain: Amount | None, target: _Table, today: date, end: date) -> Amount:
    """Return the rows and bytes that downsampling of one table adds to the table of aggregates by the end of a day."""
    if gain is None:
        return 0.0, 0.0
    longest = max((period for _, period in target.cells if period is not None), default=None)
    most = (end - date.min).days if longest is None else longest
    current_rows = sum(
        rows
        for (day, period), (rows, _) in source.cells.items()
        if period == source.downsample_days and source.downsample_days < (end - day).days <= most
    )
    days = max(0, min((end - today).days - 1, most) - source.downsample_days)
    rates = (source.rate or {}).items()
    new_rows = sum(rows for period, (rows, _) in rates if period == source.downsample_days) * days
    return (current_rows + new_rows) * gain[0], (current_rows + new_rows) * gain[1]


def _sum(amounts: Sequence[Amount]) -> Amount:
    return sum(rows for rows, _ in amounts), sum(size for _, size in amounts)


def _rate(cells: Mapping[tuple[date, int | None], Amount], today: date) -> dict[int | None, Amount] | None:
    """Return the mean rows and bytes per day, by period; None if there is no complete day."""
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


def _amount_at_end(
    cells: Mapping[tuple[date, int | None], Amount], rate: Mapping[int | None, Amount], today: date, end: date
) -> Amount:
    """Return rows and bytes at the end of a day: current rows that are not due by then, and the growth until then."""
    current = [amount for (day, period), amount in cells.items() if period is None or (end - day).days <= period]
    new_days = (end - today).days
    growth_amounts = [
        (rows * span, size * span)
        for period, (rows, size) in rate.items()
        for span in (new_days if period is None else min(new_days, period + 1),)
    ]
    return _sum([*current, *growth_amounts])


def over_budget(tables: "Tables", contracts: "Mapping[str, Contract]", policies: "Policies") -> list[str]:
    """Return a line for each rule whose budget is exceeded now, by the sizes in the Delta logs."""
    lines = []
    for rule in policies.rules:
        if rule.budget_bytes is None:
            continue
        handles = [latest(tables, contract.table) for contract in contracts.values() if rule.may_match(contract)]
        size = sum(int(pc.sum(files(handle)["size_bytes"]).as_py() or 0) for handle in handles if handle is not None)
        if size > rule.budget_bytes:
            lines.append(
                f"{rule.at}: {size:,} bytes are over the {rule.budget_bytes:,} of rule {rule.name} ({rule.owner})"
            )
    return lines
