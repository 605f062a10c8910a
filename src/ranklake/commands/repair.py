"""``ranklake repair``: entries of a table's log, and data files, back from the newest backup."""

from dataclasses import asdict

import click

from ranklake.commands.context import with_context
from ranklake.commands.options import json_option, optional_lake
from ranklake.commands.restore import local_or_uri
from ranklake.context import Context
from ranklake.printable import counted
from ranklake.retention.backup.place import unlock
from ranklake.retention.backup.restore import repair as repair_table
from ranklake.retention.proposals.identities import account_by
from ranklake.views.json_output import show_json
from ranklake.views.tell import tell
from ranklake.views.words import size_text


@click.command()
@click.argument("table", metavar="TABLE")
@click.argument("uri", metavar="URI")
@click.option("--by", metavar="NAME", help="Who repairs it; default: the account that runs this.")
@optional_lake("Lake to repair; default: the configured one.")
@json_option
@with_context
def repair(context: Context, table: str, uri: str, by: str | None, *, as_json: bool) -> int:
    """Put back what TABLE has lost: entries of its log, data files, from the newest backup at URI.

    Nothing is written over. Stop what writes to the lake first. Refused where something was removed from the lake
    since that backup, and where the table has another log by now: restore the whole lake then. Exits 1 if files are
    missing still, or damaged: those are named, to be moved away first. Cut off, run it again: it goes on.
    """
    lake = context.open_lake()
    place = unlock(context.place(local_or_uri(uri)), lake.config.backup.key)
    result = repair_table(place, lake, table, by or account_by(lake.config.approvals))
    if as_json:
        show_json(asdict(result))
        return 1 if result.missing or result.damaged else 0
    tell(
        f"{table}: {counted(result.log_entries, 'log entry', 'log entries')} and "
        f"{counted(result.data_files, 'data file')} came back, {size_text(result.size_bytes)}; it is at version "
        f"{result.version}, with {counted(result.rows, 'row')}",
        *(f"{path}: no backup has it; rebuild its date with 'ranklake replay'" for path in result.missing),
        *(f"{path}: {why}; move it away, and run this again" for path, why in result.damaged.items()),
        "next: 'ranklake status' tells whether rows came after that backup; 'ranklake replay' brings those back",
    )
    return 1 if result.missing or result.damaged else 0
