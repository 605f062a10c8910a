"""Alerts about budgets that are or will be exceeded and about fast growth, with a change of policy that would fix it.

The change is the longest period of the rule's rows that meets the budget. For growth, it is the longest period whose
size equals that of the allowed growth. Savings are simulated, so that legal minimums and stronger rules count. A change
that they make useless is not reported.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date
from typing import TYPE_CHECKING, Any, Final

from ranklake.retention.plans.forecast import GB, Forecast, simulate
from ranklake.retention.policies.model import Rule
from ranklake.retention.policies.order import days
from ranklake.retention.policies.policies import Policies

if TYPE_CHECKING:
    from ranklake.lake.contracts.model import Contract
    from ranklake.lake.store.lake import Lake
    from ranklake.retention.plans.forecast import StoredBytes

_MOST_DAYS: Final = 3650


@dataclass(frozen=True, slots=True)
class PolicyChange:
    """A proposed change of the policies.

    Attributes
    ----------
    text
        What to write, and where.
    saves_bytes, saves_per_month
        Saved bytes at the end of the simulated months, and saved cost per month; None without a price.
    """

    text: str
    saves_bytes: int
    saves_per_month: float | None

    def plain(self) -> dict[str, Any]:
        """Return plain JSON values."""
        return {"change": self.text, "saves_bytes": self.saves_bytes, "saves_per_month": self.saves_per_month}


@dataclass(frozen=True, slots=True)
class Alert:
    """A budget or a growth limit of a rule that is exceeded, or will be.

    Attributes
    ----------
    kind
        ``budget``, ``budget_forecast``, ``growth``.
    rule
        The rule with the limit.
    message
        The alert in words.
    day
        First day on which the limit will be exceeded; None if it is exceeded now.
    hint, why_not
        The change that would fix it, or the reason why none is proposed.
    """

    kind: str
    rule: Rule
    message: str
    day: date | None
    hint: PolicyChange | None
    why_not: str

    def plain(self) -> dict[str, Any]:
        """Return plain JSON values."""
        return {
            "kind": self.kind,
            "rule": self.rule.name,
            "owner": self.rule.owner,
            "at": str(self.rule.at),
            "what": self.message,
            "date": None if self.day is None else self.day.isoformat(),
            "hint": None if self.hint is None else self.hint.plain(),
            "why_not": self.why_not or None,
        }


@dataclass(frozen=True, slots=True)
class Outlook:
    """Input of alerts: the lake, its policies, the months to simulate, and the price of 10^9 bytes for a month."""

    lake: "Lake"
    contracts: "Mapping[str, Contract]"
    policies: Policies
    today: date
    months: int
    price: float | None


def alerts(outlook: Outlook, tables: Sequence["StoredBytes"], forecasts: Sequence[Forecast]) -> Iterator[Alert]:
    """Yield the alerts for limits that are exceeded now or in the simulated months.

    Parameters
    ----------
    tables, forecasts
        Results of `ranklake.retention.plans.forecast` for the same lake.
    """
    for rule in outlook.policies.rules:
        names = {name for name, contract in outlook.contracts.items() if rule.may_match(contract)}
        rule_forecasts = [forecast for forecast in forecasts if forecast.table in names]
        if not rule_forecasts:
            continue
        if rule.budget_bytes is not None:
            yield from _budget_alerts(outlook, rule, rule_forecasts)
        if rule.growth_bytes_per_day is not None:
            rule_tables = [table for table in tables if table.name in names]
            yield from _growth_alerts(outlook, rule, rule_tables, rule_forecasts)


def _budget_alerts(outlook: Outlook, rule: Rule, own: Sequence[Forecast]) -> Iterator[Alert]:
    budget = rule.budget_bytes
    assert budget is not None
    size = sum(forecast.bytes for forecast in own)
    if size > budget:
        message, kind, day = f"{size:,} bytes are held, and {budget:,} are allowed", "budget", None
    else:
        ends = [
            (months[0].day, sum(month.bytes for month in months))
            for months in zip(*(forecast.months for forecast in own), strict=True)
        ]
        excess = next(((day, size) for day, size in ends if size > budget), None)
        if excess is None:
            return
        day, kind = excess[0], "budget_forecast"
        message = f"about {excess[1]:,} bytes will be held on {day}, and {budget:,} are allowed"
    hint = _longest_period(outlook, rule, own, budget)
    yield Alert(
        kind, rule, message, day, hint, "" if hint else "no period alone keeps the budget: legal minimums, or growth"
    )


def _growth_alerts(
    outlook: Outlook, rule: Rule, tables: Sequence["StoredBytes"], own: Sequence[Forecast]
) -> Iterator[Alert]:
    allowed = rule.growth_bytes_per_day
    assert allowed is not None
    growth = sum(table.bytes_per_day(outlook.today) or 0 for table in tables)
    if growth <= allowed:
        return
    target = int(_last_month_bytes(own) * allowed / growth)
    hint = _longest_period(outlook, rule, own, target)
    message = f"{growth:,.0f} bytes come a day, and {allowed:,} are allowed"
    yield Alert("growth", rule, message, None, hint, "" if hint else "no period alone makes up for it")


def _longest_period(outlook: Outlook, rule: Rule, own: Sequence[Forecast], most_bytes: int) -> PolicyChange | None:
    """Return the change to the longest period under which the last month has at most `most_bytes`; None without one."""
    before = _last_month_bytes(own)
    low, high = 0, _MOST_DAYS
    sizes = {0: before}
    while high - low > 1:
        middle = (low + high) // 2
        sizes[middle] = _bytes_with_period(outlook, rule, own, middle)
        low, high = (middle, high) if sizes[middle] <= most_bytes else (low, middle)
    if low == 0 or sizes[low] >= before:
        return None
    saves = before - sizes[low]
    money = None if outlook.price is None else saves / GB * outlook.price
    return PolicyChange(_text(outlook.policies, rule, low), saves, money)


def _bytes_with_period(outlook: Outlook, rule: Rule, own: Sequence[Forecast], period: int) -> int:
    names = {forecast.table for forecast in own}
    contracts = {name: contract for name, contract in outlook.contracts.items() if name in names}
    policies = replace(outlook.policies, rules=_rules_with(outlook.policies, rule, period))
    return _last_month_bytes(simulate(outlook.lake, contracts, policies, outlook.today, outlook.months))


def _rules_with(policies: Policies, rule: Rule, period: int) -> tuple[Rule, ...]:
    """Return the rules of the policies, with another period for the rows that a rule selects."""
    same = _period_rules(policies, rule)
    if same:
        return tuple(replace(item, delete_after_days=period) if item in same else item for item in policies.rules)
    return (*policies.rules, replace(rule, name=f"{rule.name}-period", deletes=True, delete_after_days=period))


def _period_rules(policies: Policies, rule: Rule) -> list[Rule]:
    """Return the rules with the same selectors that set a period. All must change, since the longest period decides."""
    return [item for item in policies.rules if item.where == rule.where and item.deletes]


def _text(policies: Policies, rule: Rule, period: int) -> str:
    same = _period_rules(policies, rule)
    if same:
        return "; ".join(
            f"{item.at}: delete_after_days: {period} ({days(item.delete_after_days)} now)" for item in same
        )
    return f"{rule.at}: add delete_after_days: {period} to rule {rule.name}"


def _last_month_bytes(forecasts: Sequence[Forecast]) -> int:
    return sum(forecast.months[-1].bytes for forecast in forecasts)
