"""``ranklake grants``."""

import re
from datetime import UTC, datetime, timedelta
from typing import Final

import click

from ranklake.commands.approvals import (
    SigningOptions,
    approval_command,
    key_option,
    mode_facts,
    signing_options,
    tell_mode,
)
from ranklake.commands.context import with_context
from ranklake.commands.options import Group, json_option, lake_option
from ranklake.context import Context
from ranklake.errors import did_you_mean
from ranklake.lake.audit import clock
from ranklake.lake.query.roles import RoleError
from ranklake.printable import counted
from ranklake.retention.grants.grant import GRANTS, Grant, GrantError, register
from ranklake.retention.grants.use import REVIEW_STEP, Access, accesses, ask, in_order, is_of_late
from ranklake.retention.grants.use import approve as approve_grant
from ranklake.retention.grants.use import review as review_grant
from ranklake.retention.grants.use import revoke as revoke_grant
from ranklake.retention.proposals.identities import doer
from ranklake.views.json_output import show_json
from ranklake.views.table import TextColumn, numbers, table_lines
from ranklake.views.tell import tell

_PERIOD: Final = re.compile(r"(\d{1,4})([hd])")
_UNITS: Final = {"h": "hours", "d": "days"}
_EXAMPLE: Final = 'Example: ranklake grant data-scientist --to eve --until 30d --reason "loss study"'


class FutureTime(click.ParamType[datetime]):
    """A time to come: a date, a time, or a period from now."""

    name = "until"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> datetime:
        """Return the time, UTC."""
        text = str(value)
        if period := _PERIOD.fullmatch(text):
            return clock.now() + timedelta(**{_UNITS[period[2]]: int(period[1])})
        try:
            result = datetime.fromisoformat(text)
            return result.replace(tzinfo=UTC) if result.tzinfo is None else result.astimezone(UTC)
        except (ValueError, OverflowError):  # the first and last hours of the calendar do not exist in other zones
            self.fail(f"{text!r} is no time; write 30d, 8h, 2026-12-31 or 2026-12-31T18:00", param, ctx)


@click.command(epilog=_EXAMPLE)
@click.argument("role", metavar="ROLE")
@click.option("--to", metavar="NAME", required=True, help="Who gets it: an account, a person, a team.")
@click.option(
    "--until", type=FutureTime(), metavar="TIME", required=True, help="End of the grant: 30d, 8h, a date, a time (UTC)."
)
@click.option("--reason", metavar="TEXT", required=True, help="Reason; recorded in the audit log.")
@click.option(
    "--by", metavar="NAME", help="Who asks, and therefore may not approve; default: the account that runs this."
)
@click.option(
    "--break-glass",
    "break_glass",
    is_flag=True,
    help="Take the role without approval, for 4 hours at most. It is reported until another person reviews it.",
)
@click.option("--again", is_flag=True, help="Allow --break-glass although an earlier one waits for a review.")
@lake_option
@key_option
@json_option
@with_context
def grant(  # noqa: PLR0913 - one parameter an option
    context: Context,
    role: str,
    to: str,
    until: datetime,
    reason: str,
    by: str | None,
    *,
    break_glass: bool,
    again: bool,
    signature_options: SigningOptions,
    as_json: bool,
) -> None:
    """Request a role for somebody until a time. The grant is valid once another person approves it.

    Roles need grants where [sql] grants = true.
    """
    if again and not break_glass:
        raise GrantError("--again is about roles that are taken", where="--again", hint="say --break-glass, too")
    lake = context.open_lake()
    roles = context.roles(lake.catalog)
    if role not in roles:
        raise RoleError(f"unknown role {role!r}", where="ROLE", hint=did_you_mean(role, roles))
    who = signature_options.who(
        lake, f"ranklake grant {role} --to {to} --until TIME --reason TEXT", by, elsewhere=False
    )
    result = ask(
        lake, role, to, until, reason, who, break_glass=break_glass, again=again, signing=signature_options.signing
    )
    if as_json:
        show_json({**mode_facts(lake), **result.plain(clock.now())})
        return
    until_text = f"{result.until:%Y-%m-%d %H:%M} UTC"
    to_review = lake.config.approvals.by_somebody(f"ranklake grants review {result.name}")
    if break_glass:
        tell(f"{result.name}: {result.to} has role {role} until {until_text}, without approval")
        tell(f"another person reviews it: {to_review} --reason TEXT", err=True)
    else:
        tell(f"{result.name}: asked for role {role} for {result.to} until {until_text}")
        tell(f"another person approves it: {lake.config.approvals.by_somebody(GRANTS.to_approve(result.name))}")
    tell_mode(lake)


_COLUMNS = tuple(map(TextColumn, ("grant", "role", "to", "until", "state")))
_ACCESS = (
    *map(TextColumn, ("grant", "role", "to", "until", "last used")),
    *numbers(("queries",)),
    TextColumn("look at"),
)


@click.group(cls=Group)
def grants() -> None:
    """Show who has which role, approve grants, and review them."""


@grants.command("list")
@click.option("--all", "every", is_flag=True, help="Also those that ended, or were revoked, long ago.")
@lake_option
@json_option
@with_context
def list_(context: Context, *, every: bool, as_json: bool) -> None:
    """List grants in force, those that wait for approval or review, and those that ended in the last 30 days."""
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
        then=lambda grant, _named: f"{grant.to} has role {grant.role} until {grant.until:%Y-%m-%d %H:%M} UTC",
        plain=lambda grant: grant.plain(clock.now()),
    )
)


@grants.command()
@click.argument("name", metavar="[GRANT]", required=False)
@click.option("--by", metavar="NAME", help="Who reviewed it; default: the account that runs this.")
@click.option("--reason", metavar="TEXT", help="What was found; kept in the audit log.")
@lake_option
@signing_options
@json_option
@with_context
def review(
    context: Context,
    name: str | None,
    by: str | None,
    reason: str | None,
    *,
    signature_options: SigningOptions,
    as_json: bool,
) -> int:
    """Review access: who has which role, and when it was last used. Exits 1 if something needs attention.

    With GRANT, record the review of a role that was taken without approval.
    """
    lake, now = context.open_lake(), clock.now()
    if name is not None:
        if signature_options.text_only:
            signature_options.print_statement(lake, GRANTS, name, REVIEW_STEP, by, reason)
            return 0
        who = signature_options.who(lake, f"ranklake grants review {name}", by)
        result, fresh = review_grant(lake, name, who, reason or "", signature_options.signing)
        if as_json:
            show_json({"reviewed_now": fresh, **result.plain(now)})
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


def _state(grant: Grant) -> str:
    state = grant.why_not(clock.now()) or "holds"
    if grant.is_break_glass:
        state += ", taken without approval" + (", not reviewed" if grant.awaits_review() else ", reviewed")
    return state


def _line(access: Access) -> tuple[str, ...]:
    last = "never" if access.last_used is None else f"{access.last_used:%Y-%m-%d}"
    until = f"{access.grant.until:%Y-%m-%d %H:%M}"
    remarks = "; ".join(access.remarks)
    return (access.grant.name, access.grant.role, access.grant.to, until, last, f"{access.queries:,}", remarks)


@click.command()
@click.argument("name", metavar="GRANT")
@click.option("--reason", metavar="TEXT", required=True, help="Why; kept in the audit log.")
@click.option("--by", metavar="NAME", help="Who does it; default: the account that runs this.")
@lake_option
@json_option
@with_context
def revoke(context: Context, name: str, reason: str, by: str | None, *, as_json: bool) -> None:
    """End a grant now, before its time. Shares of a role without holders are deleted by the next refresh."""
    lake = context.open_lake()
    result, fresh = revoke_grant(lake, name, doer(lake, by), reason)
    if as_json:
        show_json({"revoked_now": fresh, **mode_facts(lake), **result.plain(clock.now())})
    else:
        tell(f"{name}: revoked" if fresh else f"{name}: revoked already; nothing written")
