"""``ranklake retain``."""

import getpass
from datetime import UTC, date, datetime

import click

from ranklake.commands.context import with_context
from ranklake.commands.options import json_option, lake_option, optional_spool, spool_option
from ranklake.context import Context
from ranklake.lake.governance.retention_plans import RetentionPlan, register
from ranklake.retention.apply import apply as apply_plan
from ranklake.retention.apply import approve as approve_plan
from ranklake.retention.plan import make_plan
from ranklake.retention.sweep import Swept
from ranklake.retention.sweep import sweep as sweep_spool
from ranklake.views.json_output import json_text, show_json
from ranklake.views.table import TextColumn, numbers, table_lines
from ranklake.views.words import counted, size_text

_COLUMNS = (
    *map(TextColumn, ("table", "partition", "class")),
    *numbers(("kept days", "goes before", "rows", "bytes", "files")),
)


@click.group()
def retain() -> None:
    """Plan, approve and apply retention.

    Only a plan that somebody has approved removes anything.
    """


@retain.command()
@lake_option
@click.option("--as-of", metavar="DATE", help="Day to plan for, such as 2026-12-31; default: today (UTC).")
@json_option
@with_context
def plan(context: Context, as_of: str | None, *, as_json: bool) -> None:
    """List what is past its retention period, with reasons, and record it as a plan."""
    day = _day(as_of)
    lake = context.open_lake()
    made = make_plan(lake, lake.contracts(), context.policies(lake), day)
    if as_json:
        show_json({"as_of": day.isoformat(), "plan": None if made is None else made.plain()})
    elif made is None:
        click.echo(f"nothing is due on {day}")
    else:
        _show(made)


@retain.command()
@click.argument("name", metavar="PLAN")
@lake_option
@click.option("--by", metavar="NAME", required=True, help="Who approves; kept in the audit trail.")
@click.option("--reason", metavar="TEXT", help="Why; kept in the audit trail.")
@json_option
@with_context
def approve(context: Context, name: str, by: str, reason: str | None, *, as_json: bool) -> None:
    """Approve a plan, so that it can be applied."""
    found, fresh = approve_plan(context.open_lake(), name, _named(by), reason)
    if as_json:
        show_json({"approved_now": fresh, **found.plain()})
    elif fresh:
        click.echo(f"{name}: approved; apply it with 'ranklake retain apply {name}'")
    else:
        click.echo(f"{name}: {found.state} already; nothing written")


@retain.command()
@click.argument("name", metavar="PLAN")
@lake_option
@click.option("--by", metavar="NAME", help="Who applies it; default: the account that runs this.")
@click.option(
    "--single-operator",
    is_flag=True,
    help="Let the approver apply the plan, too; register, trail and outputs then say so.",
)
@optional_spool("Spool to sweep; default: the configured one.")
@json_option
@with_context
def apply(context: Context, name: str, by: str | None, *, single_operator: bool, as_json: bool) -> None:
    """Remove exactly what an approved plan names, including its bytes.

    Refuses a plan without an approval, one that the same person approved, and one whose partitions have changed since.
    Then deletes from the spool the segments, kept for replay, whose rows are all gone. If it is interrupted, run it
    again.
    """
    actor = _named(by if by is not None else getpass.getuser())
    lake = context.open_lake()
    contracts, policies = lake.contracts(), context.policies(lake)
    found, fresh = apply_plan(lake, name, actor, contracts, policies, single_operator=single_operator)
    swept = sweep_spool(lake, context.spool(), actor) if context.has_spool else None
    if as_json:
        show_json({"applied_now": fresh, "swept": swept, **found.plain()})
        return
    if fresh:
        click.echo(f"{name}: removed {_sums(found)} by plan {found.plan}{_alone(found)}")
    else:
        click.echo(f"{name}: applied already, by plan {found.plan}{_alone(found)}; nothing done")
    if swept is not None:
        click.echo(_told(swept))
    else:
        click.echo("no spool is configured: what it keeps for replay was not looked at", err=True)


@retain.command()
@lake_option
@spool_option
@click.option("--by", metavar="NAME", help="Who sweeps; default: the account that runs this.")
@json_option
@with_context
def sweep(context: Context, by: str | None, *, as_json: bool) -> None:
    """Delete segments from the spool whose rows were all removed by applied plans."""
    done = sweep_spool(context.open_lake(), context.spool(), _named(by if by is not None else getpass.getuser()))
    click.echo(json_text(done) if as_json else _told(done))


@retain.command("list")
@lake_option
@json_option
@with_context
def list_(context: Context, *, as_json: bool) -> None:
    """List plans and their state."""
    plans = register(context.open_lake()).values()
    if as_json:
        show_json([one.plain() for one in plans])
        return
    if not plans:
        click.echo("no retention plans")
    for one in plans:
        when = one.applied or one.approved or one.proposed or datetime.fromtimestamp(0, UTC)
        click.echo(f"{one.name}  {one.state:<8}  {when:%Y-%m-%d %H:%M}  {_sums(one)}{_alone(one)}")


def _told(swept: Swept) -> str:
    stay = f"; {counted(swept.in_packs, 'segment')} stay, in packs with others" if swept.in_packs else ""
    return f"swept {counted(swept.segments, 'segment')} from the spool, {swept.size_bytes:,} bytes{stay}"


def _day(text: str | None) -> date:
    if text is None:
        return datetime.now(UTC).date()
    try:
        return date.fromisoformat(text)
    except ValueError as error:
        raise click.BadParameter(f"{text!r} is not a date such as 2026-12-31", param_hint="--as-of") from error


def _named(by: str) -> str:
    name = " ".join(by.split())
    if not name:
        raise click.BadParameter("the name is empty", param_hint="--by")
    return name


def _show(made: RetentionPlan) -> None:
    lines = [
        (
            item.table,
            str(item.partition_date),
            item.retention_class,
            str(item.period_days),
            str(item.cutoff_date),
            f"{item.rows:,}",
            f"{item.bytes:,}",
            str(item.files),
        )
        for item in made.items
    ]
    click.echo("\n".join(table_lines(_COLUMNS, lines)))
    for class_, reason in sorted({(item.retention_class, item.reason) for item in made.items}):
        click.echo(f"{class_}: {reason}")
    then = {
        "planned": f"nobody approved it yet: ranklake retain approve {made.name} --by NAME",
        "approved": f"approved: ranklake retain apply {made.name}",
        "applied": f"applied{_alone(made)}",
        "altered": "its items were altered",
    }
    click.echo(f"plan {made.name}: {_sums(made)}; {then[made.state]}")


def _alone(one: RetentionPlan) -> str:
    return " (single operator: one person approved and applied it)" if one.single_operator else ""


def _sums(one: RetentionPlan) -> str:
    counts = (counted(len(one.items), "partition"), counted(one.rows, "row"), size_text(one.bytes))
    return f"{', '.join(counts)} in {counted(one.files, 'file')}"
