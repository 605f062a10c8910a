"""``ranklake grant``."""

import re
from datetime import UTC, datetime, timedelta
from typing import Final

import click

from ranklake.commands.context import with_context
from ranklake.commands.options import json_option, lake_option
from ranklake.commands.signing import Told, key_option, mode_facts, tell_mode
from ranklake.context import Context
from ranklake.errors import did_you_mean
from ranklake.lake.audit import clock
from ranklake.lake.query.roles import RoleError
from ranklake.retention.grants.grant import GRANTS, GrantError
from ranklake.retention.grants.use import ask
from ranklake.views.json_output import show_json
from ranklake.views.tell import tell

_PERIOD: Final = re.compile(r"(\d{1,4})([hd])")
_UNITS: Final = {"h": "hours", "d": "days"}
_EXAMPLE: Final = 'Example: ranklake grant data-scientist --to eve --until 30d --reason "loss study"'


class Until(click.ParamType[datetime]):
    """A time to come: a date, a time, or a period from now."""

    name = "until"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> datetime:
        """Return the time, UTC."""
        text = str(value)
        if period := _PERIOD.fullmatch(text):
            return clock.now() + timedelta(**{_UNITS[period[2]]: int(period[1])})
        try:
            found = datetime.fromisoformat(text)
            return found.replace(tzinfo=UTC) if found.tzinfo is None else found.astimezone(UTC)
        except (ValueError, OverflowError):  # at the ends of the calendar no other zone has that time
            self.fail(f"{text!r} is no time; write 30d, 8h, 2026-12-31 or 2026-12-31T18:00", param, ctx)


@click.command(epilog=_EXAMPLE)
@click.argument("role", metavar="ROLE")
@click.option("--to", metavar="NAME", required=True, help="Who gets it: an account, a person, a team.")
@click.option("--until", type=Until(), metavar="TIME", required=True, help="Its end: 30d, 8h, a date, a time (UTC).")
@click.option("--reason", metavar="TEXT", required=True, help="What for; kept in the audit trail.")
@click.option("--by", metavar="NAME", help="Who asks, and so may not approve; default: the account that runs this.")
@click.option(
    "--break-glass",
    "break_glass",
    is_flag=True,
    help="Take it without approval, for 4 hours at most. It is told everywhere until another person reviews it.",
)
@click.option("--again", is_flag=True, help="Break the break_glass although a role taken before waits for a review.")
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
    told: Told,
    as_json: bool,
) -> None:
    """Ask that somebody gets a role until a time. It holds once another person approves it.

    Roles need grants where [sql] grants = true.
    """
    if again and not break_glass:
        raise GrantError("--again is about roles that are taken", where="--again", hint="say --break-glass, too")
    lake = context.open_lake()
    roles = context.roles(lake)
    if role not in roles:
        raise RoleError(f"unknown role {role!r}", where="ROLE", hint=did_you_mean(role, roles))
    who = told.who(lake, f"ranklake grant {role} --to {to} --until TIME --reason TEXT", by, elsewhere=False)
    found = ask(lake, role, to, until, reason, who, break_glass=break_glass, again=again, signing=told.signing)
    if as_json:
        show_json({**mode_facts(lake), **found.plain(clock.now())})
        return
    until_text = f"{found.until:%Y-%m-%d %H:%M} UTC"
    to_review = lake.config.approvals.by_somebody(f"ranklake grants review {found.name}")
    if break_glass:
        tell(f"{found.name}: {found.to} has role {role} until {until_text}, without approval")
        tell(f"another person reviews it: {to_review} --reason TEXT", err=True)
    else:
        tell(f"{found.name}: asked for role {role} for {found.to} until {until_text}")
        tell(f"another person approves it: {lake.config.approvals.by_somebody(GRANTS.to_approve(found.name))}")
    tell_mode(lake)
