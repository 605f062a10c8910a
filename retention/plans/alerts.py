"""Alerts: budgets that are passed or will be, growth above what a rule allows, and the change that would fix it.

The change is the longest period, for the rule's rows, that keeps the budget (for growth: that holds as many bytes as
the allowed growth would). Its savings are simulated, so legal minimums and stronger rules count; a change that they
make useless is not reported.
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

_LONGEST: Final = 3650


@dataclass(frozen=True, slots=True)
class PolicyChange:
    """A change of the policies.

    Attributes
    ----------
    text
        What to write, and where.
    saves_bytes, saves_per_month
        At the end of the months looked ahead; money is None without a price.
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
        Which.
    message
        The alert in words.
    day
        First day on which the limit will be exceeded; None where it is already.
    hint, why_not
        The change that would fix it, or why none is proposed.
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
    """What alerts are reckoned from: the lake, its policies, and how far to look ahead at which price."""

    lake: "Lake"
    contracts: "Mapping[str, Contract]"
    policies: Policies
    today: date
    months: int
    price: float | None


def alerts(outlook: Outlook, tables: Sequence["StoredBytes"], forecasts: Sequence[Forecast]) -> Iterator[Alert]:
    """Yield what is passed, or will be in the months looked ahead.

    Parameters
    ----------
    tables, forecasts
        Of the same lake, as `ranklake.retention.plans.forecast` makes them.
    """
    for rule in outlook.policies.rules:
        mine = {name for name, one in outlook.contracts.items() if rule.may_match(one)}
        own = [forecast for forecast in forecasts if forecast.table in mine]
        if not own:
            continue
        if rule.budget_bytes is not None:
            yield from _budget(outlook, rule, own)
        if rule.growth_bytes_per_day is not None:
            yield from _growth(outlook, rule, [table for table in tables if table.name in mine], own)


def _budget(outlook: Outlook, rule: Rule, own: Sequence[Forecast]) -> Iterator[Alert]:
    budget = rule.budget_bytes
    assert budget is not None
    held = sum(one.bytes for one in own)
    if held > budget:
        message, kind, day = f"{held:,} bytes are held, and {budget:,} are allowed", "budget", None
    else:
        ends = [
            (months[0].day, sum(month.bytes for month in months))
            for months in zip(*(f.months for f in own), strict=True)
        ]
        passed = next(((day, size) for day, size in ends if size > budget), None)
        if passed is None:
            return
        day, kind = passed[0], "budget_forecast"
        message = f"about {passed[1]:,} bytes will be held on {day}, and {budget:,} are allowed"
    hint = _longest(outlook, rule, own, budget)
    yield Alert(
        kind, rule, message, day, hint, "" if hint else "no period alone keeps the budget: legal minimums, or growth"
    )


def _growth(outlook: Outlook, rule: Rule, held: Sequence["StoredBytes"], own: Sequence[Forecast]) -> Iterator[Alert]:
    allowed = rule.growth_bytes_per_day
    assert allowed is not None
    grows = sum(one.bytes_per_day(outlook.today) or 0 for one in held)
    if grows <= allowed:
        return
    target = int(_last_month_bytes(own) * allowed / grows)
    hint = _longest(outlook, rule, own, target)
    message = f"{grows:,.0f} bytes come a day, and {allowed:,} are allowed"
    yield Alert("growth", rule, message, None, hint, "" if hint else "no period alone makes up for it")


def _longest(outlook: Outlook, rule: Rule, own: Sequence[Forecast], most: int) -> PolicyChange | None:
    """Return the change to the longest period under which no more is held in the end; None where there is none."""
    before = _last_month_bytes(own)
    low, high = 0, _LONGEST
    held = {0: before}
    while high - low > 1:
        middle = (low + high) // 2
        held[middle] = _with_period(outlook, rule, own, middle)
        low, high = (middle, high) if held[middle] <= most else (low, middle)
    if low == 0 or held[low] >= before:
        return None
    saves = before - held[low]
    money = None if outlook.price is None else saves / GB * outlook.price
    return PolicyChange(_text(outlook.policies, rule, low), saves, money)


def _with_period(outlook: Outlook, rule: Rule, own: Sequence[Forecast], period: int) -> int:
    names = {one.table for one in own}
    mine = {name: one for name, one in outlook.contracts.items() if name in names}
    changed = replace(outlook.policies, rules=_policy_changes(outlook.policies, rule, period))
    return _last_month_bytes(simulate(outlook.lake, mine, changed, outlook.today, outlook.months))


def _policy_changes(policies: Policies, rule: Rule, period: int) -> tuple[Rule, ...]:
    same = _rules_with_period(policies, rule)
    if same:
        return tuple(replace(one, delete_after_days=period) if one in same else one for one in policies.rules)
    return (*policies.rules, replace(rule, name=f"{rule.name}-period", deletes=True, delete_after_days=period))


def _rules_with_period(policies: Policies, rule: Rule) -> list[Rule]:
    """Return the rules that give the same a period already: of equals the longest decides, so all change."""
    return [one for one in policies.rules if one.where == rule.where and one.deletes]


def _text(policies: Policies, rule: Rule, period: int) -> str:
    same = _rules_with_period(policies, rule)
    if same:
        return "; ".join(f"{one.at}: delete_after_days: {period} ({days(one.delete_after_days)} now)" for one in same)
    return f"{rule.at}: add delete_after_days: {period} to rule {rule.name}"


def _last_month_bytes(forecasts: Sequence[Forecast]) -> int:
    return sum(forecast.months[-1].bytes for forecast in forecasts)
