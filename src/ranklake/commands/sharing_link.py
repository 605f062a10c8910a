"""``ranklake sharing link``."""

from datetime import datetime
from functools import partial

import click

from ranklake.commands.context import with_context
from ranklake.commands.options import json_option, lake_option
from ranklake.commands.sharing_options import handed_out
from ranklake.context import Context
from ranklake.lake.audit.trail import record
from ranklake.lake.store.store import Lake
from ranklake.redaction.redact import redact_uri
from ranklake.retention.grants.use import used
from ranklake.retention.proposals.identities import doer, unproven
from ranklake.retention.shares.server.links import Links
from ranklake.retention.shares.server.tokens import sharing_keys
from ranklake.views.json_output import show_json
from ranklake.views.tell import tell

ACTION = "share.link"


def links_of(context: Context, lake: Lake) -> Links:
    """Return the links to artifacts of a lake, under the configured roles and places."""
    return Links(lake, lambda: context.roles(lake), context.config.artifacts.allow)


@click.command()
@click.argument("role", metavar="ROLE")
@click.argument("artifact", metavar="NAME")
@click.option("--run", default="", help="Run that made it; default: the last run that made one of this name.")
@handed_out("8h, 7d, a time")
@lake_option
@json_option
@with_context
def link(  # noqa: PLR0913 - one parameter an option
    context: Context,
    role: str,
    artifact: str,
    run: str,
    to: str,
    until: datetime,
    endpoint: str,
    by: str | None,
    *,
    as_json: bool,
) -> None:
    """Print addresses by which somebody reads an artifact that a role sees until a time, one a file.

    Its bytes are hashed first: they must be those that were recorded. Where the role sees artifacts.uri and the store
    signs addresses, they lead there; else 'ranklake sharing serve' gives the bytes.
    """
    lake = context.open_lake()
    if context.config.sql.grants:
        used(lake, role, to)
    keys = partial(sharing_keys, context.config.shares.key)
    row, made = links_of(context, lake).made(keys, role, artifact, run, to, until, endpoint)
    facts = {name: row[name] for name in ("run", "attempt", "name", "kind", "sha256")}
    told = {"role": role, "until": until.isoformat(), **facts, "files": len(made), "by": made[0].by}
    record(lake, doer(lake, by), ACTION, to, None, {**told, **unproven(lake)})
    if as_json:
        show_json({**facts, "until": until.isoformat(), "links": [one.plain() for one in made]})
        return
    tell(f"{row['name']} of run {row['run']}, {row['bytes'] or 0:,} bytes at {redact_uri(row['uri'])}", err=True)
    for one in made:
        tell(one.url)
