"""``retain cancel``: what an applied plan took comes back, as long as it is kept."""

import click

from ranklake.commands.context import with_context
from ranklake.commands.options import json_option, lake_option
from ranklake.commands.signing import Told, mode_facts, signing_options, tell_mode
from ranklake.context import Context
from ranklake.lake.store.store import Lake
from ranklake.retention.plans.cancel import approve, cancel, propose
from ranklake.retention.proposals.cancellations import CANCELLATIONS, needs_approval
from ranklake.retention.proposals.identities import APPLY, APPROVE, PROPOSE
from ranklake.retention.proposals.lifecycle import standing
from ranklake.retention.proposals.proposals import NotApprovedError
from ranklake.retention.proposals.steps import recorded_actions
from ranklake.views.json_output import show_json
from ranklake.views.tell import tell
from ranklake.views.words import counted


@click.command("cancel")
@click.argument("name", metavar="PLAN")
@lake_option
@click.option("--by", metavar="NAME", help="Who cancels it; kept in the audit trail.")
@click.option("--approve", "approves", is_flag=True, help="Approve what another person proposed to cancel.")
@click.option("--reason", metavar="TEXT", help="Why it is approved; kept in the audit trail.")
@signing_options
@json_option
@with_context
def cancel_(
    context: Context,
    name: str,
    by: str | None,
    reason: str | None,
    *,
    approves: bool,
    told: Told,
    as_json: bool,
) -> None:
    """Bring back everything that an applied plan took, while it is kept.

    Plans keep what they take for the days that policies say (grace_days). Rows that an erasure took meanwhile stay
    away. Where approvals are signed, the first call proposes it, another person runs it with --approve, and the next
    call brings the rows back. If it is interrupted, run it again.
    """
    lake = context.open_lake()
    step = APPROVE if approves else _step(lake, name)
    if told.text_only:
        told.print_statement(lake, CANCELLATIONS, name, step, by, reason)
        return
    who = told.who(lake, f"ranklake retain cancel {name}", by)
    if step == APPLY:
        found, fresh = cancel(lake, name, who, signing=told.signing)
        if as_json:
            show_json({"cancelled_now": fresh, **mode_facts(lake), **found.plain()})
            return
        done = f"{counted(found.rows, 'row')} of {counted(len(found.items), 'partition')} are back by plan"
        tell(f"{name}: {done if fresh else 'cancelled already, by plan'} {found.cancellation}")
        if fresh:
            tell("its rows are due as before: change the policies, or set a hold, before the next plan")
        tell_mode(lake)
        return
    if approves:
        approve(lake, name, who, reason, signing=told.signing)
    else:
        propose(lake, name, who, told.signing)
    one = CANCELLATIONS.find(lake, name)
    lacking = standing(lake, CANCELLATIONS, one).lacking
    if as_json:
        show_json({"cancelled_now": False, "lacking": lacking or None, **mode_facts(lake), **one.of.plain()})
        return
    as_somebody = lake.config.approvals.by_somebody
    then = f"another person: {as_somebody(CANCELLATIONS.to_approve(name))}" if lacking else "a third (or the first): "
    then += "" if lacking else as_somebody(CANCELLATIONS.to_apply(name))
    tell(f"{name}: {'approved' if approves else 'proposed'} to be cancelled; {then}")


def _step(lake: Lake, name: str) -> str:
    """Return what a call without --approve does: propose, where names are checked and nobody proposed it yet."""
    if not needs_approval(lake):
        return APPLY
    one = CANCELLATIONS.find(lake, name)
    if one.approved is not None or one.applied is not None:
        return APPLY
    if recorded_actions(lake, CANCELLATIONS).get(name, {}).get(CANCELLATIONS.propose):
        raise NotApprovedError(CANCELLATIONS, name, lake.config.approvals, standing(lake, CANCELLATIONS, one).lacking)
    return PROPOSE
