"""``ranklake retain explain | lint | new | test | cost``: effects, mistakes, tests and costs of policies."""

import shutil
from datetime import UTC, date, datetime
from pathlib import Path

import click

from ranklake.commands.context import with_context
from ranklake.commands.options import day_of, json_option, lake_option, overriding
from ranklake.context import Context
from ranklake.lake.store.lake import Lake
from ranklake.printable import counted
from ranklake.redaction.redact import redact_uri
from ranklake.retention.holds.holds import holds_of, rules_on
from ranklake.retention.plans.alerts import Alert, Outlook, alerts
from ranklake.retention.plans.explain import Explanation, RowSelection
from ranklake.retention.plans.explain import explain as explain_rows
from ranklake.retention.plans.forecast import GB, Forecast, StoredBytes, growth
from ranklake.retention.plans.forecast import simulate as simulate_tables
from ranklake.retention.policies.cases import case_files, run_cases
from ranklake.retention.policies.lint import lint as lint_sources
from ranklake.retention.policies.order import days
from ranklake.retention.policies.policies import load_policies
from ranklake.retention.policies.read import PACKAGED, read_policies
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
@click.option("--check", is_flag=True, help="Exit with 1 if a budget or growth limit is or will be exceeded.")
@json_option
@with_context
def cost(context: Context, months: int, price: float | None, currency: str, *, check: bool, as_json: bool) -> int:
    """Show size, growth and cost of tables, teams and metrics, and exceeded budgets.

    Growth is the mean of the last 30 whole days. Without --price, costs are unknown. For each budget or growth limit
    that is or will be exceeded, a change of the policies that would fix it is shown, with its saving.
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
        _show_cost(tables, teams, metrics, forecasts, today, price, currency)
        for item in results:
            _print_alert(item, currency)
    return 1 if check and results else 0


def _plain(held: StoredBytes, today: date, noun: str, price: float | None) -> dict[str, object]:
    return {**held.plain(today, noun), "cost_per_month": None if price is None else held.bytes / GB * price}


def _show_cost(
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
    tell(f"  would fix it: {alert.hint.text}; saves {size_text(alert.hint.saves_bytes)}{more} ")


policies_option = click.option(
    "--policies",
    "place",
    type=click.Path(path_type=Path),
    metavar="PATH",
    help="Folder of policies, or one file; default: the configured ones.",
)


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
    """Forecast rows, bytes and cost of each table, under the configured policies.

    With --policies, under those too, and the difference. Growth is the mean of the last 30 days. Without --price, costs
    are not known.
    """
    lake = context.open_lake()
    contracts, today = lake.contracts(), datetime.now(UTC).date()
    now = simulate_tables(lake, contracts, context.policies(lake), today, months, price)
    changed = None
    if place is not None:
        other_policies = context.policies(lake, place)
        changed = simulate_tables(lake, contracts, other_policies, today, months, price)
    if as_json:
        plain = [one.plain() for one in now], None if changed is None else [one.plain() for one in changed]
        show_json(
            {"as_of": today.isoformat(), "currency": currency or None, "configured": plain[0], "changed": plain[1]}
        )
    else:
        _show_simulate(now, changed, months, currency)


def _show_simulate(now: list[Forecast], changed: list[Forecast] | None, months: int, currency: str) -> None:
    heads = [f"rows in {months} months", "size", f"cost{f' {currency}' if currency else ''}"]
    changed_heads = [] if changed is None else [f"changed: {head}" for head in heads]
    columns = (TextColumn("table"), *numbers(("rows now", "size now", "rows a day", *heads, *changed_heads)))
    others = {one.table: one for one in changed or ()}
    lines = []
    for item in now:
        per_day = "unknown" if item.rows_per_day is None else f"{item.rows_per_day:,.0f}"
        cells = [item.table, f"{item.rows:,}", size_text(item.bytes), per_day, *_last_month_cells(item)]
        lines.append([*cells, *([] if changed is None else _last_month_cells(others[item.table]))])
    tell(*(table_lines(columns, lines) if lines else ["the lake has no tables"]))


def _last_month_cells(forecast: Forecast) -> list[str]:
    last = forecast.months[-1]
    return [f"{last.rows:,}", size_text(last.bytes), "unknown" if forecast.cost is None else f"{forecast.cost:,.2f}"]


_RULES = tuple(map(TextColumn, ("", "rule", "period", "why not used", "at")))

optional_lake = overriding(
    "--lake",
    place="lake.uri",
    metavar="URI",
    help="Lake whose tables and runs are looked at; default: the configured one.",
)


@click.command()
@click.argument("table", metavar="TABLE")
@click.argument("day", metavar="DATE")
@click.option(
    "--run", metavar="RUN", help="Rows of this run; its team, labels and environment are looked up in the lake."
)
@click.option("--metric", metavar="NAME", help="Rows of this metric.")
@click.option("--severity", metavar="NAME", help="Rows of this severity: trace, debug, info, warning, error or fatal.")
@policies_option
@optional_lake
@json_option
@with_context
def explain(
    context: Context,
    table: str,
    day: str,
    run: str | None,
    metric: str | None,
    severity: str | None,
    place: Path | None,
    *,
    as_json: bool,
) -> None:
    """Explain how long rows of a table and date are kept, by which rule, and why other rules do not apply."""
    lake = _lake(context)
    contracts = context.contracts() if lake is None else lake.contracts()
    policies = context.policies(lake, place)
    selection = RowSelection(table, day_of(day, "DATE"), run, metric, severity)
    hold_rules = () if lake is None else rules_on(holds_of(lake, datetime.now(UTC).date()), selection.day)
    result = explain_rows(lake, contracts, policies, selection, hold_rules)
    if as_json:
        show_json(result.plain(datetime.now(UTC).date()))
    else:
        _show(result)


@click.command()
@policies_option
@click.option("--strict", is_flag=True, help="Fail on warnings, too.")
@optional_lake
@json_option
@with_context
def lint(context: Context, place: Path | None, *, strict: bool, as_json: bool) -> int:
    """List mistakes in the policies, each with file, line and remedy; exit 1 if there is an error.

    Finds misspelt names, contradictions, rules that never apply, tables without a rule, rules that remove everything,
    periods below one day, and reviews that are overdue. With --policies no lake is opened: tables are those of the
    configured contracts.
    """
    lake = None if place is not None else _lake(context)
    contracts = context.contracts() if lake is None else lake.contracts()
    sources = read_policies(place or context.policy_place or PACKAGED)
    results = lint_sources(sources, contracts, context.config.retention.region, datetime.now(UTC).date())
    errors = sum(one.error for one in results)
    if as_json:
        show_json([one.plain() for one in results])
    else:
        for item in results:
            tell(str(item))
        rules = f"{counted(len(sources.rules), 'rule')} in {counted(len(sources.documents), 'file')}"
        tell(f"{rules}: {counted(errors, 'error')}, {counted(len(results) - errors, 'warning')}")
    return 1 if errors or (strict and results) else 0


@click.command()
@click.argument("folder", metavar="FOLDER", type=click.Path(path_type=Path, file_okay=False))
def new(folder: Path) -> None:
    """Write the packaged policies and their tests into a new or empty FOLDER, for you to edit."""
    from ranklake.retention.policies.file import json_schema_text  # pydantic's import takes 40 ms

    if folder.exists() and any(folder.iterdir()):
        raise click.UsageError(f"{folder} is not empty; name a new folder")
    for source in sorted([*PACKAGED.glob("*.yaml"), *PACKAGED.glob("tests/*.yaml")]):
        target = folder / source.relative_to(PACKAGED)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, target)
        tell(str(target))
    (folder / "schema.json").write_text(json_schema_text())
    tell(str(folder / "schema.json"))


@click.command("test")
@click.argument("files", metavar="[FILE]...", nargs=-1, type=click.Path(path_type=Path))
@policies_option
@optional_lake
@json_option
@with_context
def test(context: Context, files: tuple[Path, ...], place: Path | None, *, as_json: bool) -> int:
    """Run policy tests: given rows, expected decisions. Exits 1 if one fails.

    Without a FILE, those in the folder tests beside the policies.
    """
    lake = _lake(context)
    contracts = context.contracts() if lake is None else lake.contracts()
    chosen = place or context.policy_place
    policies = load_policies(contracts, chosen, context.config.retention.region)
    results = run_cases(files or case_files(chosen or PACKAGED), policies, contracts)
    failed = [one for one in results if not one.passed]
    if as_json:
        show_json([one.plain() for one in results])
    else:
        for item in failed:
            tell(item.line)
        hint = "" if results else f"; write some into {(chosen or PACKAGED) / 'tests'}"
        tell(f"{counted(len(results), 'policy test')}, {len(failed)} failed{hint}")
    return 1 if failed else 0


def _lake(context: Context) -> Lake | None:
    return context.open_lake() if context.config.lake.uri else None


def _show(explanation: Explanation) -> None:
    selection, decision = explanation.asked, explanation.decision
    facts = [f"{key} {', '.join(sorted(explanation.facts[key]))}" for key in explanation.facts if key != "table"]
    tell(f"{selection.table} {selection.day}: {'; '.join(facts)}")
    if explanation.due is None:
        tell(f"never deleted by time: {decision.decided_by}")
    else:
        decided_by = f"{decision.decided_by} ({decision.level.value})"
        tell(f"kept {days(decision.period_days)}, due from {explanation.due}: {decided_by}")
    if decision.rule is not None:
        tell(f"reason: {decision.rule.reason}", f"basis: {decision.rule.basis} (owner: {decision.rule.owner})")
    lines = [
        ("*" if one.decides else "", one.rule.name, one.says, one.why, f"{one.rule.at.file.name}:{one.rule.at.line}")
        for one in explanation.steps
    ]
    if lines:
        tell(*table_lines(_RULES, lines))
    for mask in explanation.masks:
        tell(f"masks {mask.column} ({mask.mask}) from {mask.due}: {mask.rule.name}")
    if explanation.moving is not None and explanation.moving[0].destination is not None:
        rule, when = explanation.moving
        tell(f"moves to {redact_uri(explanation.moving[0].destination.to)} from {when}: {rule.name}")
    for moved in explanation.archives:
        tell(f"{counted(moved.rows, 'row')} archived in {redact_uri(moved.uri)} ({moved.archive})")
    if explanation.others:
        tell(f"other rules for some rows of {selection.table}: {', '.join(one.name for one in explanation.others)}")
    if explanation.note:
        tell(f"note: {explanation.note}")
