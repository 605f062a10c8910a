"""``ranklake audit``."""

import json

import click

from ranklake.commands.options import configuration, json_option, lake_option
from ranklake.lake.store import Lake
from ranklake.retention.audit import trail
from ranklake.retention.audit import verify as first_broken


@click.group()
def audit() -> None:
    """Read and verify the audit trail."""


@audit.command()
@lake_option
@json_option
@click.pass_context
def verify(ctx: click.Context, lake: str, *, as_json: bool) -> int:
    """Prove that no row of the trail was altered, removed or put in between.

    Exits 1, naming the first broken row, if one was.
    """
    target = Lake.open(lake, configuration(ctx).storage)
    broken = first_broken(target)
    rows = len(trail(target))
    if as_json:
        click.echo(json.dumps({"rows": rows, "whole": broken is None, "first_broken": broken}))
    elif broken is not None:
        click.echo(f"the audit trail is broken: row {broken} is missing, repeated or altered", err=True)
    else:
        click.echo(f"the audit trail is whole: {rows:,} rows" if rows else "the audit trail is empty")
    return 0 if broken is None else 1


@audit.command("list")
@lake_option
@json_option
@click.pass_context
def list_(ctx: click.Context, lake: str, *, as_json: bool) -> None:
    """List who did what to governed data, and why."""
    rows = trail(Lake.open(lake, configuration(ctx).storage))
    if as_json:
        plain = [{**row, "ts": row["ts"].isoformat(), "date": row["date"].isoformat()} for row in rows]
        click.echo(json.dumps(plain))
        return
    if not rows:
        click.echo("the audit trail is empty")
    for row in rows:
        reason = f"  {' '.join(row['reason'].split())}" if row["reason"] else ""
        click.echo(
            f"{row['seq']:>5}  {row['ts']:%Y-%m-%d %H:%M:%S}  {row['actor']}  {row['action']}  {row['subject']}{reason}"
        )
