"""``ranklake retain archives``: rows that were archived, where they are, and whether they are what was written."""

import click

from ranklake.commands.context import with_context
from ranklake.commands.options import json_option, lake_option
from ranklake.context import Context
from ranklake.redaction.redact import redact_uri
from ranklake.retention.archive.register import Archive, examine
from ranklake.retention.archive.register import archives as known_archives
from ranklake.views.json_output import show_json
from ranklake.views.table import TextColumn, numbers, table_lines
from ranklake.views.tell import tell
from ranklake.views.words import counted, size_text

_COLUMNS = (
    *map(TextColumn, ("archive", "table", "partition")),
    *numbers(("rows", "bytes", "files")),
    *map(TextColumn, ("  class", "archived", "where")),
)


@click.group()
def archives() -> None:
    """List archived ranges, and verify that they are what was written."""


@archives.command("list")
@click.option("--table", metavar="TABLE", help="Of this table; default: of all.")
@lake_option
@json_option
@with_context
def list_(context: Context, table: str | None, *, as_json: bool) -> None:
    """List archived ranges: rows that left the lake for another place, and can be brought back."""
    found = known_archives(context.open_lake(), table)
    if as_json:
        show_json([one.plain() for one in found])
        return
    if not found:
        tell("nothing is archived")
        return
    tell(*table_lines(_COLUMNS, [_line(one) for one in found]))
    size = size_text(sum(one.bytes for one in found))
    tell(f"{counted(len(found), 'archive')}, {counted(sum(one.rows for one in found), 'row')}, {size}")


@archives.command()
@click.option("--table", metavar="TABLE", help="Of this table; default: of all.")
@lake_option
@json_option
@with_context
def verify(context: Context, table: str | None, *, as_json: bool) -> int:
    """Read every archived file again and compare its digest; exit 1 if one is damaged.

    Files in cold storage are not asked for: only their sizes are compared, and they are counted as not read.
    """
    lake = context.open_lake()
    found = list(examine(lake, known_archives(lake, table)))
    faults = [why for one in found for why in one.faults]
    if as_json:
        show_json({"is_sound": not faults, "archives": [one.plain() for one in found]})
        return 1 if faults else 0
    for why in faults:
        tell(why)
    unread = sum(one.unread for one in found)
    said = f"{counted(len(found), 'archive')}: {counted(sum(one.files for one in found), 'file')} sound"
    cold = f", {counted(unread, 'file')} in cold storage not read" if unread else ""
    tell(f"{said}{cold}, {len(faults)} damaged")
    return 1 if faults else 0


def _line(one: Archive) -> tuple[str, ...]:
    when = "" if one.archived is None else f"{one.archived:%Y-%m-%d}"
    counts = (f"{one.rows:,}", f"{one.bytes:,}", f"{one.files:,}")
    where = (f"  {one.storage_class or '-'}", when, redact_uri(one.uri))
    return (one.archive, one.table, str(one.partition_date), *counts, *where)
