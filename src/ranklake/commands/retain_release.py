"""``ranklake retain release``: a legal hold ends before its day, when another person approves that."""

import click

from ranklake.commands.approving import approval_command
from ranklake.commands.context import with_context
from ranklake.commands.options import json_option, lake_option
from ranklake.commands.signing import Told, mode_facts, signing_options, tell_mode
from ranklake.context import Context
from ranklake.retention.holds.release import HOLD_RELEASES, PREFIX, HoldRelease
from ranklake.retention.holds.release import approve as approve_release
from ranklake.retention.holds.release import propose as propose_release
from ranklake.retention.proposals.identities import PROPOSE
from ranklake.views.json_output import show_json
from ranklake.views.tell import tell


@click.group()
def release() -> None:
    """Release a legal hold before its day: one person proposes it, another approves it."""


@release.command()
@click.argument("hold")
@click.option("--by", metavar="NAME", help="Who proposes, and so may not approve; kept in the audit trail.")
@signing_options
@lake_option
@json_option
@with_context
def plan(context: Context, hold: str, by: str | None, *, told: Told, as_json: bool) -> None:
    """Propose to release HOLD, by its name as 'ranklake retain holds' shows it."""
    lake = context.open_lake()
    if told.text_only:
        told.print_statement(lake, HOLD_RELEASES, f"{PREFIX}{hold}", PROPOSE, by)
        return
    found = propose_release(lake, hold, told.who(lake, f"ranklake retain release plan {hold}", by), told.signing)
    if as_json:
        show_json({**found.plain(), **mode_facts(lake)})
        return
    tell(f"{hold}: proposed to be released; another person: ranklake retain release approve {hold}")
    tell_mode(lake)


release.add_command(
    approval_command(
        HOLD_RELEASES,
        approve_release,
        "Approve the release of HOLD. Once enough people did, it holds no more.",
        metavar="HOLD",
        then=lambda _one, _named: "the hold ended, and what it kept goes by the rules again",
        plain=HoldRelease.plain,
        prefix=PREFIX,
    )
)
