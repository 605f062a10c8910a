"""``ranklake disown``."""

import getpass

import click

from ranklake.commands.context import with_context
from ranklake.commands.options import json_option, lake_option
from ranklake.context import Context
from ranklake.lake.ingest.disowned import Claim
from ranklake.retention.disown import disown as set_aside
from ranklake.views.json_output import show_json
from ranklake.views.tell import tell


@click.command()
@click.argument("name", metavar="SEGMENT|STREAM")
@lake_option
@click.option("--reason", metavar="TEXT", required=True, help="Why; kept in the audit trail.")
@click.option("--by", metavar="NAME", help="Who does it; default: the account that runs this.")
@json_option
@with_context
def disown(context: Context, name: str, reason: str, by: str | None, *, as_json: bool) -> None:
    """Set aside a segment or stream with impossible counts, so that 'ranklake status' balances again.

    Use the name that 'ranklake status' shows, or the file's name: steps/r1~a0~r00000~0123456789abcdef~000002 is a
    segment; without the last number it is the stream's segments of that table; without the table, of all tables. The
    rows go to the table rejects, and the segment's own counts are ignored. If the command is killed, the next one that
    changes the lake finishes it.
    """
    done = set_aside(context.open_lake(), Claim.parse(name), by or getpass.getuser(), reason)
    if as_json:
        show_json({"disowned": str(done.claim), "plan": done.plan, "rows": done.rows, "now": done.fresh})
    elif done.fresh:
        tell(f"plan {done.plan}: {done.claim} is set aside, {done.rows:,} rows moved to the table rejects")
    else:
        tell(f"{done.claim}: set aside already by plan {done.plan}; nothing changed")
