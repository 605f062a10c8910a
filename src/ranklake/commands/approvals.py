"""``ranklake approvals``."""

from datetime import UTC, datetime
from typing import Any

import click

from ranklake.commands.approving import SigningOptions, mode_facts, signing_options, tell_mode
from ranklake.commands.context import with_context
from ranklake.commands.options import Group, json_option, lake_option
from ranklake.context import Context
from ranklake.lake.store.lake_config import DEFAULT_TIERS, SIGNED, Tier
from ranklake.lake.store.ssh_signatures import Signer, load_signers
from ranklake.retention.proposals.approvals import LOWERED, downgrade, last_mode, mode_of
from ranklake.retention.proposals.identities import identify, statement_of
from ranklake.retention.proposals.proposals import recorded_actions
from ranklake.retention.proposals.retention_plans import RETENTION_PLANS
from ranklake.views.json_output import show_json
from ranklake.views.tell import tell
from ranklake.views.words import size_text

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
    tell(f"approvals are {section.mode}; the audit trail says {recorded_mode}; good for {section.expires_h} hours")
    for tier in tiers:
        tell(f"tier {tier.name}: {_in_words(tier)}")
    for signer in signers:
        roles = f", roles {', '.join(sorted(signer.roles))}" if signer.roles else ""
        until = f", until {signer.before:%Y-%m-%d}" if signer.before else ""
        tell(f"{signer.name}: {signer.why_not(now) or 'may sign'}{until}{roles}")
    tell_mode(lake)


@approvals.command("downgrade")
@click.option("--by", metavar="NAME", help="Who says so; where keys are configured, the key tells.")
@click.option("--reason", metavar="TEXT", required=True, help="Why; kept in the audit trail.")
@lake_option
@signing_options
@json_option
@with_context
def lower(context: Context, by: str | None, reason: str, *, signature_options: SigningOptions, as_json: bool) -> None:
    """Say in the audit trail that nobody checks names from now on, before the keys are taken out of the configuration.

    Signed while the keys are still configured, it is a note in 'ranklake audit verify'; unsigned, a fault for good.
    """
    lake = context.open_lake()
    if signature_options.text_only:
        click.echo(statement_of(lake, LOWERED, _STEP, by or "", reason).text, nl=False)  # noqa: TID251 - a document, as it is
        return
    name = signature_options.who(lake, "ranklake approvals downgrade --reason TEXT", by, login=False)
    trail = recorded_actions(lake.tables, RETENTION_PLANS)
    who = identify(lake, LOWERED, _STEP, name, reason, signature_options.signing)
    done = downgrade(lake, trail, who, reason)
    if as_json:
        show_json({"lowered_now": done, **mode_facts(lake)})
    elif done:
        tell("approvals are unsigned from now on; take allowed_signers and identity out of [approvals]")
    else:
        tell("approvals are unsigned already; nothing written")


def _in_words(tier: Tier) -> str:
    """Return what a tier says, in words."""
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
