"""``ranklake retain cost``: what grows by how much, what it costs, and what would fix it."""

from datetime import UTC, date, datetime

import click

from ranklake.commands.context import with_context
from ranklake.commands.options import json_option, lake_option
from ranklake.context import Context
from ranklake.retention.plans.alerts import Alert, Outlook, alerts
from ranklake.retention.plans.forecast import GB, Forecast, StoredBytes, growth
from ranklake.retention.plans.forecast import simulate as simulate_tables
from ranklake.views.json_output import show_json
from ranklake.views.table import TextColumn, numbers, table_lines
from ranklake.views.tell import tell
from ranklake.views.words import size_text

_MOST_MONTHS = 120
_SHOWN = 20


@click.command()
@lake_option
@click.option(
    "--months",
    type=click.IntRange(1, _MOST_MONTHS),
    default=12,
    show_default=True,
    help="Months of 30 days to look ahead.",
)
@click.option("--price", type=click.FloatRange(0), metavar="NUMBER", help="Price of 10^9 bytes stored for a month.")
@click.option("--currency", metavar="CODE", default="", help="Currency of the price, shown with costs.")
@click.option("--check", is_flag=True, help="Exit with 1 where a budget or an allowed growth is passed, or will be.")
@json_option
@with_context
def cost(context: Context, months: int, price: float | None, currency: str, *, check: bool, as_json: bool) -> int:
    """Show what tables, teams and metrics hold, how they grow, what that costs, and which budgets it passes.

    Growth is the mean of the last 30 whole days. Without --price, costs are not known. For each budget or growth of the
    policies that is passed, or will be, the change of the policies that would mend it is shown, and what it saves.
    """
    lake = context.open_lake()
    contracts, policies, today = lake.contracts(), context.policies(lake), datetime.now(UTC).date()
    tables, teams, metrics = growth(lake, contracts)
    forecasts = simulate_tables(lake, contracts, policies, today, months, price)
    results = list(alerts(Outlook(lake, contracts, policies, today, months, price), tables, forecasts))
    if as_json:
        ends = {one.table: one.months[-1] for one in forecasts}
        show_json(
            {
                "as_of": today.isoformat(),
                "months": months,
                "price_per_gb_month": price,
                "currency": currency or None,
                "tables": [
                    {
                        **_plain(one, today, "table", price),
                        "forecast_bytes": ends[one.name or ""].bytes,
                        "forecast_cost_per_month": ends[one.name or ""].cost,
                    }
                    for one in tables
                ],
                "teams": [_plain(one, today, "team", price) for one in teams],
                "metrics": [_plain(one, today, "metric", price) for one in metrics],
                "alerts": [one.plain() for one in results],
            }
        )
    else:
        _show(tables, teams, metrics, forecasts, today, price, currency)
        for item in results:
            _print_alert(item, currency)
    return 1 if check and results else 0


def _plain(held: StoredBytes, today: date, noun: str, price: float | None) -> dict[str, object]:
    return {**held.plain(today, noun), "cost_per_month": None if price is None else held.bytes / GB * price}


def _show(
    tables: list[StoredBytes],
    teams: list[StoredBytes],
    metrics: list[StoredBytes],
    forecasts: list[Forecast],
    today: date,
    price: float | None,
    currency: str,
) -> None:
    money = f"a month{f' {currency}' if currency else ''}"
    ends = {one.table: one.months[-1] for one in forecasts}
    for noun, rows in (("table", tables), ("team", teams), ("metric", metrics)):
        if not rows:
            continue
        ahead = [f"in {len(forecasts[0].months)} months"] if noun == "table" else []
        columns = (TextColumn(noun), *numbers(("rows", "size", "a day", money, *ahead)))
        lines = [
            [
                one.name or "unknown",
                f"{one.rows:,}",
                size_text(one.bytes),
                "unknown" if (per_day := one.bytes_per_day(today)) is None else size_text(per_day),
                "unknown" if price is None else f"{one.bytes / GB * price:,.2f}",
                *([size_text(ends[one.name or ""].bytes)] if ahead else []),
            ]
            for one in rows[:_SHOWN]
        ]
        tell(*table_lines(columns, lines))
        if len(rows) > _SHOWN:
            tell(f"and {len(rows) - _SHOWN:,} more: --json has all")
        tell("")
    if not tables:
        tell("the lake has no tables")


def _print_alert(alert: Alert, currency: str) -> None:
    tell(f"{alert.rule.at}: rule {alert.rule.name} ({alert.rule.owner}): {alert.message}")
    if alert.hint is None:
        tell(f"  {alert.why_not}")
        return
    money = alert.hint.saves_per_month
    more = "" if money is None else f", {money:,.2f}{f' {currency}' if currency else ''} a month"
    tell(f"  would mend it: {alert.hint.text}; saves {size_text(alert.hint.saves_bytes)}{more} in the end")
