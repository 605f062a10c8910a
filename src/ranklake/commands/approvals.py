"""``ranklake approvals``, and ``approve`` of every command with proposals."""

from collections.abc import Callable
from datetime import UTC, datetime
from functools import wraps
from typing import Any, Final

import click

from ranklake.commands.context import with_context
from ranklake.commands.options import Command, Group, json_option, lake_option
from ranklake.context import Context
from ranklake.lake.store.lake import Lake
from ranklake.lake.store.lake_config import COMMAND, DEFAULT_TIERS, SIGNED, UNSIGNED, Tier
from ranklake.lake.store.ssh_signatures import Signer, load_signers
from ranklake.retention.proposals.approvals import LOWERED, UNSIGNED_NOTE, downgrade, last_mode, mode_of
from ranklake.retention.proposals.identities import APPROVE, Signing, identify, name_of, statement_of
from ranklake.retention.proposals.lifecycle import Approve, standing, statement
from ranklake.retention.proposals.proposals import AnyKind, AnyProposal, Proposal, ProposalKind, recorded_actions
from ranklake.retention.proposals.retention_plans import RETENTION_PLANS
from ranklake.views.json_output import show_json
from ranklake.views.tell import tell
from ranklake.views.words import size_text

_KEY: Final = "SSH key that signs: a private one, or a .pub of one in the agent; default: [approvals] key."
_SIGNED: Final = "Statement that was signed elsewhere; the signature is beside it, in FILE.sig."
_STATEMENT: Final = "Print what --by would sign, and do nothing: for ssh-keygen on another machine."


class SigningOptions:
    """How a step is signed: with a key, or by a statement that was signed elsewhere."""

    def __init__(self, key: str | None, signed: str | None, *, text_only: bool) -> None:
        self.signing, self.text_only = Signing(key or "", signed or ""), text_only

    def is_for(self, lake: Lake, by: str | None) -> bool:
        """Whether an option names the signer; some steps need none."""
        section, signing = lake.config.approvals, self.signing
        return bool(by or signing.key or signing.signed or section.key or section.mode == COMMAND)

    def who(self, lake: Lake, what: str, by: str | None, *, login: bool = True, elsewhere: bool = True) -> str:
        """Return the name of the person who takes the step; see `ranklake.retention.proposals.identities.name_of`."""
        if by is not None and not by.strip():
            raise click.BadParameter("the name is empty", param_hint="--by")
        return name_of(lake, what, by, self.signing, login=login, elsewhere=elsewhere)

    def print_statement(
        self, lake: Lake, kind: AnyKind, name: str, step: str, by: str | None, reason: str | None = None
    ) -> None:
        """Print the statement to sign. Raises `click.UsageError` if nobody is named."""
        click.echo(statement(lake, kind, name, step, self.signer(by), reason), nl=False)  # noqa: TID251 - a document, as it is

    @staticmethod
    def signer(by: str | None) -> str:
        """Return the name of the future signer of a statement. Raises `click.UsageError` if nobody is named."""
        if not by or not by.strip():
            raise click.UsageError("--statement needs --by NAME: whose key will sign it")
        return " ".join(by.split())


def signing_options(command: Command) -> Command:
    """Declare ``--key``, ``--signed`` and ``--statement``, passed as one argument, ``signature_options``."""

    @click.option("--key", metavar="PATH", help=_KEY)
    @click.option("--signed", metavar="FILE", help=_SIGNED)
    @click.option("--statement", "text_only", is_flag=True, help=_STATEMENT)
    @wraps(command)
    def run(*args: Any, key: str | None, signed: str | None, text_only: bool, **options: Any) -> Any:  # noqa: ANN401 - the command's own
        if key and signed:
            raise click.UsageError("--key signs now, and --signed was signed already: give one of them")
        return command(*args, signature_options=SigningOptions(key, signed, text_only=text_only), **options)

    return run  # type: ignore[return-value]


def key_option(command: Command) -> Command:
    """Declare ``--key`` alone, as ``signature_options``: the statement is not known before the step is taken."""

    @click.option("--key", metavar="PATH", help=_KEY)
    @wraps(command)
    def run(*args: Any, key: str | None, **options: Any) -> Any:  # noqa: ANN401 - the command's own
        return command(*args, signature_options=SigningOptions(key, None, text_only=False), **options)

    return run  # type: ignore[return-value]


def mode_facts(lake: Lake) -> dict[str, str]:
    """Return the facts about checks of names that every JSON output has."""
    return {"approvals": lake.config.approvals.mode}


def tell_mode(lake: Lake) -> None:
    """Print a note if names are not checked."""
    if lake.config.approvals.mode == UNSIGNED:
        tell(UNSIGNED_NOTE)


Naming = Callable[[str], str]
"""Adds the option for one's name to a command line (`ApprovalsSection.by_somebody`)."""
_BY: Final = "Who approves; kept in the audit log. Where approvals are signed, the key tells."
_ALONE: Final = "Let its author approve it, too; not where approvals are signed."


def approval_command(
    kind: ProposalKind[AnyProposal],
    approve: Approve[AnyProposal],
    summary: str,
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
        Function that approves a proposal.
    summary
        First line of its help.
    metavar
        Name of its argument in the help.
    then
        Text of the next step after enough approvals; gets the proposal, and a function that adds one's name to a
        command.
    plain
        Returns its plain JSON values.
    prefix
        Prefix that the argument lacks in the proposal's name.
    """

    @click.command("approve", help=summary)
    @click.argument("name", metavar=metavar)
    @lake_option
    @click.option("--by", metavar="NAME", help=_BY)
    @click.option("--reason", metavar="TEXT", help="Why; kept in the audit log.")
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
        signature_options: SigningOptions,
        as_json: bool,
    ) -> None:
        lake = context.open_lake()
        if signature_options.text_only:
            signature_options.print_statement(lake, kind, f"{prefix}{name}", APPROVE, by, reason)
            return
        who = signature_options.who(lake, f"{kind.command} approve {name}", by, login=False)
        result, fresh = approve(
            lake, name, who, reason, single_operator=single_operator, signing=signature_options.signing
        )
        lacking = "" if result.approved else standing(lake, kind, result).lacking
        if as_json:
            show_json({"approved_now": fresh, "lacking": lacking or None, **mode_facts(lake), **plain(result)})
            return
        tell(
            f"{result.name}: {_outcome(result, then(result, lake.config.approvals.by_somebody), lacking, fresh=fresh)}"
        )
        tell_mode(lake)

    return command


def _outcome(proposal: Proposal, then: str, lacking: str, *, fresh: bool) -> str:
    """Print the result of an approval: whether this call wrote it, missing approvals, and the next step."""
    if lacking:
        return f"{'your approval is written down' if fresh else 'nothing written'}; still {lacking}"
    return f"approved; {then}" if fresh else f"{proposal.state} already; nothing written"


_STEP = "mode"


@click.group(cls=Group)
def approvals() -> None:
    """Show who may approve what, and how names are checked."""


@approvals.command()
@lake_option
@json_option
@with_context
def show(context: Context, *, as_json: bool) -> None:
    """List the mode, the tiers of risk, and the keys that may sign with their roles and expiry."""
    lake = context.open_lake()
    section, now = lake.config.approvals, datetime.now(UTC)
    recorded_mode = mode_of(last_mode(recorded_actions(lake.tables, RETENTION_PLANS)))
    signers = load_signers(section.allowed_signers).keys if section.mode == SIGNED else ()
    tiers = section.tiers or DEFAULT_TIERS
    if as_json:
        keys = [_plain(one, now) for one in signers]
        show_json(
            {**mode_facts(lake), "said": recorded_mode, "expires_h": section.expires_h, "tiers": tiers, "keys": keys}
        )
        return
    tell(f"approvals are {section.mode}; the audit log says {recorded_mode}; good for {section.expires_h} hours")
    for tier in tiers:
        tell(f"tier {tier.name}: {_in_words(tier)}")
    for signer in signers:
        roles = f", roles {', '.join(sorted(signer.roles))}" if signer.roles else ""
        until = f", until {signer.before:%Y-%m-%d}" if signer.before else ""
        tell(f"{signer.name}: {signer.why_not(now) or 'may sign'}{until}{roles}")
    tell_mode(lake)


@approvals.command("downgrade")
@click.option("--by", metavar="NAME", help="Who declares it; if keys are configured, the signing key decides.")
@click.option("--reason", metavar="TEXT", required=True, help="Why; kept in the audit log.")
@lake_option
@signing_options
@json_option
@with_context
def lower(context: Context, by: str | None, reason: str, *, signature_options: SigningOptions, as_json: bool) -> None:
    """Record in the audit log that names are no longer checked, before you remove the keys from the configuration.

    Signed while the keys are still configured, it is a note in 'ranklake audit verify'; unsigned, a fault for good.
    """
    lake = context.open_lake()
    if signature_options.text_only:
        click.echo(statement_of(lake, LOWERED, _STEP, by or "", reason).text, nl=False)  # noqa: TID251 - a document, as it is
        return
    name = signature_options.who(lake, "ranklake approvals downgrade --reason TEXT", by, login=False)
    trail = recorded_actions(lake.tables, RETENTION_PLANS)
    who = identify(lake, LOWERED, _STEP, name, reason, signature_options.signing)
    result = downgrade(lake, trail, who, reason)
    if as_json:
        show_json({"lowered_now": result, **mode_facts(lake)})
    elif result:
        tell("approvals are unsigned from now on; take allowed_signers and identity out of [approvals]")
    else:
        tell("approvals are unsigned already; nothing written")


def _in_words(tier: Tier) -> str:
    """Return a tier's requirements as text."""
    size = f" of {size_text(tier.over_bytes)} or more" if tier.over_bytes else ""
    scope = f"{', '.join(tier.kinds) or 'every kind'}{size}"
    classes = f", classes {', '.join(tier.classes)}" if tier.classes else ""
    final = ", irreversible" if tier.irreversible else ""
    role = f", one of role {tier.role}" if tier.role else ""
    return f"{scope}{classes}{final}: {tier.approvers} to approve{role}"


def _plain(signer: Signer, now: datetime) -> dict[str, Any]:
    times = {"valid_after": signer.after, "valid_before": signer.before}
    bounds = {name: None if when is None else when.isoformat() for name, when in times.items()}
    return {"name": signer.name, "roles": sorted(signer.roles), **bounds, "why_not": signer.why_not(now) or None}
