"""``ranklake retain hold | holds | release``: legal holds, which override every rule."""

import shlex
from datetime import UTC, datetime

import click

from ranklake.commands.approvals import SigningOptions, approval_command, mode_facts, signing_options, tell_mode
from ranklake.commands.context import with_context
from ranklake.commands.options import Group, day_of, json_option, lake_option
from ranklake.context import Context
from ranklake.lake.store.lake import Lake
from ranklake.printable import counted
from ranklake.quality.results import evidence
from ranklake.retention.holds.hold import (
    HOLD_RELEASES,
    PREFIX,
    Hold,
    HoldError,
    HoldRelease,
    all_holds,
    begun_before,
    release_times,
)
from ranklake.retention.holds.hold import approve as approve_release
from ranklake.retention.holds.hold import propose as propose_release
from ranklake.retention.holds.holds import hold_statement, rows_held, set_hold
from ranklake.retention.proposals.identities import PROPOSE
from ranklake.views.json_output import show_json
from ranklake.views.tell import tell


@click.group(cls=Group)
def release() -> None:
    """Release a legal hold early: one person proposes it, another approves it."""


@release.command()
@click.argument("hold")
@click.option("--by", metavar="NAME", help="Who proposes, and therefore may not approve; recorded in the audit log.")
@signing_options
@lake_option
@json_option
@with_context
def plan(context: Context, hold: str, by: str | None, *, signature_options: SigningOptions, as_json: bool) -> None:
    """Propose to release HOLD, by its name as 'ranklake retain holds' shows it."""
    lake = context.open_lake()
    if signature_options.text_only:
        signature_options.print_statement(lake, HOLD_RELEASES, f"{PREFIX}{hold}", PROPOSE, by)
        return
    result = propose_release(
        lake, hold, signature_options.who(lake, f"ranklake retain release plan {hold}", by), signature_options.signing
    )
    if as_json:
        show_json({**result.plain(), **mode_facts(lake)})
        return
    tell(f"{hold}: proposed to be released; another person: ranklake retain release approve {hold}")
    tell_mode(lake)


release.add_command(
    approval_command(
        HOLD_RELEASES,
        approve_release,
        "Approve the release of HOLD, which ends it once enough people approved.",
        metavar="HOLD",
        then=lambda _release, _named: "the hold ended, and policies apply to its data again",
        plain=HoldRelease.plain,
        prefix=PREFIX,
    )
)


_INCIDENT = "incident="


@click.command()
@lake_option
@click.option(
    "--where",
    multiple=True,
    required=True,
    metavar="KEY=TEXT",
    help="Data to hold, such as run=r1, table=logs, team=vision, date=2026-03-01..2026-03-31. All keys must match. "
    "Or incident=TABLE/CHECK alone: all evidence of a quality incident.",
)
@click.option("--reason", required=True, metavar="TEXT", help="Reason; recorded in the audit log.")
@click.option("--until", required=True, metavar="DATE", help="First day after the hold.")
@click.option("--by", metavar="NAME", help="Who sets it; default: the account that runs this.")
@click.option(
    "--future-names",
    is_flag=True,
    help="Accept runs, teams, tags, environments and metrics that do not occur yet.",
)
@signing_options
@json_option
@with_context
def hold(
    context: Context,
    where: tuple[str, ...],
    reason: str,
    until: str,
    by: str | None,
    *,
    future_names: bool,
    signature_options: SigningOptions,
    as_json: bool,
) -> None:
    """Set a legal hold: until a day, no plan removes the data it covers, whatever the policies say.

    Only 'ranklake retain release' ends it earlier. Plans and 'ranklake retain explain' show it. Plans that are being
    applied already are listed: the hold does not stop them.
    """
    lake = context.open_lake()
    conditions, day = _conditions(lake, where), day_of(until, "--until")
    if signature_options.text_only:
        name = signature_options.signer(by)
        text = hold_statement(lake, conditions, reason, day, name, future_names=future_names)
        click.echo(text, nl=False)  # noqa: TID251 - a document, as it is
        return
    name = signature_options.who(lake, _command(where, reason, until), by)
    signing = signature_options.signing
    result = set_hold(lake, conditions, reason, day, name, signing=signing, future_names=future_names)
    begun, rows = begun_before(lake, result), rows_held(lake, result)
    if as_json:
        show_json(
            {**result.plain(), "rows_held": rows, "begun_before": [one.plain() for one in begun], **mode_facts(lake)}
        )
        return
    tell(hold_line(result))
    tell(f"it protects {counted(rows, 'row')} stored now")
    for item in begun:
        row = f"row {item.row} of the audit log"
        tell(f"{item.proposal} had begun before the hold ({row}): the hold does not cover its data", err=True)
    tell_mode(lake)


def _command(where: tuple[str, ...], reason: str, until: str) -> str:
    """Return the command line."""
    conditions = " ".join(f"--where {shlex.quote(one)}" for one in where)
    return f"ranklake retain hold {conditions} --reason {shlex.quote(reason)} --until {shlex.quote(until)}"


def _conditions(lake: Lake, where: tuple[str, ...]) -> tuple[str, ...]:
    """Replace the name of an incident in conditions by its evidence."""
    named = [one.removeprefix(_INCIDENT) for one in where if one.startswith(_INCIDENT)]
    if named and len(where) > 1:
        hint = "set one hold per incident, and further holds for other data"
        raise HoldError("an incident cannot be combined with other conditions", where="--where", hint=hint)
    return evidence(lake, named[0]) if named else where


@click.command()
@lake_option
@json_option
@with_context
def holds(context: Context, *, as_json: bool) -> None:
    """List legal holds, including those that ended."""
    lake = context.open_lake()
    results, releases = all_holds(lake.tables), release_times(lake)
    if as_json:
        times = {name: when.isoformat() for name, when in releases.items()}
        show_json([{**one.plain(), "released": times.get(one.name)} for one in results])
        return
    today = datetime.now(UTC).date()
    for item in results:
        ended = (
            f" (released {releases[item.name]:%Y-%m-%d})"
            if item.name in releases
            else " (ended)"
            if today >= item.until
            else ""
        )
        tell(f"{hold_line(item)}{ended}")
    if not results:
        tell("no legal holds")


def hold_line(hold: Hold) -> str:
    """Return a hold as a line."""
    where = [f"{key}={text}" for key, texts in hold.rule.where.items() for text in texts]
    dates = [] if hold.first is None and hold.last is None else [f"date={hold.first or ''}..{hold.last or ''}"]
    return f"{hold.name}: {', '.join([*where, *dates])} until {hold.until}: {hold.rule.reason}"
