"""``ranklake revoke``."""

import click

from ranklake.commands.context import with_context
from ranklake.commands.options import json_option, lake_option
from ranklake.commands.signing import mode_facts
from ranklake.context import Context
from ranklake.lake.audit import clock
from ranklake.retention.grants.use import revoke as revoke_grant
from ranklake.retention.proposals.identities import doer
from ranklake.views.json_output import show_json
from ranklake.views.tell import tell


@click.command()
@click.argument("name", metavar="GRANT")
@click.option("--reason", metavar="TEXT", required=True, help="Why; kept in the audit trail.")
@click.option("--by", metavar="NAME", help="Who does it; default: the account that runs this.")
@lake_option
@json_option
@with_context
def revoke(context: Context, name: str, reason: str, by: str | None, *, as_json: bool) -> None:
    """End a grant now, before its time. Shares of a role that nobody has any more go with the next refresh."""
    lake = context.open_lake()
    found, fresh = revoke_grant(lake, name, doer(lake, by), reason)
    if as_json:
        show_json({"revoked_now": fresh, **mode_facts(lake), **found.plain(clock.now())})
    else:
        tell(f"{name}: revoked" if fresh else f"{name}: revoked already; nothing written")
