"""What approving a proposal says."""

from typing import Any, Final

import click

from ranklake.commands.signing import mode_facts, tell_mode
from ranklake.lake.governance.lifecycle import standing
from ranklake.lake.governance.proposals import AnyKind, Proposal
from ranklake.lake.storage.store import Lake
from ranklake.views.json_output import show_json

REASON: Final = "Why; kept in the audit trail."


def show_approval(
    lake: Lake, kind: AnyKind, found: Proposal, plain: dict[str, Any], *, fresh: bool, then: str, as_json: bool
) -> None:
    """Print what an approval did: whether this call wrote it, what is still lacking, and what comes then."""
    lacking = "" if found.approved else standing(lake, kind, found).lacking
    if as_json:
        show_json({"approved_now": fresh, "lacking": lacking or None, **mode_facts(lake), **plain})
        return
    if lacking:
        said = f"{'your approval is written down' if fresh else 'nothing written'}; still {lacking}"
    else:
        said = f"approved; {then}" if fresh else f"{found.state} already; nothing written"
    click.echo(f"{found.name}: {said}")
    tell_mode(lake)
