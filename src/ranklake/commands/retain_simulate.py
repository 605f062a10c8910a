"""``ranklake retain simulate``: what tables will hold under these policies and under changed ones."""

from datetime import UTC, datetime
from pathlib import Path

import click

from ranklake.commands.context import with_context
from ranklake.commands.options import json_option, lake_option
from ranklake.commands.retain_policies import policies_option
from ranklake.context import Context
from ranklake.retention.plans.forecast import Forecast
from ranklake.retention.plans.forecast import simulate as simulate_tables
from ranklake.retention.policies.policies import load_policies
from ranklake.views.json_output import show_json
from ranklake.views.table import TextColumn, numbers, table_lines
from ranklake.views.tell import tell
from ranklake.views.words import size_text

_MOST_MONTHS = 120


@click.command()
@lake_option
@policies_option
@click.option(
    "--months", type=click.IntRange(1, _MOST_MONTHS), default=12, show_default=True, help="Months of 30 days."
)
@click.option("--price", type=click.FloatRange(0), metavar="NUMBER", help="Price of 10^9 bytes stored for a month.")
@click.option("--currency", metavar="CODE", default="", help="Currency of the price, shown with costs.")
@json_option
@with_context
def simulate(
    context: Context, place: Path | None, months: int, price: float | None, currency: str, *, as_json: bool
) -> None:
    """Show rows, bytes and cost of each table in months to come, under the configured policies.

    With --policies, under those too, and the difference. Growth is the mean of the last 30 days. Without --price, costs
    are not known.
    """
    lake = context.open_lake()
    contracts, today = lake.contracts(), datetime.now(UTC).date()
    now = simulate_tables(lake, contracts, context.policies(lake), today, months, price)
    changed = None
    if place is not None:
        others = load_policies(contracts, place, context.config.retention.region)
        changed = simulate_tables(lake, contracts, others, today, months, price)
    if as_json:
        plain = [one.plain() for one in now], None if changed is None else [one.plain() for one in changed]
        show_json(
            {"as_of": today.isoformat(), "currency": currency or None, "configured": plain[0], "changed": plain[1]}
        )
    else:
        _show(now, changed, months, currency)


def _show(now: list[Forecast], changed: list[Forecast] | None, months: int, currency: str) -> None:
    heads = [f"rows in {months} months", "size", f"cost{f' {currency}' if currency else ''}"]
    further = [] if changed is None else [f"changed: {head}" for head in heads]
    columns = (TextColumn("table"), *numbers(("rows now", "size now", "rows a day", *heads, *further)))
    others = {one.table: one for one in changed or ()}
    lines = []
    for one in now:
        per_day = "unknown" if one.rows_per_day is None else f"{one.rows_per_day:,.0f}"
        cells = [one.table, f"{one.rows:,}", size_text(one.bytes), per_day, *_last(one)]
        lines.append([*cells, *([] if changed is None else _last(others[one.table]))])
    tell(*(table_lines(columns, lines) if lines else ["the lake has no tables"]))


def _last(one: Forecast) -> list[str]:
    last = one.months[-1]
    return [f"{last.rows:,}", size_text(last.bytes), "unknown" if one.cost is None else f"{one.cost:,.2f}"]
