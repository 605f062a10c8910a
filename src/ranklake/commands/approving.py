"""``approve``, which every command of proposals has: who, why, signed or not, and what it then says."""

from collections.abc import Callable
from typing import Any, Final

import click

from ranklake.commands.context import with_context
from ranklake.commands.options import json_option, lake_option
from ranklake.commands.signing import Told, mode_facts, signing_options, tell_mode
from ranklake.context import Context
from ranklake.retention.proposals.identities import APPROVE
from ranklake.retention.proposals.lifecycle import Approve, standing
from ranklake.retention.proposals.proposals import AnyProposal, Proposal, ProposalKind
from ranklake.views.json_output import show_json
from ranklake.views.tell import tell

Naming = Callable[[str], str]
"""Returns a command with the option by which somebody says who runs it (`ApprovalsSection.by_somebody`)."""
_BY: Final = "Who approves; kept in the audit trail. Where approvals are signed, the key tells."
_ALONE: Final = "Let its author approve it, too; not where approvals are signed."


def approval_command(
    kind: ProposalKind[AnyProposal],
    approve: Approve[AnyProposal],
    said: str,
    *,
    metavar: str,
    then: Callable[[AnyProposal, Naming], str],
    plain: Callable[[AnyProposal], dict[str, Any]],
    prefix: str = "",
) -> click.Command:
    """Return the command ``approve`` of a kind of proposal.

    Parameters
    ----------
    approve
        Approves one by what the command is given.
    said
        What its help says.
    metavar
        What its argument is called.
    then
        Says what comes once it has enough approvals; a command in it is given what makes it say who runs it.
    plain
        Returns its plain JSON values.
    prefix
        What stands before the argument in a proposal's name.
    """

    @click.command("approve", help=said)
    @click.argument("name", metavar=metavar)
    @lake_option
    @click.option("--by", metavar="NAME", help=_BY)
    @click.option("--reason", metavar="TEXT", help="Why; kept in the audit trail.")
    @click.option("--single-operator", is_flag=True, help=_ALONE)
    @signing_options
    @json_option
    @with_context
    def command(
        context: Context,
        name: str,
        by: str | None,
        reason: str | None,
        *,
        single_operator: bool,
        told: Told,
        as_json: bool,
    ) -> None:
        lake = context.open_lake()
        if told.text_only:
            told.print_statement(lake, kind, f"{prefix}{name}", APPROVE, by, reason)
            return
        who = told.who(lake, f"{kind.command} approve {name}", by, login=False)
        found, fresh = approve(lake, name, who, reason, single_operator=single_operator, signing=told.signing)
        lacking = "" if found.approved else standing(lake, kind, found).lacking
        if as_json:
            show_json({"approved_now": fresh, "lacking": lacking or None, **mode_facts(lake), **plain(found)})
            return
        tell(f"{found.name}: {_outcome(found, then(found, lake.config.approvals.by_somebody), lacking, fresh=fresh)}")
        tell_mode(lake)

    return command


def _outcome(found: Proposal, then: str, lacking: str, *, fresh: bool) -> str:
    """Say what an approval did: whether this call wrote it, what is still lacking, and what comes then."""
    if lacking:
        return f"{'your approval is written down' if fresh else 'nothing written'}; still {lacking}"
    return f"approved; {then}" if fresh else f"{found.state} already; nothing written"
