"""``ranklake grants``."""

import click

from ranklake.commands.approving import approval_command
from ranklake.commands.context import with_context
from ranklake.commands.options import json_option, lake_option
from ranklake.commands.signing import Told, signing_options
from ranklake.context import Context
from ranklake.lake.audit import clock
from ranklake.retention.grants.grant import GRANTS, Grant, register
from ranklake.retention.grants.use import REVIEW_STEP, Access, accesses, in_order, is_of_late
from ranklake.retention.grants.use import approve as approve_grant
from ranklake.retention.grants.use import review as review_grant
from ranklake.views.json_output import show_json
from ranklake.views.table import TextColumn, numbers, table_lines
from ranklake.views.tell import tell
from ranklake.views.words import counted

_COLUMNS = tuple(map(TextColumn, ("grant", "role", "to", "until", "state")))
_ACCESS = (
    *map(TextColumn, ("grant", "role", "to", "until", "last used")),
    *numbers(("queries",)),
    TextColumn("look at"),
)


@click.group()
def grants() -> None:
    """Show who has which role, approve grants, and review them."""


@grants.command("list")
@click.option("--all", "every", is_flag=True, help="Also those that ended, or were revoked, long ago.")
@lake_option
@json_option
@with_context
def list_(context: Context, *, every: bool, as_json: bool) -> None:
    """List grants: who has which role until when, what waits for somebody, and what ended in the last 30 days."""
    lake, now = context.open_lake(), clock.now()
    known = in_order(list(register(lake).values()), now)
    shown = [one for one in known if every or is_of_late(one, now)]
    if as_json:
        show_json([one.plain(now) for one in shown])
        return
    if shown:
        lines = [(one.name, one.role, one.to, f"{one.until:%Y-%m-%d %H:%M}", _state(one)) for one in shown]
        tell(*table_lines(_COLUMNS, lines))
    if older := len(known) - len(shown):
        tell(f"{counted(older, 'grant')} that ended before are not shown; --all shows them")
    elif not shown:
        tell("no grants")


grants.add_command(
    approval_command(
        GRANTS,
        approve_grant,
        "Approve a grant: it holds from then on, until its time. Neither who asked nor who gets the role may.",
        metavar="GRANT",
        then=lambda one, _named: f"{one.to} has role {one.role} until {one.until:%Y-%m-%d %H:%M} UTC",
        plain=lambda one: one.plain(clock.now()),
    )
)


@grants.command()
@click.argument("name", metavar="[GRANT]", required=False)
@click.option("--by", metavar="NAME", help="Who reviewed it; default: the account that runs this.")
@click.option("--reason", metavar="TEXT", help="What was found; kept in the audit trail.")
@lake_option
@signing_options
@json_option
@with_context
def review(context: Context, name: str | None, by: str | None, reason: str | None, *, told: Told, as_json: bool) -> int:
    """Review access: who has what, when it was last used, and what to look at; exit 1 if there is something.

    With GRANT, say that another person looked at a role that was taken without approval.
    """
    lake, now = context.open_lake(), clock.now()
    if name is not None:
        if told.text_only:
            told.print_statement(lake, GRANTS, name, REVIEW_STEP, by, reason)
            return 0
        who = told.who(lake, f"ranklake grants review {name}", by)
        found, fresh = review_grant(lake, name, who, reason or "", told.signing)
        if as_json:
            show_json({"reviewed_now": fresh, **found.plain(now)})
        else:
            tell(f"{name}: reviewed" if fresh else f"{name}: reviewed already; nothing written")
        return 0
    known = accesses(lake)
    if as_json:
        show_json([one.plain(now) for one in known])
    elif not known:
        tell("nobody has a role by a grant")
    else:
        tell(*table_lines(_ACCESS, [_line(one) for one in known]))
    return 1 if any(one.remarks for one in known) else 0


def _state(one: Grant) -> str:
    said = one.why_not(clock.now()) or "holds"
    if one.is_break_glass:
        said += ", taken without approval" + (", not reviewed" if one.awaits_review() else ", reviewed")
    return said


def _line(one: Access) -> tuple[str, ...]:
    last = "never" if one.last_used is None else f"{one.last_used:%Y-%m-%d}"
    until = f"{one.grant.until:%Y-%m-%d %H:%M}"
    remarks = "; ".join(one.remarks)
    return (one.grant.name, one.grant.role, one.grant.to, until, last, f"{one.queries:,}", remarks)
