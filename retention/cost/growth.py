"""Growth: rows and bytes now and a day, by table, by team and by metric.

Bytes of a file with rows of several teams are shared out by rows. What is told of a day is what the lake holds of it
now: rows that retention took already are not in it.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import date, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from ranklake.lake.tables.live_files import files
from ranklake.lake.tables.tables import latest
from ranklake.retention.parts import Parts, all_run_facts
from ranklake.retention.rules.model import Place, Rule, row_keys_of

if TYPE_CHECKING:
    from ranklake.lake.contracts.model import Contract
    from ranklake.lake.store.store import Lake

GROWTH_DAYS: Final = 30
"""Whole days before today whose mean is the growth."""
UNKNOWN: Final = None
"""Team of runs that say none, metric of rows that have none."""


@dataclass(slots=True)
class Held:
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


def growth(lake: "Lake", contracts: "Mapping[str, Contract]") -> tuple[list[Held], list[Held], list[Held]]:
    """Return what tables, teams and metrics hold, the largest first."""
    teams = {run: facts.get("team", frozenset()) for run, facts in all_run_facts(lake).items()}
    tables: dict[str | None, Held] = {}
    by_team: dict[str | None, Held] = {}
    by_metric: dict[str | None, Held] = {}
    for contract in contracts.values():
        for columns, values, day, rows, size_bytes in _cells(lake, contract):
            tables.setdefault(contract.table, Held(contract.table)).add(day, rows, size_bytes)
            known = dict(zip(columns, values, strict=True))
            if "run" in columns:
                team = ", ".join(sorted(teams.get(known["run"], ()))) or UNKNOWN
                by_team.setdefault(team, Held(team)).add(day, rows, size_bytes)
            if "metric" in columns:
                by_metric.setdefault(known["metric"], Held(known["metric"])).add(day, rows, size_bytes)
    first, second, third = (
        sorted(one.values(), key=lambda held: (-held.bytes, held.name or "")) for one in (tables, by_team, by_metric)
    )
    return first, second, third


def _cells(lake: "Lake", contract: "Contract") -> Iterator[tuple[tuple[str, ...], tuple[Any, ...], date, int, float]]:
    """Yield the columns that tell rows apart, their values, and date, rows and bytes of them."""
    handle = latest(lake, contract.table)
    if handle is None:
        return
    live = files(handle)
    keys = row_keys_of(contract)
    where = {"run": ("*",), **({"metric": ("*",)} if "metric" in keys else {})} if "run" in keys else {}
    parts = Parts(lake, contract, [Rule("growth", where, "", "", "", Place(Path(), 1))], (), {})
    for values, day, rows, size_bytes in parts.shares(live):
        yield parts.columns, values, day, rows, size_bytes
